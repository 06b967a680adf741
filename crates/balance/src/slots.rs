//! Admission protocol: acquires and releases slots.
//!
//! The common case, a free slot and an empty queue, takes no lock. The caller provides the lock; it
//! is taken only if all slots are taken or requests are queued. No waiting request is forgotten,
//! because both sides write first and then read, in one total order (`SeqCst`):
//!
//! - a request that must wait announces it (`waiting + 1`), then tries the slots once more, then
//!   joins the queue;
//! - a thread that releases a slot decrements the count, then reads whether requests wait, and if
//!   so takes the lock.
//!
//! At least one of them sees the other. Since the waiting request does all of it under the lock, a
//! releasing thread that sees the announcement finds the request in the queue. `tests/loom.rs`
//! explores the interleavings.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use crate::atomic::{self, AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::endpoint::{Endpoint, EndpointSet};
use crate::load::ConcurrencyCap;
use crate::pick::{PickRequest, Picker};
use crate::queue::{GrantRate, Queue, QueueFlowKey, SharedBacklog, Ticket, WakeList};
use crate::time::{Time, nanos};

/// Admission limits of a backend.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Maximum of requests in flight at each endpoint; no cap by default.
    pub cap: ConcurrencyCap,
    /// Maximum queue length; 0 disables the queue.
    pub max_waiting: u32,
    /// Fair queueing: the routes of one priority take turns, and share the places of a full queue.
    /// If false, all routes count as one.
    pub fair: bool,
    /// Controlled delay in a sustained overload; off by default.
    pub delay: Option<ControlledDelay>,
}

/// Endpoints of a backend and the limits of their slots, by which requests are admitted.
#[derive(Debug)]
pub struct AdmissionConfig<'a, T> {
    /// The endpoints.
    pub set: &'a EndpointSet<T>,
    /// Their limits.
    pub limits: AdmissionLimits,
}

impl<T> AdmissionConfig<'_, T> {
    /// Takes a slot at an unreachable endpoint if no endpoint is reachable and there is no queue.
    fn last_resort(
        &self,
        picker: &mut Picker,
        request: &PickRequest<'_, T>,
        waiting: u32,
    ) -> Option<Arc<Endpoint<T>>> {
        let may_wait = waiting > 0 || self.limits.max_waiting > 0;
        if may_wait { None } else { picker.take_unreachable(self.set, self.limits.cap, request) }
    }

    /// Returns the rejection of a request for which there is neither a slot nor a place.
    fn rejection(&self) -> AdmissionRejection {
        if self.set.is_unreachable() {
            AdmissionRejection::Unreachable
        } else if self.limits.max_waiting > 0 || self.set.is_usable() {
            AdmissionRejection::Full
        } else if self.set.has_no_assigned_slot() {
            AdmissionRejection::NoSlot
        } else {
            AdmissionRejection::NoEndpoint
        }
    }
}

/// Controlled delay, which applies while the queue has not been empty for long.
///
/// A long queue is of no use then: each request waits as long as the queue is. After the idea of
/// CoDel (RFC 8289).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlledDelay {
    /// Target delay. Requests with a longer expected wait are rejected, and those queued longer are
    /// shed while there is another request for the slot.
    pub target: Duration,
    /// Time for which the queue has not been empty before the target applies.
    pub interval: Duration,
}

/// Reason why a request gets no slot and no place in the queue, or loses that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionRejection {
    /// The set is empty, or no member has a weight, and there is no queue.
    NoEndpoint,
    /// Every endpoint of the set is marked unreachable, and the queue is full, or there is none.
    Unreachable,
    /// No slot of the set is assigned to us ([`SlotAssignment`](crate::SlotAssignment)), and there
    /// is no queue.
    NoSlot,
    /// Every slot is taken and the queue is full, or there is none.
    Full,
    /// The expected wait exceeds the request's deadline, or the target delay in a sustained
    /// overload.
    WouldMissDeadline,
    /// Its place in a full queue was given to a request of a higher priority, or of a route with
    /// fewer places.
    Evicted,
    /// It has waited longer than the target delay in a sustained overload.
    Shed,
}

/// Result of a request for a slot. `N` wakes a queued request.
#[derive(Debug)]
pub enum AdmissionDecision<T, N> {
    /// The request has a slot.
    Slot(Arc<Endpoint<T>>),
    /// The request waits; the `notify` that it passed wakes it when the ticket is granted or
    /// refused.
    Waiting {
        /// Its ticket.
        ticket: Arc<Ticket<T>>,
        /// Waker of the request that was evicted for it, to be called after the lock is released.
        evicted: Option<N>,
    },
    /// The request gets no slot.
    Rejected(AdmissionRejection),
}

/// Admission to the slots of one backend: the state that workers read without taking the lock of
/// the [`Queue`].
///
/// If backends share an endpoint, each has its own queue. A slot freed through one of them is
/// offered to that backend's queue only; the caller then calls [`dispatch`](Self::dispatch) for the
/// others with queued requests.
#[derive(Debug)]
pub struct Admission {
    /// Number of queued requests. It grows only under the lock, so it never exceeds the limit.
    waiting: AtomicU32,
    hints: QueueHints,
}

/// Hints about the queue for requests that do not take the lock, as of the last time the lock was
/// held. Each hint is right by itself; they need not be of the same moment.
#[derive(Debug)]
struct QueueHints {
    /// True if every queued request is bound to one endpoint, or the queue is empty.
    all_bound: AtomicBool,
    /// Number of the flow that gets no further place in a full queue.
    last_flow: AtomicU64,
    /// Maximum wait of a new request in nanoseconds.
    max_wait_nanos: AtomicU64,
    /// [`GrantRate::gap_nanos`] and [`GrantRate::last_grant`].
    grant_gap: AtomicU64,
    last_grant: AtomicU64,
    /// [`SharedBacklog::queued_elsewhere`] and [`SharedBacklog::gap_nanos`].
    queued_elsewhere: AtomicU64,
    shared_gap: AtomicU64,
}

impl QueueHints {
    fn new() -> Self {
        Self {
            all_bound: AtomicBool::new(true),
            last_flow: AtomicU64::new(QueueFlowKey::NONE),
            max_wait_nanos: AtomicU64::new(u64::MAX),
            grant_gap: AtomicU64::new(0),
            last_grant: AtomicU64::new(0),
            queued_elsewhere: AtomicU64::new(0),
            shared_gap: AtomicU64::new(0),
        }
    }

    fn update<T, N>(&self, queue: &Queue<T, N>, now: Time) {
        let write = |hint: &AtomicU64, value: u64| {
            if hint.load(Ordering::Relaxed) != value {
                hint.store(value, Ordering::Relaxed);
            }
        };
        let bound = queue.all_bound();
        if self.all_bound.load(Ordering::Relaxed) != bound {
            self.all_bound.store(bound, Ordering::Relaxed);
        }
        write(
            &self.last_flow,
            queue.last_flow_key().map_or(QueueFlowKey::NONE, QueueFlowKey::as_number),
        );
        write(&self.max_wait_nanos, nanos(queue.max_wait(now)));
        let GrantRate { gap_nanos, last_grant: since } = queue.grant_rate();
        write(&self.grant_gap, gap_nanos);
        if gap_nanos > 0 {
            write(&self.last_grant, since.as_nanos());
        }
    }

    fn grant_rate(&self) -> GrantRate {
        let gap_nanos = self.grant_gap.load(Ordering::Relaxed);
        GrantRate {
            gap_nanos,
            last_grant: Time::from_nanos(self.last_grant.load(Ordering::Relaxed)),
        }
    }

    fn shared_backlog(&self) -> SharedBacklog {
        SharedBacklog {
            queued_elsewhere: self.queued_elsewhere.load(Ordering::Relaxed),
            gap_nanos: self.shared_gap.load(Ordering::Relaxed),
        }
    }

    /// Returns the expected wait of a new request behind `waiting` others, if it is known.
    fn expected_wait(&self, waiting: u32, now: Time) -> Option<Duration> {
        self.grant_rate().expected_wait(u64::from(waiting), self.shared_backlog(), now)
    }

    /// True if a request of this flow is served after all others.
    fn is_last_flow(&self, key: QueueFlowKey) -> bool {
        self.last_flow.load(Ordering::Relaxed) == key.as_number()
    }
}

impl Admission {
    /// Returns the admission of a backend with an empty queue.
    pub fn new() -> Self {
        Self { waiting: AtomicU32::new(0), hints: QueueHints::new() }
    }

    /// Returns the number of queued requests.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::SeqCst)
    }

    /// Returns the expected wait of a new request behind all queued ones, if it is known.
    pub fn expected_wait(&self, now: Time) -> Option<Duration> {
        let waiting = self.waiting();
        self.hints.expected_wait(waiting, now).filter(|_| waiting > 0)
    }

    /// Sets the backlog of all replicas that lease slots of this backend's endpoints to one
    /// another. It only shortens the expected wait.
    pub fn set_shared_backlog(&self, backlog: SharedBacklog) {
        self.hints.queued_elsewhere.store(backlog.queued_elsewhere, Ordering::Relaxed);
        self.hints.shared_gap.store(backlog.gap_nanos, Ordering::Relaxed);
    }

    /// Requests a slot. If requests wait for the slots that this one could get, it waits behind
    /// them.
    ///
    /// `config` is the caller's copy, perhaps slightly old, for the path without the lock; under the
    /// lock the queue's own applies. `lock` gives exclusive access to the queue.
    /// `notify` is called only if the request must wait, while the lock is held.
    pub fn enter<T, N, G: DerefMut<Target = Queue<T, N>>>(
        &self,
        picker: &mut Picker,
        config: AdmissionConfig<'_, T>,
        request: &PickRequest<'_, T>,
        lock: impl FnOnce() -> G,
        notify: impl FnOnce() -> N,
    ) -> AdmissionDecision<T, N> {
        let waiting = self.waiting();
        if waiting == 0
            && let Some(endpoint) = picker.take(config.set, config.limits.cap, request)
        {
            return AdmissionDecision::Slot(endpoint);
        }
        if let Some(endpoint) = config.last_resort(picker, request, waiting) {
            return AdmissionDecision::Slot(endpoint);
        }
        if let Some(refusal) = self.reject_without_lock(waiting, config.limits, request) {
            let full = refusal == AdmissionRejection::Full;
            return AdmissionDecision::Rejected(if full { config.rejection() } else { refusal });
        }
        let mut queue = lock();
        let decision = self.join(&mut queue, picker, request, notify);
        self.hints.update(&queue, request.now);
        decision
    }

    /// Releases a slot after the endpoint has finished with a request. Returns the requests to wake
    /// after the lock is released: the next queued request that may use the endpoint gets its slot.
    /// `now` is called only if requests are queued.
    pub fn release<T, N, G: DerefMut<Target = Queue<T, N>>>(
        &self,
        endpoint: &Endpoint<T>,
        now: impl FnOnce() -> Time,
        lock: impl FnOnce() -> G,
    ) -> WakeList<N> {
        endpoint.give_back();
        atomic::total_order();
        if self.waiting() == 0 {
            return WakeList::empty();
        }
        let now = now();
        let mut queue = lock();
        let woken = queue.offer(endpoint, now);
        self.remove_waiting(woken.len());
        self.hints.update(&queue, now);
        woken
    }

    /// Cancels the wait of a request. True if it had not been granted; then nothing is left to do.
    ///
    /// False if it was granted at the same moment. Then the caller takes [`Ticket::granted`],
    /// unless it has done so before, and either uses the slot or releases it, which passes it on.
    pub fn cancel<T>(&self, ticket: &Ticket<T>) -> bool {
        let cancelled = ticket.cancel();
        self.remove_waiting(usize::from(cancelled));
        cancelled || ticket.is_over()
    }

    /// Replaces the endpoints or limits. Returns all requests to wake after the lock is released.
    ///
    /// From now on no request is granted an endpoint that has left the set. Requests beyond a
    /// lowered queue limit keep waiting.
    pub fn replace<T, N, G: DerefMut<Target = Queue<T, N>>>(
        &self,
        set: Arc<EndpointSet<T>>,
        limits: AdmissionLimits,
        now: Time,
        lock: impl FnOnce() -> G,
    ) -> Vec<N> {
        let mut queue = lock();
        queue.replace(set, limits);
        self.offer_all(&mut queue, now)
    }

    /// Grants slots of a shared endpoint that were freed through other backends to requests queued
    /// here.
    pub fn dispatch<T, N, G: DerefMut<Target = Queue<T, N>>>(
        &self,
        now: impl FnOnce() -> Time,
        lock: impl FnOnce() -> G,
    ) -> Vec<N> {
        atomic::total_order();
        if self.waiting() == 0 {
            return Vec::new();
        }
        let now = now();
        self.offer_all(&mut lock(), now)
    }

    /// Takes a slot for a request that is not going to wait.
    fn take_without_waiting<T, N>(
        queue: &mut Queue<T, N>,
        picker: &mut Picker,
        request: &PickRequest<'_, T>,
        waiting: u32,
    ) -> Option<Arc<Endpoint<T>>> {
        queue
            .spare_slot(picker, request)
            .or_else(|| queue.config().last_resort(picker, request, waiting))
    }

    /// Returns the rejection of a request, if it is certain without the lock: rejecting many
    /// requests must not slow down those that are served.
    fn reject_without_lock<T>(
        &self,
        waiting: u32,
        limits: AdmissionLimits,
        request: &PickRequest<'_, T>,
    ) -> Option<AdmissionRejection> {
        // A long line at one endpoint gives no information about the others.
        if waiting > 0 && self.hints.all_bound.load(Ordering::Relaxed) {
            return None;
        }
        if limits.max_waiting == 0 {
            return Some(AdmissionRejection::Full);
        }
        if waiting == 0
            || !self.hints.is_last_flow(QueueFlowKey::of(&request.queueing, limits.fair))
        {
            return None;
        }
        if waiting >= limits.max_waiting {
            return Some(AdmissionRejection::Full);
        }
        let may_be_bound = request.only.is_some() || request.key.is_some();
        let left = nanos(request.queueing.deadline.saturating_since(request.now));
        let most = left.min(self.hints.max_wait_nanos.load(Ordering::Relaxed));
        let wait = self.hints.expected_wait(waiting, request.now);
        let late = !may_be_bound && wait.is_some_and(|wait| nanos(wait) > most);
        late.then_some(AdmissionRejection::WouldMissDeadline)
    }

    /// Under the lock, tries the slots once more, then takes a place in the queue, if there is one.
    fn join<T, N>(
        &self,
        queue: &mut Queue<T, N>,
        picker: &mut Picker,
        request: &PickRequest<'_, T>,
        notify: impl FnOnce() -> N,
    ) -> AdmissionDecision<T, N> {
        let waiting = self.waiting();
        if waiting == 0 {
            queue.begin_waiting(request.now);
        }
        let eligible = picker.eligible(queue.config().set, request);
        let backlog = self.hints.shared_backlog();
        if let Some(refusal) =
            queue.would_miss_deadline(&request.queueing, eligible, waiting, backlog, request.now)
        {
            // The request will not wait, so it need not announce itself.
            let refused = AdmissionDecision::Rejected(refusal);
            return Self::take_without_waiting(queue, picker, request, waiting)
                .map_or(refused, AdmissionDecision::Slot);
        }
        if waiting >= queue.config().limits.max_waiting {
            return self.evict_and_enqueue(queue, picker, request, waiting, notify);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        atomic::total_order();
        if let Some(endpoint) = queue.spare_slot(picker, request) {
            self.remove_waiting(1);
            return AdmissionDecision::Slot(endpoint);
        }
        let ticket = queue.push(request, picker.constraints(request), notify());
        AdmissionDecision::Waiting { ticket, evicted: None }
    }

    /// Tries the slots once more, then takes over the place of a request in a full queue, if this
    /// one takes precedence.
    ///
    /// The evicted request has announced itself before this last try, and its announcement is taken
    /// over: a thread that releases a slot after the try sees that a request waits.
    fn evict_and_enqueue<T, N>(
        &self,
        queue: &mut Queue<T, N>,
        picker: &mut Picker,
        request: &PickRequest<'_, T>,
        waiting: u32,
        notify: impl FnOnce() -> N,
    ) -> AdmissionDecision<T, N> {
        if let Some(endpoint) = Self::take_without_waiting(queue, picker, request, waiting) {
            return AdmissionDecision::Slot(endpoint);
        }
        let Some(evicted) = queue.evict_for(&request.queueing, waiting) else {
            return AdmissionDecision::Rejected(queue.config().rejection());
        };
        let ticket = queue.push(request, picker.constraints(request), notify());
        AdmissionDecision::Waiting { ticket, evicted: Some(evicted) }
    }

    fn offer_all<T, N>(&self, queue: &mut Queue<T, N>, now: Time) -> Vec<N> {
        let woken = queue.offer_all(now);
        self.remove_waiting(woken.len());
        self.hints.update(queue, now);
        woken
    }

    /// Subtracts requests that no longer wait.
    fn remove_waiting(&self, waiters: usize) {
        if waiters > 0 {
            self.waiting.fetch_sub(waiters as u32, Ordering::SeqCst);
        }
    }
}

impl Default for Admission {
    fn default() -> Self {
        Self::new()
    }
}
