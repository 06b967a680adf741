//! Assignment of a cluster's address pool to Gateways.
//!
//! This module knows the addresses that Gateways request and had before.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use ipnet::IpNet;

use crate::addresses::{AddressAssignment, RequestedAddress};
use crate::objects::{
    ApiObject, GatewayAddress, GatewayName, GatewaySpec, ObjectMeta, TypedObject,
};
use crate::translate::ingress;
use crate::translation_settings::ControllerNames;

/// Assigns the addresses of a pool to the Gateways of Sheave's classes, and to those that stand for Sheave's
/// IngressClasses.
///
/// A Gateway keeps the addresses in `known` (read from its status) that are still in the pool and match its request.
/// Then the addresses that Gateways request by value are assigned, then those for entries without a value: the oldest
/// Gateway first, the lowest free address first. A Gateway without a request gets one address of each family of the
/// pool. An invalid Gateway keeps its addresses, so that no other Gateway gets them before it is repaired. A requested
/// address that is not available is left out; [`translate`](fn@crate::translate) reports it in the status.
pub fn assign(
    pool: &[IpNet],
    objects: &[ApiObject],
    known: &BTreeMap<GatewayName, Vec<IpAddr>>,
    controllers: &ControllerNames,
) -> AddressAssignment {
    let mut pool = GatewayPool { networks: pool, taken: BTreeSet::new() };
    let of_ingresses = ingress::gateways(objects, controllers);
    let of_ingresses = of_ingresses.iter().map(|it| AddressRequest::of_gateway(it));
    let previous = |gateway: &GatewayName| known.get(gateway).map_or(&[][..], Vec::as_slice);
    let claim = |gateway: AddressRequest<'_>| AddressClaim::of(gateway, &pool, previous);
    let gateways = accepted_gateways(objects, controllers).into_iter().chain(of_ingresses);
    let mut claims: Vec<_> = gateways.map(claim).collect();
    for claim in &mut claims {
        previous(&claim.gateway).iter().for_each(|address| claim.retain(*address, &mut pool));
    }
    claims.iter_mut().for_each(|claim| claim.take_specific(&mut pool));
    claims.iter_mut().for_each(|claim| claim.take_any(&mut pool));
    let assigned = claims.into_iter().map(|claim| {
        (
            claim.gateway,
            claim.allocations.into_iter().filter_map(|allocation| allocation.address).collect(),
        )
    });
    AddressAssignment::Pool { assigned: assigned.collect() }
}

/// A Gateway that requests addresses.
#[derive(Clone, Copy)]
struct AddressRequest<'a> {
    metadata: &'a ObjectMeta,
    class: Option<&'a str>,
    /// `None` if the Gateway is invalid.
    addresses: Option<&'a [GatewayAddress]>,
}

impl<'a> AddressRequest<'a> {
    fn of_gateway(TypedObject { metadata, spec, .. }: &'a TypedObject<GatewaySpec>) -> Self {
        let class = Some(&*spec.gateway_class_name);
        Self { metadata, class, addresses: Some(&spec.addresses) }
    }

    fn of(object: &'a ApiObject) -> Option<Self> {
        if let ApiObject::Gateway(gateway) = object {
            return Some(Self::of_gateway(gateway));
        }
        let ApiObject::Invalid(invalid) = object else { return None };
        let TypedObject { metadata, spec, .. } = &**invalid;
        let class = spec.class.as_deref();
        (spec.kind == "Gateway").then_some(Self { metadata, class, addresses: None })
    }
}

/// Returns the Gateways of Sheave's classes by age, each name once.
fn accepted_gateways<'o>(
    objects: &'o [ApiObject],
    controllers: &ControllerNames,
) -> Vec<AddressRequest<'o>> {
    let mut classes: BTreeMap<&str, bool> = BTreeMap::new();
    let mut gateways = BTreeMap::new();
    for object in objects {
        if let ApiObject::GatewayClass(class) = object {
            let is_ours = controllers.own_class(class);
            classes.entry(&class.metadata.name).or_insert(is_ours);
        }
        if let Some(gateway) = AddressRequest::of(object) {
            let name = (&gateway.metadata.namespace, &gateway.metadata.name);
            gateways.entry(name).or_insert(gateway);
        }
    }
    let is_ours = |gateway: &AddressRequest<'_>| {
        gateway.class.and_then(|class| classes.get(class)).copied().unwrap_or_default()
    };
    let mut ours: Vec<_> = gateways.into_values().filter(is_ours).collect();
    ours.sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
    ours
}

/// An address family.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum IpFamily {
    V4,
    V6,
}

impl IpFamily {
    pub(crate) const fn of(address: IpAddr) -> Self {
        match address {
            IpAddr::V4(_) => Self::V4,
            IpAddr::V6(_) => Self::V6,
        }
    }
}

/// The addresses of the pool.
struct GatewayPool<'a> {
    networks: &'a [IpNet],
    taken: BTreeSet<IpAddr>,
}

impl GatewayPool<'_> {
    fn has(&self, family: IpFamily) -> bool {
        self.networks.iter().any(|network| IpFamily::of(network.addr()) == family)
    }

    /// Takes an address of the pool if it is free.
    fn take(&mut self, address: IpAddr) -> Option<IpAddr> {
        let is_here = self.networks.iter().any(|network| contains_host(network, address));
        (is_here && self.taken.insert(address)).then_some(address)
    }

    /// Returns the lowest free address. For each network, it examines at most one address more than are taken.
    fn lowest_free(&self, family: Option<IpFamily>) -> Option<IpAddr> {
        let is_of_family =
            |network: &&IpNet| family.is_none_or(|it| it == IpFamily::of(network.addr()));
        let free = |network: &IpNet| {
            let mut addresses = network.hosts().filter(|address| contains_host(network, *address));
            addresses.find(|address| !self.taken.contains(address))
        };
        self.networks.iter().filter(is_of_family).filter_map(free).min()
    }
}

/// True if a host of the network can have the address, which is neither the network address, nor the broadcast address,
/// nor the subnet-router anycast address (RFC 4291 §2.6.1).
fn contains_host(network: &IpNet, address: IpAddr) -> bool {
    let is_special = match network {
        IpNet::V4(it) if it.prefix_len() < 31 => {
            [network.network(), network.broadcast()].contains(&address)
        }
        IpNet::V6(it) if it.prefix_len() < 127 => network.network() == address,
        IpNet::V4(_) | IpNet::V6(_) => false,
    };
    network.contains(&address) && !is_special
}

/// A Gateway during the assignment.
struct AddressClaim {
    gateway: GatewayName,
    allocations: Vec<AddressAllocation>,
}

/// One address that a Gateway requests.
struct AddressAllocation {
    request: RequestedAddress,
    /// The family; `None`: any.
    family: Option<IpFamily>,
    address: Option<IpAddr>,
}

impl AddressAllocation {
    fn accepts(&self, address: IpAddr) -> bool {
        let is_requested = match self.request {
            RequestedAddress::Specific(given) => given == address,
            RequestedAddress::Any => {
                self.family.is_none_or(|family| family == IpFamily::of(address))
            }
        };
        self.address.is_none() && is_requested
    }
}

impl AddressClaim {
    fn of<'k>(
        gateway: AddressRequest<'_>,
        pool: &GatewayPool<'_>,
        previous: impl Fn(&GatewayName) -> &'k [IpAddr],
    ) -> Self {
        let name = (gateway.metadata.namespace.clone(), gateway.metadata.name.clone());
        let allocation = |request| AddressAllocation { request, family: None, address: None };
        let allocations = match gateway.addresses {
            None => previous(&name)
                .iter()
                .map(|address| allocation(RequestedAddress::Specific(*address)))
                .collect(),
            Some([]) => {
                let families = [IpFamily::V4, IpFamily::V6].into_iter().filter(|it| pool.has(*it));
                let any = |family| AddressAllocation {
                    family: Some(family),
                    ..allocation(RequestedAddress::Any)
                };
                families.map(any).collect()
            }
            Some(entries) => {
                let requests =
                    entries.iter().filter_map(|entry| RequestedAddress::parse(entry).ok());
                requests.map(allocation).collect()
            }
        };
        Self { gateway: name, allocations }
    }

    /// Keeps an address that the Gateway had, if it still matches. An entry that requests it by value takes precedence.
    fn retain(&mut self, address: IpAddr, pool: &mut GatewayPool<'_>) {
        let mut open = self.allocations.iter_mut().filter(|allocation| allocation.accepts(address));
        let mut first = open.next();
        if first.as_ref().is_some_and(|allocation| allocation.request == RequestedAddress::Any) {
            first = open.find(|allocation| allocation.request != RequestedAddress::Any).or(first);
        }
        if let Some(allocation) = first {
            allocation.address = pool.take(address);
        }
    }

    fn take_specific(&mut self, pool: &mut GatewayPool<'_>) {
        for allocation in
            self.allocations.iter_mut().filter(|allocation| allocation.address.is_none())
        {
            if let RequestedAddress::Specific(address) = allocation.request {
                allocation.address = pool.take(address);
            }
        }
    }

    fn take_any(&mut self, pool: &mut GatewayPool<'_>) {
        for allocation in
            self.allocations.iter_mut().filter(|allocation| allocation.address.is_none())
        {
            if allocation.request == RequestedAddress::Any {
                allocation.address =
                    pool.lowest_free(allocation.family).and_then(|it| pool.take(it));
            }
        }
    }
}
