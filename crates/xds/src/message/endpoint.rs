//! The endpoints of a cluster.

use std::net::SocketAddr;

use prost::Message;

use super::discovery::ClientLocality;
use super::well_known::UInt32Value;

/// The endpoints of a cluster, by locality.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClusterLoadAssignment {
    #[prost(string, tag = "1")]
    pub(crate) cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) endpoints: Vec<LocalityLbEndpoints>,
}

/// The endpoints of a locality.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LocalityLbEndpoints {
    #[prost(message, optional, tag = "1")]
    pub(crate) locality: Option<ClientLocality>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) lb_endpoints: Vec<LbEndpoint>,
    #[prost(message, optional, tag = "3")]
    pub(crate) load_balancing_weight: Option<UInt32Value>,
    /// 0 is the highest. Endpoints of a lower priority are used if none of a higher one can be reached.
    #[prost(uint32, tag = "5")]
    pub(crate) priority: u32,
}

/// An endpoint, and its share.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LbEndpoint {
    #[prost(message, optional, tag = "1")]
    pub(crate) endpoint: Option<HostEndpoint>,
    #[prost(int32, tag = "2")]
    pub(crate) health_status: i32,
    #[prost(message, optional, tag = "4")]
    pub(crate) load_balancing_weight: Option<UInt32Value>,
}

impl LbEndpoint {
    /// The endpoint may get requests.
    pub(crate) const HEALTHY: i32 = 1;
    /// The endpoint gets none.
    pub(crate) const UNHEALTHY: i32 = 2;
}

/// `Endpoint`: the address of an endpoint.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HostEndpoint {
    #[prost(message, optional, tag = "1")]
    pub(crate) address: Option<HostAddress>,
}

/// `Address`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct HostAddress {
    #[prost(message, optional, tag = "1")]
    pub(crate) socket_address: Option<SocketTarget>,
}

impl HostAddress {
    pub(crate) fn of(address: SocketAddr) -> Self {
        let target = SocketTarget {
            address: address.ip().to_string(),
            port_value: Some(u32::from(address.port())),
        };
        Self { socket_address: Some(target) }
    }
}

/// `SocketAddress`: an IP address and a port.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct SocketTarget {
    #[prost(string, tag = "2")]
    pub(crate) address: String,
    #[prost(uint32, optional, tag = "3")]
    pub(crate) port_value: Option<u32>,
}
