//! The state that the data path is to have: services, their endpoints, and the ways to nodes.

use std::collections::BTreeMap;
use std::net::{IpAddr, SocketAddr};

use ipnet::IpNet;

use crate::layout::{MacAddress, TransportProtocol};

/// Services and nodes as this node is to serve them.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub struct DesiredState {
    /// Virtual addresses.
    pub vips: BTreeMap<IpAddr, VipAnnouncement>,
    /// Services, each with its own virtual address, port and protocol.
    pub services: Vec<ServiceSpec>,
    /// Ways to the other nodes, by name.
    pub nodes: BTreeMap<String, NodeSpec>,
}

/// True if this node answers ARP and neighbor discovery for an address, and with which interface's address.
#[derive(Clone, Copy, Debug, Default, Eq, PartialEq)]
pub enum VipAnnouncement {
    /// Another node answers, or a route leads here.
    #[default]
    Silent,
    /// This node answers.
    Announced(MacAddress),
}

/// One port of a Service of type LoadBalancer.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct ServiceSpec {
    /// Virtual address and port.
    pub address: SocketAddr,
    /// Protocol.
    pub protocol: TransportProtocol,
    /// True if all connections of a client's address go to the same endpoint.
    pub has_client_affinity: bool,
    /// Bytes of the server ID in connection IDs, if QUIC is routed by them: 1 to 4.
    pub quic_server_id_length: Option<u8>,
    /// Clients that are served; `None` is all.
    pub source_ranges: Option<Vec<IpNet>>,
    /// Endpoints. None of them has a different IP version.
    pub endpoints: Vec<EndpointSpec>,
}

/// One pod behind a service.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct EndpointSpec {
    /// Address of the pod.
    pub address: SocketAddr,
    /// Share of new connections in relation to others; 0 is none.
    pub weight: u32,
    /// True if the pod terminates: it keeps its connections and gets no new ones.
    pub is_draining: bool,
    /// Place of the pod.
    pub place: EndpointPlace,
}

/// Place of a pod.
#[derive(Clone, Debug, Eq, PartialEq)]
pub enum EndpointPlace {
    /// On this node, at a veth.
    Local(PodLink),
    /// On this node, in the node's own namespace.
    HostNetwork,
    /// On the node of this name.
    Node(String),
}

/// Link between this node and a pod on it.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub struct PodLink {
    /// Index of the node's side of the veth.
    pub ifindex: u32,
    /// Address of the pod's side.
    pub pod_mac: MacAddress,
    /// Address of the pod's gateway.
    pub node_mac: MacAddress,
}

/// Another node, and the way to it.
#[derive(Clone, Debug, Eq, PartialEq)]
pub struct NodeSpec {
    /// Its own addresses.
    pub addresses: Vec<IpAddr>,
    /// Way to its pods.
    pub way: NodeWay,
}

/// Way of packets to the pods of another node.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum NodeWay {
    /// Direct server return on the same segment.
    Layer2 {
        /// Index of the uplink.
        ifindex: u32,
        /// Address of the uplink.
        source_mac: MacAddress,
        /// Address of the other node's uplink.
        mac: MacAddress,
    },
    /// Direct server return through VXLAN.
    Vxlan {
        /// Index of the VXLAN device.
        ifindex: u32,
        /// Address of the VXLAN device.
        source_mac: MacAddress,
        /// Address of the other node's VXLAN device.
        mac: MacAddress,
        /// Address of the other node.
        remote: IpAddr,
        /// Largest IP packet in the tunnel.
        mtu: u16,
    },
    /// Replies return through this node.
    FullNat {
        /// Index of the interface that the route to the pod has.
        ifindex: u32,
    },
}
