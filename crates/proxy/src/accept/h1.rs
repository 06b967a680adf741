//! Client HTTP/1.1 connection: one request after the other.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use codec::h1::{BadRequest, parse};
use tokio::io::AsyncWrite;

use crate::accept::accepted_connection::{AcceptedConnection, ConnectionGuard, hand_over};
use crate::accept::client::{ClientConnection, ReadOutcome, head_limits};
use crate::accept::h2;
use crate::buffer::{BUFFER_BYTES, ReadBuffer};
use crate::clock;
use crate::exchange::{ConnectionOutcome, Exchange};
use crate::failure::Failure;
use crate::request;
use crate::worker::{DrainStage, Worker};

/// Time for which we keep reading after our last response, so that the client gets the response
/// before a reset.
const LINGER: Duration = Duration::from_secs(2);
/// Bytes that we read at most during that time.
const LINGER_BYTES: usize = 1024 * 1024;

/// Result of the wait between two requests.
enum IdleOutcome {
    Request,
    MoveTo(usize),
    Over,
}

/// Serves one request after the other, until the connection ends or moves to another worker.
pub(crate) async fn serve(guard: ConnectionGuard, mut client: ClientConnection) {
    let worker = Rc::clone(&guard.worker);
    let waker_id = poll_fn(|cx| Poll::Ready(worker.register_waker(cx.waker().clone()))).await;
    let end = serve_all(&worker, &mut client).await;
    worker.unregister_waker(waker_id);
    match end {
        H1ConnectionExit::Close => client.linger(&worker).await,
        H1ConnectionExit::Abort => {}
        H1ConnectionExit::MoveTo(home) => client.move_to_worker(guard, home),
        H1ConnectionExit::Http2 => Box::pin(h2::serve(guard, client)).await,
    }
}

/// End of the connection on this worker.
enum H1ConnectionExit {
    /// Orderly close.
    Close,
    /// Immediate close: the client has disconnected, or must notice that its response is truncated.
    Abort,
    MoveTo(usize),
    /// Switch to HTTP/2: the client has sent the start of the HTTP/2 preface.
    Http2,
}

async fn serve_all(worker: &Rc<Worker>, client: &mut ClientConnection) -> H1ConnectionExit {
    loop {
        match client.wait_for_request(worker).await {
            IdleOutcome::Request => {}
            IdleOutcome::MoveTo(home) => return H1ConnectionExit::MoveTo(home),
            IdleOutcome::Over => return H1ConnectionExit::Abort,
        }
        let mut exchange = worker.take_exchange();
        // Boxed, so that a connection between two requests does not hold the memory that a request
        // needs.
        let end = Box::pin(client.serve_one(worker, &mut exchange)).await;
        worker.give_back_exchange(exchange);
        worker.scratch.buffer_pool.reclaim(&mut client.buffer);
        if let Some(end) = end {
            return end;
        }
    }
}

impl ClientConnection {
    /// Serves one request; returns how the connection ends, or `None` if it stays open.
    async fn serve_one(
        &mut self,
        worker: &Rc<Worker>,
        exchange: &mut Exchange,
    ) -> Option<H1ConnectionExit> {
        let after = match self.read_head(worker, exchange).await {
            Ok(true) => {
                worker.count_request(&mut self.seen_tick);
                self.has_served = true;
                request::serve(worker, self, exchange).await
            }
            Ok(false) => ConnectionOutcome::Abort,
            Err(Failure::BadRequest(BadRequest::Version)) if self.begins_http2() => {
                return Some(H1ConnectionExit::Http2);
            }
            Err(failure) => request::refuse(worker, self, exchange, failure).await,
        };
        match after {
            ConnectionOutcome::KeepAlive => None,
            ConnectionOutcome::Close => Some(H1ConnectionExit::Close),
            ConnectionOutcome::Abort => Some(H1ConnectionExit::Abort),
        }
    }

    /// True if the client uses HTTP/2 with prior knowledge (RFC 9113 §3.3): its first line is not a
    /// request that we parse.
    fn begins_http2(&self) -> bool {
        let unread = self.buffer.as_ref().map_or(&[][..], ReadBuffer::unread);
        let count = unread.len().min(h2::PREFACE.len());
        !self.has_served && unread[..count] == h2::PREFACE[..count]
    }

    /// Waits for the first byte of a request.
    async fn wait_for_request(&mut self, worker: &Worker) -> IdleOutcome {
        if self.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) {
            return IdleOutcome::Request;
        }
        let active_config = worker.config();
        let Some(listener) = self.listener(&active_config) else { return IdleOutcome::Over };
        if self.has_served
            && let Some(home) = worker.rebalance_target()
        {
            return IdleOutcome::MoveTo(home);
        }
        self.deadline.set(self.last_event_at + listener.client.connection_idle_timeout);
        drop(active_config);
        // The first poll follows directly on the lookup above.
        let mut is_first = true;
        poll_fn(|cx| {
            if self.stream.poll_read_ready(cx).is_ready() {
                return Poll::Ready(IdleOutcome::Request);
            }
            let is_current = std::mem::take(&mut is_first);
            let has_listener = is_current || self.listener(&worker.config()).is_some();
            if !is_current && worker.sheds_idle_connection(self.last_event_at) {
                return Poll::Ready(IdleOutcome::Over);
            }
            if worker.stage() == DrainStage::Closing || !has_listener {
                return Poll::Ready(IdleOutcome::Over);
            }
            self.deadline.poll(cx).map(|()| IdleOutcome::Over)
        })
        .await
    }

    /// Reads one head into `exchange`. Returns false if the client has closed without sending one.
    async fn read_head(
        &mut self,
        worker: &Worker,
        exchange: &mut Exchange,
    ) -> Result<bool, Failure> {
        let active_config = worker.config();
        let Some(listener) = self.listener(&active_config) else { return Ok(false) };
        let settings = &listener.client;
        let limits = head_limits(settings);
        let mut buffer = self.buffer.take().unwrap_or_else(|| worker.scratch.buffer_pool.take());
        let mut is_first = true;
        let result = loop {
            if !buffer.is_empty() {
                match parse::request(buffer.unread(), &limits, &mut exchange.request) {
                    Ok(Some(length)) => {
                        buffer.consume(length);
                        break Ok(true);
                    }
                    Ok(None) => {}
                    Err(bad) => break Err(Failure::BadRequest(bad)),
                }
                if std::mem::take(&mut is_first) {
                    self.deadline.set(clock::now() + settings.head_timeout);
                }
            }
            // One byte more than the limit, so that a head that is too large is detected.
            let most = (limits.head_bytes + 1).max(BUFFER_BYTES);
            match poll_fn(|cx| self.poll_fill(cx, &mut buffer, most)).await {
                ReadOutcome::Data => {}
                ReadOutcome::Closed => break Ok(false),
                ReadOutcome::TimedOut if buffer.is_empty() => break Ok(false),
                ReadOutcome::TimedOut => break Err(Failure::HeadTimeout),
            }
        };
        self.buffer = Some(buffer);
        result
    }

    /// Shuts down our sending side and keeps reading for a moment: a close with unread bytes would
    /// be a reset, and a reset can overtake our last response.
    pub(super) async fn linger(&mut self, worker: &Worker) {
        let shut = poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await;
        if shut.is_err() {
            return;
        }
        self.deadline.set(clock::now() + LINGER);
        let mut buffer = self.buffer.take().unwrap_or_else(|| worker.scratch.buffer_pool.take());
        let mut left = LINGER_BYTES;
        while left > 0 {
            buffer.consume(buffer.len());
            match poll_fn(|cx| self.poll_fill(cx, &mut buffer, BUFFER_BYTES)).await {
                ReadOutcome::Data => left = left.saturating_sub(buffer.len()),
                ReadOutcome::Closed | ReadOutcome::TimedOut => break,
            }
        }
        buffer.consume(buffer.len());
        worker.scratch.buffer_pool.give_back(buffer);
    }

    /// Hands the connection, which has no unread bytes, to another worker.
    fn move_to_worker(self, mut guard: ConnectionGuard, home: usize) {
        let (stream, _deadline, arrival) = self.into_parts();
        let shared = Arc::clone(&guard.worker.shared);
        let arrival = AcceptedConnection { moved: true, ..arrival };
        hand_over(guard.move_to_worker(home), stream, arrival, &shared.budgets);
    }
}
