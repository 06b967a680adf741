//! Queue of requests that wait for a slot. It keeps their order and grants them slots: first come,
//! first served among the requests of one priority and route that may use a slot.
//!
//! One lock per backend protects it, which the caller provides. The operations without that lock
//! are in [`crate::slots`]. The one race here is a grant against a cancellation; it is decided by
//! one compare-and-swap on the ticket.
//!
//! The next request for a slot is, in this order: one that has been overtaken too often; the
//! highest priority; of one priority the routes in turn; of one route the oldest. A request that
//! only one endpoint can serve waits in that endpoint's line, all others in the common line. So no
//! request blocks those that another endpoint can serve, however long the line of one endpoint is
//! (no head-of-line blocking).

use std::cmp::{Ordering, Reverse};
use std::fmt;
use std::iter;
use std::option;
use std::sync::Arc;
use std::time::Duration;
use std::vec;

use crate::endpoint::{Endpoint, EndpointSet, SetMember};
use crate::pick::{Algorithm, EligibleEndpoints, PickConstraints, PickRequest, Picker};
use crate::slots::{AdmissionConfig, AdmissionLimits, AdmissionRejection, ControlledDelay};
use crate::time::Time;

/// Priority, flow and deadline of a request.
mod parameters;
/// Ticket of a queued request.
mod ticket;
/// Queue entries in order.
mod fifo;
/// Queue entries of one priority and route.
mod flow;
/// Estimate of the grant rate.
mod grant_rate;

use fifo::QueueEntry;
pub(crate) use flow::QueueFlowKey;
use flow::{EntryPosition, QueueFlow};
pub(crate) use grant_rate::GrantRate;
use grant_rate::GrantRateEstimator;
pub use grant_rate::SharedBacklog;
pub use parameters::{PriorityLevel, QueueParameters};
pub use ticket::Ticket;

/// Queue of requests that wait for a slot of one backend. `N` wakes one of them.
pub struct Queue<T, N> {
    set: Arc<EndpointSet<T>>,
    limits: AdmissionLimits,
    /// One flow for each flow key. An empty flow is kept until the virtual time has passed its own,
    /// or it would have gained by being empty.
    flows: Vec<QueueFlow<T, N>>,
    /// Virtual time of each priority: that of the flow which was served last.
    virtual_times: [u64; PriorityLevel::COUNT],
    arrivals: u64,
    grant_rate: GrantRateEstimator,
    /// Time since which the queue has not been empty, if it is not empty.
    waited_since: Time,
    /// Picker for the case that several endpoints have capacity at once; it is by least load,
    /// whatever the backend's algorithm.
    picker: Picker,
    /// Queue length at which cancelled entries are removed.
    clear_at: usize,
}

/// Requests to wake after a change of the queue: each looks at its ticket.
#[derive(Debug)]
pub struct WakeList<N> {
    /// Request that has a slot.
    pub granted: Option<N>,
    /// Requests shed because they have waited too long in a sustained overload.
    pub shed: Vec<N>,
}

/// Queued requests of the highest priority that has any.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstWaiting {
    /// The priority.
    pub priority: PriorityLevel,
    /// Their approximate number: cancelled entries count until they are removed.
    pub requests: usize,
    /// Arrival time of the one that has waited longest.
    pub since: Time,
}

impl FirstWaiting {
    /// Returns those of the higher priority; if it is the same, all of both.
    #[must_use]
    pub fn join(self, other: Self) -> Self {
        match self.priority.cmp(&other.priority) {
            Ordering::Less => self,
            Ordering::Greater => other,
            Ordering::Equal => Self {
                priority: self.priority,
                requests: self.requests + other.requests,
                since: self.since.min(other.since),
            },
        }
    }
}

impl<T, N> Queue<T, N> {
    const MIN_CLEAR_LENGTH: usize = 32;
    /// Number of times that younger requests of a higher priority may overtake a request; then it
    /// is next.
    const MAX_OVERTAKEN: u32 = 7;
    /// Divisor of the queue length that gives the tolerated number of cancelled entries where
    /// lengths count.
    const CANCELLED_DIVISOR: usize = 16;

    /// Returns an empty queue for slots of these endpoints.
    pub fn new(set: Arc<EndpointSet<T>>, limits: AdmissionLimits) -> Self {
        Self {
            set,
            limits,
            flows: Vec::new(),
            virtual_times: [0; PriorityLevel::COUNT],
            arrivals: 0,
            grant_rate: GrantRateEstimator::default(),
            waited_since: Time::ZERO,
            picker: Picker::new(Algorithm::LeastLoad, 0),
            clear_at: Self::MIN_CLEAR_LENGTH,
        }
    }

    pub(crate) fn config(&self) -> AdmissionConfig<'_, T> {
        AdmissionConfig { set: &self.set, limits: self.limits }
    }

    pub(crate) fn grant_rate(&self) -> GrantRate {
        self.grant_rate.rate()
    }

    /// True if every queued request can be served by one endpoint only.
    pub(crate) fn all_bound(&self) -> bool {
        self.flows.iter().all(|flow| flow.common.len() == 0)
    }

    /// Returns the approximate queue length of each priority: cancelled entries count until they
    /// are removed.
    pub fn waiting_by_priority(&self) -> [usize; PriorityLevel::COUNT] {
        let mut waiting = [0; PriorityLevel::COUNT];
        for flow in &self.flows {
            waiting[usize::from(flow.key.priority.number())] += flow.len();
        }
        waiting
    }

    /// Returns the queued requests of the highest priority that has any.
    pub fn first_waiting(&mut self) -> Option<FirstWaiting> {
        let waiting = |flow: &mut QueueFlow<T, N>| {
            let since = flow.waits_since()?;
            Some(FirstWaiting { priority: flow.key.priority, requests: flow.len(), since })
        };
        self.flows.iter_mut().filter_map(waiting).reduce(FirstWaiting::join)
    }

    /// Returns the key of the flow that gets no further place in a full queue: the longest of the
    /// lowest priority.
    pub(crate) fn last_flow_key(&self) -> Option<QueueFlowKey> {
        self.last_flow().map(|flow| self.flows[flow].key)
    }

    /// Returns the maximum wait of a request that arrives now; shorter in a sustained overload.
    pub(crate) fn max_wait(&self, now: Time) -> Duration {
        match self.limits.delay {
            Some(delay) if self.is_overloaded(delay, now) => delay.target,
            Some(_) | None => Duration::MAX,
        }
    }

    fn is_overloaded(&self, delay: ControlledDelay, now: Time) -> bool {
        now.saturating_since(self.waited_since) >= delay.interval
    }

    /// Returns the rejection of a request with these parameters behind `waiting` others, if it
    /// would miss its deadline.
    pub(crate) fn would_miss_deadline(
        &self,
        parameters: &QueueParameters,
        eligible: EligibleEndpoints,
        waiting: u32,
        backlog: SharedBacklog,
        now: Time,
    ) -> Option<AdmissionRejection> {
        let left = parameters.deadline.saturating_since(now);
        if left.is_zero() {
            return Some(AdmissionRejection::WouldMissDeadline);
        }
        // The grant rate of a single endpoint's line is not known.
        if matches!(eligible, EligibleEndpoints::Only(_)) {
            return None;
        }
        let ahead = self.queued_ahead(parameters, waiting);
        let wait = self.grant_rate.rate().expected_wait(ahead, backlog, now)?;
        let patience = if waiting > 0 { self.max_wait(now) } else { Duration::MAX };
        (wait > left.min(patience)).then_some(AdmissionRejection::WouldMissDeadline)
    }

    /// Returns about how many of the `waiting` requests go before a new one with these parameters.
    fn queued_ahead(&self, parameters: &QueueParameters, waiting: u32) -> u64 {
        let key = QueueFlowKey::of(parameters, self.limits.fair);
        if let [flow] = &*self.flows
            && flow.key.priority <= key.priority
        {
            return u64::from(waiting);
        }
        let own = self.flows.iter().find(|flow| flow.key == key).map_or(0, QueueFlow::len);
        let before = |flow: &QueueFlow<T, N>| match flow.key.priority.cmp(&key.priority) {
            Ordering::Less => flow.len(),
            Ordering::Equal => flow.len().min(own + 1),
            Ordering::Greater => 0,
        };
        let ahead = self.flows.iter().map(before).sum::<usize>() as u64;
        // Some entries may be cancelled, with the same probability here as elsewhere.
        let all = self.len().max(1) as u64;
        ahead.min(ahead * u64::from(waiting) / all + 1)
    }

    /// Evicts a request from a full queue for a new one with these parameters: the last one of the
    /// longest flow of the lowest priority. The condition is that this priority is lower than the
    /// new request's, or that the flow has more than one place more than the new request's flow.
    pub(crate) fn evict_for(&mut self, parameters: &QueueParameters, waiting: u32) -> Option<N> {
        let key = QueueFlowKey::of(parameters, self.limits.fair);
        self.remove_cancelled_if_many(waiting as usize);
        loop {
            let last = self.last_flow()?;
            let [longest, own] = [Some(last), self.find(key)]
                .map(|flow| flow.map_or(0, |flow| self.flows[flow].len()));
            let lower = self.flows[last].key.priority > key.priority;
            let fairer = self.flows[last].key.priority == key.priority && longest > own + 1;
            if !lower && !fairer {
                return None;
            }
            // A request that is cancelled at this very moment is not evicted.
            if let Some(waiter) = self.flows[last].remove_last()
                && waiter.ticket.refuse(AdmissionRejection::Evicted)
            {
                return Some(waiter.notify);
            }
        }
    }

    /// Records the arrival of a request at an empty queue.
    pub(crate) fn begin_waiting(&mut self, now: Time) {
        self.grant_rate.begin_waiting(now);
        self.waited_since = now;
    }

    /// Adds a request at the end of its line.
    pub(crate) fn push(
        &mut self,
        request: &PickRequest<'_, T>,
        constraints: PickConstraints<T>,
        notify: N,
    ) -> Arc<Ticket<T>> {
        self.remove_cancelled();
        let ticket = Arc::new(Ticket::new());
        let eligible = constraints.eligible(&self.set);
        self.enqueue(QueueEntry {
            arrival: self.arrivals,
            since: request.now,
            parameters: request.queueing,
            ticket: ticket.clone(),
            constraints,
            eligible,
            notify,
            overtaken: 0,
        });
        self.arrivals += 1;
        ticket
    }

    /// Replaces the set and the limits. Each queued request moves to its place for the new set, in
    /// the old order.
    pub(crate) fn replace(&mut self, set: Arc<EndpointSet<T>>, limits: AdmissionLimits) {
        let (usable, before) = (usable_slots(&set), usable_slots(&self.set));
        if usable > before || usable == 0 || limits.cap != self.limits.cap {
            self.grant_rate.reset();
        }
        if limits.fair != self.limits.fair {
            self.virtual_times = [0; PriorityLevel::COUNT];
            self.flows.iter_mut().for_each(|flow| flow.virtual_time = 0);
        }
        (self.set, self.limits) = (set, limits);
        let mut waiters: Vec<_> = self.flows.iter_mut().flat_map(QueueFlow::take_waiters).collect();
        waiters.sort_unstable_by_key(|waiter| waiter.arrival);
        for waiter in waiters {
            let eligible = waiter.constraints.eligible(&self.set);
            self.enqueue(QueueEntry { eligible, ..waiter });
        }
    }

    /// Takes a slot for a new request, unless a queued request could use it.
    ///
    /// If a slot that a queued request may use is free, the thread that released it is on its way
    /// to the lock: it is not for new requests.
    pub(crate) fn spare_slot(
        &mut self,
        picker: &mut Picker,
        request: &PickRequest<'_, T>,
    ) -> Option<Arc<Endpoint<T>>> {
        let cap = self.limits.cap;
        let Some((_, eligible)) = self.first_common() else {
            self.flows.iter_mut().for_each(|flow| {
                flow.bound.retain(|_, line| line.first().is_some());
            });
            let flows = &self.flows;
            let is_barred = |member| flows.iter().any(|flow| flow.bound.contains_key(&member));
            return picker.take_except(&self.set, cap, request, &is_barred);
        };
        // That leaves the endpoints at which the first entry has been tried.
        let EligibleEndpoints::AllExcept(avoided) = eligible else { return None };
        let spare: Vec<usize> =
            avoided.iter().copied().filter(|&member| self.next(member).is_none()).collect();
        picker.take_except(&self.set, cap, request, &|member| !spare.contains(&member))
    }

    /// Offers one slot of an endpoint; returns the requests to wake. An endpoint that has left the
    /// set grants nothing.
    pub(crate) fn offer(&mut self, endpoint: &Endpoint<T>, now: Time) -> WakeList<N> {
        let mut shed = Vec::new();
        let member = self.set.position(endpoint);
        let granted = member.and_then(|member| self.offer_member(member, now, &mut shed));
        WakeList { granted, shed }
    }

    /// Grants every free slot that a queued request may use; returns the requests to wake.
    pub(crate) fn offer_all(&mut self, now: Time) -> Vec<N> {
        let mut woken = Vec::new();
        while let Some((flow, _)) = self.first_common() {
            let first = self.flows[flow].common.first().expect("it was found there");
            let request = first.constraints.request(now);
            let Some(endpoint) = self.picker.take(&self.set, self.limits.cap, &request) else {
                break;
            };
            let granted = self.grant(endpoint, now, &mut woken);
            woken.extend(granted);
        }
        // The first entry finds no slot, so a free one can only be where that entry has been tried.
        // Others may use that, or are bound to it. If there is no first entry, each line of bound
        // entries is offered slots.
        let mut members: Vec<usize> = match self.first_common().map(|(_, eligible)| eligible) {
            Some(EligibleEndpoints::AllExcept(avoided)) => avoided.to_vec(),
            Some(EligibleEndpoints::Any | EligibleEndpoints::Only(_)) => Vec::new(),
            None => self.flows.iter().flat_map(|flow| flow.bound.keys().copied()).collect(),
        };
        members.sort_unstable();
        members.dedup();
        for member in members {
            while let Some(granted) = self.offer_member(member, now, &mut woken) {
                woken.push(granted);
            }
        }
        woken
    }

    fn offer_member(&mut self, member: usize, now: Time, shed: &mut Vec<N>) -> Option<N> {
        while self.next(member).is_some() {
            let endpoint = self.set.take(member, self.limits.cap, now)?;
            if let Some(notify) = self.grant(endpoint, now, shed) {
                return Some(notify);
            }
        }
        None
    }

    /// Grants a slot, already taken, to the next request that may use it, which leaves the queue.
    /// If there is none any more, or it has been cancelled, the slot is returned.
    ///
    /// In a sustained overload, requests that have waited too long are shed while there is another
    /// one for the slot.
    fn grant(&mut self, endpoint: Arc<Endpoint<T>>, now: Time, shed: &mut Vec<N>) -> Option<N> {
        let member = self.set.position(&endpoint);
        let mut next = member.and_then(|member| self.remove_next(member));
        let patience = self.max_wait(now);
        while let (Some(member), Some((_, waiter))) = (member, &next)
            && now.saturating_since(waiter.since) > patience
            && let Some(younger) = self.remove_next(member)
        {
            let (_, waiter) = next.replace(younger).expect("it is there");
            if waiter.ticket.refuse(AdmissionRejection::Shed) {
                shed.push(waiter.notify);
            }
        }
        if let (Some(member), Some((flow, waiter))) = (member, next)
            && waiter.ticket.grant(endpoint.clone())
        {
            self.advance_virtual_time(flow, waiter.arrival, member);
            self.grant_rate.record_grant(now);
            return Some(waiter.notify);
        }
        endpoint.give_back();
        None
    }

    /// Advances the virtual time after a request of this flow, with this arrival number, got a slot
    /// of the member.
    fn advance_virtual_time(&mut self, flow: usize, arrival: u64, member: usize) {
        let QueueFlow { key, virtual_time, .. } = &mut self.flows[flow];
        let priority = key.priority;
        let latest = &mut self.virtual_times[usize::from(priority.number())];
        *latest = (*virtual_time).max(*latest);
        *virtual_time += 1;
        if self.flows.len() == 1 {
            return;
        }
        // Older requests of a lower priority have been overtaken.
        for flow in self.flows.iter_mut().filter(|flow| flow.key.priority > priority) {
            if let Some(older) = flow.next(member).filter(|it| it.arrival < arrival) {
                flow.count_overtaken(older.position);
            }
        }
    }

    /// Returns the first request that several endpoints can serve, with its flow.
    fn first_common(&mut self) -> Option<(usize, EligibleEndpoints)> {
        let mut flows = self.flows.iter_mut().enumerate();
        flows.find_map(|(n, flow)| flow.common.first().map(|waiter| (n, waiter.eligible.clone())))
    }

    /// Returns the next request that is not cancelled and may use the member: its flow and its
    /// position there.
    fn next(&mut self, member: usize) -> Option<(usize, EntryPosition)> {
        if let [only] = &mut *self.flows {
            return only.next(member).map(|candidate| (0, candidate.position));
        }
        let mut best = None;
        for (flow, it) in self.flows.iter_mut().enumerate() {
            let Some(candidate) = it.next(member) else { continue };
            let order = if candidate.overtaken >= Self::MAX_OVERTAKEN {
                (None, 0, candidate.arrival)
            } else {
                (Some(it.key.priority), it.virtual_time, candidate.arrival)
            };
            if best.as_ref().is_none_or(|(least, _)| order < *least) {
                best = Some((order, (flow, candidate.position)));
            }
        }
        best.map(|(_, next)| next)
    }

    /// Removes and returns the next request, with its flow.
    fn remove_next(&mut self, member: usize) -> Option<(usize, QueueEntry<T, N>)> {
        let (flow, position) = self.next(member)?;
        let waiter = self.flows[flow].remove(position)?;
        Some((flow, waiter))
    }

    /// Adds an entry at the end of its line.
    fn enqueue(&mut self, waiter: QueueEntry<T, N>) {
        let key = QueueFlowKey::of(&waiter.parameters, self.limits.fair);
        let latest = self.virtual_times[usize::from(key.priority.number())];
        let flow = self.find(key).unwrap_or_else(|| {
            let turns = &self.virtual_times;
            let is_due = |flow: &QueueFlow<T, N>| {
                flow.virtual_time > turns[usize::from(flow.key.priority.number())]
            };
            self.flows.retain(|flow| flow.len() > 0 || is_due(flow));
            self.flows.push(QueueFlow::new(key));
            self.flows.len() - 1
        });
        let flow = &mut self.flows[flow];
        if flow.len() == 0 {
            flow.virtual_time = flow.virtual_time.max(latest);
        }
        flow.enqueue(waiter);
    }

    fn find(&self, key: QueueFlowKey) -> Option<usize> {
        self.flows.iter().position(|flow| flow.key == key)
    }

    /// Returns the longest flow of the lowest priority that has entries.
    fn last_flow(&self) -> Option<usize> {
        if let [only] = &*self.flows {
            return (only.len() > 0).then_some(0);
        }
        let waiting = (0..self.flows.len()).filter(|&flow| self.flows[flow].len() > 0);
        waiting.max_by_key(|&flow| {
            let it = &self.flows[flow];
            (it.key.priority, it.len(), Reverse(flow))
        })
    }

    /// Removes cancelled entries once they could be as many as the others: amortised constant work
    /// for each new entry.
    fn remove_cancelled(&mut self) {
        if self.len() < self.clear_at {
            return;
        }
        self.flows.iter_mut().for_each(QueueFlow::remove_cancelled);
        self.clear_at = (2 * self.len()).max(Self::MIN_CLEAR_LENGTH);
    }

    /// Removes cancelled entries if they are so many that lengths mislead.
    fn remove_cancelled_if_many(&mut self, waiting: usize) {
        let len = self.len();
        if len.saturating_sub(waiting) > len / Self::CANCELLED_DIVISOR {
            self.flows.iter_mut().for_each(QueueFlow::remove_cancelled);
        }
    }

    /// Returns the number of entries, cancelled ones included.
    fn len(&self) -> usize {
        self.flows.iter().map(QueueFlow::len).sum()
    }
}

/// Returns the capacity of a set: a number to compare with that of another set under the same cap.
fn usable_slots<T>(set: &EndpointSet<T>) -> u64 {
    let serves = |member: &&SetMember<T>| member.weight > 0 || member.half_open;
    set.members().iter().filter(serves).map(|member| u64::from(member.max_in_flight)).sum()
}

impl<N> WakeList<N> {
    pub(crate) fn empty() -> Self {
        Self { granted: None, shed: Vec::new() }
    }

    pub(crate) fn len(&self) -> usize {
        self.granted.iter().len() + self.shed.len()
    }
}

impl<N> IntoIterator for WakeList<N> {
    type Item = N;
    type IntoIter = iter::Chain<vec::IntoIter<N>, option::IntoIter<N>>;

    /// Iterates in the order in which the changes happened.
    fn into_iter(self) -> Self::IntoIter {
        self.shed.into_iter().chain(self.granted)
    }
}

impl<T, N> fmt::Debug for Queue<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("set", &self.set)
            .field("limits", &self.limits)
            .field("flows", &self.flows)
            .finish_non_exhaustive()
    }
}
