//! A client's connection from its first request to its end.

use std::cell::RefCell;
use std::rc::Rc;
use std::task::{Context, Poll, Waker, ready};
use std::time::Duration;

use balance::Time;
use bytes::Bytes;
use h2::server::Connection;
use h2::{Ping, PingPong, Reason};

use super::fault::Fault;
use super::meter::Meter;
use super::serving;
use super::wire::Wire;
use crate::accept::carrier::Carrier;
use crate::clock;
use crate::deadline::Deadline;
use crate::h2::{ResponseScheduler, ScheduledResponse};

/// A client of which nothing has been heard for so long is asked whether it is still there, if anything is under way.
const SILENCE: Duration = Duration::from_secs(30);
/// It has so long to answer.
const PONG: Duration = Duration::from_secs(10);
/// What a client gets to take leave, when nothing is under way any more.
const GOODBYE: Duration = Duration::from_secs(2);

/// A connection on which requests come.
pub(super) struct Talk {
    frames: Connection<Wire, Bytes>,
    carrier: Rc<Carrier>,
    meter: Rc<RefCell<Meter>>,
    turns: Rc<ResponseScheduler>,
    phase: Phase,
    /// A head has been coming in since then.
    head_since: Option<Time>,
    fault: Option<Fault>,
    /// When to look whether the client is still there, what had been heard of it before, and whether it was asked.
    look_at: Time,
    heard: u64,
    was_asked: bool,
    pings: Option<PingPong>,
    /// As far as they have been counted.
    streams_reset: u64,
    /// Streams that have been begun to serve, or counted as refused.
    streams_met: u64,
    seen_tick: u32,
}

/// How far a connection is on its way out, and since when.
#[derive(Clone, Copy)]
enum Phase {
    Serving,
    /// The client has been told to leave; what it has sent is served.
    Leaving(Time),
    /// Nothing is served any more.
    Ended(Time),
}

impl Talk {
    pub(super) fn new(
        mut frames: Connection<Wire, Bytes>,
        carrier: Carrier,
        meter: Rc<RefCell<Meter>>,
        turns: Rc<ResponseScheduler>,
    ) -> Self {
        Self {
            pings: frames.ping_pong(),
            frames,
            carrier: Rc::new(carrier),
            meter,
            turns,
            phase: Phase::Serving,
            head_since: None,
            fault: None,
            look_at: clock::now() + SILENCE,
            heard: 0,
            was_asked: false,
            streams_reset: 0,
            streams_met: 0,
            seen_tick: u32::MAX,
        }
    }

    /// Ready when the connection has ended: for what, if it was not its own end.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        deadline: &mut Deadline,
    ) -> Poll<Option<Fault>> {
        self.meter.borrow_mut().begin_turn(self.carrier.under_way());
        loop {
            match self.frames.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, response)))) => {
                    let carrier = &self.carrier;
                    if let Some(idle_since) = carrier.idle(Duration::ZERO) {
                        self.look_at = self.look_at.max(idle_since + SILENCE);
                    }
                    carrier.worker.count_request(&mut self.seen_tick);
                    self.streams_met += 1;
                    serving::begin(carrier, request, response, ScheduledResponse::new(&self.turns));
                    continue;
                }
                Poll::Ready(Some(Err(error))) => {
                    let amid_head = self.meter.borrow().is_amid_head();
                    return Poll::Ready(self.fault.or_else(|| Fault::found(&error, amid_head)));
                }
                Poll::Ready(None) => return Poll::Ready(self.fault),
                Poll::Pending => self.turns.flushed(),
            }
            if self.takes_leave() {
                continue;
            }
            deadline.set(self.deadline());
            ready!(deadline.poll(cx));
            if !self.look(clock::now()) {
                return Poll::Ready(self.fault);
            }
        }
    }

    /// Counts what has been reset and refused, and tells the client to leave if it must; true: the library has to send
    /// that.
    fn takes_leave(&mut self) -> bool {
        let carrier = &self.carrier;
        let (fault, is_closing) = {
            let meter = self.meter.borrow();
            if meter.streams_reset != self.streams_reset {
                let counters = carrier.worker.counters();
                counters.http2_streams_reset.add(meter.streams_reset - self.streams_reset);
                self.streams_reset = meter.streams_reset;
            }
            // What came to no request was refused by the library: one too many, or with a head that it did not take.
            let refused = meter.streams_seen.saturating_sub(self.streams_met);
            if refused > 0 && matches!(self.phase, Phase::Serving) {
                carrier.worker.counters().http2_streams_refused.add(refused);
                self.streams_met += refused;
            }
            self.head_since =
                meter.is_amid_head().then(|| self.head_since.unwrap_or_else(clock::now));
            (meter.fault(), meter.is_closing)
        };
        match (self.phase, fault) {
            (Phase::Serving | Phase::Leaving(_), _) if is_closing => {
                self.phase = Phase::Ended(clock::now());
                return false;
            }
            (Phase::Serving | Phase::Leaving(_), Some(fault)) => self.end(fault),
            (Phase::Serving, None) if carrier.must_leave() => self.say_goodbye(clock::now()),
            (Phase::Serving | Phase::Leaving(_), None) | (Phase::Ended(_), _) => return false,
        }
        true
    }

    /// The first GOAWAY and, once the client has seen it, the second, which names the last request that counts.
    fn say_goodbye(&mut self, now: Time) {
        self.phase = Phase::Leaving(now);
        self.frames.graceful_shutdown();
    }

    /// Ends every request, and then the connection.
    fn end(&mut self, fault: Fault) {
        self.fault = Some(fault);
        self.phase = Phase::Ended(clock::now());
        self.frames.abrupt_shutdown(Reason::ENHANCE_YOUR_CALM);
    }

    /// When there is something to look for.
    fn deadline(&self) -> Time {
        let (idle_timeout, head_timeout) = self.carrier.timeouts();
        let head_due = self.head_since.map_or(Time::MAX, |since| since + head_timeout);
        let (idle, leave) = match self.phase {
            Phase::Serving => (self.carrier.idle(idle_timeout), self.carrier.leave_at),
            Phase::Leaving(since) => {
                (self.carrier.idle(GOODBYE).map(|at| at.max(since + GOODBYE)), None)
            }
            Phase::Ended(since) => return since + GOODBYE,
        };
        let at = self.look_at.min(head_due);
        at.min(idle.unwrap_or(Time::MAX)).min(leave.unwrap_or(Time::MAX))
    }

    /// Does what is due; false: the connection is over.
    fn look(&mut self, now: Time) -> bool {
        let (idle_timeout, head_timeout) = self.carrier.timeouts();
        let has_come = |at: Option<Time>| at.is_some_and(|at| now >= at);
        let head_is_late = has_come(self.head_since.map(|since| since + head_timeout));
        match self.phase {
            // The library says what it ended the connection for when the client is waited for no more.
            Phase::Ended(_) => {
                return !std::mem::replace(&mut self.meter.borrow_mut().is_given_up, true);
            }
            Phase::Serving | Phase::Leaving(_) if head_is_late => self.end(Fault::SlowHead),
            Phase::Leaving(since) => {
                if has_come(self.carrier.idle(GOODBYE)) && now >= since + GOODBYE {
                    return false;
                }
            }
            Phase::Serving => {
                if has_come(self.carrier.leave_at) || has_come(self.carrier.idle(idle_timeout)) {
                    self.say_goodbye(now);
                }
            }
        }
        if now >= self.look_at && !self.is_there(now) {
            self.fault = Some(Fault::Silent);
            return false;
        }
        true
    }

    /// Whether the client is still there, as far as is known; asks it if nothing has been heard.
    fn is_there(&mut self, now: Time) -> bool {
        let heard = self.meter.borrow().heard;
        let is_silent = std::mem::replace(&mut self.heard, heard) == heard;
        let is_wanted = is_silent && (self.carrier.is_busy() || self.frames.has_streams());
        if !is_wanted {
            self.was_asked = false;
            self.look_at = now + SILENCE;
            return true;
        }
        if std::mem::replace(&mut self.was_asked, true) {
            return false;
        }
        if let Some(pings) = &mut self.pings {
            // An answer that came meanwhile makes room for another ping.
            drop(pings.poll_pong(&mut Context::from_waker(Waker::noop())));
            drop(pings.send_ping(Ping::opaque()));
        }
        self.look_at = now + PONG;
        true
    }
}
