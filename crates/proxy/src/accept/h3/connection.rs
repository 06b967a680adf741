//! Client HTTP/3 connection, from its first request to its end.

use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use balance::Time;
use codec::h3::{H3ErrorCode, PeerRole};
use quic::{QuicConnection, RecvStream, SendStream};

use super::fault::H3ClientFault;
use super::request_task::H3ConnectionContext;
use crate::accept::client::head_limits;
use crate::accept::multiplexed_client::MultiplexedClient;
use crate::accept::token_bucket::{RESET_PRICE, TokenBucket};
use crate::active_config::ActiveListener;
use crate::clock;
use crate::deadline::Deadline;
use crate::h3::{ControlStreams, H3Stream};

/// Longest time between two checks while requests are in flight.
const CHECK_INTERVAL: Duration = Duration::from_secs(10);
/// Least time between the first and the second GOAWAY: the client learns that it must leave before
/// it learns which requests are served.
const MIN_DRAIN_TIME: Duration = Duration::from_millis(100);
/// Longest time for the client to receive the last response and to close the connection by itself.
const DRAIN_TIMEOUT: Duration = Duration::from_secs(2);
/// Stream ID that excludes no request: the largest possible one (RFC 9114 §5.2).
const NO_STREAM: u64 = (1 << 62) - 4;
/// Distance between the IDs of two successive request streams (RFC 9000 §2.1).
const ID_STEP: u64 = 4;
/// Overhead that each field counts toward the field section size, in addition to its text (RFC 9114
/// §4.2.2).
const FIELD_OVERHEAD: u64 = 32;

/// Client connection that accepts requests.
pub(super) struct H3Connection {
    context: Rc<H3ConnectionContext>,
    control_streams: ControlStreams,
    deadline: Deadline,
    phase: H3ShutdownPhase,
    /// ID of the next request stream.
    next_id: u64,
    resets: TokenBucket,
    /// Time of the next check while requests are in flight.
    next_check_at: Time,
    /// Time of the check that the client has received the last response.
    linger_until: Time,
    seen_tick: u32,
}

/// Shutdown phase of a connection, with its start time.
#[derive(Clone, Copy, PartialEq, Eq)]
enum H3ShutdownPhase {
    Serving,
    /// The first GOAWAY has been sent; all requests that the client sends are served.
    GoawaySent(Time),
    /// The second GOAWAY has named the last request that is served; later requests are rejected.
    Draining(Time),
}

impl H3Connection {
    /// Returns `None` if the listener has been removed, or no longer serves HTTP/3.
    pub(super) fn new(connection: QuicConnection, carrier: MultiplexedClient) -> Option<Self> {
        let now = clock::now();
        let (open, limits) = {
            let active_config = carrier.worker.config();
            let listener = active_config.listener(&carrier.bound)?;
            let http3 = listener.http3.as_ref()?;
            (http3.settings.max_concurrent_streams, head_limits(&listener.client))
        };
        let field_section = limits.head_bytes as u64 + limits.fields as u64 * FIELD_OVERHEAD;
        Some(Self {
            control_streams: ControlStreams::new(&connection, PeerRole::Client, field_section),
            deadline: Deadline::new(now + CHECK_INTERVAL),
            phase: H3ShutdownPhase::Serving,
            next_id: 0,
            resets: TokenBucket::of_resets(open, now),
            next_check_at: now + CHECK_INTERVAL,
            linger_until: now,
            seen_tick: u32::MAX,
            context: H3ConnectionContext::new(carrier, connection),
        })
    }

    /// Ready when the connection has ended, with the fault for which we ended it; `None` after a
    /// normal end.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Option<H3ClientFault>> {
        loop {
            match self.control_streams.poll(cx) {
                // We push nothing, and none of our frames depends on the client's settings.
                Poll::Ready(Ok(_event)) => continue,
                Poll::Ready(Err(code)) => return Poll::Ready(Some(H3ClientFault::from_code(code))),
                Poll::Pending => {}
            }
            match self.context.connection.poll_accept_bi(cx) {
                Poll::Ready(Ok((send, recv))) => match self.accept(send, recv) {
                    Ok(()) => continue,
                    Err(fault) => return Poll::Ready(Some(self.abort(fault))),
                },
                Poll::Ready(Err(closed)) => {
                    return Poll::Ready(H3ClientFault::from_close(
                        closed,
                        self.context.multiplexed_client.is_busy(),
                    ));
                }
                Poll::Pending => {}
            }
            if self.phase == H3ShutdownPhase::Serving && self.must_shut_down() {
                self.send_first_goaway(clock::now());
                continue;
            }
            if self.phase != H3ShutdownPhase::Serving {
                self.context.multiplexed_client.wake_when_idle(cx.waker());
            }
            self.deadline.set(self.next_deadline());
            ready!(self.deadline.poll(cx));
            if !self.check_timers(clock::now()) {
                return Poll::Ready(None);
            }
        }
    }

    /// True if the process is shutting down, the listener has been removed, or it no longer serves
    /// HTTP/3.
    fn must_shut_down(&self) -> bool {
        let carrier = &self.context.multiplexed_client;
        let has_http3 = |listener: &ActiveListener| listener.http3.is_some();
        carrier.must_shut_down()
            || !carrier.worker.config().listener(&carrier.bound).is_some_and(has_http3)
    }

    /// Accepts a request stream. Returns a fault if the client cancels nearly all of its requests.
    fn accept(&mut self, mut send: SendStream, mut recv: RecvStream) -> Result<(), H3ClientFault> {
        self.next_id = self.next_id.max(recv.id() + ID_STEP);
        let streams = &self.context;
        let given_up = streams.uncharged_resets.take();
        self.resets.earn(1);
        if given_up > 0 && !self.resets.spend(given_up.saturating_mul(RESET_PRICE)) {
            return Err(H3ClientFault::Resets);
        }
        if matches!(self.phase, H3ShutdownPhase::Draining(_)) {
            // The request is not processed, so the client may retry it on another connection.
            send.reset(H3ErrorCode::REQUEST_REJECTED.0);
            recv.stop(H3ErrorCode::REQUEST_REJECTED.0);
            return Ok(());
        }
        let worker = &streams.multiplexed_client.worker;
        worker.count_request(&mut self.seen_tick);
        let active_config = worker.config();
        let listener = active_config.listener(&streams.multiplexed_client.bound);
        let most_head = listener.map_or(0, |listener| listener.client.max_head_bytes as usize);
        streams.begin_request(H3Stream::from_client(
            send,
            recv,
            self.control_streams.connection_state(),
            most_head,
        ));
        Ok(())
    }

    /// Sends the first GOAWAY, which excludes no request.
    fn send_first_goaway(&mut self, now: Time) {
        self.control_streams.send_goaway(NO_STREAM);
        self.phase = H3ShutdownPhase::GoawaySent(now);
    }

    /// Closes the connection, which ends every request.
    fn abort(&self, fault: H3ClientFault) -> H3ClientFault {
        let code = H3ErrorCode::EXCESSIVE_LOAD;
        self.context.connection.close(code.0, code.reason());
        fault
    }

    /// Returns the time that the client gets to receive a frame and to answer it.
    fn drain_time(&self) -> Duration {
        MIN_DRAIN_TIME.max(3 * self.context.connection.round_trip())
    }

    /// Returns the time of the next check.
    fn next_deadline(&self) -> Time {
        let carrier = &self.context.multiplexed_client;
        match self.phase {
            H3ShutdownPhase::Serving => {
                let (idle_timeout, _) = carrier.timeouts();
                let idle = carrier.idle_deadline(idle_timeout).unwrap_or(self.next_check_at);
                idle.min(carrier.max_age_at.unwrap_or(Time::MAX))
            }
            H3ShutdownPhase::GoawaySent(since) => since + self.drain_time(),
            H3ShutdownPhase::Draining(since) => match carrier.idle_deadline(Duration::ZERO) {
                Some(last) => self.linger_until.max(last.max(since) + self.drain_time()),
                None => self.next_check_at,
            },
        }
    }

    /// Does all work that is due. Returns false if the connection is over.
    fn check_timers(&mut self, now: Time) -> bool {
        let carrier = &self.context.multiplexed_client;
        let (idle_timeout, _) = carrier.timeouts();
        if now >= self.next_check_at {
            self.next_check_at = now + CHECK_INTERVAL.min(idle_timeout);
        }
        let has_come = |at: Option<Time>| at.is_some_and(|at| now >= at);
        match self.phase {
            H3ShutdownPhase::Serving => {
                if has_come(carrier.max_age_at) || has_come(carrier.idle_deadline(idle_timeout)) {
                    self.send_first_goaway(now);
                }
            }
            H3ShutdownPhase::GoawaySent(since) if now >= since + self.drain_time() => {
                self.control_streams.send_goaway(self.next_id);
                self.phase = H3ShutdownPhase::Draining(now);
            }
            H3ShutdownPhase::GoawaySent(_) => {}
            H3ShutdownPhase::Draining(since) => return !self.close_if_drained(since, now),
        }
        true
    }

    /// Closes a connection that has been draining since `since`, once no request is in flight and
    /// all data is acknowledged or has timed out.
    fn close_if_drained(&mut self, since: Time, now: Time) -> bool {
        let H3ConnectionContext { multiplexed_client: carrier, connection, .. } = &*self.context;
        let is_taken = !connection.has_unacknowledged();
        let patience = self.drain_time();
        let due = carrier.idle_deadline(if is_taken { patience } else { DRAIN_TIMEOUT });
        if due.is_some_and(|due| now >= due.max(since + patience)) {
            connection.close(H3ErrorCode::NO_ERROR.0, H3ErrorCode::NO_ERROR.reason());
            return true;
        }
        self.linger_until = now + patience;
        false
    }
}
