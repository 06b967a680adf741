//! An address on an interface: put there for some seconds, told of, asked for. The kernel's side of it.

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

/// ARPHRD_ETHER: what has frames that ours fit.
const ETHERNET: u16 = 1;
const ETHERTYPE_ARP: u16 = 0x0806;
/// When a link is asked, as many times as frames may be lost; and how long it is listened to.
const PROBE_SCHEDULE: [Duration; 3] =
    [Duration::ZERO, Duration::from_millis(80), Duration::from_millis(160)];
const PROBE_TIMEOUT: Duration = Duration::from_millis(250);
/// More than any frame of a link has that we hear.
const MAX_FRAME_BYTES: usize = 2048;

/// An interface with Ethernet's frames.
#[derive(Clone, Debug)]
pub(super) struct EthernetInterface {
    pub(super) name: String,
    link_address: LinkAddr,
    mac: MacAddress,
    /// Those of all interfaces of this machine: some answer for one another.
    own_macs: Vec<MacAddress>,
}

impl EthernetInterface {
    /// The interface of that name, or the one on whose network an address is; an error is a sentence.
    pub(super) fn find(address: IpAddr, name: Option<&str>) -> Result<Self, String> {
        let cannot = |error| format!("cannot look at the interfaces: {error}");
        let interfaces: Vec<_> = getifaddrs().map_err(cannot)?.collect();
        let name = match name {
            Some(name) => name,
            None => interfaces
                .iter()
                .find(|it| is_on_network(it, address))
                .map(|it| &*it.interface_name)
                .ok_or_else(|| {
                    format!("no interface is on the network of {address}: name one by --interface")
                })?,
        };
        let links = || interfaces.iter().filter_map(|it| Some((it, *it.address?.as_link_addr()?)));
        let place = links().find(|(it, _)| it.interface_name == name).map(|(_, place)| place);
        let place = place.ok_or_else(|| format!("there is no interface {name}"))?;
        let mac = place.addr().filter(|_| place.hatype() == ETHERNET);
        let mac =
            mac.ok_or_else(|| format!("{name} is no Ethernet, and cannot carry an address"))?;
        let ours = links().filter_map(|(_, place)| place.addr()).collect();
        Ok(Self { name: name.to_owned(), link_address: place, mac, own_macs: ours })
    }

    /// Lets the kernel keep an address for so many seconds from now on, whatever becomes of us.
    pub(super) fn install_address(&self, address: IpAddr, seconds: u32) -> io::Result<()> {
        let mut message = self.address_message(address);
        let mut lifetime = CacheInfo::default();
        lifetime.ifa_valid = seconds;
        // Nobody is to take it for the source of what a node begins itself; of a /32 of IPv4 nobody does.
        lifetime.ifa_preferred = if address.is_ipv4() { seconds } else { 0 };
        message.attributes.push(AddressAttribute::CacheInfo(lifetime));
        if address.is_ipv6() {
            // The link has been asked already; and who finds a duplicate would never use it again.
            message.attributes.push(AddressAttribute::Flags(AddressFlags::Nodad));
        }
        netlink_request(RouteNetlinkMessage::NewAddress(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Takes an address away, if it is there.
    pub(super) fn remove_address(&self, address: IpAddr) -> io::Result<()> {
        match netlink_request(RouteNetlinkMessage::DelAddress(self.address_message(address)), 0) {
            Err(error) if error.kind() == io::ErrorKind::AddrNotAvailable => Ok(()),
            result => result,
        }
    }

    /// Tells the link that an address is here now.
    pub(super) fn announce(&self, address: IpAddr) -> io::Result<()> {
        let socket = self.frame_socket(0)?;
        for frame in frame::announcement(address, self.mac) {
            socket.send(&frame)?;
        }
        Ok(())
    }

    /// Asks the link whether anybody else has an address.
    pub(super) async fn probe(&self, address: IpAddr) -> io::Result<bool> {
        let listening = match address {
            IpAddr::V4(_) => self.frame_socket(ETHERTYPE_ARP)?,
            IpAddr::V6(_) => self.icmpv6_socket()?,
        };
        // It is none of UDP, but receives as one does.
        let listening = UdpSocket::from_std(listening.into())?;
        let asking = self.frame_socket(0)?;
        let begun = Instant::now();
        let ask = async {
            for after in PROBE_SCHEDULE {
                sleep_until(begun + after).await;
                asking.send(&frame::probe(address, self.mac))?;
            }
            std::future::pending().await
        };
        let answer = async {
            tokio::select! {
                failed = ask => failed,
                answer = self.wait_for_claim(&listening, address) => answer,
            }
        };
        match timeout_at(begun + PROBE_TIMEOUT, answer).await {
            Ok(answer) => answer.map(|()| true),
            Err(_silence) => Ok(false),
        }
    }

    /// Returns when somebody else has said that they have the address.
    async fn wait_for_claim(&self, listening: &UdpSocket, address: IpAddr) -> io::Result<()> {
        let mut buffer = [0; MAX_FRAME_BYTES];
        loop {
            let read = listening.recv(&mut buffer).await?;
            let heard = &buffer[..read];
            let is_answer = match address {
                IpAddr::V4(ip) => {
                    frame::claimant(heard, ip).is_some_and(|it| !self.own_macs.contains(&it))
                }
                IpAddr::V6(ip) => frame::advertises(heard, ip),
            };
            if is_answer {
                return Ok(());
            }
        }
    }

    fn address_message(&self, address: IpAddr) -> AddressMessage {
        let mut message = AddressMessage::default();
        (message.header.family, message.header.prefix_len) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.header.scope = AddressScope::Universe;
        message.header.index =
            u32::try_from(self.link_address.ifindex()).expect("a number of an interface");
        message.attributes =
            vec![AddressAttribute::Local(address), AddressAttribute::Address(address)];
        message
    }

    /// A socket for whole frames; it hears those of one kind, or none.
    fn frame_socket(&self, kind: u16) -> io::Result<Socket> {
        let kind = Protocol::from(i32::from(kind.to_be()));
        let socket = Socket::new(Domain::PACKET, Type::RAW, Some(kind))?;
        socket.set_nonblocking(true)?;
        bind(socket.as_raw_fd(), &self.link_address)?;
        Ok(socket)
    }

    /// A socket that hears messages of ICMPv6.
    fn icmpv6_socket(&self) -> io::Result<Socket> {
        let socket = Socket::new(Domain::IPV6, Type::RAW, Some(Protocol::ICMPV6))?;
        socket.set_nonblocking(true)?;
        socket.bind_device(Some(self.name.as_bytes()))?;
        Ok(socket)
    }
}

/// Whether an interface is on the network that an address is of. What is a network of its own is on none.
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

/// One request of the kernel, and its answer, which is there at once.
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
