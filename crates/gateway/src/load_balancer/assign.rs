//! AssignmentState of the addresses of AddressPools to Services.

use std::collections::BTreeMap;
use std::net::IpAddr;

use super::pools::ServicePools;
use super::request::{self, FamilyRequest, SharingTerms};
use super::{
    ReservedAddresses, ServiceAddresses, ServiceAssignment, ServiceFinding, ServiceName, is_ours,
};
use crate::address_pool::IpFamily;
use crate::objects::{ApiObject, ObjectMeta, ServiceSpec, TypedObject};

/// Assigns addresses to the Services of type LoadBalancer that Sheave serves.
///
/// A Service keeps the addresses in `known` (read from its status) that a pool for it still has and that match its
/// request. Then the addresses that Services request are assigned, then those of Services that share, then the lowest
/// free ones: the oldest Service first. No two Services have an address, except by agreement of both. An address of the
/// cluster itself is never assigned. A Service that cannot be read keeps its addresses, so that no other gets them; if a
/// pool cannot be read, every Service does.
pub fn assign(
    objects: &[ApiObject],
    is_default: bool,
    reserved: &ReservedAddresses<'_>,
    known: &BTreeMap<ServiceName, Vec<IpAddr>>,
) -> ServiceAddresses {
    let of_cluster = addresses_of_cluster(objects, reserved);
    let pools = ServicePools::new(objects, reserved, &of_cluster);
    let mut assignment = AssignmentState { pools, of_cluster, holders: BTreeMap::new() };
    let mut claims: Vec<_> =
        services(objects, is_default).into_iter().map(|it| assignment.claim(it)).collect();
    for address in invalid_services(objects).filter_map(|name| known.get(&name)).flatten() {
        assignment.of_cluster.entry(*address).or_insert_with(|| "a Service with errors".to_owned());
    }
    for index in 0..claims.len() {
        let before = known.get(&claims[index].name).map_or(&[][..], Vec::as_slice);
        before.iter().for_each(|address| assignment.retain(&mut claims, index, *address));
    }
    // A Service joins the address that an older one has just got.
    for phase in [AssignmentState::take_specific, AssignmentState::join_or_take_any] {
        for index in 0..claims.len() {
            for request in 0..claims[index].requests.len() {
                phase(&mut assignment, &mut claims, index, request);
            }
        }
    }
    let services = claims.into_iter().map(|mut claim| {
        let addresses: Vec<_> = claim.requests.iter().filter_map(|(_, address)| *address).collect();
        if let [(first, _), ..] = &claim.requests[..]
            && addresses.is_empty()
            && claim.findings.is_empty()
        {
            claim.findings.push(assignment.lack(&claim.pools, first.family));
        }
        (claim.name, ServiceAssignment { addresses, findings: claim.findings })
    });
    let services: BTreeMap<_, _> = services.collect();
    let addresses = assignment.holders.keys();
    let announcements = addresses.filter_map(|it| Some((*it, assignment.pools.announcement(*it)?)));
    let announcements = announcements.collect();
    ServiceAddresses { services, announcements, pools: assignment.pools.findings }
}

/// Returns the Services that Sheave serves, the oldest first, each name once.
fn services(objects: &[ApiObject], is_default: bool) -> Vec<&TypedObject<ServiceSpec>> {
    let mut by_name = BTreeMap::new();
    for object in objects {
        if let ApiObject::Service(service) = object {
            let name = (&service.metadata.namespace, &service.metadata.name);
            by_name.entry(name).or_insert(&**service);
        }
    }
    let mut ours: Vec<_> = by_name.into_values().filter(|it| is_ours(it, is_default)).collect();
    ours.sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
    ours
}

fn invalid_services(objects: &[ApiObject]) -> impl Iterator<Item = ServiceName> {
    objects.iter().filter_map(|object| {
        let ApiObject::Invalid(invalid) = object else { return None };
        let ObjectMeta { namespace, name, .. } = &invalid.metadata;
        (invalid.spec.kind == "Service").then(|| (namespace.clone(), name.clone()))
    })
}

/// Returns the addresses that machines of the cluster have, as far as objects of the API server and of Sheave name
/// them. Those in EndpointSlices do not count: their authors could take addresses from Services of others.
fn addresses_of_cluster(
    objects: &[ApiObject],
    reserved: &ReservedAddresses<'_>,
) -> BTreeMap<IpAddr, String> {
    let replicas = reserved.replicas.iter().map(|it| (*it, "a node with Sheave".to_owned()));
    let mut found: BTreeMap<IpAddr, String> = replicas.collect();
    for object in objects {
        let ApiObject::Service(service) = object else { continue };
        let ObjectMeta { namespace, name, .. } = &service.metadata;
        let spec = &service.spec;
        let addresses = spec.cluster_ip.iter().chain(spec.cluster_ips.iter().flatten());
        for address in addresses.filter_map(|it| it.parse().ok()) {
            found
                .entry(address)
                .or_insert_with(|| format!("Service {namespace}/{name} (ClusterIP)"));
        }
    }
    found
}

/// A Service during the assignment.
struct ServiceClaim<'a> {
    name: ServiceName,
    /// Pools that it may have addresses of.
    pools: Vec<usize>,
    terms: SharingTerms<'a>,
    /// Requests, with the address of each that is met.
    requests: Vec<(FamilyRequest, Option<IpAddr>)>,
    findings: Vec<ServiceFinding>,
}

/// The state of an assignment.
struct AssignmentState<'a> {
    pools: ServicePools<'a>,
    of_cluster: BTreeMap<IpAddr, String>,
    /// Indices of the claims that have an address.
    holders: BTreeMap<IpAddr, Vec<usize>>,
}

impl<'a> AssignmentState<'a> {
    fn claim(&self, service: &'a TypedObject<ServiceSpec>) -> ServiceClaim<'a> {
        let (requests, findings) = request::read(service);
        let ObjectMeta { namespace, name, .. } = &service.metadata;
        ServiceClaim {
            name: (namespace.clone(), name.clone()),
            pools: self.pools.of_service(service),
            terms: SharingTerms::of(service),
            requests: requests.into_iter().map(|request| (request, None)).collect(),
            findings,
        }
    }

    /// Keeps an address that the Service had, if it still matches.
    fn retain(&mut self, claims: &mut [ServiceClaim<'_>], index: usize, address: IpAddr) {
        let claim = &claims[index];
        let is_in_pool = self.pools.contain(&claim.pools, address) || self.pools.has_invalid;
        let matches = |(request, is): &(FamilyRequest, Option<IpAddr>)| {
            is.is_none()
                && request.family == IpFamily::of(address)
                && request.specific.is_none_or(|it| it == address)
        };
        let place = claim.requests.iter().position(matches);
        if let Some(request) = place.filter(|_| is_in_pool) {
            // If another Service has it, this one gets another one, or a finding.
            drop(self.take(claims, index, request, address));
        }
    }

    fn take_specific(&mut self, claims: &mut [ServiceClaim<'_>], index: usize, request: usize) {
        let claim = &claims[index];
        let (FamilyRequest { specific, .. }, None) = &claim.requests[request] else { return };
        let Some(address) = *specific else { return };
        let taken = if self.pools.contain(&claim.pools, address) {
            self.take(claims, index, request, address)
        } else {
            let message =
                format!("{address} is requested, and no AddressPool for the Service has it");
            Err(ServiceFinding::new("AddressOutsidePools", message))
        };
        if let Err(finding) = taken {
            claims[index].findings.push(finding);
        }
    }

    fn join_or_take_any(&mut self, claims: &mut [ServiceClaim<'_>], index: usize, request: usize) {
        self.join_shared(claims, index, request);
        self.take_any(claims, index, request);
    }

    /// Takes the address of the oldest Service that shares it with this one.
    fn join_shared(&mut self, claims: &mut [ServiceClaim<'_>], index: usize, request: usize) {
        let claim = &claims[index];
        let (FamilyRequest { specific: None, family, .. }, None) = &claim.requests[request] else {
            return;
        };
        if !claim.terms.shares() {
            return;
        }
        let family = *family;
        let others = claims.iter().filter(|it| it.terms.conflict(&claim.terms).is_none());
        let addresses =
            others.flat_map(|it| it.requests.iter().filter_map(|(_, address)| *address));
        let candidates: Vec<_> = addresses
            .filter(|it| IpFamily::of(*it) == family && self.pools.contain(&claim.pools, *it))
            .collect();
        for address in candidates {
            if self.take(claims, index, request, address).is_ok() {
                return;
            }
        }
    }

    fn take_any(&mut self, claims: &mut [ServiceClaim<'_>], index: usize, request: usize) {
        let Self { pools, of_cluster, holders } = self;
        let claim = &claims[index];
        let (FamilyRequest { specific: None, family, is_optional }, None) =
            &claim.requests[request]
        else {
            return;
        };
        let (family, is_optional) = (*family, *is_optional);
        let is_taken = |it: IpAddr| of_cluster.contains_key(&it) || holders.contains_key(&it);
        if let Some(address) = pools.lowest_free(&claim.pools, family, is_taken) {
            drop(self.take(claims, index, request, address));
        } else if !is_optional {
            let finding = self.lack(&claim.pools, family);
            claims[index].findings.push(finding);
        }
    }

    /// Returns why there is no address of a family in these pools.
    fn lack(&self, pools: &[usize], family: IpFamily) -> ServiceFinding {
        let version = match family {
            IpFamily::V4 => "IPv4",
            IpFamily::V6 => "IPv6",
        };
        let names = self.pools.names(pools, family);
        if names.is_empty() {
            let message = format!("no AddressPool has {version} addresses for the Service");
            return ServiceFinding::new("NoAddressPool", message);
        }
        let message = format!("no {version} address is free in AddressPool {}", names.join(", "));
        ServiceFinding::new("AddressPoolExhausted", message)
    }

    /// Takes an address, or returns why it is not available.
    fn take(
        &mut self,
        claims: &mut [ServiceClaim<'_>],
        index: usize,
        request: usize,
        address: IpAddr,
    ) -> Result<(), ServiceFinding> {
        if let Some(owner) = self.of_cluster.get(&address) {
            let message = format!("{address} is requested, and it is the address of {owner}");
            return Err(ServiceFinding::new("AddressOfCluster", message));
        }
        let terms = &claims[index].terms;
        let holders = self.holders.get(&address).map_or(&[][..], Vec::as_slice);
        let conflict = holders
            .iter()
            .find_map(|it| Some((&claims[*it].name, claims[*it].terms.conflict(terms)?)));
        if let Some(((namespace, name), reason)) = conflict {
            let message =
                format!("{address} is requested, and Service {namespace}/{name} has it: {reason}");
            return Err(ServiceFinding::new("AddressInUse", message));
        }
        self.holders.entry(address).or_default().push(index);
        claims[index].requests[request].1 = Some(address);
        Ok(())
    }
}
