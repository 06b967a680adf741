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

use crate::atomic::{self, AtomicBool, AtomicU32, Ordering};
use crate::endpoint::{Endpoint, EndpointSet};
use crate::load::Cap;
use crate::pick::{Picker, Wish};
use crate::queue::{Queue, Ticket};

/// How much a backend may be given.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limits {
    /// Requests in flight at each endpoint, at most; no cap by default.
    pub cap: Cap,
    /// How many may wait for a slot, at most; 0: nobody waits.
    pub max_waiting: u32,
}

/// Why a request gets no slot and no place in the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The set is empty, or has no weight, and nobody may wait.
    NoEndpoint,
    /// Every slot is taken and the queue is full, or there is none.
    Full,
}

impl Refusal {
    fn under<T>(set: &EndpointSet<T>, limits: Limits) -> Self {
        if limits.max_waiting == 0 && !set.is_usable() { Self::NoEndpoint } else { Self::Full }
    }
}

/// What becomes of a request that asks for a slot.
#[derive(Debug)]
pub enum Entry<T> {
    /// It has one.
    Slot(Arc<Endpoint<T>>),
    /// It waits; what it gave as `notify` wakes it when the ticket is granted.
    Waiting(Arc<Ticket<T>>),
    /// It gets none.
    Refused(Refusal),
}

/// One backend's way to its slots: what workers look at without taking the lock of the [`Queue`].
///
/// Where backends share an endpoint, each has its own queue. A slot freed through one of them is offered to that
/// one's waiters only; the caller then calls [`dispatch`](Self::dispatch) for the others that have waiters.
#[derive(Debug)]
pub struct Admission {
    /// How many wait. Grows only under the lock, so it is never above the limit.
    waiting: AtomicU32,
    /// Each who waits is bound to one endpoint, or nobody waits; as of the last time somebody had the lock.
    bound: AtomicBool,
}

impl Admission {
    /// The way to the slots of a backend for which nobody waits.
    pub fn new() -> Self {
        Self { waiting: AtomicU32::new(0), bound: AtomicBool::new(true) }
    }

    /// How many wait.
    pub fn waiting(&self) -> u32 {
        self.waiting.load(Ordering::SeqCst)
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
        limits: Limits,
        wish: &Wish<'_, T>,
        lock: impl FnOnce() -> G,
        notify: impl FnOnce() -> N,
    ) -> Entry<T> {
        let waiting = self.waiting();
        if waiting == 0
            && let Some(endpoint) = picker.take(set, limits.cap, wish)
        {
            return Entry::Slot(endpoint);
        }
        // The lock is for those who may wait: refusing many must not slow down those who are served. But a long line
        // at one endpoint says nothing of the others.
        let passes = waiting > 0 && self.bound.load(Ordering::Relaxed);
        if waiting >= limits.max_waiting && !passes {
            return Entry::Refused(Refusal::under(set, limits));
        }
        let mut queue = lock();
        let entry = self.join(&mut queue, picker, wish, notify);
        self.note(&queue);
        entry
    }

    /// The endpoint has finished with a request. Gives whom to wake, after the lock is released: the first waiter that
    /// may use the endpoint has its slot.
    pub fn release<T, N, G: DerefMut<Target = Queue<T, N>>>(
        &self,
        endpoint: &Endpoint<T>,
        lock: impl FnOnce() -> G,
    ) -> Option<N> {
        endpoint.give_back();
        atomic::total_order();
        if self.waiting() == 0 {
            return None;
        }
        let mut queue = lock();
        let woken = queue.offer(endpoint);
        self.left(woken.iter().len());
        self.note(&queue);
        woken
    }

    /// A waiter gives up. `true`: it had not been granted, nothing more to do.
    ///
    /// `false`: it was granted at the same moment. The caller takes [`Ticket::granted`], unless it has done so before,
    /// and either uses the slot or releases it, which passes it on.
    pub fn cancel<T>(&self, ticket: &Ticket<T>) -> bool {
        let cancelled = ticket.cancel();
        self.left(usize::from(cancelled));
        cancelled || ticket.is_cancelled()
    }

    /// The endpoints or limits have changed. Gives all who now have a slot, to be woken after the lock is released.
    ///
    /// An endpoint that has left is granted to nobody from now on. Who waits beyond a lowered limit keeps waiting.
    pub fn replace<T, N, G: DerefMut<Target = Queue<T, N>>>(
        &self,
        set: Arc<EndpointSet<T>>,
        limits: Limits,
        lock: impl FnOnce() -> G,
    ) -> Vec<N> {
        let mut queue = lock();
        queue.replace(set, limits);
        self.offer_all(&mut queue)
    }

    /// Slots of an endpoint that other backends share were freed elsewhere: gives them to those who wait here.
    pub fn dispatch<T, N, G: DerefMut<Target = Queue<T, N>>>(
        &self,
        lock: impl FnOnce() -> G,
    ) -> Vec<N> {
        atomic::total_order();
        if self.waiting() == 0 {
            return Vec::new();
        }
        self.offer_all(&mut lock())
    }

    /// Under the lock: a last look, then a place in the queue, if there is one.
    fn join<T, N>(
        &self,
        queue: &mut Queue<T, N>,
        picker: &mut Picker,
        wish: &Wish<'_, T>,
        notify: impl FnOnce() -> N,
    ) -> Entry<T> {
        if self.waiting() >= queue.limits().max_waiting {
            // It will not sleep, so it need not announce itself.
            let refused = Entry::Refused(Refusal::under(queue.set(), queue.limits()));
            return queue.spare_slot(picker, wish).map_or(refused, Entry::Slot);
        }
        self.waiting.fetch_add(1, Ordering::SeqCst);
        atomic::total_order();
        let Some(endpoint) = queue.spare_slot(picker, wish) else {
            return Entry::Waiting(queue.push(picker.wants(wish), notify()));
        };
        self.left(1);
        Entry::Slot(endpoint)
    }

    fn offer_all<T, N>(&self, queue: &mut Queue<T, N>) -> Vec<N> {
        let woken = queue.offer_all();
        self.left(woken.len());
        self.note(queue);
        woken
    }

    /// Before the lock is released: what who comes without it should know.
    fn note<T, N>(&self, queue: &Queue<T, N>) {
        let bound = queue.is_bound();
        if self.bound.load(Ordering::Relaxed) != bound {
            self.bound.store(bound, Ordering::Relaxed);
        }
    }

    /// So many wait no longer.
    fn left(&self, waiters: usize) {
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
