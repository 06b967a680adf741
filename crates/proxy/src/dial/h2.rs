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

use self::paced_stream::PacedStream;
use crate::dial::attempt::RESPONSE_LIMITS;
use crate::dial::connect;
use crate::dial::multiplex_connection::{
    self, ConnectionAvailability, ConnectionCounts, ConnectionUsage, DeliveryProgress,
    MultiplexState, OpenConnectionGuard, PING_INTERVAL, PING_TIMEOUT, StreamGuard,
};
use crate::dial::multiplex_pool::{self, MultiplexPool, PoolKey, StreamWaiter};
use crate::dial::pool::{Endpoint, EndpointConnection, lock};
use crate::dial::stream_request::{RequestSource, StreamGrant, StreamRequest};
use crate::failure::Failure;
use crate::h2::{H2Stream, request};
use crate::stream::PeerStream;
use crate::tls::{ConnectionSecurity, EndpointTlsContext};

/// What is read of an endpoint at a time.
mod paced_stream;

/// What an endpoint may send of one response before the client has taken it: at 1 ms from us it is 2 Gbit/s.
const STREAM_WINDOW: u32 = 256 * 1024;
/// What it may send on one link before clients have taken it: the responses of 256 clients that take nothing at all do
/// not hold up the others.
const CONNECTION_WINDOW: u32 = 64 * 1024 * 1024;
/// Bodies come in frames of this size at most: a large body takes a quarter of the frames that the usual 16 KiB need.
const MAX_FRAME_BYTES: u32 = 64 * 1024;
/// What small frames that clients have not taken may cost beside their bytes, 256 each at most, before the link is given
/// up: a million of them. A slow client can have many that way, and all on the link would suffer for it.
const DATA_FRAME_BUDGET: usize = 256 * 1024 * 1024;
/// What of one request may wait to be written.
const SEND_BUFFER: usize = 256 * 1024;
/// Requests that we gave up lately: what still comes for them is dropped without a word.
const MAX_RESET_STREAMS: usize = 1024;
/// What a field takes of the limit of a head beside its text (RFC 9113 §6.5.2).
pub(super) const FIELD_OVERHEAD: usize = 32;

/// One HTTP/2 connection to an endpoint.
pub(crate) struct H2EndpointConnection {
    /// Clones of it send: it would wait for the streams that it has begun itself, by the wakers of their tasks.
    requests: SendRequest<Bytes>,
    usage: ConnectionUsage,
}

/// Moves the bytes of a link.
pub(super) struct H2ConnectionDriver {
    connection: Http2<PacedStream, Bytes>,
    pings: Option<PingPong>,
    state: Arc<MultiplexState>,
    _open: OpenConnectionGuard,
}

/// Agrees with the endpoint on HTTP/2, where `unsealed` bytes have been written before; the caller bounds the time.
pub(super) async fn handshake(
    stream: PeerStream,
    unsealed: u64,
    room: Arc<Notify>,
    tally: Arc<ConnectionCounts>,
) -> Result<(H2EndpointConnection, H2ConnectionDriver), Failure> {
    let delivery = Arc::<DeliveryProgress>::default();
    let (requests, mut connection) = builder()
        .handshake(PacedStream::new(stream, unsealed, Arc::clone(&tally), Arc::clone(&delivery)))
        .await
        .map_err(|error| handshake_failure(&error))?;
    poll_fn(|cx| match Pin::new(&mut connection).poll(cx) {
        _ if connection.max_concurrent_send_streams() > 0 => Poll::Ready(Ok(())),
        Poll::Ready(Err(error)) => Poll::Ready(Err(handshake_failure(&error))),
        Poll::Ready(Ok(())) => Poll::Ready(Err(Failure::NotHttp2)),
        Poll::Pending => Poll::Pending,
    })
    .await?;
    let pings = connection.ping_pong();
    let state = MultiplexState::new(max_send_streams(&connection), room, tally, delivery);
    let link = H2EndpointConnection { requests, usage: ConnectionUsage::new(Arc::clone(&state)) };
    let driver =
        H2ConnectionDriver { connection, pings, _open: OpenConnectionGuard::new(&state), state };
    Ok((link, driver))
}

/// The settings that we say, and h2's own.
fn builder() -> Builder {
    let head = RESPONSE_LIMITS.head_bytes + RESPONSE_LIMITS.fields * FIELD_OVERHEAD;
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_frame_size(MAX_FRAME_BYTES)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        // None before the endpoint's settings have come: `begin` waits for that.
        .initial_max_send_streams(0)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        // A count over the whole life of a link, which may be long; nothing is kept for what it counts.
        .max_local_error_reset_streams(None);
    builder
}

fn handshake_failure(error: &h2::Error) -> Failure {
    if error.is_io() { Failure::ConnectFailed } else { Failure::NotHttp2 }
}

fn max_send_streams(connection: &Http2<PacedStream, Bytes>) -> u32 {
    u32::try_from(connection.max_concurrent_send_streams()).unwrap_or(u32::MAX)
}

impl multiplex_connection::MultiplexConnection for H2EndpointConnection {
    fn usage(&mut self) -> &mut ConnectionUsage {
        &mut self.usage
    }

    fn protocol_availability(&mut self) -> ConnectionAvailability {
        let mut cx = Context::from_waker(Waker::noop());
        match self.requests.poll_ready(&mut cx) {
            Poll::Ready(Ok(())) => ConnectionAvailability::Usable,
            Poll::Pending => ConnectionAvailability::Full,
            Poll::Ready(Err(error)) => ConnectionAvailability::Retired {
                goaway_received: error.is_go_away() && error.is_remote(),
            },
        }
    }

    fn has_stream_capacity(&mut self) -> bool {
        self.usage.state.has_stream_capacity()
    }
}

impl H2EndpointConnection {
    /// Sends the head of a request on a stream of its own.
    fn send(&mut self, call: &StreamRequest<'_>) -> Result<(PeerStream, StreamGuard), Failure> {
        let RequestSource { request, framing } = call.source;
        // What opens a WebSocket is a CONNECT that not everybody takes (RFC 8441).
        if request.upgrade && !self.requests.is_extended_connect_protocol_enabled() {
            return Err(Failure::UpgradeRefused);
        }
        let head = request::write(request, framing, call.scheme(), call.endpoint.address);
        let head = head.map_err(Failure::BadRequest)?;
        let is_whole = call.source.is_whole();
        let berth = self.usage.begin_stream(call.fresh);
        // The link has just said that it takes one.
        let sent = self.requests.clone().send_request(head, is_whole);
        let (response, body) = sent.map_err(|_gone| Failure::EndpointClosed)?;
        let message = H2Stream::to_endpoint(response, body, is_whole);
        Ok((PeerStream::H2(Box::new(message)), berth))
    }
}

impl H2ConnectionDriver {
    /// Runs until the link has ended.
    async fn run(mut self) {
        let Self { connection, pings, state, .. } = &mut self;
        let moving = poll_fn(|cx| {
            let ended = Pin::new(&mut *connection).poll(cx);
            let most = max_send_streams(connection);
            if state.max_streams.swap(most, Ordering::Relaxed) < most {
                state.stream_available.notify_waiters();
            }
            ended
        });
        tokio::select! {
            // How it ended is told to its streams.
            _ = moving => {}
            () = ping_timed_out(state, pings.take()) => {}
        }
    }
}

/// Ready when the endpoint, doubted, has not answered a PING.
async fn ping_timed_out(state: &MultiplexState, pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return pending().await };
    loop {
        state.response_overdue.notified().await;
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => sleep(PING_INTERVAL).await,
            // It has ended meanwhile.
            Ok(Err(_)) => return pending().await,
            Err(_) => return,
        }
    }
}

/// A link that is to be opened.
struct H2DialTask {
    endpoint: Arc<Endpoint>,
    worker: usize,
    proxy_protocol_client: Option<SocketAddr>,
    tls_context: Option<Arc<EndpointTlsContext>>,
    /// What it begins with.
    proxy_protocol_header: Vec<u8>,
    connect_timeout: Duration,
    /// The endpoint is gone that acknowledges nothing for so long.
    unacknowledged_timeout: Duration,
}

impl H2DialTask {
    /// Opens the link, tells who waits for it, and moves its bytes as long as it lives.
    async fn run(self) {
        let opened = timeout(self.connect_timeout, self.open()).await;
        let (opened, driver) = match opened.unwrap_or(Err(Failure::ConnectTimeout)) {
            Ok((link, driver)) => (Ok(link), Some(driver)),
            Err(failure) => (Err(failure), None),
        };
        multiplex_pool::pool_for(&mut self.pools().pools(), self.pool_key()).finish_dial(opened);
        // An endpoint that has left is not kept by its links, but they by it.
        drop(self);
        if let Some(driver) = driver {
            driver.run().await;
        }
    }

    async fn open(&self) -> Result<(H2EndpointConnection, H2ConnectionDriver), Failure> {
        let security = ConnectionSecurity::of_requests(self.tls_context.as_ref());
        let Self {
            endpoint,
            worker,
            proxy_protocol_header: header,
            unacknowledged_timeout: unacknowledged,
            ..
        } = self;
        let stream = connect::open(endpoint, *worker, header, security, *unacknowledged).await?;
        if stream.has_settled_on_http1() {
            self.endpoint.data.http3_reachability.record_http1();
            return Err(Failure::NotHttp2);
        }
        let room =
            multiplex_pool::pool_for(&mut self.pools().pools(), self.pool_key()).stream_available();
        handshake(stream, header.len() as u64, room, Arc::clone(&self.pools().counts)).await
    }

    fn pools(&self) -> &H2EndpointPools {
        &self.endpoint.data.h2_pools[self.worker]
    }

    fn pool_key(&self) -> PoolKey<'_> {
        PoolKey {
            proxy_protocol_client: self.proxy_protocol_client,
            tls_context: self.tls_context.as_ref(),
        }
    }
}

impl StreamRequest<'_> {
    /// Asks for a stream of HTTP/2; `waiting` tells since when.
    pub(crate) fn acquire_http2_stream(
        &self,
        waiting: Option<&StreamWaiter>,
    ) -> Result<StreamGrant, Failure> {
        let settings = &self.backend_config.settings;
        let links = &self.endpoint.data.h2_pools[self.worker];
        let counters = &self.endpoint.data.counters[self.worker].http2;
        let mut trunks = links.pools();
        let trunk = multiplex_pool::pool_for(&mut trunks, self.pool_key());
        if let Some(link) = trunk.usable_connection(settings, counters, self.now) {
            let (stream, berth) = link.send(self)?;
            let connection = EndpointConnection::for_stream(stream, berth, self.worker, self.now);
            return Ok(StreamGrant::Opened(Box::new(connection)));
        }
        if let Some(failure) = trunk.failure_since(waiting) {
            return Err(failure);
        }
        if trunk.try_begin_dial(settings, self.endpoint.data.h2_pools.len(), self.now) {
            let dial = H2DialTask {
                endpoint: Arc::clone(self.endpoint),
                worker: self.worker,
                proxy_protocol_client: self.proxy_protocol_client,
                tls_context: self.backend_config.tls_context.clone(),
                proxy_protocol_header: self.proxy_protocol_header.clone(),
                connect_timeout: settings.connect_timeout,
                unacknowledged_timeout: settings.unacknowledged_timeout,
            };
            tokio::task::spawn_local(dial.run());
        }
        Ok(StreamGrant::Wait(trunk.waiter(waiting)))
    }

    /// Waits for a stream that could not be had at once; the caller bounds the time.
    pub(crate) async fn wait_for_http2_stream(
        self,
        mut waiting: StreamWaiter,
    ) -> Result<Box<EndpointConnection>, Failure> {
        loop {
            waiting.wait().await;
            match self.acquire_http2_stream(Some(&waiting))? {
                StreamGrant::Opened(connection) => return Ok(connection),
                StreamGrant::Wait(further) => waiting = further,
            }
        }
    }
}

/// The links to one endpoint from one worker. On cache lines of its own: the next worker's lie beside it.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct H2EndpointPools {
    /// By what they are opened with: one, hardly ever two.
    pools: Mutex<Vec<MultiplexPool<H2EndpointConnection>>>,
    pub(crate) counts: Arc<ConnectionCounts>,
}

impl H2EndpointPools {
    /// Nobody is in the way but who reads metrics.
    fn pools(&self) -> MutexGuard<'_, Vec<MultiplexPool<H2EndpointConnection>>> {
        lock(&self.pools)
    }
}

/// Lets go of links that are spent, or that nobody has used for long.
pub(crate) fn sweep(endpoint: &Endpoint, worker: usize, settings: &BackendSettings, now: Time) {
    let counters = &endpoint.data.counters[worker].http2;
    let mut trunks = endpoint.data.h2_pools[worker].pools();
    multiplex_pool::sweep(&mut trunks, settings, counters, now);
}

#[cfg(test)]
mod tests;
