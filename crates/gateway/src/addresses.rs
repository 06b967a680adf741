//! Addresses of Gateways: where they come from, and which endpoints serve them.
//!
//! This module does not know how an address gets to a machine.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use crate::managed_services::{self, ManagedServices};
use crate::objects::{GatewayAddress, GatewayName, ObjectMeta};
use crate::snapshot::{Backend, BackendKey, RuleTarget, Snapshot};

/// The assignment of addresses to Gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum AddressAssignment {
    /// Files and flags: the addresses that a Gateway requests, else every address of the machine.
    #[default]
    Host,
    /// A cluster: as `Host`, and clients connect through one Service in front of all Gateways, whose addresses these
    /// are.
    SharedService(Vec<managed_services::PublishedAddress>),
    /// A cluster: the addresses that [`assign`](crate::address_pool::assign) gives to each Gateway, and no others.
    Pool {
        /// Addresses by Gateway. No address occurs twice.
        assigned: BTreeMap<GatewayName, Vec<IpAddr>>,
    },
    /// A cluster: every address of the machine. Each port of each Gateway is mapped to a port of Sheave, and clients
    /// connect through Services in front of the Gateways.
    ManagedServices(ManagedServices),
}

impl AddressAssignment {
    /// Returns the pool addresses of all Gateways.
    pub fn pool_assignments(&self) -> BTreeMap<GatewayName, Vec<IpAddr>> {
        match self {
            Self::Host | Self::SharedService(_) | Self::ManagedServices(_) => BTreeMap::new(),
            Self::Pool { assigned } => assigned.clone(),
        }
    }

    /// Returns the pool addresses of a Gateway.
    pub(crate) fn assigned(&self, gateway: &ObjectMeta) -> &[IpAddr] {
        let name = (gateway.namespace.clone(), gateway.name.clone());
        match self {
            Self::Host | Self::SharedService(_) | Self::ManagedServices(_) => &[],
            Self::Pool { assigned } => assigned.get(&name).map_or(&[], Vec::as_slice),
        }
    }

    /// Returns every address at which clients reach a Gateway, apart from those of the machine.
    pub fn all(&self) -> Vec<IpAddr> {
        let ip = |place: &managed_services::PublishedAddress| match place {
            managed_services::PublishedAddress::Ip(address) => Some(*address),
            managed_services::PublishedAddress::Hostname(_) => None,
        };
        match self {
            Self::Host => Vec::new(),
            Self::SharedService(places) => places.iter().filter_map(ip).collect(),
            Self::Pool { assigned } => assigned.values().flatten().copied().collect(),
            Self::ManagedServices(services) => {
                services.services.values().flat_map(|it| &it.addresses).filter_map(ip).collect()
            }
        }
    }

    /// Returns the addresses at which clients reach a Gateway, unless they are those of the machine.
    pub fn published_addresses(
        &self,
        gateway: &GatewayName,
    ) -> Vec<managed_services::PublishedAddress> {
        match self {
            Self::Host => Vec::new(),
            Self::SharedService(addresses) => addresses.clone(),
            Self::Pool { assigned } => {
                let addresses = assigned.get(gateway).into_iter().flatten();
                addresses.copied().map(managed_services::PublishedAddress::Ip).collect()
            }
            Self::ManagedServices(services) => services.addresses(gateway).to_vec(),
        }
    }
}

/// Returns the backends of requests to each pool address.
pub fn backends_by_address(snapshot: &Snapshot) -> BTreeMap<IpAddr, BTreeSet<BackendKey>> {
    let mut backends_by_address: BTreeMap<IpAddr, BTreeSet<BackendKey>> = BTreeMap::new();
    for listener in snapshot.listeners.iter().filter(|listener| listener.free_bind) {
        let backends = backends_by_address.entry(listener.address.ip()).or_default();
        let targets = listener.rules().flat_map(|rule| &rule.targets);
        backends.extend(targets.filter_map(|target| match target.target {
            RuleTarget::Backend(index) => Some(snapshot.backends[index].key.clone()),
            RuleTarget::Unresolved => None,
        }));
    }
    backends_by_address
}

/// The number of endpoints on each node, by name.
pub type EndpointsByNode = BTreeMap<Arc<str>, usize>;

/// Returns the number of endpoints of each pool address on each node. `backend_keys` holds the backends of each
/// address, as [`backends_by_address`] returns them.
pub fn endpoints_by_address(
    backend_keys: &BTreeMap<IpAddr, BTreeSet<BackendKey>>,
    backends: &[Backend],
) -> BTreeMap<IpAddr, EndpointsByNode> {
    let count_by_node = |keys: &BTreeSet<BackendKey>| {
        let reached = backends.iter().filter(|backend| keys.contains(&backend.key));
        let endpoints = reached.flat_map(|it| it.endpoints.iter().chain(&it.elsewhere));
        // A pod counts once, whatever its number of ports.
        let addresses = endpoints.filter_map(|it| Some((it.node.as_ref()?, it.address.ip())));
        let mut by_node = EndpointsByNode::new();
        for (node, _) in addresses.collect::<BTreeSet<_>>() {
            *by_node.entry(Arc::clone(node)).or_default() += 1;
        }
        by_node
    };
    backend_keys.iter().map(|(address, keys)| (*address, count_by_node(keys))).collect()
}

/// The address that one entry of a Gateway's `spec.addresses` requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RequestedAddress {
    /// A specific address.
    Specific(IpAddr),
    /// Any address.
    Any,
}

/// The error of an entry of `spec.addresses` that cannot be served: its field, and a message.
pub(crate) type UnsupportedAddress = (&'static str, String);

impl RequestedAddress {
    pub(crate) fn parse(entry: &GatewayAddress) -> Result<Self, UnsupportedAddress> {
        let kind = entry.kind.as_deref().unwrap_or("IPAddress");
        if kind != "IPAddress" {
            return Err(("type", format!("{kind} is not supported, only IPAddress")));
        }
        let Some(value) = entry.value.as_deref().filter(|value| !value.is_empty()) else {
            return Ok(Self::Any);
        };
        let invalid = || ("value", format!("{value} is not an IP address"));
        value.parse().ok().map(Self::Specific).ok_or_else(invalid)
    }
}
