//! One HTTP/2 connection to an endpoint, and how many requests it carries.
//!
//! A link begins when the endpoint has said its settings, so that it is known how many streams it bears and whether it
//! speaks HTTP/2 at all before any request depends on it. It takes requests until the endpoint says GOAWAY or it is spent
//! by the backend's policy; then whoever holds it lets go of it, and it ends with the last of its streams.
//!
//! Who has gone without a word is noticed in bounded time: the kernel asks after 30 s of silence and gives up bytes that
//! are not acknowledged for as long; an endpoint whose kernel is well and which is not is asked by PING when a response
//! does not come in time, and nothing else has come meanwhile. That is done as often as servers of gRPC allow, which close
//! the connection otherwise (`too_many_pings`).

use std::future::poll_fn;
use std::pin::Pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use balance::Time;
use bytes::Bytes;
use gateway::snapshot::BackendSettings;
use h2::client::{Builder, Connection, SendRequest};
use h2::{Ping, PingPong};
use socket2::{SockRef, TcpKeepalive};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use crate::clock;
use crate::dial::attempt::RESPONSE_LIMITS;
use crate::dial::pool::lock;
use crate::failure::Failure;
use crate::h2::Message;
use crate::stream::Stream;

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
const FIELD_OVERHEAD: usize = 32;

/// Silence after which the kernel asks whether the endpoint is still there, and how often it asks.
const SILENCE: Duration = Duration::from_secs(30);
const ASK_AGAIN: Duration = Duration::from_secs(10);
const ASK_TIMES: u32 = 3;
/// An endpoint that does not answer a PING for so long has gone.
const PONG: Duration = Duration::from_secs(10);
/// One that does is not asked again for so long: what grpc-go allows.
const BETWEEN_PINGS: Duration = Duration::from_secs(300);

/// One HTTP/2 connection to an endpoint.
pub(super) struct Link {
    /// Clones of it send: it would wait for the streams that it has begun itself, by the wakers of their tasks.
    requests: SendRequest<Bytes>,
    state: Arc<State>,
    opened: Time,
    /// Requests it has carried.
    served: u32,
    /// What `served` was when the link was last looked over, and since when nothing has happened.
    served_then: u32,
    idle_since: Time,
}

/// What a link and its streams know of each other. One worker alone writes it.
pub(super) struct State {
    /// Open now.
    streams: AtomicU32,
    /// As many as the endpoint lets be open at a time.
    most: AtomicU32,
    /// Heads of responses that have come.
    heard: AtomicU32,
    /// `None` while a PING is out, and for some time after.
    pings: Mutex<Option<PingPong>>,
    gone: Notify,
    /// Who waits for a place on any link of the trunk.
    room: Arc<Notify>,
    tally: Arc<Tally>,
}

/// What is open to an endpoint from one worker.
#[derive(Default)]
pub(crate) struct Tally {
    pub(crate) links: AtomicU32,
    pub(crate) streams: AtomicU32,
}

/// What can be done with a link.
pub(super) enum Condition {
    Usable,
    /// As many streams are open as the endpoint allows.
    Full,
    /// It carries no more requests.
    Over {
        said_goaway: bool,
    },
}

/// Moves the bytes of a link.
pub(super) struct Driver {
    connection: Connection<Stream, Bytes>,
    state: Arc<State>,
}

/// Agrees with the endpoint on HTTP/2; the caller bounds the time.
pub(super) async fn begin(
    stream: Stream,
    room: Arc<Notify>,
    tally: Arc<Tally>,
) -> Result<(Link, Driver), Failure> {
    watch(&stream);
    let (requests, mut connection) =
        builder().handshake(stream).await.map_err(|error| why(&error))?;
    poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
        _ if connection.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(why(&error))),
        Poll::Ready(Ok(())) => Poll::Ready(Err(Failure::NotHttp2)),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    let state = State {
        streams: AtomicU32::new(0),
        most: AtomicU32::new(most(&connection)),
        heard: AtomicU32::new(0),
        pings: Mutex::new(connection.ping_pong()),
        gone: Notify::new(),
        room,
        tally,
    };
    state.tally.links.fetch_add(1, Ordering::Relaxed);
    let (state, opened) = (Arc::new(state), clock::now());
    let driver = Driver { connection, state: Arc::clone(&state) };
    let link = Link { requests, state, opened, served: 0, served_then: 0, idle_since: opened };
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

/// Lets the kernel notice when the endpoint has gone.
fn watch(stream: &Stream) {
    let Some(socket) = stream.socket() else { return };
    let socket = SockRef::from(socket);
    let keepalive =
        TcpKeepalive::new().with_time(SILENCE).with_interval(ASK_AGAIN).with_retries(ASK_TIMES);
    // Without it a dead endpoint is noticed later, by PING.
    drop(socket.set_tcp_keepalive(&keepalive));
    drop(socket.set_tcp_user_timeout(Some(SILENCE)));
}

fn why(error: &h2::Error) -> Failure {
    if error.is_io() { Failure::ConnectFailed } else { Failure::NotHttp2 }
}

fn most(connection: &Connection<Stream, Bytes>) -> u32 {
    u32::try_from(connection.max_concurrent_send_streams()).unwrap_or(u32::MAX)
}

impl Link {
    /// Whether it may carry another request.
    pub(super) fn condition(&mut self, settings: &BackendSettings, now: Time) -> Condition {
        let state = &self.state;
        if state.streams.load(Ordering::Relaxed) >= state.most.load(Ordering::Relaxed) {
            return Condition::Full;
        }
        self.look(settings, now)
    }

    /// Whether it is to be kept, full or not; to be asked now and then.
    pub(super) fn look_over(&mut self, settings: &BackendSettings, now: Time) -> Condition {
        let is_used = self.state.streams.load(Ordering::Relaxed) > 0;
        if is_used || self.served != self.served_then {
            (self.served_then, self.idle_since) = (self.served, now);
        }
        if now.saturating_since(self.idle_since) >= settings.connection_idle_timeout {
            return Condition::Over { said_goaway: false };
        }
        self.look(settings, now)
    }

    fn look(&mut self, settings: &BackendSettings, now: Time) -> Condition {
        let too_old = settings.connection_max_age;
        let too_used = settings.connection_max_requests;
        if too_old.is_some_and(|most| now.saturating_since(self.opened) >= most)
            || too_used.is_some_and(|most| self.served >= most.get())
        {
            return Condition::Over { said_goaway: false };
        }
        let mut cx = Context::from_waker(Waker::noop());
        match self.requests.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => Condition::Usable,
            Poll::Pending => Condition::Full,
            Poll::Ready(Err(error)) => {
                Condition::Over { said_goaway: error.is_go_away() && error.is_remote() }
            }
        }
    }

    /// Whether it takes the CONNECT that opens a WebSocket (RFC 8441).
    pub(super) fn takes_websockets(&self) -> bool {
        self.requests.is_extended_connect_protocol_enabled()
    }

    /// Begins a stream with the head of a request, which `is_whole` or is followed by a body.
    pub(super) fn send(
        &mut self,
        head: http::Request<()>,
        is_whole: bool,
    ) -> Result<Message, h2::Error> {
        let (response, body) = self.requests.clone().send_request(head, is_whole)?;
        Ok(Message::to_endpoint(response, body, is_whole))
    }

    /// A place for one more stream.
    pub(super) fn berth(&mut self, fresh: bool) -> Berth {
        let was_idle = self.state.streams.fetch_add(1, Ordering::Relaxed) == 0 && self.served > 0;
        self.state.tally.streams.fetch_add(1, Ordering::Relaxed);
        self.served = self.served.saturating_add(1);
        let heard_before = self.state.heard.load(Ordering::Relaxed);
        Berth { state: Arc::clone(&self.state), was_idle, fresh, heard_before }
    }
}

impl Driver {
    /// Runs until the link has ended.
    pub(super) async fn run(mut self) {
        let Self { connection, state } = &mut self;
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
            () = state.gone.notified() => {}
        }
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.state.tally.links.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The place of one stream on its link; given back when dropped.
pub(crate) struct Berth {
    state: Arc<State>,
    /// The link had carried requests before, and none when this stream began.
    pub(crate) was_idle: bool,
    /// The request had been lost on another connection just before.
    pub(crate) fresh: bool,
    /// Heads that had come on the link when this stream began.
    heard_before: u32,
}

impl Berth {
    /// The head of a response has come.
    pub(crate) fn heard(&self) {
        self.state.heard.fetch_add(1, Ordering::Relaxed);
    }

    /// The endpoint did not answer in time: asks whether it is there at all, and gives the link up if not.
    pub(crate) fn suspect(&self) {
        if self.state.heard.load(Ordering::Relaxed) != self.heard_before {
            return;
        }
        let Some(mut pings) = lock(&self.state.pings).take() else { return };
        let state = Arc::clone(&self.state);
        tokio::task::spawn_local(async move {
            match timeout(PONG, pings.ping(Ping::opaque())).await {
                Ok(Ok(_)) => {
                    sleep(BETWEEN_PINGS).await;
                    *lock(&state.pings) = Some(pings);
                }
                // It has ended meanwhile.
                Ok(Err(_)) => {}
                Err(_) => state.gone.notify_one(),
            }
        });
    }
}

impl Drop for Berth {
    fn drop(&mut self) {
        let state = &self.state;
        state.tally.streams.fetch_sub(1, Ordering::Relaxed);
        let open = state.streams.fetch_sub(1, Ordering::Relaxed);
        if open >= state.most.load(Ordering::Relaxed) {
            state.room.notify_one();
        }
    }
}
