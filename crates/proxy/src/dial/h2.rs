//! HTTP/2 connections to endpoints.
//!
//! A link begins when the endpoint has said its settings, so that it is known how many streams it bears and whether it
//! speaks HTTP/2 at all before any request depends on it. It is opened by a task of its own, since whoever asked first may
//! leave first.
//!
//! An endpoint that has gone without a word is noticed in bounded time by the kernel (`connect`); an endpoint whose kernel
//! is well and which is not is asked by PING when a response
//! does not come in time, and nothing else has come meanwhile. That is done as often as servers of gRPC allow, which close
//! the connection otherwise (`too_many_pings`).

use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use balance::Time;
use bytes::Bytes;
use gateway::snapshot::BackendSettings;
use h2::client::{Builder, Connection as Http2, SendRequest};
use h2::{Ping, PingPong};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use self::paced::Paced;
use crate::dial::attempt::RESPONSE_LIMITS;
use crate::dial::call::{Asked, Call, Order};
use crate::dial::connect;
use crate::dial::link::{
    self, BETWEEN_PINGS, Berth, Condition, Delivery, Open, PONG, State, Tally, Wear,
};
use crate::dial::pool::{Connection, Endpoint, lock};
use crate::dial::trunk::{self, Kind, Trunk, Waiting};
use crate::failure::Failure;
use crate::h2::{Message, request};
use crate::stream::Stream;
use crate::tls::{Security, Trust};

/// What is read of an endpoint at a time.
mod paced;

/// What an endpoint may send of one response before the client has taken it: at 1 ms from us it is 2 Gbit/s.
const STREAM_WINDOW: u32 = 256 * 1024;
/// What it may send on one link before clients have taken it: the responses of 256 clients that take nothing at all do
/// not hold up the others.
const LINK_WINDOW: u32 = 64 * 1024 * 1024;
/// Bodies come in frames of this size at most: a large body takes a quarter of the frames that the usual 16 KiB need.
const FRAME: u32 = 64 * 1024;
/// What small frames that clients have not taken may cost beside their bytes, 256 each at most, before the link is given
/// up: a million of them. A slow client can have many that way, and all on the link would suffer for it.
const SMALL_FRAMES: usize = 256 * 1024 * 1024;
/// What of one request may wait to be written.
const SEND_BUFFER: usize = 256 * 1024;
/// Requests that we gave up lately: what still comes for them is dropped without a word.
const GIVEN_UP: usize = 1024;
/// What a field takes of the limit of a head beside its text (RFC 9113 §6.5.2).
pub(super) const FIELD_OVERHEAD: usize = 32;

/// One HTTP/2 connection to an endpoint.
pub(crate) struct Link {
    /// Clones of it send: it would wait for the streams that it has begun itself, by the wakers of their tasks.
    requests: SendRequest<Bytes>,
    wear: Wear,
}

/// Moves the bytes of a link.
pub(super) struct Driver {
    connection: Http2<Paced, Bytes>,
    pings: Option<PingPong>,
    state: Arc<State>,
    _open: Open,
}

/// Agrees with the endpoint on HTTP/2, where `unsealed` bytes have been written before; the caller bounds the time.
pub(super) async fn begin(
    stream: Stream,
    unsealed: u64,
    room: Arc<Notify>,
    tally: Arc<Tally>,
) -> Result<(Link, Driver), Failure> {
    let delivery = Arc::<Delivery>::default();
    let (requests, mut connection) = builder()
        .handshake(Paced::new(stream, unsealed, Arc::clone(&tally), Arc::clone(&delivery)))
        .await
        .map_err(|error| why(&error))?;
    poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
        _ if connection.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(why(&error))),
        Poll::Ready(Ok(())) => Poll::Ready(Err(Failure::NotHttp2)),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    let pings = connection.ping_pong();
    let state = State::new(most(&connection), room, tally, delivery);
    let link = Link { requests, wear: Wear::new(Arc::clone(&state)) };
    let driver = Driver { connection, pings, _open: Open::new(&state), state };
    Ok((link, driver))
}

/// The settings that we say, and h2's own.
fn builder() -> Builder {
    let head = RESPONSE_LIMITS.head_bytes + RESPONSE_LIMITS.fields * FIELD_OVERHEAD;
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(LINK_WINDOW)
        .max_frame_size(FRAME)
        .data_frame_budget(SMALL_FRAMES)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        // None before the endpoint's settings have come: `begin` waits for that.
        .initial_max_send_streams(0)
        .max_concurrent_reset_streams(GIVEN_UP)
        // A count over the whole life of a link, which may be long; nothing is kept for what it counts.
        .max_local_error_reset_streams(None);
    builder
}

fn why(error: &h2::Error) -> Failure {
    if error.is_io() { Failure::ConnectFailed } else { Failure::NotHttp2 }
}

fn most(connection: &Http2<Paced, Bytes>) -> u32 {
    u32::try_from(connection.max_concurrent_send_streams()).unwrap_or(u32::MAX)
}

impl link::Link for Link {
    fn wear(&mut self) -> &mut Wear {
        &mut self.wear
    }

    fn standing(&mut self) -> Condition {
        let mut cx = Context::from_waker(Waker::noop());
        match self.requests.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => Condition::Usable,
            Poll::Pending => Condition::Full,
            Poll::Ready(Err(error)) => {
                Condition::Over { said_goaway: error.is_go_away() && error.is_remote() }
            }
        }
    }

    fn has_room(&mut self) -> bool {
        self.wear.state.has_room()
    }
}

impl Link {
    /// Sends the head of a request on a stream of its own.
    fn send(&mut self, call: &Call<'_>) -> Result<(Stream, Berth), Failure> {
        let Order { request, framing } = call.order;
        // What opens a WebSocket is a CONNECT that not everybody takes (RFC 8441).
        if request.upgrade && !self.requests.is_extended_connect_protocol_enabled() {
            return Err(Failure::NoUpgrade);
        }
        let head = request::write(request, framing, call.scheme(), call.endpoint.address);
        let head = head.map_err(Failure::BadRequest)?;
        let is_whole = call.order.is_whole();
        let berth = self.wear.berth(call.fresh);
        // The link has just said that it takes one.
        let sent = self.requests.clone().send_request(head, is_whole);
        let (response, body) = sent.map_err(|_gone| Failure::EndpointClosed)?;
        let message = Message::to_endpoint(response, body, is_whole);
        Ok((Stream::H2(Box::new(message)), berth))
    }
}

impl Driver {
    /// Runs until the link has ended.
    async fn run(mut self) {
        let Self { connection, pings, state, .. } = &mut self;
        let moving = poll_fn(|cx| {
            let ended = Pin::new(&mut *connection).poll(cx);
            let most = most(connection);
            if state.most.swap(most, Ordering::Relaxed) < most {
                state.room.notify_waiters();
            }
            ended
        });
        tokio::select! {
            // How it ended is told to its streams.
            _ = moving => {}
            () = gone(state, pings.take()) => {}
        }
    }
}

/// Ready when the endpoint, doubted, has not answered a PING.
async fn gone(state: &State, pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return pending().await };
    loop {
        state.doubt.notified().await;
        match timeout(PONG, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => sleep(BETWEEN_PINGS).await,
            // It has ended meanwhile.
            Ok(Err(_)) => return pending().await,
            Err(_) => return,
        }
    }
}

/// A link that is to be opened.
struct Dial {
    endpoint: Arc<Endpoint>,
    worker: usize,
    announced: Option<SocketAddr>,
    trust: Option<Arc<Trust>>,
    /// What it begins with.
    header: Vec<u8>,
    patience: Duration,
    /// The endpoint is gone that acknowledges nothing for so long.
    unacknowledged: Duration,
}

impl Dial {
    /// Opens the link, tells who waits for it, and moves its bytes as long as it lives.
    async fn run(self) {
        let opened = timeout(self.patience, self.open()).await;
        let (opened, driver) = match opened.unwrap_or(Err(Failure::ConnectTimeout)) {
            Ok((link, driver)) => (Ok(link), Some(driver)),
            Err(failure) => (Err(failure), None),
        };
        trunk::of(&mut self.links().trunks(), self.kind()).dialed(opened);
        // An endpoint that has left is not kept by its links, but they by it.
        drop(self);
        if let Some(driver) = driver {
            driver.run().await;
        }
    }

    async fn open(&self) -> Result<(Link, Driver), Failure> {
        let security = Security::of_requests(self.trust.as_ref());
        let Self { endpoint, worker, header, unacknowledged, .. } = self;
        let stream = connect::open(endpoint, *worker, header, security, *unacknowledged).await?;
        if stream.has_settled_on_http1() {
            self.endpoint.data.reach.found_http1();
            return Err(Failure::NotHttp2);
        }
        let room = trunk::of(&mut self.links().trunks(), self.kind()).room();
        begin(stream, header.len() as u64, room, Arc::clone(&self.links().tally)).await
    }

    fn links(&self) -> &Links {
        &self.endpoint.data.links[self.worker]
    }

    fn kind(&self) -> Kind<'_> {
        Kind { announced: self.announced, trust: self.trust.as_ref() }
    }
}

impl Call<'_> {
    /// Asks for a stream of HTTP/2; `waiting` tells since when.
    pub(crate) fn ask(&self, waiting: Option<&Waiting>) -> Result<Asked, Failure> {
        let settings = &self.current.settings;
        let links = &self.endpoint.data.links[self.worker];
        let counters = &self.endpoint.data.counters[self.worker].http2;
        let mut trunks = links.trunks();
        let trunk = trunk::of(&mut trunks, self.kind());
        if let Some(link) = trunk.usable(settings, counters, self.now) {
            let (stream, berth) = link.send(self)?;
            let connection = Connection::on_link(stream, berth, self.worker, self.now);
            return Ok(Asked::Opened(Box::new(connection)));
        }
        if let Some(failure) = trunk.failure_since(waiting) {
            return Err(failure);
        }
        if trunk.wants_another(settings, self.endpoint.data.links.len(), self.now) {
            let dial = Dial {
                endpoint: Arc::clone(self.endpoint),
                worker: self.worker,
                announced: self.announced,
                trust: self.current.trust.clone(),
                header: self.header.clone(),
                patience: settings.connect_timeout,
                unacknowledged: settings.unacknowledged_timeout,
            };
            tokio::task::spawn_local(dial.run());
        }
        Ok(Asked::Wait(trunk.waiting(waiting)))
    }

    /// Waits for a stream that could not be had at once; the caller bounds the time.
    pub(crate) async fn wait(self, mut waiting: Waiting) -> Result<Box<Connection>, Failure> {
        loop {
            waiting.wait().await;
            match self.ask(Some(&waiting))? {
                Asked::Opened(connection) => return Ok(connection),
                Asked::Wait(further) => waiting = further,
            }
        }
    }
}

/// The links to one endpoint from one worker. On cache lines of its own: the next worker's lie beside it.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct Links {
    /// By what they are opened with: one, hardly ever two.
    trunks: Mutex<Vec<Trunk<Link>>>,
    pub(crate) tally: Arc<Tally>,
}

impl Links {
    /// Nobody is in the way but who reads metrics.
    fn trunks(&self) -> MutexGuard<'_, Vec<Trunk<Link>>> {
        lock(&self.trunks)
    }
}

/// Lets go of links that are spent, or that nobody has used for long.
pub(crate) fn sweep(endpoint: &Endpoint, worker: usize, settings: &BackendSettings, now: Time) {
    let counters = &endpoint.data.counters[worker].http2;
    let mut trunks = endpoint.data.links[worker].trunks();
    trunk::look_over(&mut trunks, settings, counters, now);
}

#[cfg(test)]
mod tests;
