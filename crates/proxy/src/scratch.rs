//! Reusable memory that a worker's requests borrow for a short time, and their budget of bytes for replays.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::sync::Arc;
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

/// Budget of bytes that a worker's requests, or its UDP flows, together may keep for replay in another attempt.
#[derive(Debug)]
pub(crate) struct ReplayBudget {
    left: Cell<usize>,
    /// Requests that were not kept because the budget was exhausted.
    pub(crate) refused: Cell<u64>,
}

impl ReplayBudget {
    /// Returns the budget of a worker's requests.
    pub(crate) fn of_requests() -> Rc<Self> {
        Self::of(KEEP_BYTES)
    }

    /// Returns the budget of the UDP flows of one listener: floods of datagrams take nothing from requests.
    pub(crate) fn of_udp_flows() -> Rc<Self> {
        Self::of(KEEP_DATAGRAM_BYTES)
    }

    fn of(bytes: usize) -> Rc<Self> {
        Rc::new(Self { left: Cell::new(bytes), refused: Cell::new(0) })
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
        let left = self.budget.left.get().checked_sub(more);
        match left {
            Some(left) => {
                self.budget.left.set(left);
                self.bytes += more;
            }
            None => self.budget.refused.set(self.budget.refused.get() + 1),
        }
        left.is_some()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flood_of_datagrams_takes_nothing_from_requests() {
        let (requests, flows) = (ReplayBudget::of_requests(), ReplayBudget::of_udp_flows());
        let mut flood = ReplayReservation::new(&flows);
        assert!(flood.grow(KEEP_DATAGRAM_BYTES));
        assert!(!ReplayReservation::new(&flows).grow(1));
        assert!(ReplayReservation::new(&requests).grow(KEEP_BYTES));
    }

    #[test]
    fn kept_buffer_bytes_are_bounded_and_returned() {
        let budget = ReplayBudget::of_requests();
        let mut first = ReplayReservation::new(&budget);
        assert!(first.grow(KEEP_BYTES - 10));
        let mut second = ReplayReservation::new(&budget);
        assert!(second.grow(10));
        assert!(!second.grow(11));
        assert_eq!(budget.refused.take(), 1);
        drop(first);
        assert!(second.grow(11));
        drop(second);
        assert_eq!(budget.left.get(), KEEP_BYTES);
    }
}
