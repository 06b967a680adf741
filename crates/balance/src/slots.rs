//! The protocol by which a request gets a slot, and by which the slot comes back.
//!
//! The common case, room at an endpoint and nobody waiting, takes no lock. The lock is the caller's; it is taken only
//! when all is full or somebody waits. Nobody is forgotten, because both sides write first and then read, in one
//! total order (`SeqCst`):
//!
//! - who must wait announces it (`waiting + 1`), then looks at the slots once more, then joins the queue;
//! - who releases counts down, then looks whether anybody waits, and if so comes to the lock.
//!
//! At least one of them sees the other. Since the waiter does all of it under the lock, a releaser that sees the
//! announcement finds the waiter in the queue. `tests/loom.rs` walks through the interleavings.

use std::ops::DerefMut;
use std::sync::Arc;
use std::time::Duration;

use crate::atomic::{self, AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::endpoint::{Endpoint, EndpointSet};
use crate::load::ConcurrencyCap;
use crate::pick::{PickRequest, Picker};
use crate::queue::{GrantRate, Queue, QueueFlowKey, Ticket, WakeList};
use crate::time::{Time, nanos};

/// How much a backend may be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AdmissionLimits {
    /// Requests in flight at each endpoint, at most; no cap by default.
    pub cap: ConcurrencyCap,
    /// How many may wait for a slot, at most; 0: nobody waits.
    pub max_waiting: u32,
    /// The routes of one priority take turns, and share the places of a full queue; else all are as one route.
    pub fair: bool,
    /// What holds in a long overload; by default nothing else than before it.
    pub delay: Option<ControlledDelay>,
}

/// Controlled delay: what holds while the queue has not been empty for long.
///
/// Then a long line does no good: each who waits in it waits as long as the line is. After the idea of CoDel (RFC 8289).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ControlledDelay {
    /// Nobody begins to wait who would wait longer, and who has waited longer is let go, unless there is nobody else.
    pub target: Duration,
    /// For so long somebody has been waiting without a break.
    pub interval: Duration,
}

/// Why a request gets no slot and no place in the queue, or loses that place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AdmissionRejection {
    /// The set is empty, or has no weight, and nobody may wait.
    NoEndpoint,
    /// Every endpoint of the set is marked unreachable, and the queue is full, or there is none.
    Unreachable,
    /// No slot of the set is ours ([`SlotAssignment`](crate::SlotAssignment)), and nobody may wait.
    NoSlot,
    /// Every slot is taken and the queue is full, or there is none.
    Full,
    /// The wait would be longer than it can wait, or should in a long overload.
    WouldMissDeadline,
    /// It gave its place in a full queue to one of a higher priority, or of a route that had fewer places.
    Evicted,
    /// It has waited longer than one should in a long overload.
    Shed,
}

impl AdmissionRejection {
    fn of_set<T>(set: &EndpointSet<T>, limits: AdmissionLimits) -> Self {
        if set.is_unreachable() {
            Self::Unreachable
        } else if limits.max_waiting > 0 || set.is_usable() {
            Self::Full
        } else if set.has_no_assigned_slot() {
            Self::NoSlot
        } else {
            Self::NoEndpoint
        }
    }
}

/// What becomes of a request that asks for a slot. `N` wakes somebody.
#[derive(Debug)]
pub enum AdmissionDecision<T, N> {
    /// It has one.
    Slot(Arc<Endpoint<T>>),
    /// It waits; what it gave as `notify` wakes it when the ticket is granted or refused.
    Waiting {
        /// Its place.
        ticket: Arc<Ticket<T>>,
        /// Who was turned out for it, to be woken after the lock is released.
        evicted: Option<N>,
    },
    /// It gets none.
    Rejected(AdmissionRejection),
}

/// One backend's way to its slots: what workers look at without taking the lock of the [`BackendQueue`].
///
/// Where backends share an endpoint, each has its own queue. A slot freed through one of them is offered to that
/// one's waiters only; the caller then calls [`dispatch`](Self::dispatch) for the others that have waiters.
#[derive(Debug)]
pub struct Admission {
    /// How many wait. Grows only under the lock, so it is never above the limit.
    waiting: AtomicU32,
    hints: QueueHints,
}

/// What who comes without the lock should know: the queue as of the last time somebody had it. Each note is right by
/// itself; they need not be of one moment.
#[derive(Debug)]
struct QueueHints {
    /// Each who waits is bound to one endpoint, or nobody waits.
    all_bound: AtomicBool,
    /// The number of the party of which nobody gets a place in a full queue.
    last_flow: AtomicU64,
    /// Nanoseconds that somebody who comes may wait.
    max_wait_nanos: AtomicU64,
    /// [`GrantRate::gap_nanos`] and [`GrantRate::last_grant`].
    grant_gap: AtomicU64,
    last_grant: AtomicU64,
}

impl QueueHints {
    fn new() -> Self {
        Self {
            all_bound: AtomicBool::new(true),
            last_flow: AtomicU64::new(QueueFlowKey::NONE),
            max_wait_nanos: AtomicU64::new(u64::MAX),
            grant_gap: AtomicU64::new(0),
            last_grant: AtomicU64::new(0),
        }
    }

    fn update<T, N>(&self, queue: &Queue<T, N>, now: Time) {
        let write = |note: &AtomicU64, value: u64| {
            if note.load(Ordering::Relaxed) != value {
                note.store(value, Ordering::Relaxed);
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

    /// Somebody of this party goes behind all the others.
    fn is_last_flow(&self, party: QueueFlowKey) -> bool {
        self.last_flow.load(Ordering::Relaxed) == party.as_number()
    }
}

impl Admission {
    /// The way to the slots of a backend for which nobody waits.
    pub fn new() -> Self {
        Self { waiting: AtomicU32::new(0), hints: QueueHints::new() }
    }

    /// How many wait.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::SeqCst)
    }

    /// How long a request that comes now would wait behind all who wait, if that is known.
    pub fn expected_wait(&self, now: Time) -> Option<Duration> {
        let waiting = self.waiting();
        self.hints.grant_rate().expected_wait(u64::from(waiting), now).filter(|_| waiting > 0)
    }

    /// One request asks for a slot. If somebody waits for what it could be given, it waits behind them.
    ///
    /// `set` and `limits` are the caller's copy, perhaps slightly old, for the way without the lock; under the lock
    /// the queue's own decide. `lock` gives exclusive access to the queue; `notify` is called only if the request must
    /// wait, while the lock is held.
    pub fn enter<T, N, G: DerefMut<Target = Queue<T, N>>>(
        &self,
        picker: &mut Picker,
        set: &EndpointSet<T>,
        limits: AdmissionLimits,
        wish: &PickRequest<'_, T>,
        lock: impl FnOnce() -> G,
        notify: impl FnOnce() -> N,
    ) -> AdmissionDecision<T, N> {
        let waiting = self.waiting();
        if waiting == 0
            && let Some(endpoint) = picker.take(set, limits.cap, wish)
        {
            return AdmissionDecision::Slot(endpoint);
        }
        if let Some(endpoint) = Self::last_resort(picker, set, limits, wish, waiting) {
            return AdmissionDecision::Slot(endpoint);
        }
        if let Some(refusal) = self.reject_without_lock(waiting, limits, wish) {
            let full = refusal == AdmissionRejection::Full;
            return AdmissionDecision::Rejected(if full {
                AdmissionRejection::of_set(set, limits)
            } else {
                refusal
            });
        }
        let mut queue = lock();
        let entry = self.join(&mut queue, picker, wish, notify);
        self.hints.update(&queue, wish.now);
        entry
    }

    /// The endpoint has finished with a request. Gives whom to wake, after the lock is released: the next waiter that
    /// may use the endpoint has its slot. `now` is asked for only if somebody waits.
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

    /// A waiter gives up. `true`: it had not been granted, nothing more to do.
    ///
    /// `false`: it was granted at the same moment. The caller takes [`Ticket::granted`], unless it has done so before,
    /// and either uses the slot or releases it, which passes it on.
    pub fn cancel<T>(&self, ticket: &Ticket<T>) -> bool {
        let cancelled = ticket.cancel();
        self.remove_waiting(usize::from(cancelled));
        cancelled || ticket.is_over()
    }

    /// The endpoints or limits have changed. Gives all who are to be woken, after the lock is released.
    ///
    /// An endpoint that has left is granted to nobody from now on. Who waits beyond a lowered limit keeps waiting.
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

    /// Slots of an endpoint that other backends share were freed elsewhere: gives them to those who wait here.
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
        wish: &PickRequest<'_, T>,
        waiting: u32,
    ) -> Option<Arc<Endpoint<T>>> {
        let limits = queue.limits();
        queue
            .spare_slot(picker, wish)
            .or_else(|| Self::last_resort(picker, queue.set(), limits, wish, waiting))
    }

    /// Takes a slot at an unreachable endpoint if no endpoint is reachable and there is no queue in which to wait for one.
    fn last_resort<T>(
        picker: &mut Picker,
        set: &EndpointSet<T>,
        limits: AdmissionLimits,
        wish: &PickRequest<'_, T>,
        waiting: u32,
    ) -> Option<Arc<Endpoint<T>>> {
        let may_wait = waiting > 0 || limits.max_waiting > 0;
        if may_wait { None } else { picker.take_unreachable(set, limits.cap, wish) }
    }

    /// Why a request need not come to the lock, if so: refusing many must not slow down those who are served.
    fn reject_without_lock<T>(
        &self,
        waiting: u32,
        limits: AdmissionLimits,
        wish: &PickRequest<'_, T>,
    ) -> Option<AdmissionRejection> {
        // A long line at one endpoint says nothing of the others.
        if waiting > 0 && self.hints.all_bound.load(Ordering::Relaxed) {
            return None;
        }
        if limits.max_waiting == 0 {
            return Some(AdmissionRejection::Full);
        }
        if waiting == 0 || !self.hints.is_last_flow(QueueFlowKey::of(&wish.queueing, limits.fair)) {
            return None;
        }
        if waiting >= limits.max_waiting {
            return Some(AdmissionRejection::Full);
        }
        let may_be_bound = wish.only.is_some() || wish.key.is_some();
        let left = nanos(wish.queueing.deadline.saturating_since(wish.now));
        let most = left.min(self.hints.max_wait_nanos.load(Ordering::Relaxed));
        let wait = self.hints.grant_rate().expected_wait(u64::from(waiting), wish.now);
        let late = !may_be_bound && wait.is_some_and(|wait| nanos(wait) > most);
        late.then_some(AdmissionRejection::WouldMissDeadline)
    }

    /// Under the lock: a last look, then a place in the queue, if there is one.
    fn join<T, N>(
        &self,
        queue: &mut Queue<T, N>,
        picker: &mut Picker,
        wish: &PickRequest<'_, T>,
        notify: impl FnOnce() -> N,
    ) -> AdmissionDecision<T, N> {
        let waiting = self.waiting();
        if waiting == 0 {
            queue.begin_waiting(wish.now);
        }
        let claim = picker.eligible(queue.set(), wish);
        if let Some(refusal) = queue.would_miss_deadline(&wish.queueing, claim, waiting, wish.now) {
            // It will not sleep, so it need not announce itself.
            let refused = AdmissionDecision::Rejected(refusal);
            return Self::take_without_waiting(queue, picker, wish, waiting)
                .map_or(refused, AdmissionDecision::Slot);
        }
        if waiting >= queue.limits().max_waiting {
            return self.evict_and_enqueue(queue, picker, wish, waiting, notify);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        atomic::total_order();
        if let Some(endpoint) = queue.spare_slot(picker, wish) {
            self.remove_waiting(1);
            return AdmissionDecision::Slot(endpoint);
        }
        let ticket = queue.push(wish, picker.constraints(wish), notify());
        AdmissionDecision::Waiting { ticket, evicted: None }
    }

    /// A last look, then the place of somebody in a full queue, if it is to go to this one.
    ///
    /// Whose place it is has announced itself before the look, and that announcement is taken over: whoever releases a
    /// slot after the look sees that somebody waits.
    fn evict_and_enqueue<T, N>(
        &self,
        queue: &mut Queue<T, N>,
        picker: &mut Picker,
        wish: &PickRequest<'_, T>,
        waiting: u32,
        notify: impl FnOnce() -> N,
    ) -> AdmissionDecision<T, N> {
        if let Some(endpoint) = Self::take_without_waiting(queue, picker, wish, waiting) {
            return AdmissionDecision::Slot(endpoint);
        }
        let Some(turned_out) = queue.evict_for(&wish.queueing, waiting) else {
            return AdmissionDecision::Rejected(AdmissionRejection::of_set(
                queue.set(),
                queue.limits(),
            ));
        };
        let ticket = queue.push(wish, picker.constraints(wish), notify());
        AdmissionDecision::Waiting { ticket, evicted: Some(turned_out) }
    }

    fn offer_all<T, N>(&self, queue: &mut Queue<T, N>, now: Time) -> Vec<N> {
        let woken = queue.offer_all(now);
        self.remove_waiting(woken.len());
        self.hints.update(queue, now);
        woken
    }

    /// So many wait no longer.
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
