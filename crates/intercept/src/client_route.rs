//! The kernel's route to a client: whether it says that the client is on this node.

use std::io;
use std::net::IpAddr;

use libc::{IFF_NOARP, IFF_POINTOPOINT, RTM_GETLINK, RTM_GETROUTE, RTN_LOCAL, RTN_UNICAST};
use netlink_packet_core::{ErrorBuffer, NLMSG_ERROR, NetlinkBuffer};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};

use crate::InterceptError;
use crate::attributes::{AttributeList, find};

/// Lengths of `struct rtmsg` and `struct ifinfomsg`, which precede the attributes.
const ROUTE_HEADER_LEN: usize = 12;
const LINK_HEADER_LEN: usize = 16;
/// Length of `struct nlmsghdr`.
const NETLINK_HEADER_LEN: usize = 16;
/// RTM_F_FIB_MATCH: the answer is the entry of the table, with the length of its prefix.
const ENTRY_OF_TABLE: u32 = 0x2000;

/// `RTA_*`: kinds of attributes.
mod kind {
    pub(super) const DESTINATION: u16 = 1;
    pub(super) const INTERFACE: u16 = 4;
    pub(super) const GATEWAY: u16 = 5;
    pub(super) const GATEWAY_OF_OTHER_VERSION: u16 = 18;
}

/// True if the kernel's routes say that this address is on this node: it is the node's own, or it has a route of its
/// own to an interface with neighbours, without a gateway, as plugins make it for a pod (Calico, AWS VPC).
///
/// A network on an interface says nothing: other machines may be in it. Nor does a route of its own through a tunnel,
/// which leads to another node. The routes are those of the network namespace of this thread. May wait for other
/// programs' changes of interfaces.
pub fn is_routed_to_node(address: IpAddr) -> Result<bool, InterceptError> {
    let socket = RouteSocket::open()?;
    let Some(route) = socket.route(address)? else { return Ok(false) };
    Ok(match route.kind {
        RTN_LOCAL => true,
        RTN_UNICAST if route.is_of_one_address && !route.has_gateway => match route.interface {
            Some(interface) => socket.has_neighbours(interface)?,
            None => false,
        },
        _ => false,
    })
}

/// An entry of the table of routes.
struct RouteEntry {
    /// RTN_*.
    kind: u8,
    is_of_one_address: bool,
    has_gateway: bool,
    /// Index of the interface.
    interface: Option<u32>,
}

impl RouteEntry {
    fn read(payload: &[u8], address: IpAddr) -> Option<Self> {
        let (header, attributes) = payload.split_at_checked(ROUTE_HEADER_LEN)?;
        let gateway = [kind::GATEWAY, kind::GATEWAY_OF_OTHER_VERSION];
        let interface = find(attributes, kind::INTERFACE).and_then(|it| it.try_into().ok());
        Some(Self {
            kind: header[7],
            is_of_one_address: header[1] == address_bits(address),
            has_gateway: gateway.iter().any(|it| find(attributes, *it).is_some()),
            interface: interface.map(u32::from_ne_bytes),
        })
    }
}

/// A netlink socket to the kernel's routes.
struct RouteSocket(Socket);

impl RouteSocket {
    fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddress::new(0, 0))?;
        socket.set_non_blocking(true)?;
        Ok(Self(socket))
    }

    /// Returns the route to an address; `None` if there is none.
    fn route(&self, address: IpAddr) -> io::Result<Option<RouteEntry>> {
        let (family, bytes) = match address {
            IpAddr::V4(ip) => (libc::AF_INET, ip.octets().to_vec()),
            IpAddr::V6(ip) => (libc::AF_INET6, ip.octets().to_vec()),
        };
        let mut request = vec![family as u8, address_bits(address), 0, 0, 0, 0, 0, 0];
        request.extend(ENTRY_OF_TABLE.to_ne_bytes());
        request.extend(AttributeList::default().bytes(kind::DESTINATION, &bytes).as_bytes());
        match self.request(RTM_GETROUTE, &request) {
            Ok(answer) => Ok(RouteEntry::read(&answer, address)),
            Err(error) if is_unreachable(&error) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// True if an interface has neighbours with addresses of their own, which a tunnel has not.
    fn has_neighbours(&self, interface: u32) -> io::Result<bool> {
        let mut request = vec![0; LINK_HEADER_LEN];
        request[4..8].copy_from_slice(&interface.to_ne_bytes());
        let answer = self.request(RTM_GETLINK, &request)?;
        let flags = answer.get(8..12).and_then(|it| it.try_into().ok());
        let flags = u32::from_ne_bytes(flags.ok_or_else(no_answer)?) as i32;
        Ok(flags & (IFF_NOARP | IFF_POINTOPOINT) == 0)
    }

    /// Sends one message, and returns the payload of the answer, which the kernel gives at once.
    fn request(&self, operation: u16, payload: &[u8]) -> io::Result<Vec<u8>> {
        let length = u32::try_from(NETLINK_HEADER_LEN + payload.len()).map_err(io::Error::other)?;
        let mut message = length.to_ne_bytes().to_vec();
        message.extend(operation.to_ne_bytes());
        message.extend((libc::NLM_F_REQUEST as u16).to_ne_bytes());
        message.extend([0; 8]);
        message.extend(payload);
        self.0.send(&message, 0)?;
        let (datagram, _) = self.0.recv_from_full()?;
        let answer = NetlinkBuffer::new_checked(&datagram[..]).map_err(io::Error::other)?;
        if answer.message_type() != NLMSG_ERROR {
            return Ok(answer.payload().to_vec());
        }
        let code = ErrorBuffer::new_checked(answer.payload()).map_err(io::Error::other)?.code();
        let code = code.ok_or_else(no_answer)?;
        Err(io::Error::from_raw_os_error(code.get().wrapping_neg()))
    }
}

/// True for the kernel's answer that no route leads to an address, or that one forbids it.
fn is_unreachable(error: &io::Error) -> bool {
    let codes = [libc::ENETUNREACH, libc::EHOSTUNREACH, libc::EACCES, libc::EINVAL];
    error.raw_os_error().is_some_and(|it| codes.contains(&it))
}

const fn address_bits(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

fn no_answer() -> io::Error {
    io::Error::other("the kernel gave no answer about a route")
}
