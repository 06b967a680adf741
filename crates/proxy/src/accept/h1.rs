//! A client's HTTP/1.1 connection: one request after the other.

use std::future::poll_fn;
use std::pin::Pin;
use std::rc::Rc;
use std::task::Poll;
use std::time::Duration;

use tokio::io::AsyncWrite;

use crate::accept::arrival::{Arrival, Presence, hand_over};
use crate::accept::client::{Client, Filled};
use crate::accept::h2;
use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::clock;
use crate::exchange::{After, Exchange};
use crate::failure::Failure;
use crate::h1::{BadRequest, HeadLimits, parse};
use crate::request;
use crate::worker::{Stage, Worker};

/// After our last answer we read on for so long, so that the client gets the answer before a reset.
const LINGER: Duration = Duration::from_secs(2);
/// And not more than this.
const LINGER_BYTES: usize = 1024 * 1024;

/// What ends the wait between two requests.
enum Idle {
    Request,
    MoveTo(usize),
    Over,
}

/// Serves one request after the other, until the connection ends or moves to another worker.
pub(crate) async fn serve(presence: Presence, mut client: Client) {
    let worker = Rc::clone(&presence.worker);
    let sleeping = poll_fn(|cx| Poll::Ready(worker.sleep_here(cx.waker().clone()))).await;
    let end = serve_all(&worker, &mut client).await;
    worker.leave(sleeping);
    match end {
        End::Close => client.linger(&worker).await,
        End::Cut => {}
        End::MoveTo(home) => client.move_on(presence, home),
        End::Http2 => Box::pin(h2::serve(presence, client)).await,
    }
}

/// How the connection ends on this worker.
enum End {
    /// With an orderly close.
    Close,
    /// At once: the client has gone, or must notice that its response is not whole.
    Cut,
    MoveTo(usize),
    /// It goes on in HTTP/2: the client has begun it as only that begins.
    Http2,
}

async fn serve_all(worker: &Rc<Worker>, client: &mut Client) -> End {
    loop {
        match client.idle(worker).await {
            Idle::Request => {}
            Idle::MoveTo(home) => return End::MoveTo(home),
            Idle::Over => return End::Cut,
        }
        let mut exchange = worker.exchange();
        // Boxed, so that a connection between two requests does not keep the room that a request takes.
        let end = Box::pin(client.serve_one(worker, &mut exchange)).await;
        worker.give_back(exchange);
        worker.scratch.stock.reclaim(&mut client.buffer);
        if let Some(end) = end {
            return end;
        }
    }
}

impl Client {
    /// How the connection ends with this request, if it does.
    async fn serve_one(&mut self, worker: &Rc<Worker>, exchange: &mut Exchange) -> Option<End> {
        let after = match self.read_head(worker, exchange).await {
            Ok(true) => {
                worker.count_request(&mut self.seen_tick);
                self.has_served = true;
                request::serve(worker, self, exchange).await
            }
            Ok(false) => After::Cut,
            Err(Failure::BadRequest(BadRequest::Version)) if self.begins_http2() => {
                return Some(End::Http2);
            }
            Err(failure) => request::refuse(worker, self, exchange, failure).await,
        };
        match after {
            After::KeepAlive => None,
            After::Close => Some(End::Close),
            After::Cut => Some(End::Cut),
        }
    }

    /// Prior knowledge (RFC 9113 §3.3): its first line is no request of ours to understand.
    fn begins_http2(&self) -> bool {
        let unread = self.buffer.as_ref().map_or(&[][..], Buffer::unread);
        let count = unread.len().min(h2::PREFACE.len());
        !self.has_served && unread[..count] == h2::PREFACE[..count]
    }

    /// Waits for the first byte of a request.
    async fn idle(&mut self, worker: &Worker) -> Idle {
        if self.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) {
            return Idle::Request;
        }
        let live = worker.live();
        let Some(listener) = self.listener(&live) else { return Idle::Over };
        if self.has_served
            && let Some(home) = worker.better_home()
        {
            return Idle::MoveTo(home);
        }
        self.deadline.set(self.since + listener.client.connection_idle_timeout);
        drop(live);
        // At the first look the listener has just been found.
        let mut is_first = true;
        poll_fn(|cx| {
            if self.stream.poll_read_ready(cx).is_ready() {
                return Poll::Ready(Idle::Request);
            }
            let has_listener =
                std::mem::take(&mut is_first) || self.listener(&worker.live()).is_some();
            if worker.stage() == Stage::Closing || !has_listener {
                return Poll::Ready(Idle::Over);
            }
            self.deadline.poll(cx).map(|()| Idle::Over)
        })
        .await
    }

    /// Reads one head into `exchange`. False: the client has gone without one.
    async fn read_head(
        &mut self,
        worker: &Worker,
        exchange: &mut Exchange,
    ) -> Result<bool, Failure> {
        let live = worker.live();
        let Some(listener) = self.listener(&live) else { return Ok(false) };
        let settings = &listener.client;
        let limits = HeadLimits::of(settings);
        let mut buffer = self.buffer.take().unwrap_or_else(|| worker.scratch.stock.take());
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
            // One byte more than a head may have, so that one that is too large is seen to be.
            let most = (limits.head_bytes + 1).max(BUFFER_BYTES);
            match poll_fn(|cx| self.poll_fill(cx, &mut buffer, most)).await {
                Filled::Some => {}
                Filled::Gone => break Ok(false),
                Filled::Late if buffer.is_empty() => break Ok(false),
                Filled::Late => break Err(Failure::HeadTimeout),
            }
        };
        self.buffer = Some(buffer);
        result
    }

    /// Says that nothing more comes, and reads on for a moment: a close with unread bytes would be a reset, and a reset
    /// can overtake our last answer.
    pub(super) async fn linger(&mut self, worker: &Worker) {
        let shut = poll_fn(|cx| Pin::new(&mut self.stream).poll_shutdown(cx)).await;
        if shut.is_err() {
            return;
        }
        self.deadline.set(clock::now() + LINGER);
        let mut buffer = self.buffer.take().unwrap_or_else(|| worker.scratch.stock.take());
        let mut left = LINGER_BYTES;
        while left > 0 {
            buffer.consume(buffer.len());
            match poll_fn(|cx| self.poll_fill(cx, &mut buffer, BUFFER_BYTES)).await {
                Filled::Some => left = left.saturating_sub(buffer.len()),
                Filled::Gone | Filled::Late => break,
            }
        }
        buffer.consume(buffer.len());
        worker.scratch.stock.give_back(buffer);
    }

    /// Hands the connection, which has nothing unread, to another worker.
    fn move_on(self, mut presence: Presence, home: usize) {
        let (stream, _deadline, arrival) = self.into_parts();
        hand_over(presence.move_to(home), stream, Arrival { moved: true, ..arrival });
    }
}
