//! HTTP/3 to endpoints, and what is done where it cannot be had.
//!
//! A request goes by QUIC if that is up in time; if not, by TCP to the same address, secured and checked the same way:
//! HTTP/2 or HTTP/1.1, as TLS agrees. What was learned of an endpoint is remembered for it (`Http3Reachability`), so that UDP which is
//! blocked on the way costs one request in a while a moment, and the others nothing.

use std::future::pending;
use std::rc::Rc;
use std::time::Duration;

use balance::{AttemptResult, Time};
use tokio::time::sleep_until;

use crate::clock;
use crate::dial::multiplex_pool::StreamWaiter;
use crate::dial::pool::EndpointConnection;
use crate::dial::stream_request::{StreamGrant, StreamRequest};
use crate::failure::Failure;
use crate::tls::EndpointTlsError;
use crate::worker::Worker;

/// One connection.
mod connection;
/// Whether an endpoint can be reached by QUIC.
mod reachability;
/// The connections of one worker.
mod pools;
/// HTTP/1.1 where it is spoken in HTTP/3's place.
pub(crate) mod h1_fallback;

pub(crate) use pools::H3WorkerPools;
pub(crate) use reachability::Http3Reachability;

/// So long a QUIC connection may take before the request goes by TCP, if that is sooner there. In the same data centre a
/// handshake takes some milliseconds, around the world a third of a second.
pub(super) const CONNECTION_ATTEMPT_DELAY: Duration = Duration::from_millis(300);

/// How a request goes to its endpoint.
pub(crate) enum RequestTransport {
    /// By a stream, on which its head has been sent.
    Stream(Box<EndpointConnection>),
    /// HTTP/1.1 is all that the endpoint speaks over TCP, and nothing else is to be had.
    Http1,
}

/// A stream of HTTP/3 on a connection that is open and has room.
pub(crate) fn try_open_existing(
    worker: &Worker,
    call: &StreamRequest<'_>,
) -> Option<Box<EndpointConnection>> {
    if uses_proxy_protocol(call) {
        return None;
    }
    // What cannot be sent is found out again, where it is told.
    worker.h3_pools.try_open_stream(call).ok().flatten()
}

/// The first way that opens; the caller bounds the time.
pub(crate) async fn open(
    worker: &Rc<Worker>,
    call: StreamRequest<'_>,
) -> Result<RequestTransport, Failure> {
    let takes_quic = may_use_quic(worker, &call);
    let mut ways = TransportRace {
        worker,
        request: call,
        quic_allowed: takes_quic,
        quic_waiter: None,
        tcp_waiter: None,
        tcp_failure: None,
    };
    loop {
        if let Some(way) = ways.try_open()? {
            return Ok(way);
        }
        ways.wait().await;
        ways.request.now = clock::now();
    }
}

fn may_use_quic(worker: &Rc<Worker>, call: &StreamRequest<'_>) -> bool {
    let reach = &call.endpoint.data.http3_reachability;
    if uses_proxy_protocol(call) {
        return false;
    }
    if !reach.is_available() && reach.claim_retry(call.now) {
        // This request goes by TCP. It finds out for those that follow.
        worker.h3_pools.dial(worker, call);
    }
    reach.is_available()
}

/// What begins with a header (PROXY protocol) is a connection of TCP.
fn uses_proxy_protocol(call: &StreamRequest<'_>) -> bool {
    call.proxy_protocol_client.is_some()
}

/// Ways that are being opened for one request.
struct TransportRace<'a> {
    worker: &'a Rc<Worker>,
    request: StreamRequest<'a>,
    /// QUIC has not failed.
    quic_allowed: bool,
    quic_waiter: Option<StreamWaiter>,
    tcp_waiter: Option<StreamWaiter>,
    /// Why there is no way over TCP, if there is none.
    tcp_failure: Option<Failure>,
}

impl TransportRace<'_> {
    fn try_open(&mut self) -> Result<Option<RequestTransport>, Failure> {
        if self.quic_allowed {
            match self.worker.h3_pools.acquire_stream(
                self.worker,
                &self.request,
                self.quic_waiter.as_ref(),
            ) {
                Ok(StreamGrant::Opened(connection)) => {
                    return Ok(Some(RequestTransport::Stream(connection)));
                }
                Ok(StreamGrant::Wait(waiting)) => self.quic_waiter = Some(waiting),
                // WebSocket needs what few servers know over HTTP/3, and all over HTTP/1.1.
                Err(Failure::UpgradeRefused) => return Ok(Some(RequestTransport::Http1)),
                Err(failure) if is_quic_failure(failure) => self.quic_allowed = false,
                Err(failure) => return Err(failure),
            }
        }
        if self.tcp_start_time().is_some_and(|from| self.request.now < from) {
            return Ok(None);
        }
        match self.try_open_tcp() {
            // It may still come by QUIC.
            Err(failure) if self.quic_allowed => {
                self.tcp_failure = Some(failure);
                Ok(None)
            }
            asked => asked,
        }
    }

    /// When TCP is to be tried too; `None`: now, since QUIC is out of the question.
    fn tcp_start_time(&self) -> Option<Time> {
        if !self.quic_allowed {
            return None;
        }
        // Where nothing is being opened, all that can be had is there, and full.
        let since = self.worker.h3_pools.dialing_since(&self.request);
        Some(since.map_or(Time::MAX, |since| since + CONNECTION_ATTEMPT_DELAY))
    }

    fn try_open_tcp(&mut self) -> Result<Option<RequestTransport>, Failure> {
        if let Some(failure) = self.tcp_failure {
            return Err(failure);
        }
        let endpoint = self.request.endpoint;
        let way = if endpoint.data.http3_reachability.speaks_http1() {
            RequestTransport::Http1
        } else {
            match self.request.acquire_http2_stream(self.tcp_waiter.as_ref()) {
                Ok(StreamGrant::Opened(connection)) => RequestTransport::Stream(connection),
                Ok(StreamGrant::Wait(waiting)) => {
                    self.tcp_waiter = Some(waiting);
                    return Ok(None);
                }
                Err(Failure::NotHttp2) if endpoint.data.http3_reachability.speaks_http1() => {
                    RequestTransport::Http1
                }
                Err(Failure::UpgradeRefused) => RequestTransport::Http1,
                Err(failure) => {
                    // Who is not there at all may come back with QUIC.
                    endpoint.data.http3_reachability.end_backoff(self.request.now);
                    return Err(failure);
                }
            }
        };
        if !uses_proxy_protocol(&self.request) {
            endpoint.data.counters[self.request.worker].http3_fallbacks.add(1);
        }
        Ok(Some(way))
    }

    /// Until it is worth while to ask again.
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

/// TCP may do better. A certificate that is wrong here is wrong there.
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
