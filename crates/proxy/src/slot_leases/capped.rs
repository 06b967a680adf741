//! Endpoints whose slots can be leased, and the pools that they form.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use balance::hash;
use balance::leases::PoolKey;

use crate::backend::{self, Backend};
use crate::dial::pool::Endpoint;

/// Endpoints with a fixed cap.
#[derive(Default)]
pub(super) struct CappedEndpoints {
    pub(super) endpoints: BTreeMap<SocketAddr, CappedEndpoint>,
    /// Backends of each pool.
    pub(super) pools: Vec<(PoolKey, Vec<Arc<Backend>>)>,
    /// Endpoints whose slots are assigned and do not move.
    pub(super) assigned: Vec<AssignedEndpoint>,
}

/// An endpoint whose slots are assigned.
pub(super) struct AssignedEndpoint {
    pub(super) endpoint: Arc<Endpoint>,
    pub(super) cap: u32,
    /// True if the sets of its backends have the assigned limit, as those have that bind requests to endpoints.
    pub(super) is_limited_by_sets: bool,
}

/// An endpoint whose slots are leased.
pub(super) struct CappedEndpoint {
    pub(super) endpoint: Arc<Endpoint>,
    /// The lowest cap of the backends that have it.
    pub(super) cap: u32,
    /// Index of its pool.
    pub(super) pool: usize,
    /// True if a backend binds requests to it: a slot of another endpoint would not help these.
    is_bound: bool,
    /// True if a backend does not.
    is_free: bool,
}

impl CappedEndpoints {
    pub(super) fn of(backends: &[Arc<Backend>]) -> Self {
        let mut by_address = BTreeMap::new();
        // Each backend is a pool at first, by its index.
        let mut pools = DisjointSets((0..backends.len()).collect());
        for (index, backend) in backends.iter().enumerate() {
            add_members(&mut by_address, index, backend, &mut pools);
        }
        let mut capped = Self::default();
        for (address, mut found) in by_address {
            // Endpoints of several namespaces or transports may have one address, which then does not name one of them.
            let is_ambiguous = found.len() > 1;
            for endpoint in found.drain(..) {
                if !endpoint.is_bound && !is_ambiguous {
                    capped.endpoints.insert(address, endpoint);
                    continue;
                }
                let is_limited_by_sets = !endpoint.is_free;
                let CappedEndpoint { endpoint, cap, .. } = endpoint;
                capped.assigned.push(AssignedEndpoint { endpoint, cap, is_limited_by_sets });
            }
        }
        capped.number_pools(backends, &mut pools);
        capped
    }

    /// Gives the pools with endpoints consecutive indices.
    fn number_pools(&mut self, backends: &[Arc<Backend>], pools: &mut DisjointSets) {
        let mut numbers = BTreeMap::new();
        for found in self.endpoints.values_mut() {
            let next = numbers.len();
            found.pool = *numbers.entry(pools.root(found.pool)).or_insert(next);
        }
        let mut members = vec![Vec::new(); numbers.len()];
        for (index, backend) in backends.iter().enumerate() {
            if let Some(&pool) = numbers.get(&pools.root(index)) {
                members[pool].push(Arc::clone(backend));
            }
        }
        self.pools = members.into_iter().map(|backends| (key(&backends), backends)).collect();
    }
}

/// Adds the endpoints of a backend with a fixed cap.
fn add_members(
    by_address: &mut BTreeMap<SocketAddr, Vec<CappedEndpoint>>,
    index: usize,
    backend: &Backend,
    pools: &mut DisjointSets,
) {
    let current = backend.current();
    let Some(cap) = current.limits.cap.fixed() else { return };
    let (cap, is_bound) = (cap.get(), backend::binds_requests(&current.settings));
    let is_free = !is_bound;
    for member in backend.configured().members() {
        let endpoint = &member.endpoint;
        let found = by_address.entry(endpoint.address).or_default();
        match found.iter_mut().find(|it| Arc::ptr_eq(&it.endpoint, endpoint)) {
            Some(known) => {
                known.cap = known.cap.min(cap);
                known.is_bound |= is_bound;
                known.is_free |= is_free;
                pools.join(known.pool, index);
            }
            None => {
                let (endpoint, pool) = (Arc::clone(endpoint), index);
                found.push(CappedEndpoint { endpoint, cap, pool, is_bound, is_free });
            }
        }
    }
}

/// Returns the key of a pool: the same at each replica with the same configuration.
fn key(backends: &[Arc<Backend>]) -> PoolKey {
    let first = backends.iter().map(|backend| &*backend.name).min().unwrap_or_default();
    PoolKey(hash::hash(first.as_bytes()))
}

/// Sets of indices that are joined step by step (union-find).
struct DisjointSets(Vec<usize>);

impl DisjointSets {
    /// Returns the index that stands for the set of this one.
    fn root(&mut self, mut index: usize) -> usize {
        while self.0[index] != index {
            self.0[index] = self.0[self.0[index]];
            index = self.0[index];
        }
        index
    }

    fn join(&mut self, one: usize, other: usize) {
        let (one, other) = (self.root(one), self.root(other));
        self.0[one.max(other)] = one.min(other);
    }
}
