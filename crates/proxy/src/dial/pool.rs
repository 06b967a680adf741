//! Connection pool of an endpoint.
//!
//! An uncapped endpoint has one stack per worker: workers share nothing. A capped endpoint has one stack for all
//! workers, because there the slot owns the connection: the request that takes the slot takes the connection with it,
//! so that connections never exceed the cap and are not reopened at each hand-over. Stacks are last in, first out: the
//! connection used last is the least likely to have been closed.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, Weak};
use std::time::Duration;

use balance::{ConcurrencyCap, SetMember, Time};
use codec::head::{BodyFraming, ResponseHead};
use gateway::snapshot::BackendSettings;
use tls::EndpointTlsContext;

use crate::backend::{Backend, BackendConfig};
use crate::buffer::ReadBuffer;
use crate::dial::h2;
use crate::dial::h3::reachability::Http3Reachability;
use crate::dial::marked_socket::{MarkGuard, is_same_mark};
use crate::dial::multiplex_connection::{ConnectionCounts, StreamGuard};
use crate::dial::other_address::OtherAddress;
use crate::interception::{ClientMark, ConnectionInterceptor};
use crate::mutex::lock;
use crate::observe::EndpointCounters;
use crate::reachability;
use crate::resources::ResourceBudgets;
use crate::stream::{ConnectionEnd, PeerStream};
use crate::sys;

/// Idle connections to one endpoint in one stack. Further ones are closed instead of the oldest, because the old ones
/// show how long the endpoint keeps connections.
const MAX_IDLE_CONNECTIONS: usize = 1024;

/// A connection is not checked until this long after its last response: if the endpoint closes it within that time, it
/// rejects a request unread, which the kernel reports, and the request is sent again.
const FRESH: Duration = Duration::from_millis(5);

/// Limit of the assumed delay between the arrival of data and our read of it.
const MAX_READ_LAG: Duration = Duration::from_secs(1);

/// State of the data plane for one endpoint.
pub(crate) struct EndpointData {
    /// One stack per worker, then the shared one.
    stacks: Box<[IdleStack]>,
    /// HTTP/2 connections, which many requests share. One per worker.
    pub(crate) h2_pools: Box<[h2::H2EndpointPools]>,
    /// Counts of HTTP/3 connections. One per worker, which owns the connections themselves.
    pub(crate) h3_counts: Box<[Arc<ConnectionCounts>]>,
    /// Reachability of the endpoint over QUIC.
    pub(crate) http3_reachability: Http3Reachability,
    /// One per worker.
    pub(crate) counters: Box<[EndpointCounters]>,
    /// Connect times, and the time without a response from the endpoint.
    pub(crate) reachability: reachability::ReachabilityState,
    pub(crate) other_address: OtherAddress,
    /// The backends that have this endpoint: a slot freed by one may be the one that another waits for.
    backends: Mutex<Vec<Weak<Backend>>>,
    /// Budgets of the process, which bound connections and their windows.
    pub(crate) budgets: Arc<ResourceBudgets>,
    /// Interception on this node, whose rules know our sockets by their mark.
    pub(crate) interceptor: Option<Arc<dyn ConnectionInterceptor>>,
    is_shared: AtomicBool,
    /// True if the thread of the leases waits for a slot that becomes free.
    is_release_awaited: AtomicBool,
}

/// On cache lines of its own: one worker takes its lock twice per request, and the next worker's lock is adjacent.
#[derive(Default)]
#[repr(align(64))]
struct IdleStack(Mutex<VecDeque<Box<EndpointConnection>>>);

/// An open connection to an endpoint, or a stream on one. Boxed, because it is moved many times in each request.
pub(crate) struct EndpointConnection {
    pub(crate) stream: PeerStream,
    /// Bytes that were read from the endpoint and not yet used.
    pub(crate) buffer: Option<ReadBuffer>,
    /// Bytes written before TLS began.
    plaintext_bytes: u64,
    /// Bytes written since it was opened: compared with the bytes that the kernel reports as acknowledged, it shows if
    /// a request can have reached the endpoint.
    pub(crate) written: u64,
    /// The way in which the endpoint ended the connection.
    pub(crate) end: Option<ConnectionEnd>,
    /// Responses that it has carried.
    pub(crate) served: u32,
    /// Its idle time before this use; `None` for a connection that was opened for it.
    pub(crate) idle_for: Option<Duration>,
    /// The client whose address it began with (PROXY protocol); it may carry requests of this client only.
    pub(crate) proxy_protocol_client: Option<SocketAddr>,
    /// The client whose address it has; it may carry requests of this client only.
    pub(crate) client_mark: Option<MarkGuard>,
    /// Its TLS context; its requests must require the same one.
    pub(crate) tls_context: Option<Arc<EndpointTlsContext>>,
    /// Its place on the connection that carries it, if it is a stream: then it ends with its request. Declared after
    /// the stream, so that the place is freed after the stream has been dropped.
    pub(crate) stream_guard: Option<StreamGuard>,
    /// The worker whose runtime polls it.
    worker: usize,
    opened: Time,
    idle_since: Time,
}

/// Requirements on a connection from the pool.
pub(crate) struct ConnectionRequirements<'a> {
    pub(crate) worker: usize,
    /// The backend's settings and TLS context. If it caps its endpoints, the stack is the one that all workers share.
    pub(crate) backend_config: &'a BackendConfig,
    /// The client whose address the connection must have begun with (PROXY protocol).
    pub(crate) proxy_protocol_client: Option<SocketAddr>,
    /// The mark of the client whose address the connection must have.
    pub(crate) client_mark: Option<Arc<ClientMark>>,
    /// True if the request can be sent again when the endpoint closes the connection at the same moment.
    pub(crate) replayable: bool,
    pub(crate) now: Time,
}

impl ConnectionRequirements<'_> {
    fn is_capped(&self) -> bool {
        self.backend_config.limits.cap.is_some()
    }

    /// True if a new connection would exceed the limit of a capped endpoint, beside `idle` idle ones.
    fn exceeds_limit(&self, endpoint: &Endpoint, idle: usize) -> bool {
        let BackendConfig { set, limits, .. } = self.backend_config;
        if !limits.cap.is_some() {
            return false;
        }
        // An endpoint that has left its backend has no room.
        let limit = set.find(endpoint.address).map_or(Some(0), |member| member.limit(limits.cap));
        // The request's slot is one of those in flight.
        let wanted = idle + endpoint.in_flight() as usize;
        limit.is_some_and(|limit| wanted > limit as usize)
    }
}

/// The state of the last exchange on a connection, which decides if it can be reused.
pub(crate) struct CompletedExchange<'e> {
    pub(crate) response: &'e ResponseHead,
    /// True if the endpoint has received the whole request.
    pub(crate) request_sent: bool,
    /// True if the response has been read to its end.
    pub(crate) response_read: bool,
}

pub(crate) type Endpoint = balance::Endpoint<EndpointData>;

impl EndpointData {
    pub(crate) fn new(
        workers: usize,
        budgets: Arc<ResourceBudgets>,
        interceptor: Option<Arc<dyn ConnectionInterceptor>>,
    ) -> Self {
        Self {
            stacks: (0..=workers).map(|_| IdleStack::default()).collect(),
            h2_pools: (0..workers).map(|_| h2::H2EndpointPools::default()).collect(),
            h3_counts: (0..workers).map(|_| Arc::default()).collect(),
            http3_reachability: Http3Reachability::default(),
            counters: (0..workers).map(|_| EndpointCounters::default()).collect(),
            reachability: reachability::ReachabilityState::default(),
            other_address: OtherAddress::default(),
            backends: Mutex::default(),
            budgets,
            interceptor,
            is_shared: AtomicBool::new(false),
            is_release_awaited: AtomicBool::new(false),
        }
    }

    /// Adds a backend that now has this endpoint.
    pub(crate) fn add_backend(&self, backend: &Arc<Backend>) {
        self.update_backends(|sharers| sharers.push(Arc::downgrade(backend)));
    }

    /// Removes a backend that no longer has it.
    pub(crate) fn remove_backend(&self, backend: &Arc<Backend>) {
        let is_it = |sharer: &Weak<Backend>| std::ptr::eq(sharer.as_ptr(), Arc::as_ptr(backend));
        self.update_backends(|sharers| sharers.retain(|sharer| !is_it(sharer)));
    }

    fn update_backends(&self, change: impl FnOnce(&mut Vec<Weak<Backend>>)) {
        let mut sharers = lock(&self.backends);
        change(&mut sharers);
        self.is_shared.store(sharers.len() > 1, Ordering::Release);
    }

    /// Returns the backends that have this endpoint.
    pub(crate) fn backends(&self) -> Vec<Arc<Backend>> {
        lock(&self.backends).iter().filter_map(Weak::upgrade).collect()
    }

    /// Has workers report each slot that becomes free, or no longer.
    pub(crate) fn watch_releases(&self, watches: bool) {
        if self.is_release_awaited.load(Ordering::Relaxed) != watches {
            self.is_release_awaited.store(watches, Ordering::SeqCst);
        }
    }

    pub(crate) fn is_release_awaited(&self) -> bool {
        self.is_release_awaited.load(Ordering::SeqCst)
    }

    /// Returns the backends other than `backend` that have this endpoint.
    pub(crate) fn other_backends(&self, backend: &Backend) -> Vec<Arc<Backend>> {
        if !self.is_shared.load(Ordering::Acquire) {
            return Vec::new();
        }
        let sharers = lock(&self.backends);
        let sharing = sharers.iter().filter_map(Weak::upgrade);
        sharing.filter(|other| !std::ptr::eq(&raw const **other, backend)).collect()
    }

    /// Closes the oldest idle connection that belongs to slots, if there is one: called when a slot is taken for a new
    /// connection.
    pub(crate) fn close_oldest_idle(&self) {
        let connection = lock(self.stack(0, true)).pop_front();
        drop(connection);
    }

    /// Returns the counts of HTTP/2 connections, by worker.
    pub(crate) fn h2_counts(&self) -> impl Iterator<Item = &ConnectionCounts> {
        self.h2_pools.iter().map(|links| &*links.counts)
    }

    /// Returns the counts of HTTP/3 connections, by worker.
    pub(crate) fn h3_counts(&self) -> impl Iterator<Item = &ConnectionCounts> {
        self.h3_counts.iter().map(|counts| &**counts)
    }

    pub(crate) fn idle_connections(&self) -> usize {
        self.stacks.iter().map(|stack| lock(&stack.0).len()).sum()
    }

    fn stack(&self, worker: usize, capped: bool) -> &Mutex<VecDeque<Box<EndpointConnection>>> {
        &self.stacks[if capped { self.stacks.len() - 1 } else { worker }].0
    }
}

/// Takes an idle connection that is open and can carry the request, if there is one.
///
/// If a capped endpoint has only connections that cannot, and no room for another, one of them is closed, so that the
/// one opened in its place stays under the cap.
pub(crate) fn take(
    endpoint: &Endpoint,
    requirements: &ConnectionRequirements<'_>,
) -> Option<Box<EndpointConnection>> {
    let stack = endpoint.data.stack(requirements.worker, requirements.is_capped());
    loop {
        let mut connection = pop(&mut lock(stack), endpoint, requirements)?;
        if !connection.satisfies(requirements) {
            // It belongs to another client, or to another backend.
            return None;
        }
        if connection.is_expired(&requirements.backend_config.settings, requirements.now) {
            continue;
        }
        let age = requirements.now.saturating_since(connection.idle_since);
        let foreign = connection.worker != requirements.worker;
        let surely = foreign || (!requirements.replayable && age >= FRESH);
        if !connection.is_open(surely) {
            endpoint.idle.found_closed(age);
            continue;
        }
        // Only a reply of the kernel is evidence: the runtime may not have polled for a while.
        if surely {
            endpoint.idle.found_open(age);
        }
        let age = if requirements.replayable { age } else { connection.true_age(endpoint, age) };
        if !endpoint.idle.may_reuse(age, requirements.replayable) {
            if !requirements.is_capped() {
                lock(stack).push_back(connection);
            }
            return None;
        }
        if foreign {
            let Some(adopted) = connection.adopt(requirements.worker) else { continue };
            connection = Box::new(adopted);
        }
        connection.idle_for = Some(age);
        return Some(connection);
    }
}

/// Returns a connection to the pool if it can carry another request, and closes it otherwise.
///
/// This is the only way into the pool, so that no caller can forget a condition.
pub(crate) fn give_back(
    endpoint: &Endpoint,
    mut connection: Box<EndpointConnection>,
    exchange: &CompletedExchange<'_>,
    capped: bool,
    now: Time,
) {
    if !connection.is_reusable(exchange) {
        return;
    }
    connection.idle_since = now;
    connection.served += 1;
    if connection.served > 1 {
        endpoint.idle.served_again();
    }
    if connection.client_mark.is_some() && !endpoint.data.budgets.descriptors.keeps_marked() {
        return;
    }
    let mut stack = lock(endpoint.data.stack(connection.worker, capped));
    if stack.len() == MAX_IDLE_CONNECTIONS && connection.belongs_to_client() {
        // Connections of disconnected clients are useless, and give no information that others do not.
        stack.pop_front();
    }
    if stack.len() < MAX_IDLE_CONNECTIONS {
        stack.push_back(connection);
    }
}

/// Closes expired and closed connections, and learns how long the endpoint keeps connections.
pub(crate) fn sweep(endpoint: &Endpoint, worker: usize, settings: &BackendSettings, now: Time) {
    for capped in [false, true] {
        let mut stack = lock(endpoint.data.stack(worker, capped));
        // The kernel is asked about the connection that has been idle longest, and about those that other workers
        // poll.
        let mut is_oldest = true;
        stack.retain_mut(|connection| {
            if connection.is_expired(settings, now) {
                return false;
            }
            let age = now.saturating_since(connection.idle_since);
            let surely = std::mem::take(&mut is_oldest) || connection.worker != worker;
            let open = connection.is_open(surely);
            if !open {
                endpoint.idle.found_closed(age);
            } else if surely {
                endpoint.idle.found_open(age);
            }
            open
        });
    }
}

/// Closes idle connections of slots that this replica no longer owns: the new owner opens its own.
pub(crate) fn trim(member: &SetMember<EndpointData>, cap: ConcurrencyCap) {
    if member.max_in_flight < u32::MAX || member.endpoint.is_leased() {
        trim_to(&member.endpoint, member.limit(cap).unwrap_or(u32::MAX));
    }
}

/// Closes idle connections, so that no more than `most` are open beside those of requests in flight.
pub(crate) fn trim_to(endpoint: &Endpoint, most: u32) {
    let mut stack = lock(endpoint.data.stack(0, true));
    let idle = most.saturating_sub(endpoint.in_flight());
    while stack.len() > idle as usize {
        stack.pop_front();
    }
}

/// Removes the connection used last, preferably one that this worker already polls; if none fits and a capped endpoint
/// has no room for another, the oldest one, which the caller closes.
fn pop(
    stack: &mut VecDeque<Box<EndpointConnection>>,
    endpoint: &Endpoint,
    requirements: &ConnectionRequirements<'_>,
) -> Option<Box<EndpointConnection>> {
    let connections = || stack.iter().map(Box::as_ref);
    let is_ours =
        |it: &EndpointConnection| it.worker == requirements.worker && it.satisfies(requirements);
    let ours = connections().rposition(is_ours);
    let any = || connections().rposition(|it: &EndpointConnection| it.satisfies(requirements));
    let is_in_way = || !stack.is_empty() && requirements.exceeds_limit(endpoint, stack.len());
    let oldest = || is_in_way().then_some(0);
    stack.remove(ours.or_else(any).or_else(oldest)?)
}

impl EndpointConnection {
    /// Returns the bytes that have arrived and have not been used, as far as this process holds them.
    pub(crate) fn unread_bytes(&mut self) -> usize {
        let buffered = self.buffer.as_ref().map_or(0, ReadBuffer::len);
        buffered + self.stream.unread_bytes().unwrap_or(0)
    }

    /// Creates a connection on which `unsealed` bytes were written before TLS began.
    pub(crate) fn new(stream: PeerStream, unsealed: u64, worker: usize, now: Time) -> Self {
        let mut connection = Self {
            stream,
            buffer: None,
            plaintext_bytes: unsealed,
            written: unsealed,
            end: None,
            served: 0,
            idle_for: None,
            proxy_protocol_client: None,
            client_mark: None,
            tls_context: None,
            stream_guard: None,
            worker,
            opened: now,
            idle_since: now,
        };
        connection.count_written(0);
        connection
    }

    /// Adds bytes of a request that were written to the stream.
    pub(crate) fn count_written(&mut self, bytes: u64) {
        self.written = self.stream.wire_bytes_written(self.plaintext_bytes, self.written, bytes);
    }

    /// True if it has the required client and TLS context.
    fn satisfies(&self, requirements: &ConnectionRequirements<'_>) -> bool {
        let address = |context: Option<&Arc<EndpointTlsContext>>| context.map(Arc::as_ptr);
        let tls_context = requirements.backend_config.tls_context.as_ref();
        self.proxy_protocol_client == requirements.proxy_protocol_client
            && is_same_mark(
                self.client_mark.as_ref().map(MarkGuard::mark),
                requirements.client_mark.as_ref(),
            )
            && address(self.tls_context.as_ref()) == address(tls_context)
    }

    /// True if it may carry requests of one client only.
    fn belongs_to_client(&self) -> bool {
        self.proxy_protocol_client.is_some() || self.client_mark.is_some()
    }

    /// Creates a connection for a stream that carries one request.
    pub(crate) fn for_stream(
        stream: PeerStream,
        stream_guard: StreamGuard,
        worker: usize,
        now: Time,
    ) -> Self {
        Self { stream_guard: Some(stream_guard), ..Self::new(stream, 0, worker, now) }
    }

    /// True if the connection is still HTTP and empty: the next bytes in either direction begin another exchange.
    fn is_reusable(&self, exchange: &CompletedExchange<'_>) -> bool {
        let CompletedExchange { response, request_sent, response_read } = exchange;
        // After a 101 the connection is no longer HTTP, requested or not; after any other 1xx a response is
        // outstanding.
        let is_http = response.status >= 200 && !response.upgrade;
        let is_delimited = match response.framing {
            BodyFraming::None | BodyFraming::Length(_) | BodyFraming::Chunked => true,
            BodyFraming::UntilClose | BodyFraming::Stream => false,
        };
        let is_empty = self.buffer.as_ref().is_none_or(ReadBuffer::is_empty);
        is_http
            && response.keep_alive
            && is_delimited
            && *request_sent
            && *response_read
            && is_empty
            // A stream ends with its request.
            && self.stream_guard.is_none()
    }

    /// True if it is too old, has carried too many requests, or has been idle too long by the backend's policy.
    fn is_expired(&self, settings: &BackendSettings, now: Time) -> bool {
        let reached = |limit: Option<Duration>, since| {
            limit.is_some_and(|limit| now.saturating_since(since) >= limit)
        };
        reached(settings.connection_max_age, self.opened)
            || reached(Some(settings.connection_idle_timeout), self.idle_since)
            || settings.connection_max_requests.is_some_and(|most| self.served >= most.get())
    }

    /// True if the endpoint has sent neither the end of the connection nor unsolicited bytes.
    ///
    /// The answer is as of the last poll of the runtime; `surely` asks the kernel, which costs a system call.
    fn is_open(&mut self, surely: bool) -> bool {
        if surely || self.stream.seems_readable() { self.stream.is_quiet() } else { true }
    }

    /// Returns the time since the endpoint's last data, if a late read of its last response could matter: on a machine
    /// that is short of CPU, the connection has been idle longer for the endpoint than `seen` shows.
    fn true_age(&self, endpoint: &Endpoint, seen: Duration) -> Duration {
        if endpoint.idle.safe_age().saturating_sub(seen) >= MAX_READ_LAG {
            return seen;
        }
        let silent = self.stream.socket().and_then(sys::since_last_data);
        silent.map_or(seen, |age| seen.max(age))
    }

    /// Moves the connection to this worker's runtime.
    fn adopt(self, worker: usize) -> Option<Self> {
        let stream = self.stream.reattach()?;
        Some(Self { stream, worker, ..self })
    }
}

#[cfg(test)]
mod tests {
    use balance::EndpointRegistry;
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Returns a connection over a socket of its own.
    async fn connection() -> Box<EndpointConnection> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let socket = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        Box::new(EndpointConnection::new(PeerStream::Tcp(socket), 0, 0, Time::default()))
    }

    #[tokio::test]
    async fn only_a_clean_http_connection_returns_to_the_pool() {
        let head = |status, framing, keep_alive, upgrade| {
            let mut head = ResponseHead::new();
            (head.status, head.framing) = (status, framing);
            (head.keep_alive, head.upgrade) = (keep_alive, upgrade);
            head
        };
        let response = |status| head(status, BodyFraming::None, true, false);
        let framed = |framing| head(200, framing, true, false);
        let closing = head(200, BodyFraming::None, false, false);
        let switched = head(101, BodyFraming::None, true, true);
        let tunnel = head(200, BodyFraming::None, true, true);
        for (response, request_sent, response_read, left, is_kept) in [
            (response(200), true, true, "", true),
            (response(404), true, true, "", true),
            (framed(BodyFraming::Length(3)), true, true, "", true),
            (framed(BodyFraming::Chunked), true, true, "", true),
            (framed(BodyFraming::UntilClose), true, true, "", false),
            (framed(BodyFraming::Stream), true, true, "", false),
            (closing, true, true, "", false),
            (switched, true, true, "", false),
            // A 101 that violates the rules of upgrades, and a response to CONNECT.
            (response(101), true, true, "", false),
            (tunnel, true, true, "", false),
            // No final response has arrived.
            (response(0), true, true, "", false),
            (response(100), true, true, "", false),
            (response(103), true, true, "", false),
            (response(200), false, true, "", false),
            (response(200), true, false, "", false),
            (response(200), true, true, "HTTP/1.1 200 OK\r\n", false),
        ] {
            let mut connection = connection().await;
            connection.buffer = Some(ReadBuffer::from_bytes(left.as_bytes().to_vec()));
            let exchange = CompletedExchange { response: &response, request_sent, response_read };
            let address = "127.0.0.1:1".parse().unwrap();
            let endpoint = EndpointRegistry::new()
                .endpoint(address, || EndpointData::new(1, Arc::default(), None));
            give_back(&endpoint, connection, &exchange, false, Time::default());
            let kept = endpoint.data.idle_connections() == 1;
            assert_eq!(kept, is_kept, "{response:?} {request_sent} {response_read} {left:?}");
        }
    }
}
