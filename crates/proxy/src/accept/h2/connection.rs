//! Client HTTP/2 connection, from its first request to its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use balance::Time;
use bytes::Bytes;
use h2::server::Connection;
use h2::{Ping, PingPong, Reason};

use super::WINDOWS;
use super::fault::H2ClientFault;
use super::flood_detector::FloodDetector;
use super::metered_stream::MeteredStream;
use super::request_task;
use crate::accept::multiplexed_client::MultiplexedClient;
use crate::clock;
use crate::deadline::Deadline;
use crate::h2::{ResponseScheduler, ScheduledResponse};
use crate::memory::FlowWindows;

/// Silence after which a client with work in flight is pinged.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
/// Time for the client to answer that ping.
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Time for the client to close the connection by itself, once no request is in flight.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);

/// Client connection that accepts requests.
pub(super) struct H2Connection {
    frames: Connection<MeteredStream, Bytes>,
    multiplexed_client: Rc<MultiplexedClient>,
    detector: Rc<RefCell<FloodDetector>>,
    scheduler: Rc<ResponseScheduler>,
    phase: H2ShutdownPhase,
    /// Start time of the head that is incomplete now.
    head_since: Option<Time>,
    fault: Option<H2ClientFault>,
    /// Time of the next keepalive check. The fields below hold the bytes received at the last
    /// check, and if a ping was sent.
    next_check_at: Time,
    bytes_received: u64,
    ping_sent: bool,
    pings: Option<PingPong>,
    /// Resets that are already in the metrics.
    streams_reset: u64,
    /// Streams that were accepted, or counted as refused.
    streams_accepted: u64,
    seen_tick: u32,
    /// Windows that were announced last.
    announced: FlowWindows,
}

/// Shutdown phase of a connection, with its start time.
#[derive(Clone, Copy)]
enum H2ShutdownPhase {
    Serving,
    /// GOAWAY has been sent; the requests that the client has sent are served.
    Draining(Time),
    /// No request is served any more.
    Ended(Time),
}

impl H2Connection {
    pub(super) fn new(
        mut frames: Connection<MeteredStream, Bytes>,
        carrier: MultiplexedClient,
        detector: Rc<RefCell<FloodDetector>>,
        scheduler: Rc<ResponseScheduler>,
        announced: FlowWindows,
    ) -> Self {
        Self {
            pings: frames.ping_pong(),
            frames,
            multiplexed_client: Rc::new(carrier),
            detector,
            scheduler,
            phase: H2ShutdownPhase::Serving,
            head_since: None,
            fault: None,
            next_check_at: clock::now() + KEEPALIVE_INTERVAL,
            bytes_received: 0,
            ping_sent: false,
            streams_reset: 0,
            streams_accepted: 0,
            seen_tick: u32::MAX,
            announced,
        }
    }

    /// Ready when the connection has ended, with the fault for which we ended it; `None` after a
    /// normal end.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
    ) -> Poll<Option<H2ClientFault>> {
        self.detector.borrow_mut().begin_poll(self.multiplexed_client.requests_in_flight());
        self.announce_windows();
        loop {
            match self.frames.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, response)))) => {
                    let carrier = &self.multiplexed_client;
                    if let Some(idle_since) = carrier.idle_deadline(Duration::ZERO) {
                        self.next_check_at =
                            self.next_check_at.max(idle_since + KEEPALIVE_INTERVAL);
                    }
                    carrier.worker.count_request(&mut self.seen_tick);
                    self.streams_accepted += 1;
                    request_task::begin(
                        carrier,
                        request,
                        response,
                        ScheduledResponse::new(&self.scheduler),
                    );
                    continue;
                }
                Poll::Ready(Some(Err(error))) => {
                    let amid_head = self.detector.borrow().is_within_head();
                    return Poll::Ready(
                        self.fault.or_else(|| H2ClientFault::from_error(&error, amid_head)),
                    );
                }
                Poll::Ready(None) => return Poll::Ready(self.fault),
                Poll::Pending => self.scheduler.flushed(),
            }
            if self.update_shutdown() {
                continue;
            }
            deadline.set(self.deadline());
            ready!(deadline.poll(cx));
            if !self.check_timers(clock::now()) {
                return Poll::Ready(self.fault);
            }
        }
    }

    /// Announces other windows to the client if the memory pressure has changed.
    fn announce_windows(&mut self) {
        let budgets = &self.multiplexed_client.worker.shared.budgets;
        let wanted = WINDOWS.under(budgets.memory.pressure());
        // Refused while the client has not acknowledged earlier settings; then a later poll announces them.
        if wanted != self.announced && self.frames.set_initial_window_size(wanted.stream).is_ok() {
            self.frames.set_target_window_size(wanted.connection);
            self.announced = wanted;
        }
    }

    /// Counts resets and refused streams, and starts the shutdown if it is due. Returns true if the
    /// library has frames to send for that.
    fn update_shutdown(&mut self) -> bool {
        let carrier = &self.multiplexed_client;
        let (fault, is_closing) = {
            let detector = self.detector.borrow();
            if detector.streams_reset != self.streams_reset {
                let counters = carrier.worker.counters();
                counters.http2_streams_reset.add(detector.streams_reset - self.streams_reset);
                self.streams_reset = detector.streams_reset;
            }
            // The library itself refused each stream without a request: it exceeded the limit, or
            // its head was not acceptable.
            let refused = detector.streams_processed.saturating_sub(self.streams_accepted);
            if refused > 0 && matches!(self.phase, H2ShutdownPhase::Serving) {
                carrier.worker.counters().http2_streams_refused.add(refused);
                self.streams_accepted += refused;
            }
            self.head_since =
                detector.is_within_head().then(|| self.head_since.unwrap_or_else(clock::now));
            (detector.fault(), detector.is_closing)
        };
        match (self.phase, fault) {
            (H2ShutdownPhase::Serving | H2ShutdownPhase::Draining(_), _) if is_closing => {
                self.phase = H2ShutdownPhase::Ended(clock::now());
                return false;
            }
            (H2ShutdownPhase::Serving | H2ShutdownPhase::Draining(_), Some(fault)) => {
                self.abort(fault)
            }
            (H2ShutdownPhase::Serving, None) if carrier.must_shut_down() || carrier.is_shed() => {
                self.start_graceful_shutdown(clock::now())
            }
            (H2ShutdownPhase::Serving | H2ShutdownPhase::Draining(_), None)
            | (H2ShutdownPhase::Ended(_), _) => return false,
        }
        true
    }

    /// Sends the first GOAWAY and, after a round trip, the second, which names the last request
    /// that is served.
    fn start_graceful_shutdown(&mut self, now: Time) {
        self.phase = H2ShutdownPhase::Draining(now);
        self.frames.graceful_shutdown();
    }

    /// Resets every request, and then closes the connection.
    fn abort(&mut self, fault: H2ClientFault) {
        self.fault = Some(fault);
        self.phase = H2ShutdownPhase::Ended(clock::now());
        self.frames.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    }

    /// Returns the time of the next check.
    fn deadline(&self) -> Time {
        let (idle_timeout, head_timeout) = self.multiplexed_client.timeouts();
        let head_due = self.head_since.map_or(Time::MAX, |since| since + head_timeout);
        let (idle, leave) = match self.phase {
            H2ShutdownPhase::Serving => (
                self.multiplexed_client.idle_deadline(idle_timeout),
                self.multiplexed_client.max_age_at,
            ),
            H2ShutdownPhase::Draining(since) => (
                self.multiplexed_client
                    .idle_deadline(DRAIN_TIMEOUT)
                    .map(|at| at.max(since + DRAIN_TIMEOUT)),
                None,
            ),
            H2ShutdownPhase::Ended(since) => return since + DRAIN_TIMEOUT,
        };
        let at = self.next_check_at.min(head_due);
        at.min(idle.unwrap_or(Time::MAX)).min(leave.unwrap_or(Time::MAX))
    }

    /// Does all work that is due. Returns false if the connection is over.
    fn check_timers(&mut self, now: Time) -> bool {
        let (idle_timeout, head_timeout) = self.multiplexed_client.timeouts();
        let has_come = |at: Option<Time>| at.is_some_and(|at| now >= at);
        let head_is_late = has_come(self.head_since.map(|since| since + head_timeout));
        match self.phase {
            // The library reports the error that it ended the connection with only when the wait
            // for the client's close is over.
            H2ShutdownPhase::Ended(_) => {
                return !std::mem::replace(
                    &mut self.detector.borrow_mut().close_wait_expired,
                    true,
                );
            }
            H2ShutdownPhase::Serving | H2ShutdownPhase::Draining(_) if head_is_late => {
                self.abort(H2ClientFault::SlowHead)
            }
            H2ShutdownPhase::Draining(since) => {
                if has_come(self.multiplexed_client.idle_deadline(DRAIN_TIMEOUT))
                    && now >= since + DRAIN_TIMEOUT
                {
                    return false;
                }
            }
            H2ShutdownPhase::Serving => {
                if has_come(self.multiplexed_client.max_age_at)
                    || has_come(self.multiplexed_client.idle_deadline(idle_timeout))
                {
                    self.start_graceful_shutdown(now);
                }
            }
        }
        if now >= self.next_check_at && !self.check_liveness(now) {
            self.fault = Some(H2ClientFault::KeepaliveTimeout);
            return false;
        }
        true
    }

    /// Returns true while the client counts as alive; pings it if no bytes have arrived since the
    /// last check.
    fn check_liveness(&mut self, now: Time) -> bool {
        let received = self.detector.borrow().bytes_received;
        let is_silent = std::mem::replace(&mut self.bytes_received, received) == received;
        let is_wanted =
            is_silent && (self.multiplexed_client.is_busy() || self.frames.has_streams());
        if !is_wanted {
            self.ping_sent = false;
            self.next_check_at = now + KEEPALIVE_INTERVAL;
            return true;
        }
        if std::mem::replace(&mut self.ping_sent, true) {
            return false;
        }
        if let Some(pings) = &mut self.pings {
            // Reading the PONG that has arrived meanwhile makes room for another PING.
            drop(pings.poll_pong(&mut Context::from_waker(Waker::noop())));
            drop(pings.send_ping(Ping::opaque()));
        }
        self.next_check_at = now + KEEPALIVE_TIMEOUT;
        true
    }
}
