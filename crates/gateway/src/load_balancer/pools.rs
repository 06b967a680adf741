//! The AddressPools of a cluster: which Services each is for, and which of its addresses can be assigned.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use super::address_range::AddressRange;
use super::announcement::AddressAnnouncement;
use super::{PoolFindings, ReservedAddresses, ServiceFinding};
use crate::address_pool::IpFamily;
use crate::objects::{
    AddressPoolSpec, ApiObject, NamespaceSpec, ObjectMeta, ServiceSpec, TypedObject,
    namespace_labels,
};

/// A pool.
pub(super) struct ServicePool<'a> {
    pub(super) name: &'a str,
    pub(super) spec: &'a AddressPoolSpec,
    /// The addresses that no older pool and no Gateway has.
    ranges: Vec<FreeRange>,
}

/// A range, of which all addresses before a number are known to be taken.
struct FreeRange {
    range: AddressRange,
    next: u128,
}

/// All pools, the oldest first.
pub(super) struct ServicePools<'a> {
    pools: Vec<ServicePool<'a>>,
    namespaces: BTreeMap<&'a str, &'a TypedObject<NamespaceSpec>>,
    pub(super) findings: PoolFindings,
    /// True if a pool cannot be read, so that the Services that have its addresses are not known.
    pub(super) has_invalid: bool,
}

impl<'a> ServicePools<'a> {
    /// Reads the pools. An address that several have belongs to the oldest of them.
    pub(super) fn new(
        objects: &'a [ApiObject],
        reserved: &ReservedAddresses<'_>,
        of_cluster: &BTreeMap<IpAddr, String>,
    ) -> Self {
        let mut by_name: BTreeMap<&str, &TypedObject<AddressPoolSpec>> = BTreeMap::new();
        let mut namespaces = BTreeMap::new();
        let mut has_invalid = false;
        for object in objects {
            if let ApiObject::AddressPool(pool) = object {
                by_name.entry(&pool.metadata.name).or_insert(pool);
            } else if let ApiObject::Namespace(it) = object {
                namespaces.entry(&*it.metadata.name).or_insert(&**it);
            } else if let ApiObject::Invalid(it) = object {
                has_invalid |= it.spec.kind == "AddressPool";
            }
        }
        let mut objects: Vec<_> = by_name.into_values().collect();
        objects.sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
        let mut found =
            Self { pools: Vec::new(), namespaces, findings: PoolFindings::new(), has_invalid };
        let mut taken: Vec<(AddressRange, String)> = reserved
            .gateways
            .iter()
            .map(|it| (AddressRange::of(it), "the pool of Gateways, which keeps them".to_owned()))
            .collect();
        for object in objects {
            found.add(object, &mut taken, of_cluster);
        }
        found
    }

    fn add(
        &mut self,
        object: &'a TypedObject<AddressPoolSpec>,
        taken: &mut Vec<(AddressRange, String)>,
        of_cluster: &BTreeMap<IpAddr, String>,
    ) {
        let TypedObject { metadata: ObjectMeta { name, .. }, spec, .. } = object;
        let mut findings = Vec::new();
        if let Some((field, message)) = spec.fault() {
            self.has_invalid = true;
            findings.push(ServiceFinding::new("Invalid", format!("{field}: {message}")));
        }
        let mut ranges: Vec<_> =
            spec.addresses.iter().map(|it| AddressRange::hosts(&it.0)).collect();
        let mut others = BTreeSet::new();
        for (range, owner) in &*taken {
            if ranges.iter().any(|it| it.overlaps(range)) {
                others.insert(owner);
                ranges = ranges.into_iter().flat_map(|it| it.without(range)).collect();
            }
        }
        for owner in others {
            let message = format!("addresses of the pool are also in {owner}");
            findings.push(ServiceFinding::new("OverlappingAddresses", message));
        }
        for (address, owner) in of_cluster {
            if ranges.iter().any(|it| it.contains(*address)) {
                let message = format!("{address} is not assigned: it is the address of {owner}");
                findings.push(ServiceFinding::new("AddressOfCluster", message));
            }
        }
        let owner = format!("AddressPool {name}, which is older and keeps them");
        taken.extend(spec.addresses.iter().map(|it| (AddressRange::of(&it.0), owner.clone())));
        ranges.sort_unstable();
        let ranges = ranges.into_iter().map(|range| FreeRange { range, next: range.first });
        self.pools.push(ServicePool { name, spec, ranges: ranges.collect() });
        self.findings.insert(name.clone(), findings);
    }

    /// Returns the indices of the pools that a Service may have addresses of.
    pub(super) fn of_service(&self, service: &TypedObject<ServiceSpec>) -> Vec<usize> {
        let ObjectMeta { namespace, labels, .. } = &service.metadata;
        let metadata = self.namespaces.get(&**namespace).map(|it| &it.metadata);
        let namespace = namespace_labels(namespace, metadata);
        let selects = |pool: &ServicePool<'_>| {
            let spec = pool.spec;
            spec.namespace_selector.as_ref().is_none_or(|it| it.matches(&namespace))
                && spec.service_selector.as_ref().is_none_or(|it| it.matches(labels))
        };
        let pools = self.pools.iter().enumerate().filter(|(_, pool)| selects(pool));
        pools.map(|(index, _)| index).collect()
    }

    /// True if one of these pools has an address.
    pub(super) fn contain(&self, pools: &[usize], address: IpAddr) -> bool {
        let contains = |index: &usize| {
            self.pools[*index].ranges.iter().any(|free| free.range.contains(address))
        };
        pools.iter().any(contains)
    }

    /// Returns how an address is announced, if a pool has it.
    pub(super) fn announcement(&self, address: IpAddr) -> Option<AddressAnnouncement> {
        let has =
            |pool: &&ServicePool<'_>| pool.ranges.iter().any(|free| free.range.contains(address));
        self.pools.iter().find(has).map(|pool| AddressAnnouncement::of(pool.spec))
    }

    /// Returns the names of those pools that have addresses of a family.
    pub(super) fn names(&self, pools: &[usize], family: IpFamily) -> Vec<&'a str> {
        let pools = pools.iter().map(|index| &self.pools[*index]);
        let has = |pool: &&ServicePool<'_>| {
            pool.spec.assigns_unrequested()
                && pool.ranges.iter().any(|free| free.range.family == family)
        };
        pools.filter(has).map(|pool| pool.name).collect()
    }

    /// Returns the lowest free address of these pools for a Service that requests none: of those with selectors, or if
    /// these have none, of the others. What was taken once must stay taken.
    pub(super) fn lowest_free(
        &mut self,
        pools: &[usize],
        family: IpFamily,
        is_taken: impl Fn(IpAddr) -> bool,
    ) -> Option<IpAddr> {
        let mut lowest = None;
        for is_selective in [true, false] {
            for index in pools {
                let pool = &mut self.pools[*index];
                if pool.spec.is_selective() == is_selective && pool.spec.assigns_unrequested() {
                    let ranges = pool.ranges.iter_mut().filter(|it| it.range.family == family);
                    let found = ranges.filter_map(|it| it.lowest(&is_taken)).min();
                    lowest = lowest.into_iter().chain(found).min();
                }
            }
            if lowest.is_some() {
                return lowest;
            }
        }
        None
    }
}

impl FreeRange {
    /// Returns the lowest free address. Each address is looked at once, however many calls there are.
    fn lowest(&mut self, is_taken: impl Fn(IpAddr) -> bool) -> Option<IpAddr> {
        while self.next <= self.range.last {
            let address = self.range.address(self.next);
            if !is_taken(address) {
                return Some(address);
            }
            self.next = self.next.checked_add(1)?;
        }
        None
    }
}
