//! Endpoints, and a registry that keeps one of each.
//!
//! An endpoint's state is shared by all backends that name its address, and outlives every
//! Snapshot.

use std::collections::BTreeMap;
use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::atomic;
use crate::health::HealthCounters;
use crate::leases::EndpointShare;
use crate::limit::{LimitCounters, OwnRefusal, OwnRefusals, RefusalBackoff, RetryAfterHandling};
use crate::load::{CapacityLimits, ConcurrencyCap, CounterPool, InFlightCounter, LeaseValidity};
use crate::outcome::Outcome;
use crate::reachability::ReconnectSchedule;
use crate::retry::ResendAllowance;
use crate::reuse::IdleHistory;
use crate::time::Time;

/// Sets of endpoints to choose from.
mod set;

pub use set::{EndpointSet, SetMember};

/// One address that can serve, and its state. `T` is data that the user of this crate attaches to
/// it.
///
/// Its load is the number of requests in flight, counted from the pick on, over all workers and
/// backends.
///
/// The alignment keeps the reference count, which every request changes, off the cache line that
/// every request reads.
#[repr(align(64))]
pub struct Endpoint<T> {
    /// Address at which it listens.
    pub address: SocketAddr,
    /// Observations of how long it keeps idle connections.
    pub idle: IdleHistory,
    /// Results of attempts at it.
    pub health: HealthCounters,
    /// Service times by level of concurrency.
    pub limit_counters: LimitCounters,
    /// Data of the user of this crate.
    pub data: T,
    /// Allowance for resending requests that were in flight when the endpoint died, beside the
    /// retry budget.
    pub resends: ResendAllowance,
    refusal_backoff: RefusalBackoff,
    own_refusals: OwnRefusals,
    reachability: ReconnectSchedule,
    counter: InFlightCounter,
    key: u64,
}

impl<T> Endpoint<T> {
    /// Returns the number of requests in flight, over all workers and backends.
    pub fn in_flight(&self) -> u32 {
        self.counter.in_flight()
    }

    /// Returns the time to the head of a response, as estimated for
    /// [`PeakEwma`](crate::Algorithm::PeakEwma); `None` before the first response.
    pub fn latency(&self, now: Time) -> Option<Duration> {
        let latency = self.counter.latency().estimate_at(now).latency?;
        Some(Duration::from_nanos(latency as u64))
    }

    /// Records the outcome of an attempt. To be called for every attempt, whatever the algorithm,
    /// because backends may share an endpoint. Less than one call in a millisecond writes.
    pub fn learn(&self, outcome: &Outcome, now: Time) {
        self.learn_mean(outcome, now);
        self.counter.latency().learn_peak(outcome, now);
    }

    /// Records the outcome like [`learn`](Self::learn), for use where no backend chooses by
    /// [`PeakEwma`](crate::Algorithm::PeakEwma).
    #[inline]
    pub fn learn_mean(&self, outcome: &Outcome, now: Time) {
        self.counter.latency().learn_mean(outcome, now);
    }

    /// Returns the mean time to the head of a response; `None` before enough responses.
    pub fn mean_latency(&self, now: Time) -> Option<Duration> {
        let mean = self.counter.latency().stats(now).mean?;
        Some(Duration::from_nanos(mean as u64))
    }

    /// True unless it is marked unreachable: pickers skip such an endpoint while another is
    /// reachable.
    pub fn is_reachable(&self) -> bool {
        self.counter.capacity().is_reachable()
    }

    /// Returns the time since which it is marked unreachable; `None` if it is not.
    pub fn unreachable_since(&self) -> Option<Time> {
        (!self.is_reachable()).then(|| self.reachability.since())
    }

    /// Marks it unreachable for all workers and backends, after a failed connection attempt. True
    /// if it was not marked before; then the caller has the control thread make background attempts
    /// ([`attempt_due_at`](Self::attempt_due_at)), and has requests that wait for this endpoint
    /// look for another ([`Admission::replace`](crate::Admission::replace)).
    pub fn mark_unreachable(&self, now: Time) -> bool {
        let first = self.counter.capacity().mark_unreachable();
        if first {
            self.reachability.begin(now);
        }
        first
    }

    /// Removes the mark, after a successful connection attempt. True if there was a mark; then
    /// queued requests may get a slot here ([`Admission::replace`](crate::Admission::replace)).
    /// Attempts that began earlier do not count for its health.
    pub fn mark_reachable(&self, now: Time) -> bool {
        let first = self.counter.capacity().mark_reachable();
        if first {
            self.health.count_from(now);
        }
        first
    }

    /// Returns the time of the next background connection attempt by the control thread.
    pub fn attempt_due_at(&self) -> Time {
        self.reachability.due_at()
    }

    /// Records a failed background attempt.
    pub fn attempt_failed(&self, now: Time) {
        self.reachability.failed(now);
    }

    /// Makes the next background attempt due now, because something suggests that the endpoint is
    /// back.
    pub fn attempt_now(&self, now: Time) {
        self.reachability.attempt_now(now);
    }

    /// Takes a slot of the endpoint, unless it is at the cap. A slot taken must be returned once,
    /// by [`Admission::release`](crate::Admission::release).
    pub fn take(&self, cap: ConcurrencyCap, now: Time) -> bool {
        self.counter.take(CapacityLimits::within(cap, now))
    }

    /// Returns the limit on requests in flight; `None` if there is none. It is our share if slots
    /// are leased, and else that of all balancers together. An endpoint that is marked unreachable
    /// keeps its limit.
    pub fn limit(&self, cap: ConcurrencyCap) -> Option<u32> {
        let capacity = CapacityLimits::within(cap, Time::ZERO);
        let capacity = if self.is_reachable() { capacity } else { capacity.with_unreachable() };
        Some(self.counter.most(capacity)).filter(|&most| most < u32::MAX)
    }

    /// Sets our share of the slots, for backends with a fixed cap ([`crate::leases`]). Returns the
    /// number of requests in flight after that: no request begins beyond the share from then on.
    pub fn set_share(&self, share: EndpointShare) -> u32 {
        self.counter.capacity().share().set(share);
        atomic::total_order();
        self.in_flight()
    }

    /// Removes the limit of leases: another one is in force.
    pub fn stop_leasing(&self) {
        self.counter.capacity().share().forget();
    }

    /// True if our share of the slots is limited by leases.
    pub fn is_leased(&self) -> bool {
        self.counter.capacity().share().is_leased()
    }

    /// Records that the endpoint refused a request because it is full. The request was picked at
    /// concurrency `level`, itself included. Until the backoff ends, the limit is one less than
    /// `level`, and at least one.
    pub fn record_refusal(
        &self,
        level: u32,
        retry_after: Option<Duration>,
        now: Time,
    ) -> RetryAfterHandling {
        let (handling, limit) =
            (self.refusal_backoff.extend(retry_after, now), level.saturating_sub(1).max(1));
        self.own_refusals.record(limit, retry_after, now);
        if self.refusal_backoff.until(now).is_some() {
            self.counter.capacity().reduce(limit);
        }
        handling
    }

    /// Returns the reduced limit because of refusals that this replica has seen; `None` if the
    /// endpoint is not full, or only other replicas say so.
    pub fn own_refusal(&self, now: Time) -> Option<OwnRefusal> {
        self.own_refusals.current(now)
    }

    /// Returns the time at which it last refused a request of this replica.
    pub fn last_refused_at(&self) -> Option<Time> {
        self.own_refusals.last_at()
    }

    /// Reduces the limit for a time, because the endpoint refuses requests of another replica.
    pub fn reduce_for_peer(&self, limit: u32, remaining: Duration, now: Time) {
        if !remaining.is_zero() {
            self.refusal_backoff.extend(Some(remaining), now);
            self.counter.capacity().reduce(limit.max(1));
        }
    }

    /// Records that the endpoint is overloaded, though it served a request that was picked at
    /// concurrency `level`: for a second the limit is `level`.
    pub fn record_overload(&self, level: u32, now: Time) {
        self.refusal_backoff.extend(None, now);
        self.counter.capacity().reduce(level.max(1));
    }

    /// Returns the reduced limit of an endpoint that is full, and the time until which it holds;
    /// `None` if it is not full. To be called again at that time: the call restores the limit, and
    /// queued requests may use it ([`Admission::dispatch`](crate::Admission::dispatch)).
    pub fn reduced_limit(&self, now: Time) -> Option<(u32, Time)> {
        let ceiling = self.counter.capacity();
        let Some(until) = self.refusal_backoff.until(now) else {
            ceiling.restore();
            return None;
        };
        Some((ceiling.reduced(), until)).filter(|&(most, _)| most < u32::MAX)
    }

    /// Sets the learned limit; true if it is higher than before.
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

/// Registry of endpoints: the same address gives the same endpoint as long as a reference to it
/// exists.
pub struct EndpointRegistry<T> {
    endpoints: BTreeMap<SocketAddr, Weak<Endpoint<T>>>,
    counters: CounterPool,
    next_key: u64,
    /// Number of entries at which unreferenced ones are removed.
    forget_at: usize,
}

impl<T> EndpointRegistry<T> {
    const FORGET_AT_LEAST: usize = 64;

    /// Returns an empty registry.
    pub fn new() -> Self {
        Self::with_counters(CounterPool::default())
    }

    /// Returns an empty registry of endpoints with leased slots: none has a slot until its share is
    /// set ([`Endpoint::set_share`]).
    pub fn with_leases(validity: LeaseValidity) -> Self {
        Self::with_counters(CounterPool::with_leases(validity))
    }

    fn with_counters(counters: CounterPool) -> Self {
        Self { endpoints: BTreeMap::new(), counters, next_key: 0, forget_at: Self::FORGET_AT_LEAST }
    }

    /// Returns the endpoint at an address; creates it with `data` if no reference to it exists.
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
            own_refusals: OwnRefusals::default(),
            reachability: ReconnectSchedule::default(),
            data: data(),
            counter: self.counters.counter(),
            key: self.next_key,
        });
        self.next_key += 1;
        self.endpoints.insert(address, Arc::downgrade(&endpoint));
        endpoint
    }

    /// Returns all referenced endpoints, by address.
    pub fn live(&self) -> Vec<Arc<Endpoint<T>>> {
        self.endpoints.values().filter_map(Weak::upgrade).collect()
    }

    /// Removes unreferenced entries once they could be as many as the others: amortised constant
    /// work for each new endpoint.
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
        let mut registry = EndpointRegistry::new();
        let first = registry.endpoint(address(1), || "first");
        assert!(Arc::ptr_eq(&first, &registry.endpoint(address(1), || "second")));
        drop(first);
        assert_eq!(registry.endpoint(address(1), || "third").data, "third");
        assert!(registry.live().is_empty());
    }

    #[test]
    fn registry_does_not_grow_with_removed_endpoints() {
        let mut registry = EndpointRegistry::new();
        let kept = registry.endpoint(address(0), || ());
        for port in 1..10_000 {
            registry.endpoint(address(port), || ());
        }
        assert!(registry.endpoints.len() <= EndpointRegistry::<()>::FORGET_AT_LEAST);
        assert_eq!(registry.live().len(), 1);
        assert!(Arc::ptr_eq(&kept, &registry.live()[0]));
    }

    #[test]
    fn duplicate_members_merge_to_the_larger_weight() {
        let mut registry = EndpointRegistry::new();
        let mut member =
            |port, weight| SetMember::new(registry.endpoint(address(port), || ()), weight);
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
