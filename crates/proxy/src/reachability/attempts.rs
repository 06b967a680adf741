//! Background attempts to connect to endpoints that are unreachable, or may be.

use std::future::pending;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use balance::Time;
use balance::reachability::SILENCE;
use gateway::snapshot::{EndpointProtocol, TransportProtocol};
use tls::ConnectionSecurity;
use tokio::net::UdpSocket;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::outages::{mark_reachable, mark_unreachable};
use crate::backend::Backend;
use crate::clock;
use crate::dial::connect;
use crate::dial::marked_socket;
use crate::dial::pool::Endpoint;
use crate::mutex::lock;
use crate::probe::{self, ProbeSlot};
use crate::worker::ProxyState;

/// Time for a UDP endpoint to answer with ICMP port unreachable.
const UDP_REFUSAL_TIMEOUT: Duration = Duration::from_millis(50);
/// Maximum number of concurrent background attempts and checks, over all endpoints.
const MOST_ATTEMPTS: usize = 256;

/// The background attempts of the health thread.
#[derive(Default)]
pub(crate) struct BackgroundAttempts(JoinSet<BackgroundAttempt>);

/// One attempt to connect, with its result.
struct BackgroundAttempt {
    backend: Arc<Backend>,
    endpoint: Arc<Endpoint>,
    result: Result<(), &'static str>,
}

impl BackgroundAttempts {
    /// Begins the attempts that are due. Returns the time until the next one is due.
    pub(crate) fn begin_due(&mut self, shared: &ProxyState, now: Time) -> Option<Duration> {
        let mut outages = lock(&shared.outages.0);
        outages.retain(|outage| outage.is_attempted || outage.lasts());
        let mut wait: Option<Duration> = None;
        for outage in outages.iter_mut().filter(|outage| !outage.is_attempted) {
            let left = outage.endpoint.attempt_due_at().saturating_since(now);
            if left.is_zero() && self.0.len() < MOST_ATTEMPTS {
                outage.is_attempted = true;
                let patience = outage.endpoint.data.reachability.background_timeout();
                self.begin(&outage.backend, &outage.endpoint, patience, AttemptDepth::Handshake);
            } else {
                // If the maximum is reached, the attempt begins when another ends.
                let left = left.max(Duration::from_millis(1));
                wait = Some(wait.map_or(left, |wait| wait.min(left)));
            }
        }
        wait
    }

    /// Checks the endpoints of a backend that owe answers and are silent. Returns true if the backend needs such
    /// checks.
    pub(crate) fn check_silent(&mut self, backend: &Arc<Backend>, now: Time) -> bool {
        let current = backend.current();
        let members = current.set.members();
        if members.len() < 2 || backend.key.transport == TransportProtocol::Udp {
            return false;
        }
        let reachable = members.iter().filter(|member| member.endpoint.is_reachable());
        for member in reachable {
            let endpoint = &member.endpoint;
            if endpoint.in_flight() > 0 && is_silent(endpoint, now) {
                let is_another = |other: &Arc<Endpoint>| !Arc::ptr_eq(other, endpoint);
                let mut others = members.iter().map(|member| &member.endpoint);
                if others.any(|other| is_another(other) && other.is_reachable()) {
                    self.check(backend, endpoint);
                }
            }
        }
        true
    }

    /// Connects once to an endpoint that may be gone. If an endpoint was ejected because its connections broke when it
    /// died, it may get no further request, and so no connection attempt that would mark it unreachable. Then the
    /// half-open request at the end of the ejection would fail and extend the ejection, though the endpoint may return
    /// soon.
    pub(crate) fn check(&mut self, backend: &Arc<Backend>, endpoint: &Arc<Endpoint>) {
        if endpoint.is_reachable() && self.0.len() < MOST_ATTEMPTS {
            let patience = endpoint.data.reachability.connect_timeout();
            self.begin(backend, endpoint, patience, AttemptDepth::Connection);
        }
    }

    /// Checks the endpoint with an address, for the first of the backends that has it.
    pub(crate) fn check_address(&mut self, backends: &[Arc<Backend>], address: SocketAddr) {
        for backend in backends {
            if let Some(member) = backend.current().set.find(address) {
                self.check(backend, &member.endpoint);
                return;
            }
        }
    }

    /// Waits until an attempt ends, and applies its result.
    pub(crate) async fn conclude_next(&mut self, shared: &ProxyState) {
        match self.0.join_next().await {
            Some(Ok(attempt)) => attempt.conclude(shared),
            // The task was cancelled with the runtime.
            Some(Err(_)) => {}
            None => pending().await,
        }
    }

    fn begin(
        &mut self,
        backend: &Arc<Backend>,
        endpoint: &Arc<Endpoint>,
        patience: Duration,
        depth: AttemptDepth,
    ) {
        let (backend, endpoint) = (Arc::clone(backend), Arc::clone(endpoint));
        self.0.spawn(async move {
            let result = timeout(patience, connect(&backend, &endpoint, depth)).await;
            let result = result.unwrap_or(Err("timeout"));
            BackgroundAttempt { backend, endpoint, result }
        });
    }
}

impl BackgroundAttempt {
    fn conclude(self, shared: &ProxyState) {
        let Self { backend, endpoint, result } = self;
        for outage in lock(&shared.outages.0).iter_mut() {
            outage.is_attempted &= !Arc::ptr_eq(&outage.endpoint, &endpoint);
        }
        match result {
            Ok(()) => mark_reachable(&backend, &endpoint),
            Err(cause) if endpoint.is_reachable() => {
                mark_unreachable(shared, &backend, &endpoint, cause);
            }
            Err(_) => {
                endpoint.data.reachability.failed_attempts.fetch_add(1, Ordering::Relaxed);
                endpoint.attempt_failed(clock::now());
            }
        }
    }
}

fn is_silent(endpoint: &Endpoint, now: Time) -> bool {
    let shards = endpoint.data.counters.iter();
    let (asked, answered) = shards.fold((0_u64, 0_u64), |(asked, answered), shard| {
        (asked + shard.requests_sent.value(), answered + shard.requests_settled.value())
    });
    let usual = endpoint.mean_latency(now).unwrap_or(SILENCE / 2);
    let owed = asked.saturating_sub(answered);
    lock(&endpoint.data.reachability.silence).should_check(owed, answered, usual, now)
}

/// The extent of an attempt.
#[derive(Clone, Copy, PartialEq, Eq)]
enum AttemptDepth {
    /// Only a TCP connection: shows that the host is reachable.
    Connection,
    /// The handshakes too (PROXY protocol, TLS): shows that it accepts requests, as far as possible without sending
    /// one.
    Handshake,
}

/// Connects to the endpoint like the backend's connections do, and closes the connection again.
async fn connect(
    backend: &Backend,
    endpoint: &Endpoint,
    depth: AttemptDepth,
) -> Result<(), &'static str> {
    let current = backend.current();
    if backend.key.transport == TransportProtocol::Udp {
        return check_udp(endpoint).await;
    }
    // A capped endpoint has at most as many connections as slots, and this connection counts.
    let _slot = match depth {
        AttemptDepth::Connection => match ProbeSlot::take(backend, endpoint, &current) {
            Some(slot) => Some(slot),
            // The endpoint is full, so no request waits for the result.
            None => return Ok(()),
        },
        AttemptDepth::Handshake => {
            let limit = endpoint.limit(current.limits.cap).unwrap_or(u32::MAX);
            if endpoint.in_flight() >= limit {
                return Err("all slots are in use");
            }
            if current.limits.cap.is_some() {
                endpoint.data.close_oldest_idle();
            }
            None
        }
    };
    let over_tcp = async {
        let begun = clock::now();
        let mark = marked_socket::mark(endpoint, None);
        let connecting = marked_socket::connect_tcp(endpoint.address, mark);
        let socket = connecting.await.map_err(|error| {
            if connect::is_out_of_descriptors(&error) {
                "proxy is out of file descriptors"
            } else {
                "connection refused"
            }
        })?;
        if depth == AttemptDepth::Handshake {
            let security = ConnectionSecurity::of_requests(current.tls_context.as_ref());
            let begun = probe::open_stream(socket, current.settings.proxy_protocol, security).await;
            begun.map_err(|finding| finding.failure_reason().unwrap_or("inconclusive"))?;
        }
        endpoint.data.reachability.record_connect_time(clock::now().saturating_since(begun));
        Ok(())
    };
    if current.settings.protocol != EndpointProtocol::Http3 {
        return over_tcp.await;
    }
    // Not every HTTP/3 server also listens on TCP.
    let (mut over_tcp, mut over_quic) =
        (std::pin::pin!(over_tcp), std::pin::pin!(check_quic(endpoint)));
    tokio::select! {
        Ok(()) = &mut over_quic => Ok(()),
        result = &mut over_tcp => match result {
            Ok(()) => Ok(()),
            Err(cause) => over_quic.await.map_err(|_error| cause),
        },
    }
}

/// Returns an error if no process listens on the port: then the kernel answers with ICMP port unreachable. The probe is
/// an empty datagram, which servers ignore.
async fn check_udp(endpoint: &Endpoint) -> Result<(), &'static str> {
    let socket = connect_udp(endpoint)?;
    let refused = async {
        socket.send(&[]).await?;
        socket.recv(&mut [0; 1]).await
    };
    match timeout(UDP_REFUSAL_TIMEOUT, refused).await {
        Ok(Err(_)) => Err("port unreachable"),
        Ok(Ok(_)) | Err(_) => Ok(()),
    }
}

/// Returns an error unless a QUIC server answers. The probe has a reserved version: every server answers with Version
/// Negotiation (RFC 9000, sections 6 and 15), and keeps no state for it.
async fn check_quic(endpoint: &Endpoint) -> Result<(), &'static str> {
    /// A long header with a version that is reserved for forcing Version Negotiation.
    const HEADER: [u8; 5] = [0xc0, 0x1a, 0x2a, 0x3a, 0x4a];
    /// The length of each connection ID, which may be any bytes.
    const ID: u8 = 8;
    /// The minimum size of a client's first datagram (RFC 9000, section 14.1).
    const LENGTH: usize = 1200;
    let socket = connect_udp(endpoint)?;
    let mut datagram = HEADER.to_vec();
    for byte in [b's', b'e'] {
        datagram.push(ID);
        datagram.extend([byte; ID as usize]);
    }
    datagram.resize(LENGTH, 0);
    let asked = async {
        socket.send(&datagram).await?;
        socket.recv(&mut [0; 64]).await
    };
    asked.await.map(|_| ()).map_err(|_error| "port unreachable")
}

fn connect_udp(endpoint: &Endpoint) -> Result<UdpSocket, &'static str> {
    let mark = marked_socket::mark(endpoint, None);
    let socket = marked_socket::connect_udp(endpoint.address, mark);
    let socket = socket.map_err(|_error| "no route to the endpoint")?;
    UdpSocket::from_std(socket).map_err(|_error| "cannot open a UDP socket")
}
