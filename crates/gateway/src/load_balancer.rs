//! Services of type LoadBalancer that Sheave serves: their annotations, the assignment of addresses, and what is
//! reported of them.
//!
//! This module does not know how an address gets to a machine.

/// Ranges of addresses.
mod address_range;
/// The AddressPools of a cluster, and what of them can be assigned.
mod pools;
/// Announcement of addresses.
mod announcement;
/// Requests of a Service.
mod request;
/// Assignment of addresses to Services.
mod assign;
/// Statuses of Services.
mod status;

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

pub use announcement::{AddressAnnouncement, BgpAttributes, BgpRouter, bgp_routers};
pub use assign::assign;
pub use request::{is_node_local, source_ranges};
pub use status::status_update;

use crate::managed_services::SERVICE_LABEL;
use crate::objects::{ServiceSpec, ServiceType, TypedObject};
use crate::snapshot::TransportProtocol;

/// The value of `loadBalancerClass` by which Services select Sheave.
pub const LOAD_BALANCER_CLASS: &str = "sheave.dev/l4";
/// The annotation with the requested addresses, separated by commas: at most one of each IP version.
pub const ADDRESSES_ANNOTATION: &str = "sheave.dev/addresses";
/// The annotation with a key: Services of one namespace that have the same key may have the same address.
pub const SHARE_ANNOTATION: &str = "sheave.dev/share-address";
/// The annotation with the number of bytes of the server ID in connection IDs of QUIC, for the layer-4 data path.
pub const QUIC_SERVER_ID_ANNOTATION: &str = "sheave.dev/quic-server-id-length";

/// The annotations of a Service that are read if Sheave is its load balancer, beside those of transparent mode.
pub const ANNOTATIONS: [&str; 3] =
    [ADDRESSES_ANNOTATION, SHARE_ANNOTATION, QUIC_SERVER_ID_ANNOTATION];

/// A Service by its namespace and name.
pub type ServiceName = (String, String);

/// Findings of each AddressPool, by name.
pub type PoolFindings = BTreeMap<String, Vec<ServiceFinding>>;

/// Settings for Services of type LoadBalancer.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadBalancerSettings {
    /// True if Services without a class are served too.
    pub is_default: bool,
    /// The name of the node, for `externalTrafficPolicy`. Empty: unknown.
    pub node: Arc<str>,
    /// The assigned addresses.
    pub assignment: ServiceAddresses,
}

/// Addresses that no Service gets.
#[derive(Clone, Debug, Default)]
pub struct ReservedAddresses<'a> {
    /// The pool of Gateways.
    pub gateways: &'a [IpNet],
    /// Addresses of the replicas, which are those of their nodes if they are on the nodes' network.
    pub replicas: BTreeSet<IpAddr>,
}

/// The assignment of addresses to Services.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAddresses {
    /// The Services that Sheave serves, with or without addresses.
    pub services: BTreeMap<ServiceName, ServiceAssignment>,
    /// Announcement of each assigned address, if a pool that can be read has it.
    pub announcements: BTreeMap<IpAddr, AddressAnnouncement>,
    /// Addresses of pools that cannot be assigned, and why.
    pub pools: PoolFindings,
}

impl ServiceAddresses {
    /// Returns the addresses of all Services.
    pub fn addresses(&self) -> BTreeMap<ServiceName, Vec<IpAddr>> {
        self.services.iter().map(|(name, it)| (name.clone(), it.addresses.clone())).collect()
    }
}

/// The addresses of one Service.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServiceAssignment {
    /// At most one address of each IP version, in the order of `ipFamilies`.
    pub addresses: Vec<IpAddr>,
    /// Requests that were not met, and why.
    pub findings: Vec<ServiceFinding>,
}

/// Something of a Service or a pool that is not served, or not as requested.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceFinding {
    /// The reason for programs, in CamelCase: the reason of an Event.
    pub reason: &'static str,
    /// A sentence for people.
    pub message: String,
}

impl ServiceFinding {
    pub(crate) fn new(reason: &'static str, message: impl Into<String>) -> Self {
        Self { reason, message: message.into() }
    }
}

/// A Service of type LoadBalancer that Sheave serves.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LoadBalancerService {
    /// The namespace.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The UID, if it has one.
    pub uid: Option<Arc<str>>,
    /// The addresses for its status.
    pub addresses: Vec<IpAddr>,
    /// The sockets of its ports.
    pub sockets: Vec<(SocketAddr, TransportProtocol)>,
    /// True if only nodes with endpoints may carry its addresses.
    pub is_node_local: bool,
    /// Everything of the Service that is not served, and why.
    pub findings: Vec<ServiceFinding>,
}

/// Reports of every Service on a socket that the socket cannot be bound, and why.
pub fn report_port_unavailable(
    services: &mut [LoadBalancerService],
    socket: (SocketAddr, TransportProtocol),
    message: &str,
) {
    for service in services.iter_mut().filter(|it| it.sockets.contains(&socket)) {
        service.findings.push(ServiceFinding::new("PortUnavailable", message));
    }
}

/// True if Sheave is the load balancer of a Service. A Service in front of Sheave never is one of these.
pub fn is_ours(service: &TypedObject<ServiceSpec>, is_default: bool) -> bool {
    let TypedObject { metadata, spec, .. } = service;
    let has_class = match spec.load_balancer_class.as_deref() {
        Some(class) => class == LOAD_BALANCER_CLASS,
        None => is_default,
    };
    let is_load_balancer = match spec.kind {
        ServiceType::LoadBalancer => true,
        ServiceType::ClusterIP | ServiceType::NodePort | ServiceType::ExternalName => false,
    };
    is_load_balancer && has_class && !metadata.labels.contains_key(SERVICE_LABEL)
}
