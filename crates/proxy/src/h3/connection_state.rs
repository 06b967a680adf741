//! What the messages of a connection and its conversation know of each other.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use super::H3ErrorCode;
use super::priority::ResponsePriority;
use super::varint;

/// Priorities that are remembered for streams which have not asked. Of more, the first are forgotten.
const PRIORITIES: usize = 64;

/// Shared by a connection's messages and its conversation.
pub(crate) struct H3ConnectionState {
    /// What the peer did on one stream that ends the connection.
    connection_error: Cell<Option<H3ErrorCode>>,
    control_waker: RefCell<Waker>,
    /// The peer serves none of our requests from this stream on.
    goaway_limit: Cell<u64>,
    /// Requests that have not been answered, and who waits for that.
    response_waiters: RefCell<Vec<(u64, Waker)>>,
    /// What the peer has said of its requests, beside them.
    priorities: RefCell<VecDeque<(u64, ResponsePriority)>>,
}

impl H3ConnectionState {
    pub(super) fn new() -> Self {
        Self {
            connection_error: Cell::new(None),
            control_waker: RefCell::new(Waker::noop().clone()),
            goaway_limit: Cell::new(varint::MAX),
            response_waiters: RefCell::default(),
            priorities: RefCell::default(),
        }
    }

    /// Ends the connection, by way of its conversation.
    pub(super) fn raise_connection_error(&self, code: H3ErrorCode) {
        if self.connection_error.get().is_none() {
            self.connection_error.set(Some(code));
            self.control_waker.borrow().wake_by_ref();
        }
    }

    /// What ends the connection, of which `waker` is told from now on.
    pub(super) fn connection_error(&self, waker: &Waker) -> Option<H3ErrorCode> {
        self.control_waker.borrow_mut().clone_from(waker);
        self.connection_error.get()
    }

    /// The peer serves none of our requests from this stream on.
    pub(super) fn record_goaway(&self, limit: u64) {
        self.goaway_limit.set(limit);
        let beyond = |(id, _): &mut (u64, Waker)| *id >= limit;
        for (_, waker) in self.response_waiters.borrow_mut().extract_if(.., beyond) {
            waker.wake();
        }
    }

    /// The peer has said that it has done nothing of the request on this stream, and will do nothing.
    pub(super) fn is_unprocessed(&self, id: u64) -> bool {
        id >= self.goaway_limit.get()
    }

    /// The request on this stream waits for its answer.
    pub(super) fn add_response_waiter(&self, id: u64, waker: &Waker) {
        let mut waiting = self.response_waiters.borrow_mut();
        match waiting.iter_mut().find(|(other, _)| *other == id) {
            Some((_, known)) => known.clone_from(waker),
            None => waiting.push((id, waker.clone())),
        }
    }

    /// It waits no more.
    pub(super) fn remove_response_waiter(&self, id: u64) {
        let mut waiting = self.response_waiters.borrow_mut();
        if let Some(place) = waiting.iter().position(|(other, _)| *other == id) {
            waiting.swap_remove(place);
        }
    }

    pub(super) fn record_priority(&self, id: u64, priority: ResponsePriority) {
        let mut priorities = self.priorities.borrow_mut();
        priorities.retain(|(other, _)| *other != id);
        if priorities.len() == PRIORITIES {
            priorities.pop_front();
        }
        priorities.push_back((id, priority));
    }

    /// What the peer has said of the request on this stream since it was last asked for.
    pub(super) fn take_priority(&self, id: u64) -> Option<ResponsePriority> {
        let mut priorities = self.priorities.borrow_mut();
        // Hardly anybody changes its mind: nothing is looked through.
        let place = priorities.iter().position(|(other, _)| *other == id)?;
        priorities.remove(place).map(|(_, priority)| priority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn priority(value: &str) -> ResponsePriority {
        ResponsePriority::parse(value.as_bytes())
    }

    #[test]
    fn latest_priority_update_of_a_stream_is_taken_once() {
        let ties = H3ConnectionState::new();
        ties.record_priority(4, priority("u=1"));
        ties.record_priority(0, priority("u=2"));
        ties.record_priority(4, priority("u=5"));
        assert_eq!(ties.take_priority(8), None);
        assert_eq!(ties.take_priority(4), Some(priority("u=5")));
        assert_eq!(ties.take_priority(4), None);
        assert_eq!(ties.take_priority(0), Some(priority("u=2")));
    }

    #[test]
    fn priority_updates_of_unopened_streams_are_bounded() {
        let ties = H3ConnectionState::new();
        for id in 0..1000 {
            ties.record_priority(4 * id, priority("u=1"));
        }
        assert_eq!(ties.priorities.borrow().len(), PRIORITIES);
        assert_eq!(ties.take_priority(0), None);
        assert!(ties.take_priority(4 * 999).is_some());
    }

    #[test]
    fn goaway_wakes_only_unprocessed_requests() {
        let ties = H3ConnectionState::new();
        for id in [0, 4, 8] {
            ties.add_response_waiter(id, Waker::noop());
            ties.add_response_waiter(id, Waker::noop());
            assert!(!ties.is_unprocessed(id));
        }
        ties.remove_response_waiter(0);
        ties.record_goaway(8);
        let left: Vec<_> = ties.response_waiters.borrow().iter().map(|(id, _)| *id).collect();
        assert_eq!(left, [4]);
        assert!(ties.is_unprocessed(8) && !ties.is_unprocessed(4));
    }

    #[test]
    fn first_connection_error_is_reported() {
        let ties = H3ConnectionState::new();
        assert_eq!(ties.connection_error(Waker::noop()), None);
        ties.raise_connection_error(H3ErrorCode::FRAME_ERROR);
        ties.raise_connection_error(H3ErrorCode::ID_ERROR);
        assert_eq!(ties.connection_error(Waker::noop()), Some(H3ErrorCode::FRAME_ERROR));
    }
}
