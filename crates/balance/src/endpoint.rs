//! Says what an endpoint is, keeps one of each, and puts them into sets.
//!
//! An endpoint's state is shared by all backends that name its address and outlives every Snapshot. A set is
//! immutable; a change makes a new one.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::num::NonZeroU32;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use crate::health::Health;
use crate::load::{Cell, Loads, Pages};
use crate::outcome::Outcome;
use crate::pick::{Algorithm, Claim, MaglevTable, Ring};
use crate::reuse::IdleHistory;
use crate::time::Time;

/// One address that can serve, and what is known of it. `T` is what the user of this crate hangs on it.
///
/// Its load is the number of requests in flight, counted from the pick on, over all workers and backends.
///
/// Aligned so that the count of its holders, which every request changes, is not on the cache line of what every request
/// reads.
#[repr(align(64))]
pub struct Endpoint<T> {
    /// Where it listens.
    pub address: SocketAddr,
    /// What it has taught us about idle connections.
    pub idle: IdleHistory,
    /// What has come of attempts at it.
    pub health: Health,
    /// What the user of this crate keeps for each endpoint.
    pub data: T,
    cell: Cell,
    key: u64,
}

impl<T> Endpoint<T> {
    /// How many requests it has now, over all workers and backends.
    pub fn in_flight(&self) -> u32 {
        self.cell.in_flight()
    }

    /// How long it takes to begin a response, as [`PeakEwma`](Algorithm::PeakEwma) sees it; `None` before the first.
    pub fn latency(&self, now: Time) -> Option<Duration> {
        let latency = self.cell.latency().at(now).latency?;
        Some(Duration::from_nanos(latency as u64))
    }

    /// Takes note of what came of an attempt. To be called for each, whatever the algorithm: backends may share an
    /// endpoint. Hardly one call in a millisecond writes.
    pub fn learn(&self, outcome: &Outcome, now: Time) {
        self.cell.latency().learn(outcome, now);
    }

    /// Takes a slot for what does not come by way of a picker, such as a probe, unless it is at the cap. A slot taken
    /// must come back once, by [`Admission::release`](crate::Admission::release).
    pub fn take(&self, cap: Option<NonZeroU32>) -> bool {
        self.cell.take(cap)
    }

    pub(crate) fn give_back(&self) {
        self.cell.give_back();
    }
}

impl<T> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} in flight)", self.address, self.in_flight())
    }
}

/// Hands out endpoints: the same address gives the same endpoint as long as anybody holds it.
pub struct Ledger<T> {
    endpoints: BTreeMap<SocketAddr, Weak<Endpoint<T>>>,
    pages: Pages,
    next_key: u64,
    /// How many entries there may be before those nobody holds are forgotten.
    forget_at: usize,
}

impl<T> Ledger<T> {
    const FORGET_AT_LEAST: usize = 64;

    /// An empty ledger.
    pub fn new() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            pages: Pages::default(),
            next_key: 0,
            forget_at: Self::FORGET_AT_LEAST,
        }
    }

    /// The endpoint at an address; made with `data` if nobody holds it.
    pub fn endpoint(&mut self, address: SocketAddr, data: impl FnOnce() -> T) -> Arc<Endpoint<T>> {
        if let Some(endpoint) = self.endpoints.get(&address).and_then(Weak::upgrade) {
            return endpoint;
        }
        self.forget_dead();
        let endpoint = Arc::new(Endpoint {
            address,
            idle: IdleHistory::default(),
            health: Health::default(),
            data: data(),
            cell: self.pages.cell(),
            key: self.next_key,
        });
        self.next_key += 1;
        self.endpoints.insert(address, Arc::downgrade(&endpoint));
        endpoint
    }

    /// All endpoints that somebody holds, by address.
    pub fn live(&self) -> Vec<Arc<Endpoint<T>>> {
        self.endpoints.values().filter_map(Weak::upgrade).collect()
    }

    /// Forgets entries nobody holds, once they could be as many as the others: constant work for each new endpoint.
    fn forget_dead(&mut self) {
        if self.endpoints.len() < self.forget_at {
            return;
        }
        self.endpoints.retain(|_, endpoint| endpoint.strong_count() > 0);
        self.pages.shrink();
        self.forget_at = (2 * self.endpoints.len()).max(Self::FORGET_AT_LEAST);
    }
}

impl<T> Default for Ledger<T> {
    fn default() -> Self {
        Self::new()
    }
}

/// An endpoint of a set.
pub struct Member<T> {
    /// Who it is.
    pub endpoint: Arc<Endpoint<T>>,
    /// Its share relative to the others; 0 gets nothing. An ejected endpoint has 0, one that starts slowly less than
    /// it will have.
    pub weight: u32,
    /// It is in our zone. Where some members are and others are not, these are used first, until each has three
    /// quarters of its cap in flight, or 4 requests without a cap; then the others as far; then all alike. A key goes
    /// before the zone.
    pub local: bool,
    /// It is to show that it can serve again: whatever its weight, it is given one request, soon, when it has no other
    /// in flight. Another trial takes another set.
    pub trial: bool,
}

impl<T> Member<T> {
    /// A member of no zone and not on trial.
    pub fn new(endpoint: Arc<Endpoint<T>>, weight: u32) -> Self {
        Self { endpoint, weight, local: false, trial: false }
    }

    /// The share that choosing goes by.
    fn share(&self) -> u32 {
        if self.trial { 0 } else { self.weight }
    }
}

impl<T> Clone for Member<T> {
    fn clone(&self) -> Self {
        Self { endpoint: self.endpoint.clone(), ..*self }
    }
}

impl<T> fmt::Debug for Member<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} of weight {}", self.endpoint, self.weight)?;
        write!(f, "{}", if self.local { ", local" } else { "" })?;
        write!(f, "{}", if self.trial { ", on trial" } else { "" })
    }
}

/// Endpoints to choose among. Immutable, but for the requests that members on trial have left.
pub struct EndpointSet<T> {
    members: Vec<Member<T>>,
    by_address: BTreeMap<SocketAddr, usize>,
    pub(crate) loads: Loads,
    /// How many have a weight and are not on trial.
    regular: usize,
    ring: OnceLock<Ring>,
    maglev: OnceLock<MaglevTable>,
}

impl<T> EndpointSet<T> {
    /// A set of these members, in this order, but local ones first. One that is named twice is one member, with the
    /// larger weight: EndpointSlices may name an endpoint twice while it moves between them.
    pub fn new(mut members: Vec<Member<T>>) -> Self {
        let mut set = Self::empty();
        members.sort_by_key(|member| !member.local);
        for member in members {
            set.add(member);
        }
        set.count();
        set
    }

    /// The set of nobody.
    pub fn empty() -> Self {
        Self {
            members: Vec::new(),
            by_address: BTreeMap::new(),
            loads: Loads::default(),
            regular: 0,
            ring: OnceLock::new(),
            maglev: OnceLock::new(),
        }
    }

    /// Makes what an algorithm needs of a set, which may take milliseconds: before the set is handed to workers, or
    /// the first request does it.
    pub fn prepare(&self, algorithm: Algorithm) {
        match algorithm {
            Algorithm::ConsistentHash => {
                self.ring();
            }
            Algorithm::Maglev => {
                self.maglev();
            }
            Algorithm::LeastLoad
            | Algorithm::RoundRobin
            | Algorithm::Random
            | Algorithm::PeakEwma => {}
        }
    }

    /// Who is in it, weight 0 included.
    pub fn members(&self) -> &[Member<T>] {
        &self.members
    }

    /// The member with this address.
    pub fn find(&self, address: SocketAddr) -> Option<&Member<T>> {
        self.by_address.get(&address).map(|&member| &self.members[member])
    }

    /// Whether this very endpoint, not merely one with its address, is a member.
    pub fn contains(&self, endpoint: &Endpoint<T>) -> bool {
        self.position(endpoint).is_some()
    }

    /// Which member a key belongs to by Maglev, as a number in [`members`](Self::members).
    pub fn maglev(&self) -> &MaglevTable {
        self.maglev.get_or_init(|| MaglevTable::new(&self.by_share()))
    }

    pub(crate) fn ring(&self) -> &Ring {
        self.ring.get_or_init(|| Ring::new(&self.by_share()))
    }

    /// Whether anybody in it can be chosen.
    pub(crate) fn is_usable(&self) -> bool {
        self.regular > 0 || self.loads.has_trials()
    }

    /// Takes a slot at a member, if it has one.
    pub(crate) fn take(&self, member: usize, cap: Option<NonZeroU32>) -> Option<Arc<Endpoint<T>>> {
        self.loads.take(member, cap).then(|| self.members[member].endpoint.clone())
    }

    pub(crate) fn position(&self, endpoint: &Endpoint<T>) -> Option<usize> {
        let position = *self.by_address.get(&endpoint.address)?;
        std::ptr::eq(&*self.members[position].endpoint, endpoint).then_some(position)
    }

    /// Which members may serve a request that has failed at `except`, is bound to `only`, or else by its key.
    #[inline]
    pub(crate) fn claim(
        &self,
        except: Option<&Arc<Endpoint<T>>>,
        only: Option<&Arc<Endpoint<T>>>,
        key: Option<u64>,
    ) -> Claim {
        if except.is_none() && only.is_none() && key.is_none() {
            return Claim::Any;
        }
        let except = except.filter(|_| self.regular > 1).and_then(|known| self.position(known));
        let is_regular = |&member: &usize| self.loads.weight(member) > 0;
        let bound = only.and_then(|known| self.position(known)).filter(is_regular);
        let by_key = || key.and_then(|key| self.maglev().member_but(key, except));
        match bound.filter(|&only| Some(only) != except).or_else(by_key) {
            Some(only) => Claim::Only(only),
            None => except.map_or(Claim::Any, Claim::But),
        }
    }

    fn by_share(&self) -> Vec<(SocketAddr, u32)> {
        self.members.iter().map(|member| (member.endpoint.address, member.share())).collect()
    }

    fn add(&mut self, member: Member<T>) {
        let position =
            *self.by_address.entry(member.endpoint.address).or_insert(self.members.len());
        match self.members.get_mut(position) {
            Some(known) => known.weight = known.weight.max(member.weight),
            None => self.members.push(member),
        }
    }

    /// What choosing looks at.
    fn count(&mut self) {
        let local = self.members.iter().take_while(|member| member.local).count();
        for (position, member) in self.members.iter().enumerate() {
            if position == local {
                self.loads.end_of_zone();
            }
            let Endpoint { cell, key, .. } = &*member.endpoint;
            match member.trial {
                true => self.loads.push_trial(cell, *key),
                false => self.loads.push(cell, *key, member.weight),
            }
            self.regular += usize::from(member.share() > 0);
        }
    }
}

impl<T> fmt::Debug for EndpointSet<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.members).finish()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn the_same_address_is_the_same_endpoint_while_anybody_holds_it() {
        let mut ledger = Ledger::new();
        let first = ledger.endpoint(address(1), || "first");
        assert!(Arc::ptr_eq(&first, &ledger.endpoint(address(1), || "second")));
        drop(first);
        assert_eq!(ledger.endpoint(address(1), || "third").data, "third");
        assert!(ledger.live().is_empty());
    }

    #[test]
    fn the_ledger_does_not_grow_with_endpoints_that_have_gone() {
        let mut ledger = Ledger::new();
        let kept = ledger.endpoint(address(0), || ());
        for port in 1..10_000 {
            ledger.endpoint(address(port), || ());
        }
        assert!(ledger.endpoints.len() <= Ledger::<()>::FORGET_AT_LEAST);
        assert_eq!(ledger.live().len(), 1);
        assert!(Arc::ptr_eq(&kept, &ledger.live()[0]));
    }

    #[test]
    fn a_member_named_twice_is_one_with_the_larger_weight() {
        let mut ledger = Ledger::new();
        let mut member = |port, weight| Member::new(ledger.endpoint(address(port), || ()), weight);
        let set = EndpointSet::new(vec![member(2, 1), member(1, 5), member(2, 3), member(1, 0)]);
        let seen: Vec<_> =
            set.members().iter().map(|m| (m.endpoint.address.port(), m.weight)).collect();
        assert_eq!(seen, [(2, 3), (1, 5)]);
    }

    #[test]
    fn a_set_knows_its_members_by_identity() {
        let (mut here, mut there) = (Ledger::new(), Ledger::new());
        let ours = here.endpoint(address(1), || ());
        let theirs = there.endpoint(address(1), || ());
        let set = EndpointSet::new(vec![Member::new(ours.clone(), 1)]);
        assert!(set.contains(&ours));
        assert!(!set.contains(&theirs));
    }
}
