//! Types of the maps, byte by byte as in `bpf/maps.h`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use aya::Pod;
use ipnet::IpNet;

/// Number of slots of a Maglev table: a prime.
pub const TABLE_SIZE: usize = 16_381;
/// Most services; also the most virtual addresses. The maps hold twice as many, for all may be replaced at once.
pub const MAX_SERVICES: u32 = 16_384;
/// Most endpoints; the map holds twice as many.
pub const MAX_ENDPOINTS: u32 = 32_768;
/// Most server IDs of QUIC; the map holds twice as many.
pub const MAX_SERVER_IDS: u32 = 32_768;
/// Most ranges of clients of all services together; the map holds twice as many.
pub const MAX_SOURCE_RANGES: u32 = 65_536;
/// Most other nodes; the map holds twice as many.
pub const MAX_PEERS: u32 = 4096;
/// Numbers of endpoints end before this; 0 is none.
pub(crate) const ENDPOINT_NUMBERS: u32 = 2 * MAX_ENDPOINTS;

/// [`ServiceValue::table`] of a service with at most one endpoint.
pub const NO_TABLE: u32 = u32::MAX;
/// The choice depends on the client's address alone.
pub(crate) const SERVICE_CLIENT_AFFINITY: u8 = 1;
/// Connection IDs of QUIC have a server ID.
pub(crate) const SERVICE_QUIC: u8 = 2;
/// Only clients in the service's ranges are served.
pub(crate) const SERVICE_SOURCE_RANGES: u8 = 4;
/// New TCP connections go elsewhere.
pub(crate) const ENDPOINT_DRAINING: u8 = 1;
/// A local endpoint in the namespace of the node.
pub(crate) const ENDPOINT_HOST_NETWORK: u8 = 2;

/// Address of an Ethernet interface.
pub type MacAddress = [u8; 6];

/// An IPv6 address, or an IPv4 address as an IPv4-mapped one.
#[repr(C, align(4))]
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct MapAddress(pub [u8; 16]);

impl From<IpAddr> for MapAddress {
    fn from(ip: IpAddr) -> Self {
        match ip {
            IpAddr::V4(ip) => Self(ip.to_ipv6_mapped().octets()),
            IpAddr::V6(ip) => Self(ip.octets()),
        }
    }
}

impl From<MapAddress> for IpAddr {
    fn from(address: MapAddress) -> Self {
        Ipv6Addr::from(address.0).to_canonical()
    }
}

/// Number of a protocol in an IP header.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
#[repr(u8)]
pub enum TransportProtocol {
    /// TCP.
    Tcp = 6,
    /// UDP.
    Udp = 17,
}

/// Port in network order.
#[repr(transparent)]
#[derive(Clone, Copy, Debug, Default, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct NetworkPort(pub [u8; 2]);

impl From<u16> for NetworkPort {
    fn from(port: u16) -> Self {
        Self(port.to_be_bytes())
    }
}

impl From<NetworkPort> for u16 {
    fn from(port: NetworkPort) -> Self {
        Self::from_be_bytes(port.0)
    }
}

/// One direction of a connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, PartialEq)]
pub struct FlowKey {
    /// Source address.
    pub source: MapAddress,
    /// Target address.
    pub target: MapAddress,
    /// Source port.
    pub source_port: NetworkPort,
    /// Target port.
    pub target_port: NetworkPort,
    /// Number of the protocol.
    pub protocol: u8,
    unused: [u8; 3],
}

impl FlowKey {
    /// Returns the key of packets from a source to a target.
    pub fn new(source: SocketAddr, target: SocketAddr, protocol: TransportProtocol) -> Self {
        Self {
            source: source.ip().into(),
            target: target.ip().into(),
            source_port: source.port().into(),
            target_port: target.port().into(),
            protocol: protocol as u8,
            unused: [0; 3],
        }
    }
}

/// Entry of a virtual address.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct VipValue {
    /// Address that ARP and neighbor discovery get.
    pub mac: MacAddress,
    /// 1 if this node answers them.
    pub is_announced: u8,
    unused: u8,
}

impl VipValue {
    /// Returns the entry of an address that is announced under `mac`, or not announced.
    pub fn new(mac: Option<MacAddress>) -> Self {
        Self { mac: mac.unwrap_or_default(), is_announced: mac.is_some().into(), unused: 0 }
    }
}

/// Virtual address, port and protocol of a service.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServiceKey {
    /// Virtual address.
    pub vip: MapAddress,
    /// Port.
    pub port: NetworkPort,
    /// Number of the protocol.
    pub protocol: u8,
    unused: u8,
}

impl ServiceKey {
    /// Returns the key of a service.
    pub fn new(address: SocketAddr, protocol: TransportProtocol) -> Self {
        let port = address.port().into();
        Self { vip: address.ip().into(), port, protocol: protocol as u8, unused: 0 }
    }
}

/// Entry of a service.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct ServiceValue {
    /// Number of the service, by which packets are counted.
    pub id: u32,
    /// Index of the Maglev table, or [`NO_TABLE`].
    pub table: u32,
    /// The only endpoint if there is no table; 0 is none.
    pub endpoint: u32,
    /// `SERVICE_…`.
    pub flags: u8,
    /// Bytes of the server ID in a connection ID of QUIC.
    pub server_id_length: u8,
    pub(crate) unused: [u8; 2],
}

/// A Maglev table: the endpoint of each slot.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct MaglevSlots(pub(crate) [u16; TABLE_SIZE]);

/// Way in which packets reach an endpoint.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
#[repr(u8)]
pub enum DeliveryMode {
    /// There is no endpoint.
    #[default]
    None = 0,
    /// The pod is on this node.
    Local = 1,
    /// Direct server return: the frame goes to the pod's node on the same segment.
    Layer2 = 2,
    /// Direct server return: the frame goes to the pod's node in VXLAN.
    Vxlan = 3,
    /// Replies return through this node.
    FullNat = 4,
}

/// Entry of an endpoint.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct EndpointValue {
    /// Address of the pod.
    pub address: MapAddress,
    /// Address of its node, for VXLAN.
    pub node: MapAddress,
    /// Number that differs from that of an earlier endpoint with the same index.
    pub generation: u32,
    /// Interface that the packet leaves by: the host side of the pod's veth, or one towards the node.
    pub ifindex: u32,
    /// Port of the pod.
    pub port: NetworkPort,
    /// A [`DeliveryMode`].
    pub mode: u8,
    /// `ENDPOINT_…`.
    pub flags: u8,
    /// Target of the frame.
    pub mac: MacAddress,
    /// Source of the frame.
    pub source_mac: MacAddress,
    /// Largest IP packet that fits; 0 is no limit.
    pub mtu: u16,
    pub(crate) unused: [u8; 2],
}

/// Entry of the connection table.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ConnectionValue {
    /// Number of the endpoint.
    pub endpoint: u32,
    /// Generation of the endpoint.
    pub generation: u32,
    /// Source port towards the pod, with full NAT.
    pub nat_port: NetworkPort,
    unused: [u8; 2],
}

/// Entry of the translation of replies.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct ReplyValue {
    /// New source.
    pub vip: MapAddress,
    /// New target, with full NAT; else zero.
    pub client: MapAddress,
    /// Number of the service.
    pub service: u32,
    /// Number of the endpoint.
    pub endpoint: u32,
    /// New source port.
    pub port: NetworkPort,
    /// New target port, with full NAT.
    pub client_port: NetworkPort,
    /// Largest segment that the client may send; 0 is no limit.
    pub mss: u16,
    /// Stage of a connection with full NAT: bits of `enum nat_stage` in `bpf/maps.h`.
    pub stage: u8,
    unused: u8,
    /// Time of the last packet of a connection with full NAT, in seconds since the start of the machine.
    pub seen_seconds: u32,
}

/// Service and server ID of a QUIC connection.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct ServerIdKey {
    /// Number of the service.
    pub service: u32,
    /// Server ID, the first byte highest.
    pub server_id: u32,
}

/// Clients that a service serves: those whose addresses begin with the first bits of this one.
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct SourceRange {
    /// Service and address.
    pub source: RangeSource,
    /// Number of bits of the address.
    pub prefix_length: u8,
}

impl SourceRange {
    /// Returns the range of a network.
    pub(crate) fn new(service: u32, network: IpNet) -> Self {
        // IPv4 addresses are the last bits of IPv4-mapped ones.
        let before = if network.addr().is_ipv4() { 96 } else { 0 };
        Self {
            source: RangeSource { service, address: network.network().into() },
            prefix_length: before + network.prefix_len(),
        }
    }
}

/// Service and address of a range, as the kernel's tree of prefixes has them.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct RangeSource {
    /// Number of the service.
    pub service: u32,
    /// First address.
    pub address: MapAddress,
}

/// Key of a node that forwards packets to this one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, Hash, Ord, PartialEq, PartialOrd)]
pub struct PeerKey {
    /// Source of its frames.
    pub mac: MacAddress,
    pub(crate) unused: [u8; 2],
}

/// Addresses of a node that forwards packets to this one.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct PeerValue {
    /// Its IPv4 address.
    pub ipv4: MapAddress,
    /// Its IPv6 address.
    pub ipv6: MapAddress,
}

/// Settings of the node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct NodeSettings {
    /// Source of packets with full NAT: IPv4, IPv6.
    pub nat_source: [MapAddress; 2],
    /// Interface at which packets of the tunnel arrive; 0 is none.
    pub tunnel_ifindex: u32,
    /// VXLAN network identifier.
    pub vni: u32,
    /// First source port of full NAT.
    pub nat_first_port: u16,
    /// Last source port of full NAT.
    pub nat_last_port: u16,
    /// Largest IP packet in the tunnel.
    pub tunnel_mtu: u16,
    unused: [u8; 2],
}

impl Default for NodeSettings {
    /// No tunnel and no full NAT. Ports are above those that Linux gives to its own connections (32768 to 60999).
    fn default() -> Self {
        Self {
            nat_source: [Ipv4Addr::UNSPECIFIED.into(), Ipv6Addr::UNSPECIFIED.into()]
                .map(|ip: IpAddr| ip.into()),
            tunnel_ifindex: 0,
            vni: 0x5eae,
            nat_first_port: 61_000,
            nat_last_port: 65_535,
            tunnel_mtu: 1450,
            unused: [0; 2],
        }
    }
}

/// Traffic of a service or an endpoint, both directions that pass this node.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub struct TrafficCount {
    /// Packets; those of a super-packet count each.
    pub packets: u64,
    /// Bytes with the Ethernet header.
    pub bytes: u64,
    /// Connections that were chosen here.
    pub connections: u64,
}

/// Implements [`Pod`] for types that the kernel and this process exchange byte by byte.
macro_rules! plain_data {
    ($($name:ident)*) => {$(
        // SAFETY: `repr(C)` or `repr(transparent)`, of integers alone, and without padding: the last test of this file
        // compares the size with the sum of the fields.
        #[expect(unsafe_code, reason = "maps hold these types byte by byte")]
        unsafe impl Pod for $name {}
    )*};
}

plain_data!(MapAddress FlowKey VipValue ServiceKey ServiceValue MaglevSlots EndpointValue ConnectionValue ReplyValue
    ServerIdKey RangeSource PeerKey PeerValue NodeSettings TrafficCount);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn types_have_no_padding_and_the_sizes_of_the_programs() {
        let sizes = [
            (size_of::<FlowKey>(), 16 + 16 + 2 + 2 + 1 + 3),
            (size_of::<VipValue>(), 8),
            (size_of::<ServiceKey>(), 16 + 2 + 1 + 1),
            (size_of::<ServiceValue>(), 12 + 1 + 1 + 2),
            (size_of::<MaglevSlots>(), 2 * TABLE_SIZE),
            (size_of::<EndpointValue>(), 32 + 8 + 2 + 1 + 1 + 6 + 6 + 2 + 2),
            (size_of::<ConnectionValue>(), 8 + 2 + 2),
            (size_of::<ReplyValue>(), 32 + 8 + 2 + 2 + 2 + 2 + 4),
            (size_of::<ServerIdKey>(), 8),
            (size_of::<RangeSource>(), 4 + 16),
            (size_of::<PeerKey>(), 8),
            (size_of::<PeerValue>(), 32),
            (size_of::<NodeSettings>(), 32 + 8 + 6 + 2),
            (size_of::<TrafficCount>(), 24),
        ];
        for (number, (size, expected)) in sizes.into_iter().enumerate() {
            assert_eq!(size, expected, "type {number}");
        }
    }

    #[test]
    fn addresses_return_as_they_were() {
        for text in ["10.1.2.3", "fd00::1"] {
            let ip: IpAddr = text.parse().unwrap();
            assert_eq!(IpAddr::from(MapAddress::from(ip)), ip);
        }
    }
}
