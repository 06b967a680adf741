//! A client's connection from its first request to its end.

use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use balance::Time;

use super::fault::Fault;
use super::serving::Streams;
use crate::accept::allowance::{Allowance, RESET_PRICE};
use crate::accept::carrier::Carrier;
use crate::clock;
use crate::deadline::Deadline;
use crate::h1::HeadLimits;
use crate::h3::{ControlStreams, H3ErrorCode, H3Stream, PeerRole};
use crate::live::LiveListener;
use crate::quic::{QuicConnection, RecvStream, SendStream};

/// While requests are under way, how often it is seen at least whether there is something else to do.
const LOOK: Duration = Duration::from_secs(10);
/// What a client gets at least to hear that it is to leave, before it is told which requests count.
const WARNING: Duration = Duration::from_millis(100);
/// What it gets at most to take the last answer, and to leave by itself.
const GOODBYE: Duration = Duration::from_secs(2);
/// Names no request: the last stream that there could be (RFC 9114 §5.2).
const NO_STREAM: u64 = (1 << 62) - 4;
/// From one request's stream to the next (RFC 9000 §2.1).
const ID_STEP: u64 = 4;
/// What a field takes of the limit of a head beside its text (RFC 9114 §4.2.2).
const FIELD_OVERHEAD: u64 = 32;

/// A connection on which requests come.
pub(super) struct Talk {
    streams: Rc<Streams>,
    conversation: ControlStreams,
    deadline: Deadline,
    phase: Phase,
    /// The stream that the next request will have.
    next_id: u64,
    resets: Allowance,
    /// When to see whether there is something to do, while requests are under way.
    look_at: Time,
    /// When to see whether the client has taken the last answer.
    linger_until: Time,
    seen_tick: u32,
}

/// How far a connection is on its way out, and since when.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Phase {
    Serving,
    /// The client has been told to leave; what it has sent is served.
    Warned(Time),
    /// It has been told which requests count, and others are refused.
    Leaving(Time),
}

impl Talk {
    /// `None`: nobody listens there any more.
    pub(super) fn new(connection: QuicConnection, carrier: Carrier) -> Option<Self> {
        let now = clock::now();
        let (open, limits) = {
            let live = carrier.worker.live();
            let listener = live.listener(&carrier.bound)?;
            let http3 = listener.http3.as_ref()?;
            (http3.settings.max_concurrent_streams, HeadLimits::of(&listener.client))
        };
        let field_section = limits.head_bytes as u64 + limits.fields as u64 * FIELD_OVERHEAD;
        Some(Self {
            conversation: ControlStreams::new(&connection, PeerRole::Client, field_section),
            deadline: Deadline::new(now + LOOK),
            phase: Phase::Serving,
            next_id: 0,
            resets: Allowance::of_resets(open, now),
            look_at: now + LOOK,
            linger_until: now,
            seen_tick: u32::MAX,
            streams: Streams::new(carrier, connection),
        })
    }

    /// Ready when the connection has ended: for what, if it was not its own end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<Fault>> {
        loop {
            match self.conversation.poll(cx) {
                // Nothing is pushed, and nothing that we send depends on what the client takes.
                Poll::Ready(Ok(_event)) => continue,
                Poll::Ready(Err(code)) => return Poll::Ready(Some(Fault::of_code(code))),
                Poll::Pending => {}
            }
            match self.streams.connection.poll_accept_bi(cx) {
                Poll::Ready(Ok((send, recv))) => match self.accept(send, recv) {
                    Ok(()) => continue,
                    Err(fault) => return Poll::Ready(Some(self.cut(fault))),
                },
                Poll::Ready(Err(closed)) => {
                    return Poll::Ready(Fault::of_end(closed, self.streams.carrier.is_busy()));
                }
                Poll::Pending => {}
            }
            if self.phase == Phase::Serving && self.must_leave() {
                self.warn(clock::now());
                continue;
            }
            if self.phase != Phase::Serving {
                self.streams.carrier.wake_when_idle(cx.waker());
            }
            self.deadline.set(self.due());
            ready!(self.deadline.poll(cx));
            if !self.look(clock::now()) {
                return Poll::Ready(None);
            }
        }
    }

    /// The process ends, nobody listens there any more, or not for HTTP/3.
    fn must_leave(&self) -> bool {
        let carrier = &self.streams.carrier;
        let has_http3 = |listener: &LiveListener| listener.http3.is_some();
        carrier.must_leave()
            || !carrier.worker.live().listener(&carrier.bound).is_some_and(has_http3)
    }

    /// A request's stream has come. The fault is that of a client which gives up nearly all that it asks for.
    fn accept(&mut self, mut send: SendStream, mut recv: RecvStream) -> Result<(), Fault> {
        self.next_id = self.next_id.max(recv.id() + ID_STEP);
        let streams = &self.streams;
        let given_up = streams.given_up.take();
        self.resets.earn(1);
        if given_up > 0 && !self.resets.spend(given_up.saturating_mul(RESET_PRICE)) {
            return Err(Fault::Resets);
        }
        if matches!(self.phase, Phase::Leaving(_)) {
            // It does not count, and the client may send it elsewhere.
            send.reset(H3ErrorCode::REQUEST_REJECTED.0);
            recv.stop(H3ErrorCode::REQUEST_REJECTED.0);
            return Ok(());
        }
        let worker = &streams.carrier.worker;
        worker.count_request(&mut self.seen_tick);
        let live = worker.live();
        let listener = live.listener(&streams.carrier.bound);
        let most_head = listener.map_or(0, |listener| listener.client.max_head_bytes as usize);
        streams.begin(H3Stream::from_client(
            send,
            recv,
            self.conversation.connection_state(),
            most_head,
        ));
        Ok(())
    }

    /// The first GOAWAY, which takes nothing away.
    fn warn(&mut self, now: Time) {
        self.conversation.send_goaway(NO_STREAM);
        self.phase = Phase::Warned(now);
    }

    /// Ends every request, and the connection.
    fn cut(&self, fault: Fault) -> Fault {
        let code = H3ErrorCode::EXCESSIVE_LOAD;
        self.streams.connection.close(code.0, code.reason());
        fault
    }

    /// What the client gets to hear something and to answer.
    fn patience(&self) -> Duration {
        WARNING.max(3 * self.streams.connection.round_trip())
    }

    /// When there is something to look for.
    fn due(&self) -> Time {
        let carrier = &self.streams.carrier;
        match self.phase {
            Phase::Serving => {
                let (idle_timeout, _) = carrier.timeouts();
                let idle = carrier.idle(idle_timeout).unwrap_or(self.look_at);
                idle.min(carrier.leave_at.unwrap_or(Time::MAX))
            }
            Phase::Warned(since) => since + self.patience(),
            Phase::Leaving(since) => match carrier.idle(Duration::ZERO) {
                Some(last) => self.linger_until.max(last.max(since) + self.patience()),
                None => self.look_at,
            },
        }
    }

    /// Does what is due; false: the connection is over.
    fn look(&mut self, now: Time) -> bool {
        let carrier = &self.streams.carrier;
        let (idle_timeout, _) = carrier.timeouts();
        if now >= self.look_at {
            self.look_at = now + LOOK.min(idle_timeout);
        }
        let has_come = |at: Option<Time>| at.is_some_and(|at| now >= at);
        match self.phase {
            Phase::Serving => {
                if has_come(carrier.leave_at) || has_come(carrier.idle(idle_timeout)) {
                    self.warn(now);
                }
            }
            Phase::Warned(since) if now >= since + self.patience() => {
                self.conversation.send_goaway(self.next_id);
                self.phase = Phase::Leaving(now);
            }
            Phase::Warned(_) => {}
            Phase::Leaving(since) => return !self.parts(since, now),
        }
        true
    }

    /// Closes a connection that is to leave since then, once nothing is under way any more and nothing would be lost.
    fn parts(&mut self, since: Time, now: Time) -> bool {
        let Streams { carrier, connection, .. } = &*self.streams;
        let is_taken = !connection.has_unacknowledged();
        let patience = self.patience();
        let due = carrier.idle(if is_taken { patience } else { GOODBYE });
        if due.is_some_and(|due| now >= due.max(since + patience)) {
            connection.close(H3ErrorCode::NO_ERROR.0, H3ErrorCode::NO_ERROR.reason());
            return true;
        }
        self.linger_until = now + patience;
        false
    }
}
