//! Memory that a worker's requests borrow for a moment, and what they may keep of it.

use std::cell::{Cell, RefCell, RefMut};
use std::rc::Rc;
use std::time::Duration;

use balance::Time;
use tokio::sync::oneshot;

use crate::buffer::BufferPool;
use crate::deadline::Deadline;
use crate::pipe::SplicePipe;

/// The buffer by way of which large bodies are copied. See docs/decisions/0001.
const LARGE_BYTES: usize = 256 * 1024;
/// Pipes that a worker keeps when nobody uses them.
const PIPES: usize = 64;
/// Timers that a worker keeps when nobody uses them.
const DEADLINES: usize = 256;
/// For when a timer is armed before anybody says when it is to fire.
const FAR: Duration = Duration::from_secs(60);
/// What a worker's requests may keep for another attempt, all together.
const KEEP_BYTES: usize = 32 * 1024 * 1024;

/// Memory that requests borrow for a moment.
#[derive(Default)]
pub(crate) struct ScratchMemory {
    pub(crate) buffer_pool: BufferPool,
    copy_buffer: RefCell<Vec<u8>>,
    pipes: RefCell<Vec<SplicePipe>>,
    deadlines: RefCell<Vec<Deadline>>,
}

impl ScratchMemory {
    pub(crate) fn copy_buffer(&self) -> RefMut<'_, Vec<u8>> {
        let mut large = self.copy_buffer.borrow_mut();
        if large.is_empty() {
            large.resize(LARGE_BYTES, 0);
        }
        large
    }

    /// A timer for what has begun at `since`.
    ///
    /// One that was used before is armed already, for an earlier moment: that saves what arming costs.
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

    /// An empty pipe, if there are descriptors for one.
    pub(crate) fn take_pipe(&self) -> Option<SplicePipe> {
        self.pipes.borrow_mut().pop().or_else(SplicePipe::new)
    }

    pub(crate) fn give_back_pipe(&self, pipe: SplicePipe) {
        let mut pipes = self.pipes.borrow_mut();
        if pipe.is_empty() && pipes.len() < PIPES {
            pipes.push(pipe);
        }
    }
}

/// How many bytes a worker's requests may keep for another attempt, all together.
#[derive(Debug)]
pub(crate) struct ReplayBudget {
    left: Cell<usize>,
    /// Requests that were not kept for want of budget.
    pub(crate) refused: Cell<u64>,
}

impl ReplayBudget {
    pub(crate) fn new() -> Rc<Self> {
        Rc::new(Self { left: Cell::new(KEEP_BYTES), refused: Cell::new(0) })
    }
}

/// What one request has taken of the budget; given back when dropped.
pub(crate) struct ReplayReservation {
    bytes: usize,
    budget: Rc<ReplayBudget>,
    /// Who wants a copy of what is kept, once it is whole.
    pub(crate) mirror_sender: Option<oneshot::Sender<Rc<[u8]>>>,
}

impl ReplayReservation {
    pub(crate) fn new(budget: &Rc<ReplayBudget>) -> Self {
        Self { bytes: 0, budget: Rc::clone(budget), mirror_sender: None }
    }

    /// This is all that there is to keep.
    pub(crate) fn complete(&mut self, whole: &[u8]) {
        if let Some(listener) = self.mirror_sender.take() {
            // Nobody listens any more when the worker ends.
            drop(listener.send(whole.into()));
        }
    }

    /// False: the budget does not allow so many bytes.
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

    /// Gives all of it back.
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
    fn kept_buffer_bytes_are_bounded_and_returned() {
        let budget = ReplayBudget::new();
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
