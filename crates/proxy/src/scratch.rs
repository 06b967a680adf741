//! Reusable memory that a worker's requests borrow for a short time, and their budget of bytes for replays.

use std::cell::{Cell, RefCell, RefMut};
use std::collections::BTreeMap;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Waker};
use std::time::Duration;

use balance::Time;
use tokio::sync::oneshot;

use crate::buffer::BufferPool;
use crate::deadline::Deadline;
use crate::pipe::SplicePipe;
use crate::resources::ResourceBudgets;

/// Size of the buffer through which large bodies are copied. See docs/decisions/0001.
const LARGE_BYTES: usize = 256 * 1024;
/// Maximum number of unused pipes that a worker keeps.
const PIPES: usize = 64;
/// Maximum number of unused timers that a worker keeps.
const DEADLINES: usize = 256;
/// Initial deadline of a timer, until the real one is set.
const FAR: Duration = Duration::from_secs(60);
/// Maximum number of bytes that a worker's requests together may keep for replay in another attempt.
const KEEP_BYTES: usize = 32 * 1024 * 1024;
/// The same for the flows of one UDP listener: room for 16 flows with the largest datagrams, and for thousands with
/// common ones.
const KEEP_DATAGRAM_BYTES: usize = 4 * 1024 * 1024;
/// The part of them that is kept free for bodies that arrive before their requests ask for a slot.
const ARRIVING_RESERVE: usize = KEEP_BYTES / 4;

/// Reusable memory that requests borrow for a short time.
#[derive(Default)]
pub(crate) struct ScratchMemory {
    pub(crate) buffer_pool: BufferPool,
    copy_buffer: RefCell<Vec<u8>>,
    pipes: RefCell<Vec<SplicePipe>>,
    deadlines: RefCell<Vec<Deadline>>,
    budgets: Arc<ResourceBudgets>,
}

impl ScratchMemory {
    pub(crate) fn new(budgets: &Arc<ResourceBudgets>) -> Self {
        Self { budgets: Arc::clone(budgets), ..Self::default() }
    }

    pub(crate) fn copy_buffer(&self) -> RefMut<'_, Vec<u8>> {
        let mut large = self.copy_buffer.borrow_mut();
        if large.is_empty() {
            large.resize(LARGE_BYTES, 0);
        }
        large
    }

    /// Takes a timer for an operation that began at `since`.
    ///
    /// A reused timer is already armed for an earlier time, which saves the cost of arming.
    pub(crate) fn take_deadline(&self, since: Time) -> Deadline {
        let at = since + FAR;
        let mut deadline = self.deadlines.borrow_mut().pop().unwrap_or_else(|| Deadline::new(at));
        deadline.set(at);
        deadline
    }

    pub(crate) fn give_back_deadline(&self, deadline: Deadline) {
        let mut deadlines = self.deadlines.borrow_mut();
        if deadlines.len() < DEADLINES {
            deadlines.push(deadline);
        }
    }

    /// Takes an empty pipe; `None` if few file descriptors are left.
    pub(crate) fn take_pipe(&self) -> Option<SplicePipe> {
        let known = self.pipes.borrow_mut().pop();
        known.or_else(|| SplicePipe::new().filter(|pipe| self.budgets.descriptors.allows(pipe)))
    }

    pub(crate) fn give_back_pipe(&self, pipe: SplicePipe) {
        let mut pipes = self.pipes.borrow_mut();
        if pipe.is_empty() && pipes.len() < PIPES {
            pipes.push(pipe);
        }
    }
}

/// Budget of bytes that a worker's requests, or its UDP flows, together may keep: for replay in another attempt, and of
/// bodies that are read before the request asks for a slot.
#[derive(Debug)]
pub(crate) struct ReplayBudget {
    left: Cell<usize>,
    /// The part that is kept free for bodies that arrive before their requests ask for a slot.
    arriving_reserve: usize,
    /// Requests that were not kept because the budget was exhausted.
    pub(crate) refused: Cell<u64>,
    /// Bodies that are still arriving, oldest first.
    arriving: RefCell<BTreeMap<u64, Rc<ArrivingBody>>>,
    next_number: Cell<u64>,
}

/// A body that is read before its request asks for a slot.
#[derive(Debug, Default)]
struct ArrivingBody {
    bytes: Cell<usize>,
    /// True if it had to make room for another; its bytes have been given back.
    evicted: Cell<bool>,
    waker: RefCell<Option<Waker>>,
}

impl ReplayBudget {
    /// Returns the budget of a worker's requests.
    pub(crate) fn of_requests() -> Rc<Self> {
        Self::of(KEEP_BYTES, ARRIVING_RESERVE)
    }

    /// Returns the budget of the UDP flows of one listener: floods of datagrams take nothing from requests.
    pub(crate) fn of_udp_flows() -> Rc<Self> {
        Self::of(KEEP_DATAGRAM_BYTES, 0)
    }

    fn of(bytes: usize, arriving_reserve: usize) -> Rc<Self> {
        Rc::new(Self {
            left: Cell::new(bytes),
            arriving_reserve,
            refused: Cell::new(0),
            arriving: RefCell::default(),
            next_number: Cell::new(0),
        })
    }

    /// Takes `more` bytes and leaves at least `reserve`. Returns false if that is impossible.
    fn take(&self, more: usize, reserve: usize) -> bool {
        let left = self.left.get().checked_sub(more).filter(|left| more == 0 || *left >= reserve);
        if let Some(left) = left {
            self.left.set(left);
        }
        left.is_some()
    }

    /// Evicts the oldest body that is still arriving: under an attack it is the slowest. Returns false if there is
    /// none but the one with the number `own`.
    fn evict_oldest(&self, own: u64) -> bool {
        let mut arriving = self.arriving.borrow_mut();
        let Some(number) = arriving.keys().copied().find(|number| *number != own) else {
            return false;
        };
        if let Some(body) = arriving.remove(&number) {
            self.left.set(self.left.get() + body.bytes.take());
            body.evicted.set(true);
            body.waker.take().into_iter().for_each(Waker::wake);
        }
        true
    }
}

/// The share of the budget that one request has taken; given back when dropped.
pub(crate) struct ReplayReservation {
    bytes: usize,
    budget: Rc<ReplayBudget>,
    /// Receives a copy of the request once it is complete, for mirroring.
    pub(crate) mirror_sender: Option<oneshot::Sender<Rc<[u8]>>>,
}

impl ReplayReservation {
    pub(crate) fn new(budget: &Rc<ReplayBudget>) -> Self {
        Self { bytes: 0, budget: Rc::clone(budget), mirror_sender: None }
    }

    /// Hands the complete request to the mirror.
    pub(crate) fn complete(&mut self, whole: &[u8]) {
        if let Some(mirror) = self.mirror_sender.take() {
            // The receiver is gone if the worker is ending.
            drop(mirror.send(whole.into()));
        }
    }

    /// Reserves `bytes` in total. Returns false if the budget does not allow that.
    pub(crate) fn grow(&mut self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.bytes);
        let is_taken = self.budget.take(more, self.budget.arriving_reserve);
        if is_taken {
            self.bytes += more;
        } else {
            self.budget.refused.set(self.budget.refused.get() + 1);
        }
        is_taken
    }

    /// Takes over the bytes of a body that has arrived.
    pub(crate) fn adopt(&mut self, arrived: &ArrivalReservation) {
        self.bytes += arrived.body.bytes.take();
    }

    /// Gives the whole share back.
    pub(crate) fn release(&mut self) {
        self.budget.left.set(self.budget.left.get() + std::mem::take(&mut self.bytes));
    }
}

impl Drop for ReplayReservation {
    fn drop(&mut self) {
        self.release();
    }
}

/// The bytes of a body while it arrives, before its request asks for a slot. If the budget is exhausted, the oldest
/// such body is evicted.
pub(crate) struct ArrivalReservation {
    body: Rc<ArrivingBody>,
    number: u64,
    budget: Rc<ReplayBudget>,
}

impl ArrivalReservation {
    pub(crate) fn new(budget: &Rc<ReplayBudget>) -> Self {
        let (body, number) = (Rc::<ArrivingBody>::default(), budget.next_number.get());
        budget.next_number.set(number + 1);
        Self { body, number, budget: Rc::clone(budget) }
    }

    /// Reserves `bytes` in total, if need be at the expense of older bodies. Returns false if this body has been
    /// evicted, or the budget does not allow it.
    pub(crate) fn grow(&self, bytes: usize) -> bool {
        let more = bytes.saturating_sub(self.body.bytes.get());
        while !self.body.evicted.get() {
            if self.budget.take(more, 0) {
                if self.body.bytes.replace(bytes.max(self.body.bytes.get())) == 0 {
                    let body = Rc::clone(&self.body);
                    self.budget.arriving.borrow_mut().insert(self.number, body);
                }
                return true;
            }
            if !self.budget.evict_oldest(self.number) {
                return false;
            }
        }
        false
    }

    /// Lets the task of `cx` be woken if the body is evicted. Returns false if it has been evicted.
    pub(crate) fn watch(&self, cx: &Context<'_>) -> bool {
        self.body.waker.replace(Some(cx.waker().clone()));
        !self.body.evicted.get()
    }
}

impl Drop for ArrivalReservation {
    fn drop(&mut self) {
        self.budget.arriving.borrow_mut().remove(&self.number);
        self.budget.left.set(self.budget.left.get() + self.body.bytes.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_datagrams_takes_nothing_from_requests() {
        let (requests, flows) = (ReplayBudget::of_requests(), ReplayBudget::of_udp_flows());
        let mut flood = ReplayReservation::new(&flows);
        assert!(flood.grow(KEEP_DATAGRAM_BYTES));
        assert!(!ReplayReservation::new(&flows).grow(1));
        assert!(ReplayReservation::new(&requests).grow(KEEP_BYTES - ARRIVING_RESERVE));
    }

    #[test]
    fn kept_buffer_bytes_are_bounded_and_returned() {
        let budget = ReplayBudget::of_requests();
        let mut first = ReplayReservation::new(&budget);
        assert!(first.grow(KEEP_BYTES - ARRIVING_RESERVE - 10));
        let mut second = ReplayReservation::new(&budget);
        assert!(second.grow(10));
        assert!(!second.grow(11));
        assert_eq!(budget.refused.take(), 1);
        drop(first);
        assert!(second.grow(11));
        drop(second);
        assert_eq!(budget.left.get(), KEEP_BYTES);
    }

    #[test]
    fn arriving_bodies_have_a_reserve_and_evict_the_oldest() {
        let budget = ReplayBudget::of_requests();
        let mut kept = ReplayReservation::new(&budget);
        assert!(kept.grow(KEEP_BYTES - ARRIVING_RESERVE));
        let bodies: Vec<_> = (0..3).map(|_| ArrivalReservation::new(&budget)).collect();
        assert!(bodies[0].grow(ARRIVING_RESERVE / 2) && bodies[1].grow(ARRIVING_RESERVE / 2));
        assert!(bodies[2].grow(1), "the oldest makes room");
        assert!(!bodies[0].grow(1), "it is evicted");
        assert!(bodies[1].grow(ARRIVING_RESERVE / 2));
        assert!(!bodies[1].grow(ARRIVING_RESERVE + 1), "more than there is");
        kept.adopt(&bodies[1]);
        drop(bodies);
        drop(kept);
        assert_eq!(budget.left.get(), KEEP_BYTES);
        assert!(budget.arriving.borrow().is_empty());
    }
}
