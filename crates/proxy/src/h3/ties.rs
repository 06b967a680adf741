//! What the messages of a connection and its conversation know of each other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use super::Code;
use super::priority::Priority;
use super::varint;

/// Priorities that are remembered for streams which have not asked. Of more, the first are forgotten.
const PRIORITIES: usize = 64;

/// Shared by a connection's messages and its conversation.
pub(crate) struct Ties {
    /// What the peer did on one stream that ends the connection.
    fault: Cell<Option<Code>>,
    conversation: RefCell<Waker>,
    /// The peer serves none of our requests from this stream on.
    limit: Cell<u64>,
    /// Requests that have not been answered, and who waits for that.
    waiting: RefCell<Vec<(u64, Waker)>>,
    /// What the peer has said of its requests, beside them.
    priorities: RefCell<VecDeque<(u64, Priority)>>,
}

impl Ties {
    pub(super) fn new() -> Self {
        Self {
            fault: Cell::new(None),
            conversation: RefCell::new(Waker::noop().clone()),
            limit: Cell::new(varint::MAX),
            waiting: RefCell::default(),
            priorities: RefCell::default(),
        }
    }

    /// Ends the connection, by way of its conversation.
    pub(super) fn offend(&self, code: Code) {
        if self.fault.get().is_none() {
            self.fault.set(Some(code));
            self.conversation.borrow().wake_by_ref();
        }
    }

    /// What ends the connection, of which `waker` is told from now on.
    pub(super) fn fault(&self, waker: &Waker) -> Option<Code> {
        self.conversation.borrow_mut().clone_from(waker);
        self.fault.get()
    }

    /// The peer serves none of our requests from this stream on.
    pub(super) fn go_away(&self, limit: u64) {
        self.limit.set(limit);
        let beyond = |(id, _): &mut (u64, Waker)| *id >= limit;
        for (_, waker) in self.waiting.borrow_mut().extract_if(.., beyond) {
            waker.wake();
        }
    }

    /// The peer has said that it has done nothing of the request on this stream, and will do nothing.
    pub(super) fn is_unprocessed(&self, id: u64) -> bool {
        id >= self.limit.get()
    }

    /// The request on this stream waits for its answer.
    pub(super) fn wait(&self, id: u64, waker: &Waker) {
        let mut waiting = self.waiting.borrow_mut();
        match waiting.iter_mut().find(|(other, _)| *other == id) {
            Some((_, known)) => known.clone_from(waker),
            None => waiting.push((id, waker.clone())),
        }
    }

    /// It waits no more.
    pub(super) fn wait_no_more(&self, id: u64) {
        let mut waiting = self.waiting.borrow_mut();
        if let Some(place) = waiting.iter().position(|(other, _)| *other == id) {
            waiting.swap_remove(place);
        }
    }

    pub(super) fn prioritise(&self, id: u64, priority: Priority) {
        let mut priorities = self.priorities.borrow_mut();
        priorities.retain(|(other, _)| *other != id);
        if priorities.len() == PRIORITIES {
            priorities.pop_front();
        }
        priorities.push_back((id, priority));
    }

    /// What the peer has said of the request on this stream since it was last asked for.
    pub(super) fn take_priority(&self, id: u64) -> Option<Priority> {
        let mut priorities = self.priorities.borrow_mut();
        // Hardly anybody changes its mind: nothing is looked through.
        let place = priorities.iter().position(|(other, _)| *other == id)?;
        priorities.remove(place).map(|(_, priority)| priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(value: &str) -> Priority {
        Priority::parse(value.as_bytes())
    }

    #[test]
    fn latest_priority_update_of_a_stream_is_taken_once() {
        let ties = Ties::new();
        ties.prioritise(4, priority("u=1"));
        ties.prioritise(0, priority("u=2"));
        ties.prioritise(4, priority("u=5"));
        assert_eq!(ties.take_priority(8), None);
        assert_eq!(ties.take_priority(4), Some(priority("u=5")));
        assert_eq!(ties.take_priority(4), None);
        assert_eq!(ties.take_priority(0), Some(priority("u=2")));
    }

    #[test]
    fn priority_updates_of_unopened_streams_are_bounded() {
        let ties = Ties::new();
        for id in 0..1000 {
            ties.prioritise(4 * id, priority("u=1"));
        }
        assert_eq!(ties.priorities.borrow().len(), PRIORITIES);
        assert_eq!(ties.take_priority(0), None);
        assert!(ties.take_priority(4 * 999).is_some());
    }

    #[test]
    fn goaway_wakes_only_unprocessed_requests() {
        let ties = Ties::new();
        for id in [0, 4, 8] {
            ties.wait(id, Waker::noop());
            ties.wait(id, Waker::noop());
            assert!(!ties.is_unprocessed(id));
        }
        ties.wait_no_more(0);
        ties.go_away(8);
        let left: Vec<_> = ties.waiting.borrow().iter().map(|(id, _)| *id).collect();
        assert_eq!(left, [4]);
        assert!(ties.is_unprocessed(8) && !ties.is_unprocessed(4));
    }

    #[test]
    fn first_connection_error_is_reported() {
        let ties = Ties::new();
        assert_eq!(ties.fault(Waker::noop()), None);
        ties.offend(Code::FRAME_ERROR);
        ties.offend(Code::ID_ERROR);
        assert_eq!(ties.fault(Waker::noop()), Some(Code::FRAME_ERROR));
    }
}
