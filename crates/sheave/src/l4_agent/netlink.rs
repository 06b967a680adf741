//! Links, addresses, routes and neighbours of this node, by netlink.
//!
//! The kernel answers while it takes a message. The sockets belong to the network namespace of the thread that opens
//! them.

use std::fs::File;
use std::io::{self, BufRead, BufReader, Read};
use std::net::{IpAddr, UdpSocket as StdUdpSocket};
use std::os::fd::AsFd;

use l4::MacAddress;
use netlink_packet_core::{
    NLM_F_ACK, NLM_F_CREATE, NLM_F_DUMP, NLM_F_EXCL, NLM_F_REPLACE, NLM_F_REQUEST, NLMSG_DONE,
    NLMSG_ERROR, NetlinkBuffer, NetlinkMessage, NetlinkPayload,
};
use netlink_packet_route::address::{AddressAttribute, AddressMessage};
use netlink_packet_route::link::{
    InfoData, InfoKind, InfoVxlan, LinkAttribute, LinkFlags, LinkInfo, LinkLayerType, LinkMessage,
};
use netlink_packet_route::neighbour::{
    NeighbourAddress, NeighbourAttribute, NeighbourFlags, NeighbourMessage, NeighbourState,
};
use netlink_packet_route::route::{RouteAttribute, RouteMessage, RouteType};
use netlink_packet_route::{AddressFamily, RouteNetlinkMessage};
use netlink_sys::protocols::NETLINK_ROUTE;
use netlink_sys::{Socket, SocketAddr as NetlinkAddress};
use tokio::net::UdpSocket;

use super::network_view::{
    NetworkView, NodeInterfaceAddress, NodeLink, NodeLinkKind, RouteToAddress,
};

/// Groups of changes that are watched (linux/rtnetlink.h): links, neighbours, addresses and routes.
const GROUPS: [u32; 6] = [1, 3, 5, 7, 9, 11];
/// Part of the kernel's list of routes that is read: the default routes come first.
const MAX_ROUTE_BYTES: u64 = 1 << 20;
/// RTF_REJECT (linux/route.h): a route that refuses.
const REJECT_FLAG: u32 = 0x0200;

/// A socket to the kernel's links and routes.
pub(super) struct RouteSocket {
    socket: Socket,
    sequence: u32,
}

impl RouteSocket {
    pub(super) fn open() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.connect(&NetlinkAddress::new(0, 0))?;
        Ok(Self { socket, sequence: 0 })
    }

    /// Reads links, addresses and neighbours.
    pub(super) fn view(&mut self) -> io::Result<NetworkView> {
        let mut view = NetworkView::default();
        self.ask(RouteNetlinkMessage::GetLink(LinkMessage::default()), NLM_F_DUMP, |it| {
            if let RouteNetlinkMessage::NewLink(message) = it {
                let (index, link) = link(&message);
                view.links.insert(index, link);
            }
        })?;
        self.ask(RouteNetlinkMessage::GetAddress(AddressMessage::default()), NLM_F_DUMP, |it| {
            if let RouteNetlinkMessage::NewAddress(message) = it {
                view.addresses.extend(interface_address(&message));
            }
        })?;
        self.ask(neighbours(AddressFamily::Unspec), NLM_F_DUMP, |it| {
            if let RouteNetlinkMessage::NewNeighbour(message) = it {
                view.neighbours.extend(neighbour(&message));
            }
        })?;
        let of_bridges = self.ask(neighbours(AddressFamily::Bridge), NLM_F_DUMP, |it| {
            if let RouteNetlinkMessage::NewNeighbour(message) = it {
                view.ports.extend(bridge_port(&message));
            }
        });
        // A kernel without bridges has no such list.
        of_bridges.ok();
        view.default_interfaces = default_interfaces();
        Ok(view)
    }

    /// Returns the route to an address; `None` if there is none.
    pub(super) fn route(&mut self, address: IpAddr) -> Option<RouteToAddress> {
        let mut message = RouteMessage::default();
        (message.header.address_family, message.header.destination_prefix_length) = match address {
            IpAddr::V4(_) => (AddressFamily::Inet, 32),
            IpAddr::V6(_) => (AddressFamily::Inet6, 128),
        };
        message.attributes.push(RouteAttribute::Destination(address.into()));
        let mut route = None;
        // An error is the answer that no route leads there.
        self.ask(RouteNetlinkMessage::GetRoute(message), 0, |it| {
            if let RouteNetlinkMessage::NewRoute(message) = it {
                route = route_to_address(&message);
            }
        })
        .ok();
        route
    }

    /// Makes the kernel ask the link for the MAC address of a neighbour.
    pub(super) fn probe(&mut self, ifindex: u32, address: IpAddr) -> io::Result<()> {
        let mut message = NeighbourMessage::default();
        message.header.family = family(address);
        message.header.ifindex = ifindex;
        message.header.state = NeighbourState::None;
        message.header.flags = NeighbourFlags::Use;
        message.header.kind = RouteType::Unicast;
        message.attributes.push(NeighbourAttribute::Destination(address.into()));
        self.execute(RouteNetlinkMessage::NewNeighbour(message), NLM_F_CREATE | NLM_F_REPLACE)
    }

    /// Creates a VXLAN device whose packets say where they go, and activates it.
    pub(super) fn add_tunnel(&mut self, tunnel: &TunnelDevice<'_>) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes = vec![
            LinkAttribute::IfName(tunnel.name.to_owned()),
            LinkAttribute::Address(tunnel.mac.to_vec()),
            LinkAttribute::Mtu(tunnel.mtu),
            LinkAttribute::LinkInfo(vec![
                LinkInfo::Kind(InfoKind::Vxlan),
                LinkInfo::Data(InfoData::Vxlan(vec![
                    InfoVxlan::CollectMetadata(true),
                    InfoVxlan::Learning(false),
                    InfoVxlan::Port(tunnel.port),
                ])),
            ]),
        ];
        self.execute(RouteNetlinkMessage::NewLink(message), NLM_F_CREATE | NLM_F_EXCL)
    }

    /// Gives a link an MTU and an address, and activates it.
    pub(super) fn adjust_tunnel(
        &mut self,
        ifindex: u32,
        tunnel: &TunnelDevice<'_>,
    ) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        message.header.flags = LinkFlags::Up;
        message.header.change_mask = LinkFlags::Up;
        message.attributes =
            vec![LinkAttribute::Address(tunnel.mac.to_vec()), LinkAttribute::Mtu(tunnel.mtu)];
        self.execute(RouteNetlinkMessage::SetLink(message), 0)
    }

    /// Removes a link.
    pub(super) fn remove_link(&mut self, ifindex: u32) -> io::Result<()> {
        let mut message = LinkMessage::default();
        message.header.index = ifindex;
        self.execute(RouteNetlinkMessage::DelLink(message), 0)
    }

    fn execute(&mut self, message: RouteNetlinkMessage, flags: u16) -> io::Result<()> {
        self.ask(message, NLM_F_ACK | flags, |_| {})
    }

    /// Sends one message, and calls `each` with each object of the answer. One that cannot be read is skipped.
    fn ask(
        &mut self,
        message: RouteNetlinkMessage,
        flags: u16,
        mut each: impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<()> {
        let mut request = NetlinkMessage::from(message);
        self.sequence = self.sequence.wrapping_add(1);
        request.header.sequence_number = self.sequence;
        request.header.flags = NLM_F_REQUEST | flags;
        request.finalize();
        let mut bytes = vec![0; request.buffer_len()];
        request.serialize(&mut bytes);
        self.socket.send(&bytes, 0)?;
        let is_list = flags & NLM_F_DUMP == NLM_F_DUMP;
        let ends_with_answer = !is_list && flags & NLM_F_ACK == 0;
        loop {
            let (datagram, _) = self.socket.recv_from_full()?;
            if self.read(&datagram, ends_with_answer, &mut each)? {
                return Ok(());
            }
        }
    }

    /// Reads the messages of a datagram. Returns true at the end of the answer.
    fn read(
        &self,
        mut rest: &[u8],
        ends_with_answer: bool,
        each: &mut impl FnMut(RouteNetlinkMessage),
    ) -> io::Result<bool> {
        while !rest.is_empty() {
            let frame = NetlinkBuffer::new_checked(rest).map_err(io::Error::other)?;
            let length = (frame.length() as usize).next_multiple_of(4).min(rest.len());
            let is_answer = frame.sequence_number() == self.sequence;
            let kind = frame.message_type();
            if is_answer && kind == NLMSG_DONE {
                return Ok(true);
            }
            let message = NetlinkMessage::<RouteNetlinkMessage>::deserialize(&rest[..length]);
            if is_answer && kind == NLMSG_ERROR {
                return match message.map_err(io::Error::other)?.payload {
                    NetlinkPayload::Error(error) if error.code.is_some() => Err(error.to_io()),
                    _ => Ok(true),
                };
            }
            if let (true, Ok(message)) = (is_answer, message)
                && let NetlinkPayload::InnerMessage(object) = message.payload
            {
                each(object);
            }
            if is_answer && ends_with_answer {
                return Ok(true);
            }
            rest = &rest[length..];
        }
        Ok(false)
    }
}

/// The VXLAN device of the data path.
pub(super) struct TunnelDevice<'a> {
    pub(super) name: &'a str,
    pub(super) mac: MacAddress,
    pub(super) mtu: u32,
    pub(super) port: u16,
}

/// Changes of links, addresses, routes and neighbours.
pub(super) struct NetworkChanges(UdpSocket);

impl NetworkChanges {
    /// Starts to watch. Needs a running tokio runtime.
    pub(super) fn watch() -> io::Result<Self> {
        let mut socket = Socket::new(NETLINK_ROUTE)?;
        socket.bind_auto()?;
        socket.set_non_blocking(true)?;
        for group in GROUPS {
            socket.add_membership(group)?;
        }
        // The socket is not UDP, but `UdpSocket` can receive from it.
        let socket = StdUdpSocket::from(socket.as_fd().try_clone_to_owned()?);
        Ok(Self(UdpSocket::from_std(socket)?))
    }

    /// Waits until something has changed. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        let mut message = [0; 64];
        // More changes than the socket's buffer holds are an error, and a change too.
        drop(self.0.recv(&mut message).await);
        while self.0.try_recv(&mut message).is_ok() {}
    }
}

fn family(address: IpAddr) -> AddressFamily {
    if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 }
}

fn neighbours(family: AddressFamily) -> RouteNetlinkMessage {
    let mut message = NeighbourMessage::default();
    message.header.family = family;
    RouteNetlinkMessage::GetNeighbour(message)
}

fn mac(bytes: &[u8]) -> Option<MacAddress> {
    bytes.try_into().ok()
}

fn link(message: &LinkMessage) -> (u32, NodeLink) {
    let mut link = NodeLink {
        is_up: message.header.flags.contains(LinkFlags::Up),
        is_ethernet: message.header.link_layer_type == LinkLayerType::Ether,
        ..NodeLink::default()
    };
    for attribute in &message.attributes {
        match attribute {
            LinkAttribute::IfName(name) => link.name.clone_from(name),
            LinkAttribute::Address(bytes) => link.mac = mac(bytes),
            LinkAttribute::Mtu(mtu) => link.mtu = *mtu,
            LinkAttribute::Controller(index) => link.controller = Some(*index),
            LinkAttribute::LinkInfo(infos) => {
                for info in infos {
                    match info {
                        LinkInfo::Kind(InfoKind::Veth) => link.kind = NodeLinkKind::Veth,
                        LinkInfo::Kind(InfoKind::Bridge) => link.kind = NodeLinkKind::Bridge,
                        LinkInfo::Kind(InfoKind::Vxlan) => link.kind = NodeLinkKind::Vxlan,
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    (message.header.index, link)
}

fn interface_address(message: &AddressMessage) -> Option<NodeInterfaceAddress> {
    let find = |is_local: bool| {
        message.attributes.iter().find_map(|it| match it {
            AddressAttribute::Local(address) if is_local => Some(*address),
            AddressAttribute::Address(address) if !is_local => Some(*address),
            _ => None,
        })
    };
    // Of a point-to-point interface, `Address` is the other side's.
    let address = find(true).or_else(|| find(false))?;
    let (ifindex, prefix_length) = (message.header.index, message.header.prefix_len);
    Some(NodeInterfaceAddress { address, prefix_length, ifindex })
}

fn neighbour(message: &NeighbourMessage) -> Option<((u32, IpAddr), MacAddress)> {
    let is_usable = !matches!(
        message.header.state,
        NeighbourState::Incomplete | NeighbourState::Failed | NeighbourState::None
    );
    let address = message.attributes.iter().find_map(|it| match it {
        NeighbourAttribute::Destination(NeighbourAddress::Inet(ip)) => Some(IpAddr::V4(*ip)),
        NeighbourAttribute::Destination(NeighbourAddress::Inet6(ip)) => Some(IpAddr::V6(*ip)),
        _ => None,
    })?;
    let mac = link_layer_address(message)?;
    is_usable.then_some(((message.header.ifindex, address), mac))
}

/// Returns the port of a bridge behind which a MAC address is.
fn bridge_port(message: &NeighbourMessage) -> Option<((u32, MacAddress), u32)> {
    let bridge = message.attributes.iter().find_map(|it| match it {
        NeighbourAttribute::Controller(index) => Some(*index),
        _ => None,
    })?;
    Some(((bridge, link_layer_address(message)?), message.header.ifindex))
}

fn link_layer_address(message: &NeighbourMessage) -> Option<MacAddress> {
    message.attributes.iter().find_map(|it| match it {
        NeighbourAttribute::LinkLayerAddress(bytes) => mac(bytes),
        _ => None,
    })
}

fn route_to_address(message: &RouteMessage) -> Option<RouteToAddress> {
    if !matches!(message.header.kind, RouteType::Unicast | RouteType::Local) {
        return None;
    }
    let ifindex = message.attributes.iter().find_map(|it| match it {
        RouteAttribute::Oif(index) => Some(*index),
        _ => None,
    })?;
    let has_gateway = message
        .attributes
        .iter()
        .any(|it| matches!(it, RouteAttribute::Gateway(_) | RouteAttribute::Via(_)));
    Some(RouteToAddress { ifindex, has_gateway })
}

/// Returns the names of the interfaces that have a default route.
fn default_interfaces() -> Vec<String> {
    let mut names = Vec::new();
    for line in lines("/proc/net/route") {
        let fields: Vec<_> = line.split_whitespace().collect();
        if let [name, "00000000", _, _, _, _, _, "00000000", ..] = fields[..] {
            names.push(name.to_owned());
        }
    }
    for line in lines("/proc/net/ipv6_route") {
        let fields: Vec<_> = line.split_whitespace().collect();
        let [target, "00", _, _, _, _, _, _, flags, name] = fields[..] else { continue };
        let is_refused = u32::from_str_radix(flags, 16).is_ok_and(|it| it & REJECT_FLAG != 0);
        if target.bytes().all(|it| it == b'0') && !is_refused && name != "lo" {
            names.push(name.to_owned());
        }
    }
    names.sort();
    names.dedup();
    names
}

fn lines(path: &str) -> impl Iterator<Item = String> {
    let file = File::open(path).ok().map(|file| BufReader::new(file.take(MAX_ROUTE_BYTES)));
    file.into_iter().flat_map(|file| file.lines().map_while(Result::ok))
}
