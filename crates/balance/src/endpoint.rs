//! Says what an endpoint is, and keeps one of each.
//!
//! An endpoint's state is shared by all backends that name its address and outlives every Snapshot.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::health::HealthCounters;
use crate::limit::{LimitCounters, RefusalBackoff, RetryAfterHandling};
use crate::load::{ConcurrencyCap, CounterPool, InFlightCounter, PickCapacity};
use crate::outcome::Outcome;
use crate::reachability::ReconnectSchedule;
use crate::retry::ResendAllowance;
use crate::reuse::IdleHistory;
use crate::time::Time;

/// Endpoints to choose among.
mod set;

pub use set::{EndpointSet, SetMember};

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
    pub health: HealthCounters,
    /// How it bears its load.
    pub limit_counters: LimitCounters,
    /// What the user of this crate keeps for each endpoint.
    pub data: T,
    /// Requests in flight at its death that may be sent elsewhere, beside the retry budget.
    pub resends: ResendAllowance,
    refusal_backoff: RefusalBackoff,
    reachability: ReconnectSchedule,
    counter: InFlightCounter,
    key: u64,
}

impl<T> Endpoint<T> {
    /// How many requests it has now, over all workers and backends.
    pub fn in_flight(&self) -> u32 {
        self.counter.in_flight()
    }

    /// How long it takes to begin a response, as [`PeakEwma`](crate::Algorithm::PeakEwma) sees it; `None` before the first.
    pub fn latency(&self, now: Time) -> Option<Duration> {
        let latency = self.counter.latency().estimate_at(now).latency?;
        Some(Duration::from_nanos(latency as u64))
    }

    /// Takes note of what came of an attempt. To be called for each, whatever the algorithm: backends may share an
    /// endpoint. Hardly one call in a millisecond writes.
    pub fn learn(&self, outcome: &Outcome, now: Time) {
        self.learn_mean(outcome, now);
        self.counter.latency().learn_peak(outcome, now);
    }

    /// As [`learn`](Self::learn), where no backend chooses by [`PeakEwma`](crate::Algorithm::PeakEwma).
    #[inline]
    pub fn learn_mean(&self, outcome: &Outcome, now: Time) {
        self.counter.latency().learn_mean(outcome, now);
    }

    /// How long it takes to begin a response, on the average; `None` before enough responses.
    pub fn mean_latency(&self, now: Time) -> Option<Duration> {
        let mean = self.counter.latency().stats(now).mean?;
        Some(Duration::from_nanos(mean as u64))
    }

    /// True unless it is marked unreachable: pickers pass over such an endpoint while another is reachable.
    pub fn is_reachable(&self) -> bool {
        self.counter.capacity().is_reachable()
    }

    /// Since when it is marked unreachable; `None`: it is not.
    pub fn unreachable_since(&self) -> Option<Time> {
        (!self.is_reachable()).then(|| self.reachability.since())
    }

    /// Marks it unreachable for all workers and backends: a connection attempt at it has failed. True if it was not
    /// marked; then the caller has the control thread make background attempts
    /// ([`attempt_due_at`](Self::attempt_due_at)), and lets requests that wait for this endpoint look for another
    /// ([`Admission::replace`](crate::Admission::replace)).
    pub fn mark_unreachable(&self, now: Time) -> bool {
        let first = self.counter.capacity().mark_unreachable();
        if first {
            self.reachability.begin(now);
        }
        first
    }

    /// Takes the mark away: a connection has been made. True if there was one; then requests that wait may have a slot
    /// here ([`Admission::replace`](crate::Admission::replace)). Attempts that began before say nothing of its health.
    pub fn mark_reachable(&self, now: Time) -> bool {
        let first = self.counter.capacity().mark_reachable();
        if first {
            self.health.count_from(now);
        }
        first
    }

    /// When the control thread makes the next background attempt to connect.
    pub fn attempt_due_at(&self) -> Time {
        self.reachability.due_at()
    }

    /// A background attempt has failed.
    pub fn attempt_failed(&self, now: Time) {
        self.reachability.failed(now);
    }

    /// Something speaks for its return: the next background attempt is due now.
    pub fn attempt_now(&self, now: Time) {
        self.reachability.attempt_now(now);
    }

    /// Takes one of all its slots, unless it is at the cap. A slot taken must come back once, by
    /// [`Admission::release`](crate::Admission::release).
    pub fn take(&self, cap: ConcurrencyCap) -> bool {
        self.counter.take(PickCapacity::within(cap))
    }

    /// How many requests it may have at once, whoever's its slots are; `None`: any number. An endpoint that is marked
    /// unreachable keeps its limit.
    pub fn limit(&self, cap: ConcurrencyCap) -> Option<u32> {
        let room = PickCapacity::within(cap);
        let room = if self.is_reachable() { room } else { room.with_unreachable() };
        Some(self.counter.most(room)).filter(|&most| most < u32::MAX)
    }

    /// It has said that it is full, to a request that was picked when it had `level`, that one included. Until it wants to
    /// be asked again it is given no more than one less, and never less than one.
    pub fn record_refusal(
        &self,
        level: u32,
        retry_after: Option<Duration>,
        now: Time,
    ) -> RetryAfterHandling {
        let heed = self.refusal_backoff.extend(retry_after, now);
        if self.refusal_backoff.until(now).is_some() {
            self.counter.capacity().reduce(level.saturating_sub(1).max(1));
        }
        heed
    }

    /// It has more to do than it can, though it has served a request that was picked when it had `level`: for a second
    /// it is given no more than that.
    pub fn record_overload(&self, level: u32, now: Time) {
        self.refusal_backoff.extend(None, now);
        self.counter.capacity().reduce(level.max(1));
    }

    /// How many requests it is given while it is full, and until when; `None`: it is not full. To be asked when that time
    /// has come: then it is given as much as before, and who waits may have it
    /// ([`Admission::dispatch`](crate::Admission::dispatch)).
    pub fn reduced_limit(&self, now: Time) -> Option<(u32, Time)> {
        let ceiling = self.counter.capacity();
        let Some(until) = self.refusal_backoff.until(now) else {
            ceiling.restore();
            return None;
        };
        Some((ceiling.reduced(), until)).filter(|&(most, _)| most < u32::MAX)
    }

    /// What has been learned; says whether that is more than before.
    pub(crate) fn set_learned(&self, most: u32) -> bool {
        let ceiling = self.counter.capacity();
        let before = ceiling.learned();
        if before != most {
            ceiling.set_learned(most);
        }
        before < most
    }

    pub(crate) fn give_back(&self) {
        self.counter.give_back();
    }
}

impl<T> fmt::Debug for Endpoint<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({} in flight)", self.address, self.in_flight())
    }
}

/// Hands out endpoints: the same address gives the same endpoint as long as anybody holds it.
pub struct EndpointRegistry<T> {
    endpoints: BTreeMap<SocketAddr, Weak<Endpoint<T>>>,
    counters: CounterPool,
    next_key: u64,
    /// How many entries there may be before those nobody holds are forgotten.
    forget_at: usize,
}

impl<T> EndpointRegistry<T> {
    const FORGET_AT_LEAST: usize = 64;

    /// An empty ledger.
    pub fn new() -> Self {
        Self {
            endpoints: BTreeMap::new(),
            counters: CounterPool::default(),
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
            health: HealthCounters::default(),
            limit_counters: LimitCounters::default(),
            resends: ResendAllowance::default(),
            refusal_backoff: RefusalBackoff::default(),
            reachability: ReconnectSchedule::default(),
            data: data(),
            counter: self.counters.counter(),
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
        self.counters.shrink();
        self.forget_at = (2 * self.endpoints.len()).max(Self::FORGET_AT_LEAST);
    }
}

impl<T> Default for EndpointRegistry<T> {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn address(port: u16) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, 1], port))
    }

    #[test]
    fn same_address_gives_the_same_endpoint_while_referenced() {
        let mut ledger = EndpointRegistry::new();
        let first = ledger.endpoint(address(1), || "first");
        assert!(Arc::ptr_eq(&first, &ledger.endpoint(address(1), || "second")));
        drop(first);
        assert_eq!(ledger.endpoint(address(1), || "third").data, "third");
        assert!(ledger.live().is_empty());
    }

    #[test]
    fn registry_does_not_grow_with_removed_endpoints() {
        let mut ledger = EndpointRegistry::new();
        let kept = ledger.endpoint(address(0), || ());
        for port in 1..10_000 {
            ledger.endpoint(address(port), || ());
        }
        assert!(ledger.endpoints.len() <= EndpointRegistry::<()>::FORGET_AT_LEAST);
        assert_eq!(ledger.live().len(), 1);
        assert!(Arc::ptr_eq(&kept, &ledger.live()[0]));
    }

    #[test]
    fn duplicate_members_merge_to_the_larger_weight() {
        let mut ledger = EndpointRegistry::new();
        let mut member =
            |port, weight| SetMember::new(ledger.endpoint(address(port), || ()), weight);
        let set = EndpointSet::new(vec![member(2, 1), member(1, 5), member(2, 3), member(1, 0)]);
        let seen: Vec<_> =
            set.members().iter().map(|m| (m.endpoint.address.port(), m.weight)).collect();
        assert_eq!(seen, [(2, 3), (1, 5)]);
    }

    #[test]
    fn set_membership_is_by_endpoint_identity() {
        let (mut here, mut there) = (EndpointRegistry::new(), EndpointRegistry::new());
        let ours = here.endpoint(address(1), || ());
        let theirs = there.endpoint(address(1), || ());
        let set = EndpointSet::new(vec![SetMember::new(ours.clone(), 1)]);
        assert!(set.contains(&ours));
        assert!(!set.contains(&theirs));
    }
}
