//! HTTP/2 connections to endpoints.
//!
//! A connection is usable when the SETTINGS of the endpoint have arrived, so that its stream limit is known, and it is
//! known to speak HTTP/2, before any request depends on it. It is opened by a task of its own, because the first
//! request that needs it may be cancelled.
//!
//! The kernel detects a dead host in bounded time (`connect`). If the endpoint hangs while its kernel works, a PING
//! detects it: one is sent when a response does not arrive in time and no other has arrived meanwhile. PINGs are no
//! more frequent than gRPC servers allow, which otherwise close the connection (`too_many_pings`).

use std::future::{pending, poll_fn};
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use balance::Time;
use bytes::Bytes;
use codec::binary::WEBSOCKET;
use codec::h2::request;
use gateway::snapshot::BackendSettings;
use h2::client::{Builder, Connection as Http2, SendRequest};
use h2::ext::Protocol;
use h2::{Ping, PingPong};
use tls::{ConnectionSecurity, EndpointTlsContext};
use tokio::sync::Notify;
use tokio::time::{sleep, timeout};

use self::paced_stream::PacedStream;
use crate::dial::RESPONSE_LIMITS;
use crate::dial::connect::{self, DialOptions};
use crate::dial::marked_socket::MarkGuard;
use crate::dial::multiplex_connection::{
    self, ConnectionAvailability, ConnectionCounts, ConnectionUsage, DeliveryProgress,
    MultiplexState, OpenConnectionGuard, PING_INTERVAL, PING_TIMEOUT, StreamGuard,
};
use crate::dial::multiplex_pool::{self, MultiplexPool, PoolKey, PoolSweep, StreamWaiter};
use crate::dial::pool::{Endpoint, EndpointConnection};
use crate::dial::stream_call::{RequestSource, StreamGrant, StreamRequest};
use crate::failure::Failure;
use crate::h2::H2Stream;
use crate::interception::ClientMark;
use crate::memory::FlowWindows;
use crate::mutex::lock;
use crate::resources::ResourceBudgets;
use crate::stream::PeerStream;
use crate::sys;

/// Paces reads from an endpoint.
mod paced_stream;

/// Bounds of the receive window of one response. It follows the round trip to the endpoint, so that it allows 2 Gbit/s
/// up to a round trip of 1 ms: what it allows beyond that would only fill memory if the client is slow.
const MIN_STREAM_WINDOW: u32 = 64 * 1024;
const MAX_STREAM_WINDOW: u32 = 256 * 1024;
/// Bytes that arrive in a microsecond at 2 Gbit/s.
const BYTES_PER_MICROSECOND: u32 = 250;
/// Receive window of one connection: the responses of a thousand clients that read nothing at all do not block the
/// others. It bounds no memory: the streams' windows do, and the budget of the process.
const CONNECTION_WINDOW: u32 = 256 * 1024 * 1024;
/// Maximum frame size: a large body takes a quarter of the frames that the default 16 KiB need.
const MAX_FRAME_BYTES: u32 = 64 * 1024;
/// Limit of the overhead of small unread frames, at most 256 bytes each, before the connection is closed: a million of
/// them. A slow client can accumulate many, at the expense of every other stream on the connection.
const DATA_FRAME_BUDGET: usize = 256 * 1024 * 1024;
/// Bytes of one request that may wait to be written.
const SEND_BUFFER: usize = 256 * 1024;
/// Streams that we have reset recently: frames that still arrive for them are ignored.
const MAX_RESET_STREAMS: usize = 1024;
/// The overhead of a field in the size of a head, beside its text (RFC 9113 §6.5.2).
pub(super) const FIELD_OVERHEAD: usize = 32;

/// One HTTP/2 connection to an endpoint.
pub(crate) struct H2EndpointConnection {
    /// Its clones send requests: the original would wait for the streams that it has opened itself, by the wakers of
    /// their tasks.
    requests: SendRequest<Bytes>,
    usage: ConnectionUsage,
}

/// Drives the I/O of a connection.
pub(super) struct H2ConnectionDriver {
    connection: Http2<PacedStream, Bytes>,
    /// Windows that are announced without memory pressure, and those announced last.
    windows: FlowWindows,
    announced: FlowWindows,
    budgets: Arc<ResourceBudgets>,
    pings: Option<PingPong>,
    state: Arc<MultiplexState>,
    /// The client whose address the connection has.
    _client_mark: Option<MarkGuard>,
    _open: OpenConnectionGuard,
}

/// Performs the HTTP/2 handshake, after `unsealed` bytes were written in plaintext; the caller bounds the time.
pub(super) async fn handshake(
    stream: PeerStream,
    unsealed: u64,
    stream_available: Arc<Notify>,
    counts: Arc<ConnectionCounts>,
    budgets: Arc<ResourceBudgets>,
) -> Result<(H2EndpointConnection, H2ConnectionDriver), Failure> {
    let delivery = Arc::<DeliveryProgress>::default();
    let round_trip = stream.socket().and_then(sys::round_trip);
    let windows = FlowWindows { stream: stream_window(round_trip), connection: CONNECTION_WINDOW };
    let announced = windows.with_stream_under(budgets.memory.pressure());
    let (requests, mut connection) = builder(announced)
        .handshake(PacedStream::new(stream, unsealed, Arc::clone(&counts), Arc::clone(&delivery)))
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
    let state =
        MultiplexState::new(max_send_streams(&connection), stream_available, counts, delivery);
    let link = H2EndpointConnection { requests, usage: ConnectionUsage::new(Arc::clone(&state)) };
    let driver = H2ConnectionDriver {
        connection,
        windows,
        announced,
        budgets,
        pings,
        _client_mark: None,
        _open: OpenConnectionGuard::new(&state),
        state,
    };
    Ok((link, driver))
}

/// Returns the receive window of a response from an endpoint at this distance; the largest if it is not known.
fn stream_window(round_trip: Option<Duration>) -> u32 {
    let Some(round_trip) = round_trip else { return MAX_STREAM_WINDOW };
    let microseconds = u32::try_from(round_trip.as_micros()).unwrap_or(u32::MAX);
    let bytes = microseconds.saturating_mul(BYTES_PER_MICROSECOND);
    bytes.clamp(MIN_STREAM_WINDOW, MAX_STREAM_WINDOW)
}

/// Returns a builder with these windows, our settings, and h2's defaults.
fn builder(windows: FlowWindows) -> Builder {
    let head = RESPONSE_LIMITS.head_bytes + RESPONSE_LIMITS.fields * FIELD_OVERHEAD;
    let mut builder = Builder::new();
    builder
        .enable_push(false)
        .initial_window_size(windows.stream)
        .initial_connection_window_size(windows.connection)
        .max_frame_size(MAX_FRAME_BYTES)
        .data_frame_budget(DATA_FRAME_BUDGET)
        .max_header_list_size(u32::try_from(head).unwrap_or(u32::MAX))
        .max_send_buffer_size(SEND_BUFFER)
        // No stream before the endpoint's settings have arrived: `handshake` waits for them.
        .initial_max_send_streams(0)
        .max_concurrent_reset_streams(MAX_RESET_STREAMS)
        // The library counts over the lifetime of a connection, which may be long; the count protects no memory.
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
    /// Sends the head of a request on a new stream.
    fn send(&mut self, call: &StreamRequest<'_>) -> Result<(PeerStream, StreamGuard), Failure> {
        let RequestSource { request, framing } = call.source;
        // A WebSocket needs extended CONNECT, which not every endpoint supports (RFC 8441).
        if request.upgrade && !self.requests.is_extended_connect_protocol_enabled() {
            return Err(Failure::UpgradeRefused);
        }
        let head = request::write(request, framing, call.scheme(), call.endpoint.address);
        let mut head = head.map_err(Failure::BadRequest)?;
        if request.upgrade {
            head.extensions_mut().insert(Protocol::from_static(WEBSOCKET));
        }
        let is_whole = call.source.is_whole();
        let stream_guard = self.usage.begin_stream(call.fresh);
        // The connection has just reported capacity for one stream.
        let sent = self.requests.clone().send_request(head, is_whole);
        let (response, body) = sent.map_err(|_gone| Failure::EndpointClosed)?;
        let message = H2Stream::to_endpoint(response, body, is_whole);
        Ok((PeerStream::H2(Box::new(message)), stream_guard))
    }
}

impl H2ConnectionDriver {
    /// Runs until the connection has ended.
    async fn run(mut self) {
        let Self { connection, windows, announced, budgets, pings, state, .. } = &mut self;
        let moving = poll_fn(|cx| {
            let wanted = windows.with_stream_under(budgets.memory.pressure());
            // Refused while the endpoint has not acknowledged earlier settings; then the next poll announces them.
            if wanted != *announced && connection.set_initial_window_size(wanted.stream).is_ok() {
                *announced = wanted;
            }
            let ended = Pin::new(&mut *connection).poll(cx);
            let most = max_send_streams(connection);
            if state.max_streams.swap(most, Ordering::Relaxed) < most {
                state.stream_available.notify_waiters();
            }
            ended
        });
        tokio::select! {
            // Its streams report how it ended.
            _ = moving => {}
            () = ping_timed_out(state, pings.take()) => {}
        }
    }
}

/// Waits until the endpoint, marked as suspect, has failed to answer a PING.
async fn ping_timed_out(state: &MultiplexState, pings: Option<PingPong>) {
    let Some(mut pings) = pings else { return pending().await };
    loop {
        state.response_overdue.notified().await;
        match timeout(PING_TIMEOUT, pings.ping(Ping::opaque())).await {
            Ok(Ok(_)) => sleep(PING_INTERVAL).await,
            // The connection has ended meanwhile.
            Ok(Err(_)) => return pending().await,
            Err(_) => return,
        }
    }
}

/// Opens a connection in the background.
struct H2DialTask {
    endpoint: Arc<Endpoint>,
    worker: usize,
    proxy_protocol_client: Option<SocketAddr>,
    tls_context: Option<Arc<EndpointTlsContext>>,
    /// The PROXY protocol header that the connection begins with.
    proxy_protocol_header: Vec<u8>,
    /// The mark of the client whose address the connection has.
    client_mark: Option<Arc<ClientMark>>,
    connect_timeout: Duration,
    /// The endpoint is considered dead if it acknowledges nothing for this time.
    unacknowledged_timeout: Duration,
}

impl H2DialTask {
    /// Opens the connection, wakes the waiting requests, and drives it as long as it lives.
    async fn run(self) {
        let opened = timeout(self.connect_timeout, self.open()).await;
        let (opened, driver) = match opened.unwrap_or(Err(Failure::ConnectTimeout)) {
            Ok((link, driver)) => (Ok(link), Some(driver)),
            Err(failure) => (Err(failure), None),
        };
        multiplex_pool::pool_for(&mut self.pools().pools(), self.pool_key()).finish_dial(opened);
        // Connections must not keep a removed endpoint alive; the endpoint keeps its connections.
        drop(self);
        if let Some(driver) = driver {
            driver.run().await;
        }
    }

    async fn open(&self) -> Result<(H2EndpointConnection, H2ConnectionDriver), Failure> {
        let Self { endpoint, worker, proxy_protocol_header: header, .. } = self;
        let options = DialOptions {
            header,
            client_mark: self.client_mark.as_ref(),
            security: ConnectionSecurity::of_requests(self.tls_context.as_ref()),
            unacknowledged: self.unacknowledged_timeout,
        };
        let client_mark = MarkGuard::of(endpoint, self.client_mark.as_ref());
        let stream = connect::open(endpoint, *worker, &options).await?;
        if stream.has_settled_on_http1() {
            self.endpoint.data.http3_reachability.record_http1();
            return Err(Failure::NotHttp2);
        }
        let stream_available =
            multiplex_pool::pool_for(&mut self.pools().pools(), self.pool_key()).stream_available();
        let (counts, budgets) = (&self.pools().counts, &endpoint.data.budgets);
        let (counts, budgets) = (Arc::clone(counts), Arc::clone(budgets));
        let unsealed = header.len() as u64;
        let (link, driver) = handshake(stream, unsealed, stream_available, counts, budgets).await?;
        Ok((link, H2ConnectionDriver { _client_mark: client_mark, ..driver }))
    }

    fn pools(&self) -> &H2EndpointPools {
        &self.endpoint.data.h2_pools[self.worker]
    }

    fn pool_key(&self) -> PoolKey<'_> {
        PoolKey {
            proxy_protocol_client: self.proxy_protocol_client,
            client_mark: self.client_mark.as_ref(),
            tls_context: self.tls_context.as_ref(),
        }
    }
}

impl StreamRequest<'_> {
    /// Acquires an HTTP/2 stream; `waiting` is set if the request has waited already.
    pub(crate) fn acquire_http2_stream(
        &self,
        waiting: Option<&StreamWaiter>,
    ) -> Result<StreamGrant, Failure> {
        let settings = &self.backend_config.settings;
        let links = &self.endpoint.data.h2_pools[self.worker];
        let counters = &self.endpoint.data.counters[self.worker].http2;
        let mut pools = links.pools();
        let pool = multiplex_pool::pool_for(&mut pools, self.pool_key());
        if let Some(link) = pool.usable_connection(settings, counters, self.now) {
            let (stream, stream_guard) = link.send(self)?;
            let connection =
                EndpointConnection::for_stream(stream, stream_guard, self.worker, self.now);
            return Ok(StreamGrant::Opened(Box::new(connection)));
        }
        if let Some(failure) = pool.failure_since(waiting) {
            return Err(failure);
        }
        if pool.try_begin_dial(settings, self.endpoint.data.h2_pools.len(), self.now) {
            let dial = H2DialTask {
                endpoint: Arc::clone(self.endpoint),
                worker: self.worker,
                proxy_protocol_client: self.proxy_protocol_client,
                tls_context: self.backend_config.tls_context.clone(),
                proxy_protocol_header: self.proxy_protocol_header.clone(),
                client_mark: self.client_mark.clone(),
                connect_timeout: settings.connect_timeout,
                unacknowledged_timeout: settings.unacknowledged_timeout,
            };
            tokio::task::spawn_local(dial.run());
        }
        Ok(StreamGrant::Wait(pool.waiter(waiting)))
    }

    /// Waits for a stream that was not available at once; the caller bounds the time.
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

/// The connections to one endpoint from one worker. On cache lines of its own: those of the next worker are adjacent.
#[derive(Default)]
#[repr(align(64))]
pub(crate) struct H2EndpointPools {
    /// By pool key: one, hardly ever two.
    pools: Mutex<Vec<MultiplexPool<H2EndpointConnection>>>,
    pub(crate) counts: Arc<ConnectionCounts>,
}

impl H2EndpointPools {
    /// Locks the pools. Only the reader of metrics contends for the lock.
    fn pools(&self) -> MutexGuard<'_, Vec<MultiplexPool<H2EndpointConnection>>> {
        lock(&self.pools)
    }
}

/// Releases connections that are retired, or that have been idle for long.
pub(crate) fn sweep(endpoint: &Endpoint, worker: usize, settings: &BackendSettings, now: Time) {
    let counters = &endpoint.data.counters[worker].http2;
    let mut pools = endpoint.data.h2_pools[worker].pools();
    let keeps_marked = endpoint.data.budgets.descriptors.keeps_marked();
    let sweep = PoolSweep { settings, counters, now, keeps_marked };
    multiplex_pool::sweep(&mut pools, &sweep);
}

#[cfg(test)]
mod tests;
