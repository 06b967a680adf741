//! Order in which the responses of one connection are handed over for sending: in portions, in the order in which the
//! portions were begun.
//!
//! The `h2` crate sends one frame of each stream that has something to send, and then the next frame of each. A browser
//! would constantly have to wake the readers of fifty responses, and all responses would end at the same time, when
//! nothing is left to send while the browser processes them. So the scheduler hands over hardly more at a time than one
//! response's portion. A new response goes before continuing ones, so that a short response does not wait for a long
//! one.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;
use std::task::{Context, Poll, Waker};

/// Bytes that a response may hand over before other responses take precedence.
const PORTION: usize = 64 * 1024;
/// Size of the first portion of a response; it goes before responses that have already sent as much.
const FIRST_PORTION: usize = 16 * 1024;
/// Size of a frame header, and the largest payload after it: written bytes include the headers.
const FRAME_HEADER: usize = 9;
const FRAME: usize = 16 * 1024;
/// If this many bytes have been handed over and not yet written, all responses wait.
const MAX_UNFLUSHED: usize = 64 * 1024;

/// Scheduler of the responses of one connection.
#[derive(Default)]
pub(crate) struct ResponseScheduler(RefCell<SchedulerState>);

/// Invariant: whenever sending may continue, the first waiting response has been woken.
#[derive(Default)]
struct SchedulerState {
    /// Upper bound is the number of bytes handed over and not yet written. It may be less, because bytes that belong to
    /// no body also count as written.
    unflushed: usize,
    /// DATA frames handed over since this was last read.
    data_frames: u32,
    /// True if the connection accepts no more bytes now.
    is_blocked: bool,
    /// Number of portions begun so far.
    portions: u64,
    /// Responses that have data to send and room in the client's flow-control window, by their portions.
    waiting: BTreeMap<SendPortion, Waker>,
}

/// Position in the sending order; the lower goes first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct SendPortion {
    is_continuation: bool,
    number: u64,
}

/// The place of one response in the order of its connection.
pub(crate) struct ScheduledResponse {
    scheduler: Rc<ResponseScheduler>,
    portion: Option<SendPortion>,
    /// Bytes that may still be handed over of the current portion.
    left: usize,
}

impl ResponseScheduler {
    /// Records written bytes of any kind; `None` if the connection accepts no more now.
    pub(crate) fn written(&self, bytes: Option<usize>) {
        let state = &mut *self.0.borrow_mut();
        state.is_blocked = bytes.is_none();
        state.unflushed = state.unflushed.saturating_sub(bytes.unwrap_or_default());
        state.wake_first();
    }

    /// Returns the number of DATA frames handed over since the last call.
    pub(crate) fn take_data_frames(&self) -> u32 {
        std::mem::take(&mut self.0.borrow_mut().data_frames)
    }

    /// Records that the `h2` crate has written all pending bytes, unless the connection is blocked. Bytes of a stream
    /// that has been reset since they were handed over will never be written.
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
    pub(crate) fn new(scheduler: &Rc<ResponseScheduler>) -> Self {
        Self { scheduler: Rc::clone(scheduler), portion: None, left: 0 }
    }

    /// Ready with the number of bytes that the response may hand over. The caller then hands some over, or withdraws.
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

    /// Records that the response has handed over `bytes`.
    pub(crate) fn record_sent(&mut self, bytes: usize) {
        self.left = self.left.saturating_sub(bytes);
        let state = &mut *self.scheduler.0.borrow_mut();
        let frames = bytes.div_ceil(FRAME);
        state.unflushed += bytes + FRAME_HEADER * frames;
        state.data_frames =
            state.data_frames.saturating_add(u32::try_from(frames).unwrap_or(u32::MAX));
        if let Some(portion) = self.portion {
            state.waiting.remove(&portion);
        }
        state.wake_first();
    }

    /// Removes the response from the order: it has nothing to send now, or no window.
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
        scheduled: ScheduledResponse,
        task: Arc<Task>,
    }

    impl Response {
        fn new(scheduler: &Rc<ResponseScheduler>) -> Self {
            Self { scheduled: ScheduledResponse::new(scheduler), task: Arc::default() }
        }

        /// Tries to hand over `bytes`; true if it could.
        fn try_send(&mut self, bytes: usize) -> bool {
            let waker = self.task.clone().into();
            let is_due = self.scheduled.poll(&Context::from_waker(&waker)).is_ready();
            if is_due {
                self.scheduled.record_sent(bytes);
            }
            is_due
        }

        /// True if the task has been woken since the last call.
        fn is_woken(&self) -> bool {
            self.task.0.swap(0, Ordering::Relaxed) > 0
        }
    }

    fn responses<const N: usize>() -> (Rc<ResponseScheduler>, [Response; N]) {
        let scheduler = Rc::default();
        let responses = std::array::from_fn(|_| Response::new(&scheduler));
        (scheduler, responses)
    }

    /// Responses that have all sent their first portions.
    fn long_responses<const N: usize>() -> (Rc<ResponseScheduler>, [Response; N]) {
        let (scheduler, mut responses) = responses();
        for response in &mut responses {
            assert!(response.try_send(FIRST_PORTION));
        }
        scheduler.flushed();
        (scheduler, responses)
    }

    #[test]
    fn responses_finish_their_portions_in_start_order() {
        let (scheduler, [mut one, mut other]) = long_responses();
        assert!(one.try_send(PORTION / 2));
        assert!(other.try_send(PORTION / 2));
        assert!(!other.try_send(1) && !one.try_send(1));
        scheduler.written(Some(PORTION));
        assert!(one.is_woken() && !other.is_woken());
        assert!(!other.try_send(1), "`one` goes first");
        assert!(one.try_send(PORTION / 2));
        assert!(other.is_woken());
        // The current portion of `one` was begun later.
        assert!(!one.try_send(1));
        assert!(other.try_send(PORTION / 2) && !one.is_woken());
        scheduler.written(Some(FRAME));
        assert!(one.is_woken() && one.try_send(1));
    }

    #[test]
    fn new_responses_precede_continuing_ones() {
        let (scheduler, [mut long, mut longer]) = long_responses();
        assert!(long.try_send(PORTION));
        assert!(!longer.try_send(1));
        let [mut short, mut shorter] = [(); 2].map(|()| Response::new(&scheduler));
        assert!(!short.try_send(1) && !shorter.try_send(1));
        scheduler.written(Some(FRAME));
        assert!(short.is_woken() && !shorter.is_woken() && !longer.is_woken());
        assert!(!longer.try_send(1), "new responses go first");
        assert!(short.try_send(100) && shorter.is_woken());
        assert!(shorter.try_send(100) && longer.is_woken());
    }

    #[test]
    fn first_portion_of_a_new_response_is_small() {
        let (scheduler, [mut first, mut other]) = responses();
        assert_eq!(
            first.scheduled.poll(&Context::from_waker(Waker::noop())),
            Poll::Ready(usize::MAX)
        );
        assert!(first.try_send(PORTION) && !other.try_send(1) && !first.try_send(1));
        scheduler.flushed();
        let most = other.scheduled.poll(&Context::from_waker(Waker::noop()));
        assert_eq!(most, Poll::Ready(FIRST_PORTION));
    }

    #[test]
    fn frame_headers_count_as_unwritten_bytes() {
        let (scheduler, [mut one, mut other]) = responses();
        assert!(one.try_send(PORTION));
        scheduler.written(Some(PORTION / FRAME * FRAME_HEADER));
        assert!(!other.try_send(1), "only headers have been written");
    }

    #[test]
    fn dropped_or_passing_responses_hand_over_their_place() {
        let (scheduler, [mut first, mut passing, mut leaving, mut last]) = responses();
        assert!(first.try_send(PORTION));
        for waiting in [&mut passing, &mut leaving, &mut last] {
            assert!(!waiting.try_send(1));
        }
        scheduler.written(Some(FRAME));
        assert!(passing.is_woken() && !leaving.is_woken());
        passing.scheduled.withdraw();
        assert!(leaving.is_woken() && !last.is_woken());
        drop(leaving);
        assert!(last.is_woken() && last.try_send(1));
    }

    #[test]
    fn discarded_bytes_do_not_block_other_responses() {
        let (scheduler, [mut reset, mut other]) = responses();
        assert!(reset.try_send(PORTION));
        assert!(!other.try_send(1));
        scheduler.written(None);
        scheduler.flushed();
        assert!(!other.is_woken(), "the connection is blocked");
        scheduler.written(Some(100));
        assert!(other.is_woken());
        scheduler.written(Some(0));
        scheduler.flushed();
        assert!(other.is_woken() && other.try_send(PORTION));
    }
}
