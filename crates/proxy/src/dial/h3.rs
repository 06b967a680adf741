//! HTTP/3 to endpoints, and the fallback to TCP.
//!
//! A request uses QUIC if a connection is established in time; if not, it uses TCP to the same address, with the same
//! TLS verification: HTTP/2 or HTTP/1.1, as ALPN negotiates. The result is remembered per endpoint
//! (`Http3Reachability`), so that if UDP is blocked on the path, one request now and then is delayed for a moment, and
//! the others are not.

use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use balance::{AttemptResult, Time};
use tls::EndpointTlsError;
use tokio::time::sleep_until;

use crate::clock;
use crate::dial::multiplex_pool::StreamWaiter;
use crate::dial::pool::EndpointConnection;
use crate::dial::stream_call::{StreamGrant, StreamRequest};
use crate::failure::Failure;
use crate::worker::Worker;

/// One connection.
mod connection;
/// Reachability of an endpoint over QUIC.
pub(crate) mod reachability;
/// The connections of one worker.
pub(crate) mod pools;
/// Opens connections for them.
mod dial_task;
/// HTTP/1.1 in place of HTTP/3.
pub(crate) mod h1_fallback;
/// A stream that frames bodies by itself.
pub(crate) mod framed_stream;

/// Connection attempt delay (happy eyeballs): the time that a QUIC connection may take before TCP is tried as well. In
/// the same data centre a handshake takes some milliseconds, around the world a third of a second.
pub(super) const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(300);

/// The result of opening a transport for a request.
pub(crate) enum OpenedTransport {
    /// A stream, on which the request's head has been sent.
    Stream(Box<EndpointConnection>),
    /// The endpoint speaks only HTTP/1.1 over TCP, and QUIC is not available.
    Http1,
}

/// Opens a stream on an HTTP/3 connection that is open and has capacity.
pub(crate) fn try_open_existing(
    worker: &Worker,
    call: &StreamRequest<'_>,
) -> Option<Box<EndpointConnection>> {
    if uses_proxy_protocol(call) {
        return None;
    }
    // An error is found again, and reported, by the caller's next step.
    worker.h3_pools.try_open_stream(call).ok().flatten()
}

/// Returns the first transport that is ready; the caller bounds the time.
pub(crate) async fn open(
    worker: &Rc<Worker>,
    call: StreamRequest<'_>,
) -> Result<OpenedTransport, Failure> {
    let takes_quic = may_use_quic(worker, &call);
    let mut race = TransportRace {
        worker,
        request: call,
        quic_allowed: takes_quic,
        quic_waiter: None,
        tcp_waiter: None,
        tcp_failure: None,
    };
    loop {
        if let Some(transport) = race.try_open()? {
            return Ok(transport);
        }
        race.wait().await;
        race.request.now = clock::now();
    }
}

fn may_use_quic(worker: &Rc<Worker>, call: &StreamRequest<'_>) -> bool {
    let reachability = &call.endpoint.data.http3_reachability;
    if uses_proxy_protocol(call) {
        return false;
    }
    if !reachability.is_available() && reachability.claim_retry(call.now) {
        // This request uses TCP. The dial tests QUIC for later requests.
        worker.h3_pools.dial(worker, call);
    }
    reachability.is_available()
}

/// True if the connection has to begin with a PROXY protocol header, which requires TCP.
fn uses_proxy_protocol(call: &StreamRequest<'_>) -> bool {
    call.proxy_protocol_client.is_some()
}

/// The transports that are being opened for one request.
struct TransportRace<'a> {
    worker: &'a Rc<Worker>,
    request: StreamRequest<'a>,
    /// True if QUIC has not failed.
    quic_allowed: bool,
    quic_waiter: Option<StreamWaiter>,
    tcp_waiter: Option<StreamWaiter>,
    /// The failure of TCP, if it has failed.
    tcp_failure: Option<Failure>,
}

impl TransportRace<'_> {
    fn try_open(&mut self) -> Result<Option<OpenedTransport>, Failure> {
        if self.quic_allowed {
            match self.worker.h3_pools.acquire_stream(
                self.worker,
                &self.request,
                self.quic_waiter.as_ref(),
            ) {
                Ok(StreamGrant::Opened(connection)) => {
                    return Ok(Some(OpenedTransport::Stream(connection)));
                }
                Ok(StreamGrant::Wait(waiting)) => self.quic_waiter = Some(waiting),
                // Few servers support WebSocket over HTTP/3, but all do over HTTP/1.1.
                Err(Failure::UpgradeRefused) => return Ok(Some(OpenedTransport::Http1)),
                Err(failure) if is_quic_failure(failure) => self.quic_allowed = false,
                Err(failure) => return Err(failure),
            }
        }
        if self.tcp_start_time().is_some_and(|from| self.request.now < from) {
            return Ok(None);
        }
        match self.try_open_tcp() {
            // QUIC may still succeed.
            Err(failure) if self.quic_allowed => {
                self.tcp_failure = Some(failure);
                Ok(None)
            }
            asked => asked,
        }
    }

    /// Returns the time at which TCP is tried too; `None`: now, because QUIC is not possible.
    fn tcp_start_time(&self) -> Option<Time> {
        if !self.quic_allowed {
            return None;
        }
        // If no dial is in progress, the pool has as many connections as allowed, and all are full.
        let since = self.worker.h3_pools.dialing_since(&self.request);
        Some(since.map_or(Time::MAX, |since| since + CONNECTION_ATTEMPT_DELAY))
    }

    fn try_open_tcp(&mut self) -> Result<Option<OpenedTransport>, Failure> {
        if let Some(failure) = self.tcp_failure {
            return Err(failure);
        }
        let endpoint = self.request.endpoint;
        let transport = if endpoint.data.http3_reachability.speaks_http1() {
            OpenedTransport::Http1
        } else {
            match self.request.acquire_http2_stream(self.tcp_waiter.as_ref()) {
                Ok(StreamGrant::Opened(connection)) => OpenedTransport::Stream(connection),
                Ok(StreamGrant::Wait(waiting)) => {
                    self.tcp_waiter = Some(waiting);
                    return Ok(None);
                }
                Err(Failure::NotHttp2) if endpoint.data.http3_reachability.speaks_http1() => {
                    OpenedTransport::Http1
                }
                Err(Failure::UpgradeRefused) => OpenedTransport::Http1,
                Err(failure) => {
                    // An endpoint that was down may support QUIC when it returns.
                    endpoint.data.http3_reachability.end_backoff(self.request.now);
                    return Err(failure);
                }
            }
        };
        if !uses_proxy_protocol(&self.request) {
            endpoint.data.counters[self.request.worker].http3_fallbacks.add(1);
        }
        Ok(Some(transport))
    }

    /// Waits until a retry may succeed.
    async fn wait(&self) {
        let tcp_from = self
            .tcp_start_time()
            .filter(|_| self.tcp_waiter.is_none() && self.tcp_failure.is_none());
        let head_start = async {
            match tcp_from {
                Some(from) => sleep_until(clock::instant(from)).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = wait_for_stream(self.quic_waiter.as_ref()) => {}
            () = wait_for_stream(self.tcp_waiter.as_ref()) => {}
            () = head_start => {}
        }
    }
}

async fn wait_for_stream(waiting: Option<&StreamWaiter>) {
    match waiting {
        Some(waiting) => waiting.wait().await,
        None => pending().await,
    }
}

/// True if TCP may succeed instead. A certificate that is invalid over QUIC is invalid over TCP.
fn is_quic_failure(failure: Failure) -> bool {
    match failure {
        Failure::EndpointTls(EndpointTlsError::Certificate | EndpointTlsError::UnusableConfig) => {
            false
        }
        Failure::EndpointTls(EndpointTlsError::Alert | EndpointTlsError::Protocol) => true,
        failure => {
            failure.attempt_end() == AttemptResult::ConnectFailed
                || failure.attempt_end() == AttemptResult::ConnectionBroken
        }
    }
}
