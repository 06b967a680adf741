//! Requests that share connections: each is a stream of HTTP/2 or HTTP/3, on one of few links.
//!
//! Beyond how a stream is had, and what its loss means, an attempt is the same as over HTTP/1.1. A stream carries one
//! request and is never kept; the links are, in a trunk. A request that is given up resets its stream, which tells the
//! endpoint, so its slot is free at once.

use std::net::SocketAddr;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use balance::{AttemptResult, Time};
use gateway::snapshot::EndpointProtocol;
use http::uri::Scheme;

use crate::accept::client::ClientConnection;
use crate::backend::{BackendConfig, Slot};
use crate::clock;
use crate::dial::attempt::{
    self, AttemptConnection, AttemptFailure, AttemptHistory, RetryEligibility,
};
use crate::dial::h3::{self, RequestTransport, h1_fallback};
use crate::dial::multiplex_connection::StreamGuard;
use crate::dial::multiplex_pool::{PoolKey, StreamWaiter};
use crate::dial::pool::{Endpoint, EndpointConnection};
use crate::dial::websocket;
use crate::exchange::{Exchange, RequestPolicy};
use crate::failure::Failure;
use crate::h1::BadResponse;
use crate::head::{BodyFraming, RequestHead, ResponseHead};
use crate::stream::{PeerStream, StreamError};
use crate::worker::Worker;

/// One request for which a stream is to be opened.
pub(crate) struct StreamRequest<'a> {
    pub(crate) worker: usize,
    pub(crate) endpoint: &'a Arc<Endpoint>,
    pub(crate) backend_config: &'a BackendConfig,
    /// The client whose address a connection must begin with (PROXY protocol), and how it says so.
    pub(crate) proxy_protocol_client: Option<SocketAddr>,
    pub(crate) proxy_protocol_header: Vec<u8>,
    /// The request was lost on another connection just now.
    pub(crate) fresh: bool,
    pub(crate) now: Time,
    pub(crate) source: RequestSource<'a>,
}

/// What is sent first: the head, which may be all.
#[derive(Clone, Copy)]
pub(crate) struct RequestSource<'a> {
    pub(crate) request: &'a RequestHead,
    /// Of the body that follows.
    pub(crate) framing: BodyFraming,
}

impl RequestSource<'_> {
    pub(super) fn is_whole(&self) -> bool {
        !self.request.upgrade && self.framing.is_empty()
    }
}

/// How a body of which its head says `said` goes by a stream.
pub(crate) fn stream_framing(said: BodyFraming) -> BodyFraming {
    if said.is_empty() { BodyFraming::None } else { BodyFraming::Stream }
}

/// What came of asking for a stream.
pub(crate) enum StreamGrant {
    Opened(Box<EndpointConnection>),
    /// Every link is full, and another is being opened if there may be one.
    Wait(StreamWaiter),
}

impl StreamRequest<'_> {
    pub(super) fn pool_key(&self) -> PoolKey<'_> {
        PoolKey {
            proxy_protocol_client: self.proxy_protocol_client,
            tls_context: self.backend_config.tls_context.as_ref(),
        }
    }

    pub(super) fn scheme(&self) -> Scheme {
        if self.backend_config.tls_context.is_some() { Scheme::HTTPS } else { Scheme::HTTP }
    }
}

/// A connection for the request of `exchange`, on which its head has been sent.
pub(super) async fn connection(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    slot: Slot,
    effort: AttemptHistory<'_>,
    terms: &RequestPolicy<'_>,
    now: Time,
) -> Result<(Slot, Box<EndpointConnection>), AttemptFailure> {
    let failure = match select_transport(worker, client, exchange, &slot, effort, terms, now).await
    {
        Ok(RequestTransport::Stream(connection)) => return Ok((slot, connection)),
        Ok(RequestTransport::Http1) if exchange.grpc_call.is_none() => {
            let wish = attempt::connection_requirements(worker, client, exchange, terms, now);
            return h1_fallback::connection(worker, client, exchange, slot, effort, terms, &wish)
                .await;
        }
        // Calls of gRPC need what HTTP/1.1 has not.
        Ok(RequestTransport::Http1) => Failure::NotHttp2,
        Err(failure) => failure,
    };
    Err(attempt::conclude_unsent(worker, slot, failure, terms))
}

/// How the request goes.
async fn select_transport(
    worker: &Rc<Worker>,
    client: &mut ClientConnection,
    exchange: &Exchange,
    slot: &Slot,
    effort: AttemptHistory<'_>,
    terms: &RequestPolicy<'_>,
    now: Time,
) -> Result<RequestTransport, Failure> {
    let current = &*terms.backend_config;
    let call = StreamRequest {
        worker: worker.index,
        endpoint: &slot.endpoint,
        backend_config: current,
        proxy_protocol_client: current.settings.proxy_protocol.map(|_| client.peer),
        proxy_protocol_header: client.proxy_protocol_header(&current.settings),
        fresh: effort.fresh,
        now,
        source: RequestSource { request: &exchange.request, framing: exchange.request.framing },
    };
    match current.settings.protocol {
        EndpointProtocol::Http1 => Ok(RequestTransport::Http1),
        EndpointProtocol::Http2 => match call.acquire_http2_stream(None)? {
            StreamGrant::Opened(connection) => Ok(RequestTransport::Stream(connection)),
            StreamGrant::Wait(waiting) => {
                let waits = Box::pin(call.wait_for_http2_stream(waiting));
                let hurry = effort.patience(slot, terms);
                let waited =
                    attempt::await_connection(worker, client, terms, now, hurry, waits).await;
                waited.map(RequestTransport::Stream)
            }
        },
        EndpointProtocol::Http3 => {
            if let Some(connection) = h3::try_open_existing(worker, &call) {
                return Ok(RequestTransport::Stream(connection));
            }
            let hurry = effort.patience(slot, terms);
            let opening = Box::pin(h3::open(worker, call));
            attempt::await_connection(worker, client, terms, now, hurry, opening).await
        }
    }
}

/// Ready when `response` is the head of the endpoint's response on a stream, interim or final.
pub(crate) fn poll_response(
    cx: &mut Context<'_>,
    connection: &mut EndpointConnection,
    request: &RequestHead,
    response: &mut ResponseHead,
) -> Poll<Result<(), Failure>> {
    let EndpointConnection { stream, stream_guard: berth, .. } = connection;
    let read = match stream {
        PeerStream::H2(message) => message.poll_response(cx, request, response),
        PeerStream::H3(message) => message.poll_response(cx, request, response),
        PeerStream::Tcp(_) | PeerStream::Tls(_) | PeerStream::Framed(_) => {
            unreachable!("a head that comes as bytes is parsed")
        }
    };
    if let Err(failure) = ready!(read) {
        return Poll::Ready(Err(stream.message_error().map_or(failure, stream_failure)));
    }
    if let Some(berth) = berth {
        berth.record_response();
    }
    websocket::add_accept_key(request, response);
    Poll::Ready(Ok(()))
}

fn stream_failure(broken: StreamError) -> Failure {
    match broken {
        StreamError::Refused => Failure::StreamRefused,
        StreamError::Reset => Failure::EndpointReset,
        StreamError::Malformed => Failure::BadResponse(BadResponse::ProtocolViolation),
        StreamError::Unprocessed | StreamError::Closed => Failure::EndpointClosed,
    }
}

/// The endpoint has said that it has done nothing of the request.
pub(super) fn is_unprocessed(connection: &EndpointConnection) -> bool {
    matches!(
        connection.stream.message_error(),
        Some(StreamError::Refused | StreamError::Unprocessed)
    )
}

/// Says whether the request may be sent again. Its stream has ended or is reset, and its slot is free.
pub(super) fn conclude_stream_failure(
    worker: &Worker,
    lease: AttemptConnection,
    exchange: &Exchange,
    failure: Failure,
    terms: &RequestPolicy<'_>,
) -> AttemptFailure {
    lease.mark_suspect(failure);
    let AttemptConnection { connection, slot, .. } = lease;
    let unprocessed = is_unprocessed(&connection);
    let unacknowledged = failure == Failure::EndpointClosed
        && connection.stream_guard.as_ref().is_some_and(StreamGuard::is_unacknowledged);
    let (was_idle, fresh) = connection
        .stream_guard
        .as_ref()
        .map_or((false, true), |berth| (berth.was_idle, berth.fresh));
    // To end a connection is an endpoint's right, if it says for what, if nothing is under way, or before it gets anything.
    let stale = failure == Failure::EndpointClosed && (unprocessed || was_idle || unacknowledged);
    let end = if stale {
        AttemptResult::Cancelled
    } else {
        terms.discount_late_timeout(failure.attempt_end(), &slot)
    };
    slot.conclude_with_hold_time(clock::now(), worker, &terms.backend_config, end, None);
    let counters = &slot.endpoint.data.counters[worker.index];
    let over_quic = matches!(connection.stream, PeerStream::H3(_));
    let refused = if over_quic { &counters.http3 } else { &counters.http2 };
    refused.streams_refused.add(u64::from(unprocessed));
    drop(connection);
    let is_the_endpoints = matches!(
        failure,
        Failure::EndpointClosed
            | Failure::EndpointReset
            | Failure::AttemptTimeout
            | Failure::BadResponse(_)
    );
    let repeatable = unprocessed
        || unacknowledged
        || (is_the_endpoints && exchange.request.method.is_idempotent());
    let retry = match () {
        () if !repeatable => RetryEligibility::Never,
        () if stale && !fresh => RetryEligibility::SameEndpoint(slot),
        () => RetryEligibility::another_endpoint(&slot.endpoint),
    };
    AttemptFailure { failure, retry }
}
