//! A client's HTTP/2 connection: many requests at a time, each on a stream and in a task of its own.
//!
//! The connection reads frames, begins requests, and writes what they have to say: those that are ready at a time leave
//! in one write. What becomes of a request is decided where it is decided for every protocol. It ends by GOAWAY in two
//! steps (RFC 9113 §6.8), so that nothing is lost that a client had sent; a client for which there is no use (`Fault`)
//! is told so and cut off.

use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::net::SocketAddr;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use balance::{Rng, Time};
use bytes::Bytes;
use gateway::snapshot::ClientSettings;
use h2::server::{Builder, Connection, SendResponse};
use h2::{Ping, PingPong, Reason, RecvStream};
use tokio::io::AsyncWriteExt;

use crate::accept::arrival::Presence;
use crate::accept::client::{Client, Filled};
use crate::buffer::BUFFER_BYTES;
use crate::clock;
use crate::deadline::Deadline;
use crate::exchange::Exchange;
use crate::failure::Failure;
use crate::forwarded::Origin;
use crate::h1::HeadLimits;
use crate::h2::{Message, WebSocketKey, request as head};
use crate::live::Bound;
use crate::request;
use crate::stream::Stream;
use crate::tls::Greeting;
use crate::worker::{Stage, Worker};

/// For what a connection is ended before its time.
mod fault;
/// What a client's frames are worth.
mod meter;
/// What the library reads and writes.
mod wire;

pub(crate) use fault::Fault;
pub(super) use meter::PREFACE;

use meter::BURST;
use wire::{Gauge, Wire};

/// What a client may send of one request before the endpoint has taken it: at 1 ms from us it is 2 Gbit/s.
const STREAM_WINDOW: u32 = 256 * 1024;
/// What it may send on one connection: the requests of 16 endpoints that take nothing do not hold up the others.
const CONNECTION_WINDOW: u32 = 4 * 1024 * 1024;
/// Bodies come in frames of this size at most: a large body takes a quarter of the frames that the usual 16 KiB need.
const FRAME: u32 = 64 * 1024;
/// What of one response may wait to be written.
const SEND_BUFFER: usize = 128 * 1024;
/// What a field takes of the limit of a head beside its text (RFC 9113 §6.5.2).
const FIELD_OVERHEAD: usize = 32;
/// A client of which nothing has been heard for so long is asked whether it is still there, if anything is under way.
const SILENCE: Duration = Duration::from_secs(30);
/// It has so long to answer.
const PONG: Duration = Duration::from_secs(10);
/// What a client gets to take leave, when nothing is under way any more.
const GOODBYE: Duration = Duration::from_secs(2);

/// Serves requests until the connection ends.
pub(crate) async fn serve(presence: Presence, mut client: Client) {
    let worker = Rc::clone(&presence.worker);
    let sleeping = poll_fn(|cx| Poll::Ready(worker.sleep_here(cx.waker().clone()))).await;
    let end = match hear_preface(&worker, &mut client).await {
        Ok(()) => talk(&worker, client).await,
        Err(fault) => fault,
    };
    worker.leave(sleeping);
    if let Some(fault) = end {
        worker.counters().http2_ended[fault as usize].add(1);
    }
}

/// Reads as far as it takes to know that this is HTTP/2. The fault is `None` for a client that has only left.
async fn hear_preface(worker: &Worker, client: &mut Client) -> Result<(), Option<Fault>> {
    let patience = settings(worker, client, |settings| settings.head_timeout).ok_or(None)?;
    client.deadline.set(clock::now() + patience);
    let mut buffer = client.buffer.take().unwrap_or_else(|| worker.scratch.stock.take());
    let result = loop {
        let count = buffer.len().min(PREFACE.len());
        if buffer.unread()[..count] != PREFACE[..count] {
            answer_plainly(client).await;
            break Err(Some(Fault::Preface));
        }
        if count == PREFACE.len() {
            break Ok(());
        }
        match poll_fn(|cx| client.poll_fill(cx, &mut buffer, BUFFER_BYTES)).await {
            Filled::Some => {}
            Filled::Gone => break Err(None),
            Filled::Late => break Err(Some(Fault::Preface)),
        }
    };
    client.buffer = Some(buffer);
    result
}

/// Tells a client of HTTP/1.1 what is wrong, in words that it knows.
async fn answer_plainly(client: &mut Client) {
    let answer = b"HTTP/1.1 505 HTTP Version Not Supported\r\nConnection: close\r\n\
        Content-Type: text/plain; charset=utf-8\r\nContent-Length: 29\r\n\r\nthis connection is of HTTP/2\n";
    // One short write to a connection that has just begun; who does not take it does without.
    let Client { stream, deadline, .. } = client;
    let mut writing = pin!(stream.write_all(answer));
    poll_fn(|cx| match writing.as_mut().poll(cx) {
        Poll::Ready(_) => Poll::Ready(()),
        Poll::Pending => deadline.poll(cx),
    })
    .await;
}

/// What the listener's policy says now; `None`: nobody listens there any more.
fn settings<T>(
    worker: &Worker,
    client: &Client,
    of: impl FnOnce(&ClientSettings) -> T,
) -> Option<T> {
    client.listener(&worker.live()).map(|listener| of(&listener.client))
}

/// Agrees on HTTP/2, and serves requests. Why the connection was ended; `None`: it has come to its end.
async fn talk(worker: &Rc<Worker>, mut client: Client) -> Option<Fault> {
    let builder = settings(worker, &client, builder)?;
    let max_age = settings(worker, &client, |settings| settings.connection_max_age)?;
    let gauge = Rc::new(Gauge::new(clock::now()));
    let ahead = client.take_unread(worker);
    let carrier = Rc::new(Carrier {
        worker: Rc::clone(worker),
        bound: client.bound,
        greeting: client.greeting,
        origin: client.origin,
        peer: client.peer,
        destination: client.destination.or_else(|| client.stream.local_addr().ok()),
        accepted: client.accepted,
        open: Cell::new(0),
        ended: Cell::new(clock::now()),
    });
    let wire = Wire::new(client.stream, ahead, Rc::clone(&gauge));
    let mut handshake = pin!(builder.handshake(wire));
    let deadline = &mut client.deadline;
    // The preface is there; only our own settings may have to wait for room.
    let begun = poll_fn(|cx| match handshake.as_mut().poll(cx) {
        Poll::Ready(begun) => Poll::Ready(Some(begun)),
        Poll::Pending => deadline.poll(cx).map(|()| None),
    });
    let mut frames = begun.await?.ok()?;
    let now = clock::now();
    let mut talk = Talk {
        pings: frames.ping_pong(),
        frames,
        leave_at: max_age.map(|age| carrier.accepted + jitter(age, &mut worker.rng.borrow_mut())),
        left_at: None,
        head_since: None,
        fault: None,
        look_at: now + SILENCE,
        heard: 0,
        was_asked: false,
        streams_reset: 0,
        seen_tick: client.seen_tick,
        carrier,
        gauge,
    };
    poll_fn(|cx| talk.poll(cx, &mut client.deadline)).await;
    talk.fault
}

/// The settings that we say, and the library's own.
fn builder(settings: &ClientSettings) -> Builder {
    let fields = usize::from(settings.max_header_fields);
    let head = settings.max_head_bytes as usize + fields * FIELD_OVERHEAD;
    let mut builder = Builder::new();
    builder
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(FRAME)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_concurrent_streams(settings.http2_max_concurrent_streams)
        .max_send_buffer_size(SEND_BUFFER)
        // The meter ends such a connection first, and knows who may.
        .max_pending_accept_reset_streams(2 * BURST as usize)
        .enable_connect_protocol();
    builder
}

/// A tenth more or less, so that connections that came together do not leave together.
fn jitter(age: Duration, rng: &mut Rng) -> Duration {
    let tenth = age / 10;
    let share = (rng.next_u64() >> 32) as u32;
    age - tenth + Duration::from_nanos_u128(tenth.as_nanos() * 2 * u128::from(share) >> 32)
}

/// A connection as the requests that it carries share it.
pub(super) struct Carrier {
    worker: Rc<Worker>,
    pub(super) bound: Arc<Bound>,
    pub(super) greeting: Option<Arc<Greeting>>,
    pub(super) origin: Rc<Origin>,
    pub(super) peer: SocketAddr,
    pub(super) destination: Option<SocketAddr>,
    pub(super) accepted: Time,
    /// Requests under way.
    open: Cell<u32>,
    /// When the last of those that have ended did so.
    ended: Cell<Time>,
}

/// The connection itself.
struct Talk {
    frames: Connection<Wire, Bytes>,
    carrier: Rc<Carrier>,
    gauge: Rc<Gauge>,
    /// It is old then.
    leave_at: Option<Time>,
    /// The client has been told to leave.
    left_at: Option<Time>,
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
    seen_tick: u32,
}

impl Talk {
    /// Ready when the connection has ended.
    fn poll(&mut self, cx: &mut Context<'_>, deadline: &mut Deadline) -> Poll<()> {
        loop {
            match self.frames.poll_accept(cx) {
                Poll::Ready(Some(Ok((request, response)))) => {
                    self.begin(request, response);
                    continue;
                }
                Poll::Ready(Some(Err(error))) => {
                    self.fault = self.fault.or_else(|| Fault::found(&error));
                    return Poll::Ready(());
                }
                Poll::Ready(None) => return Poll::Ready(()),
                Poll::Pending => {}
            }
            if self.takes_leave() {
                continue;
            }
            deadline.set(self.deadline());
            ready!(deadline.poll(cx));
            if !self.look(clock::now()) {
                return Poll::Ready(());
            }
        }
    }

    /// Begins a request.
    fn begin(&mut self, request: http::Request<RecvStream>, response: SendResponse<Bytes>) {
        let carrier = &self.carrier;
        let worker = &carrier.worker;
        if carrier.open.get() == 0 {
            self.look_at = self.look_at.max(carrier.ended.get() + SILENCE);
        }
        carrier.open.set(carrier.open.get() + 1);
        worker.count_request(&mut self.seen_tick);
        let (parts, body) = request.into_parts();
        let mut exchange = worker.exchange();
        let read = self.carrier.read_head(&parts, body.is_end_stream(), &mut exchange);
        let message = Box::new(Message::from_client(body, response));
        let client = Client::of_stream(carrier, worker, Stream::H2(message));
        tokio::task::spawn_local(serve_one(Rc::clone(carrier), client, exchange, read));
    }

    /// Counts what has been reset, and tells the client to leave if it must; true: the library has to send that.
    fn takes_leave(&mut self) -> bool {
        let worker = &self.carrier.worker;
        let meter = self.gauge.meter.borrow();
        if meter.streams_reset != self.streams_reset {
            worker.counters().http2_streams_reset.add(meter.streams_reset - self.streams_reset);
            self.streams_reset = meter.streams_reset;
        }
        if meter.is_amid_head() {
            self.head_since.get_or_insert_with(clock::now);
        } else {
            self.head_since = None;
        }
        if self.fault.is_none()
            && let Some(fault) = meter.fault()
        {
            drop(meter);
            self.end(fault, Reason::ENHANCE_YOUR_CALM);
            return true;
        }
        if self.left_at.is_some() {
            return false;
        }
        let must_leave = worker.stage() != Stage::Serving
            || worker.live().listener(&self.carrier.bound).is_none();
        drop(meter);
        if must_leave {
            self.say_goodbye(clock::now());
        }
        must_leave
    }

    /// The first GOAWAY and, once the client has seen it, the second, which names the last request that counts.
    fn say_goodbye(&mut self, now: Time) {
        self.left_at = Some(now);
        self.frames.graceful_shutdown();
    }

    /// Ends every request, and then the connection.
    fn end(&mut self, fault: Fault, reason: Reason) {
        self.fault = Some(fault);
        self.left_at = Some(clock::now());
        self.frames.abrupt_shutdown(reason);
    }

    fn is_idle(&self) -> bool {
        self.carrier.open.get() == 0
    }

    /// When there is something to look for.
    fn deadline(&self) -> Time {
        let mut at = self.look_at;
        let (idle_timeout, head_timeout) = self.carrier.timeouts();
        if let Some(since) = self.head_since {
            at = at.min(since + head_timeout);
        }
        match self.left_at {
            Some(left_at)
                if self.fault.is_some() || self.gauge.is_closing.get() || self.is_idle() =>
            {
                at = at.min(left_at.max(self.carrier.ended.get()) + GOODBYE);
            }
            Some(_) => {}
            None => {
                at = at.min(self.leave_at.unwrap_or(Time::MAX));
                if self.is_idle() {
                    at = at.min(self.carrier.ended.get() + idle_timeout);
                }
            }
        }
        at
    }

    /// Does what is due; false: the connection is over.
    fn look(&mut self, now: Time) -> bool {
        let (idle_timeout, head_timeout) = self.carrier.timeouts();
        let ended = self.carrier.ended.get();
        if let Some(left_at) = self.left_at {
            let is_over = self.fault.is_some() || self.gauge.is_closing.get() || self.is_idle();
            if is_over && now >= left_at.max(ended) + GOODBYE {
                return false;
            }
        } else if self.head_since.is_some_and(|since| now >= since + head_timeout) {
            self.end(Fault::SlowHead, Reason::ENHANCE_YOUR_CALM);
        } else if self.leave_at.is_some_and(|at| now >= at)
            || (self.is_idle() && now >= ended + idle_timeout)
        {
            self.say_goodbye(now);
        }
        if now >= self.look_at && !self.is_there(now) {
            self.fault = Some(Fault::Silent);
            return false;
        }
        true
    }

    /// Whether the client is still there, as far as is known; asks it if nothing has been heard.
    fn is_there(&mut self, now: Time) -> bool {
        let heard = self.gauge.meter.borrow().heard;
        let is_silent = std::mem::replace(&mut self.heard, heard) == heard;
        let is_wanted = is_silent && (!self.is_idle() || self.frames.has_streams());
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
            drop(pings.poll_pong(&mut Context::from_waker(std::task::Waker::noop())));
            drop(pings.send_ping(Ping::opaque()));
        }
        self.look_at = now + PONG;
        true
    }
}

impl Carrier {
    /// When a request begins that begins now, as nearly as matters.
    pub(super) fn begun(&self) -> Time {
        self.ended.get()
    }

    /// Reads a request's head by the limits that are in force.
    fn read_head(
        &self,
        parts: &http::request::Parts,
        is_whole: bool,
        exchange: &mut Exchange,
    ) -> Result<(), Failure> {
        let live = self.worker.live();
        let listener = live.listener(&self.bound).ok_or(Failure::NoRoute)?;
        let limits = HeadLimits::of(&listener.client);
        let key = || websocket_key(&mut self.worker.rng.borrow_mut());
        head::read(parts, is_whole, &limits, key, &mut exchange.request)
            .map_err(Failure::BadRequest)
    }

    /// For an idle connection, and for the head of a request.
    fn timeouts(&self) -> (Duration, Duration) {
        let live = self.worker.live();
        let settings = live.listener(&self.bound).map(|listener| &listener.client);
        settings.map_or((Duration::ZERO, Duration::ZERO), |settings| {
            (settings.connection_idle_timeout, settings.head_timeout)
        })
    }
}

/// Serves one request, whose head has been read or refused.
async fn serve_one(
    carrier: Rc<Carrier>,
    mut client: Client,
    mut exchange: Box<Exchange>,
    read: Result<(), Failure>,
) {
    let worker = &carrier.worker;
    // What becomes of the stream, its message knows.
    let _ = match read {
        Ok(()) => request::serve(worker, &mut client, &mut exchange).await,
        Err(failure) => request::refuse(worker, &mut client, &mut exchange, failure).await,
    };
    worker.give_back(exchange);
    carrier.ended.set(client.since);
    carrier.open.set(carrier.open.get() - 1);
    client.part(worker);
}

/// 16 random bytes in Base64.
fn websocket_key(rng: &mut Rng) -> WebSocketKey {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut key = *b"AAAAAAAAAAAAAAAAAAAAAA==";
    for digit in &mut key[..22] {
        *digit = DIGITS[(rng.next_u64() >> 58) as usize];
    }
    // The last digit stands for the last two bits.
    key[21] = DIGITS[(rng.next_u64() >> 62 << 4) as usize];
    key
}
