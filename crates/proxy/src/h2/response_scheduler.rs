//! In which order the responses of one connection are handed over for sending: in portions, who began one first going
//! first.
//!
//! The library sends a frame of each stream that has something to send, and then the next of each. A browser would have
//! fifty responses to wake readers for all the time, and all of them would come to their ends at once, when nothing is
//! left to do while it reads them. So hardly more is handed over at a time than one response may have of it. Whoever
//! begins goes before those that go on, so that what is short does not wait for what is long.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// What a response may hand over before others go first.
const PORTION: usize = 64 * 1024;
/// What goes before others that have handed over as much already.
const FIRST_PORTION: usize = 16 * 1024;
/// What a frame's header takes, and how much may follow it: what has been written counts with the headers.
const FRAME_HEADER: usize = 9;
const FRAME: usize = 16 * 1024;
/// When so much has been handed over and not been written, all wait.
const MAX_UNFLUSHED: usize = 64 * 1024;

/// The responses of a connection.
#[derive(Default)]
pub(crate) struct ResponseScheduler(RefCell<SchedulerState>);

/// The first of those that wait has been woken whenever it may go on.
#[derive(Default)]
struct SchedulerState {
    /// Handed over and not written, or less: what belongs to no body counts as written too.
    unflushed: usize,
    /// The connection takes no more now.
    is_blocked: bool,
    /// Portions that have been begun.
    portions: u64,
    /// Those that have something to hand over, and room with the client, by their portions.
    waiting: BTreeMap<SendPortion, Waker>,
}

/// What is lower goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SendPortion {
    is_continuation: bool,
    number: u64,
}

/// A response among those of its connection.
pub(crate) struct ScheduledResponse {
    scheduler: Rc<ResponseScheduler>,
    portion: Option<SendPortion>,
    /// What it may still hand over of that.
    left: usize,
}

impl ResponseScheduler {
    /// So much has been written, of whatever kind; `None`: the connection takes no more now.
    pub(crate) fn written(&self, bytes: Option<usize>) {
        let state = &mut *self.0.borrow_mut();
        state.is_blocked = bytes.is_none();
        state.unflushed = state.unflushed.saturating_sub(bytes.unwrap_or_default());
        state.wake_first();
    }

    /// The library has written what it could: all, unless the connection takes no more. What was handed over by a stream
    /// that has been reset since will not be.
    pub(crate) fn flushed(&self) {
        let state = &mut *self.0.borrow_mut();
        if !state.is_blocked && std::mem::take(&mut state.unflushed) > 0 {
            state.wake_first();
        }
    }
}

impl SchedulerState {
    fn wake_first(&self) {
        if self.unflushed < MAX_UNFLUSHED
            && let Some((_, waker)) = self.waiting.first_key_value()
        {
            waker.wake_by_ref();
        }
    }

    fn leave(&mut self, portion: SendPortion) {
        if self.waiting.remove(&portion).is_some() {
            self.wake_first();
        }
    }
}

impl ScheduledResponse {
    pub(crate) fn new(turns: &Rc<ResponseScheduler>) -> Self {
        Self { scheduler: Rc::clone(turns), portion: None, left: 0 }
    }

    /// Ready with how much it may hand over: then it does hand something over, or passes.
    pub(crate) fn poll(&mut self, cx: &Context<'_>) -> Poll<usize> {
        let state = &mut *self.scheduler.0.borrow_mut();
        let portion = match self.portion.filter(|_| self.left > 0) {
            Some(portion) => portion,
            None => {
                let is_further = self.portion.is_some();
                self.left = if is_further { PORTION } else { FIRST_PORTION };
                state.portions += 1;
                *self
                    .portion
                    .insert(SendPortion { is_continuation: is_further, number: state.portions })
            }
        };
        let waits = state.waiting.contains_key(&portion);
        let first = state.waiting.first_key_value().map_or(portion, |(&first, _)| first);
        if portion > first || state.unflushed >= MAX_UNFLUSHED {
            state.waiting.insert(portion, cx.waker().clone());
            return Poll::Pending;
        }
        let others = state.waiting.len() - usize::from(waits);
        Poll::Ready(if others > 0 && !portion.is_continuation { self.left } else { usize::MAX })
    }

    /// It has handed over so much.
    pub(crate) fn record_sent(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        let state = &mut *self.scheduler.0.borrow_mut();
        state.unflushed += bytes + FRAME_HEADER * bytes.div_ceil(FRAME);
        if let Some(portion) = self.portion {
            state.waiting.remove(&portion);
        }
        state.wake_first();
    }

    /// It has nothing to hand over now, or may not.
    pub(crate) fn withdraw(&mut self) {
        if let Some(portion) = self.portion {
            self.scheduler.0.borrow_mut().leave(portion);
        }
    }
}

impl Drop for ScheduledResponse {
    fn drop(&mut self) {
        self.withdraw();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::task::Wake;

    use super::*;

    #[derive(Default)]
    struct Task(AtomicU32);

    impl Wake for Task {
        fn wake(self: Arc<Self>) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// A response and its task.
    struct Response {
        turn: ScheduledResponse,
        task: Arc<Task>,
    }

    impl Response {
        fn of(turns: &Rc<ResponseScheduler>) -> Self {
            Self { turn: ScheduledResponse::new(turns), task: Arc::default() }
        }

        /// Whether it could hand over so much.
        fn hands_over(&mut self, bytes: usize) -> bool {
            let waker = self.task.clone().into();
            let is_due = self.turn.poll(&Context::from_waker(&waker)).is_ready();
            if is_due {
                self.turn.record_sent(bytes);
            }
            is_due
        }

        /// Whether it has been woken since it was asked last.
        fn is_woken(&self) -> bool {
            self.task.0.swap(0, Ordering::Relaxed) > 0
        }
    }

    fn responses<const N: usize>() -> (Rc<ResponseScheduler>, [Response; N]) {
        let turns = Rc::default();
        let responses = std::array::from_fn(|_| Response::of(&turns));
        (turns, responses)
    }

    /// All of them have begun.
    fn long_responses<const N: usize>() -> (Rc<ResponseScheduler>, [Response; N]) {
        let (turns, mut responses) = responses();
        for response in &mut responses {
            assert!(response.hands_over(FIRST_PORTION));
        }
        turns.flushed();
        (turns, responses)
    }

    #[test]
    fn responses_finish_their_portions_in_start_order() {
        let (turns, [mut one, mut other]) = long_responses();
        assert!(one.hands_over(PORTION / 2));
        assert!(other.hands_over(PORTION / 2));
        assert!(!other.hands_over(1) && !one.hands_over(1));
        turns.written(Some(PORTION));
        assert!(one.is_woken() && !other.is_woken());
        assert!(!other.hands_over(1), "not before the other one");
        assert!(one.hands_over(PORTION / 2));
        assert!(other.is_woken());
        // What one has now is a portion that it began later.
        assert!(!one.hands_over(1));
        assert!(other.hands_over(PORTION / 2) && !one.is_woken());
        turns.written(Some(FRAME));
        assert!(one.is_woken() && one.hands_over(1));
    }

    #[test]
    fn new_responses_precede_continuing_ones() {
        let (turns, [mut long, mut longer]) = long_responses();
        assert!(long.hands_over(PORTION));
        assert!(!longer.hands_over(1));
        let [mut short, mut shorter] = [(); 2].map(|()| Response::of(&turns));
        assert!(!short.hands_over(1) && !shorter.hands_over(1));
        turns.written(Some(FRAME));
        assert!(short.is_woken() && !shorter.is_woken() && !longer.is_woken());
        assert!(!longer.hands_over(1), "not before them");
        assert!(short.hands_over(100) && shorter.is_woken());
        assert!(shorter.hands_over(100) && longer.is_woken());
    }

    #[test]
    fn first_portion_of_a_new_response_is_small() {
        let (turns, [mut first, mut other]) = responses();
        assert_eq!(first.turn.poll(&Context::from_waker(Waker::noop())), Poll::Ready(usize::MAX));
        assert!(first.hands_over(PORTION) && !other.hands_over(1) && !first.hands_over(1));
        turns.flushed();
        let most = other.turn.poll(&Context::from_waker(Waker::noop()));
        assert_eq!(most, Poll::Ready(FIRST_PORTION));
    }

    #[test]
    fn frame_headers_count_as_unwritten_bytes() {
        let (turns, [mut one, mut other]) = responses();
        assert!(one.hands_over(PORTION));
        turns.written(Some(PORTION / FRAME * FRAME_HEADER));
        assert!(!other.hands_over(1), "not a byte of it has been written");
    }

    #[test]
    fn dropped_or_passing_responses_hand_over_their_place() {
        let (turns, [mut first, mut passing, mut leaving, mut last]) = responses();
        assert!(first.hands_over(PORTION));
        for waiting in [&mut passing, &mut leaving, &mut last] {
            assert!(!waiting.hands_over(1));
        }
        turns.written(Some(FRAME));
        assert!(passing.is_woken() && !leaving.is_woken());
        passing.turn.withdraw();
        assert!(leaving.is_woken() && !last.is_woken());
        drop(leaving);
        assert!(last.is_woken() && last.hands_over(1));
    }

    #[test]
    fn discarded_bytes_do_not_block_other_responses() {
        let (turns, [mut reset, mut other]) = responses();
        assert!(reset.hands_over(PORTION));
        assert!(!other.hands_over(1));
        turns.written(None);
        turns.flushed();
        assert!(!other.is_woken(), "there is no room");
        turns.written(Some(100));
        assert!(other.is_woken());
        turns.written(Some(0));
        turns.flushed();
        assert!(other.is_woken() && other.hands_over(PORTION));
    }
}
