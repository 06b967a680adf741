//! An address on an interface of the kernel: installed for some seconds, announced, probed.

use std::io;
use std::net::IpAddr;
use std::os::fd::AsRawFd;
use std::time::Duration;

use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_REPLACE, NLM_F_REQUEST, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{
    AddressAttribute, AddressFlags, AddressMessage, AddressScope, CacheInfo,
};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::SocketAddr as NetlinkAddress;
use netlink_sys::protocols::NETLINK_ROUTE;
use nix::ifaddrs::{InterfaceAddress, getifaddrs};
use nix::net::if_::InterfaceFlags;
use nix::sys::socket::{LinkAddr, bind};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::UdpSocket;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::frame::{self, MacAddress};

/// ARPHRD_ETHER: interfaces with Ethernet frames.
const ETHERNET: u16 = 1;
const ETHERTYPE_ARP: u16 = 0x0806;
/// Times of the probes, several because frames may be lost, and the time to wait for answers.
const PROBE_SCHEDULE: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(80), Duration::from_millis(160)];
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);
/// Larger than any frame that we receive.
const MAX_FRAME_BYTES: usize = 2048;

/// An Ethernet interface.
#[derive(Clone, Debug)]
pub(super) struct EthernetInterface {
    pub(super) name: String,
    link_address: LinkAddr,
    mac: MacAddress,
    /// MAC addresses of all interfaces of this machine: some answer for one another.
    own_macs: Vec<MacAddress>,
}

impl EthernetInterface {
    /// Returns the interface with this name, or the one on the network of the address; the error is a sentence.
    pub(super) fn find(address: IpAddr, name: Option<&str>) -> Result<Self, String> {
        let cannot = |error| format!("cannot list the interfaces: {error}");
        let interfaces: Vec<_> = getifaddrs().map_err(cannot)?.collect();
        let name = match name {
            Some(name) => name,
            None => interfaces
                .iter()
                .find(|it| is_on_network(it, address))
                .map(|it| &*it.interface_name)
                .ok_or_else(|| {
                    format!(
                        "no interface is on the network of {address}: name one with --interface"
                    )
                })?,
        };
        let link_addresses =
            || interfaces.iter().filter_map(|it| Some((it, *it.address?.as_link_addr()?)));
        let link_address =
            link_addresses().find(|(it, _)| it.interface_name == name).map(|(_, it)| it);
        let link_address = link_address.ok_or_else(|| format!("there is no interface {name}"))?;
        let mac = link_address.addr().filter(|_| link_address.hatype() == ETHERNET);
        let mac = mac.ok_or_else(|| format!("{name} is not an Ethernet interface"))?;
        let own_macs = link_addresses().filter_map(|(_, it)| it.addr()).collect();
        Ok(Self { name: name.to_owned(), link_address, mac, own_macs })
    }

    /// Installs the address in the kernel for this number of seconds, independent of this process.
    pub(super) fn install_address(&self, address: IpAddr, seconds: u32) -> io::Result<()> {
        install_address(self.place(), address, seconds)
    }

    /// Removes the address, if it is installed.
    pub(super) fn remove_address(&self, address: IpAddr) -> io::Result<()> {
        remove_address(self.place(), address)
    }

    /// Announces on the link that the address is here now.
    pub(super) fn announce(&self, address: IpAddr) -> io::Result<()> {
        let socket = self.frame_socket(0)?;
        for frame in frame::announcement(address, self.mac) {
            socket.send(&frame)?;
        }
        Ok(())
    }

    /// Probes the link for another machine that has the address.
    pub(super) async fn probe(&self, address: IpAddr) -> io::Result<bool> {
        let listening = match address {
            IpAddr::V4(_) => self.frame_socket(ETHERTYPE_ARP)?,
            IpAddr::V6(_) => self.icmpv6_socket()?,
        };
        // The socket is not UDP, but `UdpSocket` can receive from it.
        let listening = UdpSocket::from_std(listening.into())?;
        let probing = self.frame_socket(0)?;
        let begun = Instant::now();
        let send_probes = async {
            for after in PROBE_SCHEDULE {
                sleep_until(begun + after).await;
                probing.send(&frame::probe(address, self.mac))?;
            }
            std::future::pending().await
        };
        let answer = async {
            tokio::select! {
                failed = send_probes => failed,
                answer = self.wait_for_claim(&listening, address) => answer,
            }
        };
        match timeout_at(begun + PROBE_TIMEOUT, answer).await {
            Ok(answer) => answer.map(|()| true),
            Err(_silence) => Ok(false),
        }
    }

    /// Returns when another machine has claimed the address.
    async fn wait_for_claim(&self, listening: &UdpSocket, address: IpAddr) -> io::Result<()> {
        let mut buffer = [0; MAX_FRAME_BYTES];
        loop {
            let read = listening.recv(&mut buffer).await?;
            let received = &buffer[..read];
            let is_answer = match address {
                IpAddr::V4(ip) => {
                    frame::claimant(received, ip).is_some_and(|it| !self.own_macs.contains(&it))
                }
                IpAddr::V6(ip) => frame::advertises(received, ip),
            };
            if is_answer {
                return Ok(());
            }
        }
    }

    fn place(&self) -> AddressPlace {
        let interface =
            u32::try_from(self.link_address.ifindex()).expect("interface indexes fit 32 bits");
        AddressPlace { interface, scope: AddressScope::Universe }
    }

    /// Opens a socket for whole frames, which receives those of one kind; 0: none.
    fn frame_socket(&self, kind: u16) -> io::Result<Socket> {
        let kind = Protocol::from(i32::from(kind.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(kind))?;
        socket.set_nonblocking(true)?;
        bind(socket.as_raw_fd(), &self.link_address)?;
        Ok(socket)
    }

    /// Opens a socket that receives ICMPv6 messages.
    fn icmpv6_socket(&self) -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
        socket.set_nonblocking(true)?;
        socket.bind_device(Some(self.name.as_bytes()))?;
        Ok(socket)
    }
}

/// An interface, and the scope of addresses that are installed on it.
#[derive(Clone, Copy, Debug)]
pub(super) struct AddressPlace {
    pub(super) interface: u32,
    pub(super) scope: AddressScope,
}

/// Installs an address in the kernel for this number of seconds, independent of this process.
pub(super) fn install_address(
    place: AddressPlace,
    address: IpAddr,
    seconds: u32,
) -> io::Result<()> {
    let mut message = address_message(place, address);
    let mut lifetime = CacheInfo::default();
    lifetime.ifa_valid = seconds;
    // The address must not become the source of connections that the node opens; with a /32 of IPv4 this does not
    // happen.
    lifetime.ifa_preferred = if address.is_ipv4() { seconds } else { 0 };
    message.attributes.push(AddressAttribute::CacheInfo(lifetime));
    if address.is_ipv6() {
        // The link has been probed already; and with duplicate address detection, a duplicate
        // would disable the address for good.
        message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
    }
    netlink_request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
}

/// Removes an address, if it is installed.
pub(super) fn remove_address(place: AddressPlace, address: IpAddr) -> io::Result<()> {
    match netlink_request(RouteNetlinkMessage::DelAddress(address_message(place, address)), 0) {
        Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(()),
        result => result,
    }
}

fn address_message(place: AddressPlace, address: IpAddr) -> AddressMessage {
    let mut message = AddressMessage::default();
    (message.header.family, message.header.prefix_len) = match address {
        IpAddr::V4(_) => (AddressFamily::Inet, 32),
        IpAddr::V6(_) => (AddressFamily::Inet6, 128),
    };
    message.header.scope = place.scope;
    message.header.index = place.interface;
    message.attributes = vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
    message
}

/// True if the address is in the network of an interface. An interface address with a full-length prefix has no
/// network.
fn is_on_network(interface: &InterfaceAddress, address: IpAddr) -> bool {
    let (Some(own), Some(mask)) = (interface.address, interface.netmask) else { return false };
    if !interface.flags.contains(InterfaceFlags::IFF_UP) {
        return false;
    }
    match address {
        IpAddr::V4(ip) => {
            own.as_sockaddr_in().zip(mask.as_sockaddr_in()).is_some_and(|(own, mask)| {
                is_within(ip.to_bits(), own.ip().to_bits(), mask.ip().to_bits(), u32::MAX)
            })
        }
        IpAddr::V6(ip) => {
            own.as_sockaddr_in6().zip(mask.as_sockaddr_in6()).is_some_and(|(own, mask)| {
                is_within(ip.to_bits(), own.ip().to_bits(), mask.ip().to_bits(), u128::MAX)
            })
        }
    }
}

fn is_within<B>(address: B, own: B, mask: B, alone: B) -> bool
where
    B: Copy + PartialEq + std::ops::BitAnd<Output = B>,
{
    mask != alone && address & mask == own & mask
}

/// Sends one request to the kernel and reads its answer, which is available at once.
fn netlink_request(message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
    let mut request = NetlinkMessage::from(message);
    request.header.flags = NLM_F_REQUEST | NLM_F_ACK | flags;
    request.finalize();
    let mut bytes = vec![0; request.buffer_len()];
    request.serialize(&mut bytes);
    let mut socket = netlink_sys::Socket::new(NETLINK_ROUTE)?;
    socket.bind_auto()?;
    socket.connect(&NetlinkAddress::new(0, 0))?;
    socket.send(&bytes, 0)?;
    let (answer, _) = socket.recv_from_full()?;
    let answer = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&answer);
    match answer.map_err(io::Error::other)?.payload {
        NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
