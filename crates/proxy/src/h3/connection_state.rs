//! State that the request streams of a connection share with its control streams.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::task::Waker;

use codec::h3::H3ErrorCode;
use codec::h3::frame::FrameCounts;
use codec::h3::priority::ResponsePriority;
use codec::h3::varint;

use crate::accept::token_bucket::TokenBucket;
use crate::clock;

/// Number of priorities kept for streams that have not been opened yet. Beyond it, the oldest are dropped.
const PRIORITIES: usize = 64;
/// Frames without use for a request that are allowed at once, in addition to those that are earned: each frame of use
/// earns one, and a tenth of it is refilled each second.
const IDLE_FRAME_BURST: u32 = 1000;

/// State shared by the request streams and the control streams of a connection.
pub(crate) struct H3ConnectionState {
    /// Connection error that the peer caused on a single stream.
    connection_error: Cell<Option<H3ErrorCode>>,
    control_waker: RefCell<Waker>,
    /// First stream whose request the peer will not process, from GOAWAY.
    goaway_limit: Cell<u64>,
    /// Streams that wait for a response, with their wakers.
    response_waiters: RefCell<Vec<(u64, Waker)>>,
    /// Priorities from PRIORITY_UPDATE frames, by stream.
    priorities: RefCell<VecDeque<(u64, ResponsePriority)>>,
    /// Allowance of frames without use, on all streams together.
    idle_frames: RefCell<TokenBucket>,
}

impl H3ConnectionState {
    pub(super) fn new() -> Self {
        Self {
            connection_error: Cell::new(None),
            control_waker: RefCell::new(Waker::noop().clone()),
            goaway_limit: Cell::new(varint::MAX),
            response_waiters: RefCell::default(),
            priorities: RefCell::default(),
            idle_frames: RefCell::new(TokenBucket::new(IDLE_FRAME_BURST, clock::now())),
        }
    }

    /// Charges the peer for frames that it has sent on one stream; a flood of frames without use ends the connection.
    pub(super) fn charge_frames(&self, counts: FrameCounts) {
        if counts.idle == 0 && counts.useful == 0 {
            return;
        }
        let mut allowance = self.idle_frames.borrow_mut();
        allowance.earn(counts.useful);
        if !allowance.spend(counts.idle) {
            self.raise_connection_error(H3ErrorCode::EXCESSIVE_LOAD);
        }
    }

    /// Records an error that ends the connection; the control streams close it.
    pub(super) fn raise_connection_error(&self, code: H3ErrorCode) {
        if self.connection_error.get().is_none() {
            self.connection_error.set(Some(code));
            self.control_waker.borrow().wake_by_ref();
        }
    }

    /// Returns the error that ends the connection. From now on, `waker` is woken when there is one.
    pub(super) fn connection_error(&self, waker: &Waker) -> Option<H3ErrorCode> {
        self.control_waker.borrow_mut().clone_from(waker);
        self.connection_error.get()
    }

    /// Records a GOAWAY: the peer processes none of our requests from stream `limit` on.
    pub(super) fn record_goaway(&self, limit: u64) {
        self.goaway_limit.set(limit);
        let beyond = |(id, _): &mut (u64, Waker)| *id >= limit;
        for (_, waker) in self.response_waiters.borrow_mut().extract_if(.., beyond) {
            waker.wake();
        }
    }

    /// True if the peer has announced that it has not processed, and will not process, the request on this stream.
    pub(super) fn is_unprocessed(&self, id: u64) -> bool {
        id >= self.goaway_limit.get()
    }

    /// Registers the waker of a request that waits for its response.
    pub(super) fn add_response_waiter(&self, id: u64, waker: &Waker) {
        let mut waiting = self.response_waiters.borrow_mut();
        match waiting.iter_mut().find(|(other, _)| *other == id) {
            Some((_, known)) => known.clone_from(waker),
            None => waiting.push((id, waker.clone())),
        }
    }

    /// Removes the waker of a request that no longer waits.
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

    /// Returns and removes the priority that the peer has sent for this stream since the last call.
    pub(super) fn take_priority(&self, id: u64) -> Option<ResponsePriority> {
        let mut priorities = self.priorities.borrow_mut();
        // Priority updates are rare: the list is usually empty.
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
        let state = H3ConnectionState::new();
        state.record_priority(4, priority("u=1"));
        state.record_priority(0, priority("u=2"));
        state.record_priority(4, priority("u=5"));
        assert_eq!(state.take_priority(8), None);
        assert_eq!(state.take_priority(4), Some(priority("u=5")));
        assert_eq!(state.take_priority(4), None);
        assert_eq!(state.take_priority(0), Some(priority("u=2")));
    }

    #[test]
    fn priority_updates_of_unopened_streams_are_bounded() {
        let state = H3ConnectionState::new();
        for id in 0..1000 {
            state.record_priority(4 * id, priority("u=1"));
        }
        assert_eq!(state.priorities.borrow().len(), PRIORITIES);
        assert_eq!(state.take_priority(0), None);
        assert!(state.take_priority(4 * 999).is_some());
    }

    #[test]
    fn goaway_wakes_only_unprocessed_requests() {
        let state = H3ConnectionState::new();
        for id in [0, 4, 8] {
            state.add_response_waiter(id, Waker::noop());
            state.add_response_waiter(id, Waker::noop());
            assert!(!state.is_unprocessed(id));
        }
        state.remove_response_waiter(0);
        state.record_goaway(8);
        let left: Vec<_> = state.response_waiters.borrow().iter().map(|(id, _)| *id).collect();
        assert_eq!(left, [4]);
        assert!(state.is_unprocessed(8) && !state.is_unprocessed(4));
    }

    #[test]
    fn first_connection_error_is_reported() {
        let state = H3ConnectionState::new();
        assert_eq!(state.connection_error(Waker::noop()), None);
        state.raise_connection_error(H3ErrorCode::FRAME_ERROR);
        state.raise_connection_error(H3ErrorCode::ID_ERROR);
        assert_eq!(state.connection_error(Waker::noop()), Some(H3ErrorCode::FRAME_ERROR));
    }
}
