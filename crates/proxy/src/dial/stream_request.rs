//! Requests that share connections: each is a stream of HTTP/2 or HTTP/3, on one of few connections.
//!
//! Apart from how a stream is acquired, and the meaning of its loss, an attempt is the same as over HTTP/1.1. A stream
//! carries one request and is never reused; the connections are, in a pool. If a request is abandoned, its stream is
//! reset, which tells the endpoint, so its slot is free at once.

use std::task::{Context, Poll, ready};

use balance::{AttemptResult, Time};
use codec::h1::BadResponse;
use codec::head::{BodyFraming, RequestHead, ResponseHead};
use gateway::snapshot::EndpointProtocol;

use crate::backend::Slot;
use crate::context::AttemptContext;
use crate::dial::attempt::{
    self, AttemptConnection, AttemptFailure, AttemptHistory, RetryEligibility,
};
use crate::dial::h3::{self, OpenedTransport, h1_fallback};
use crate::dial::multiplex_connection::StreamGuard;
use crate::dial::pool::EndpointConnection;
use crate::dial::stream_call::{RequestSource, StreamGrant, StreamRequest};
use crate::dial::websocket;
use crate::failure::Failure;
use crate::outcome::AttemptConclusion;
use crate::stream::{PeerStream, StreamError};

/// Returns the framing on a stream of a body whose head has the framing `framing`.
pub(crate) fn stream_framing(framing: BodyFraming) -> BodyFraming {
    if framing.is_empty() { BodyFraming::None } else { BodyFraming::Stream }
}

/// Returns a connection for the request of `exchange`, on which its head has been sent.
pub(super) async fn connection(
    context: &mut AttemptContext<'_>,
    slot: Slot,
    history: AttemptHistory<'_>,
    now: Time,
) -> Result<(Slot, Box<EndpointConnection>), AttemptFailure> {
    let failure = match select_transport(context, &slot, history, now).await {
        Ok(OpenedTransport::Stream(connection)) => return Ok((slot, connection)),
        Ok(OpenedTransport::Http1) if context.exchange.grpc_call.is_none() => {
            return h1_fallback::connection(context, slot, history, now).await;
        }
        // gRPC calls need features that HTTP/1.1 lacks.
        Ok(OpenedTransport::Http1) => Failure::NotHttp2,
        Err(failure) => failure,
    };
    Err(attempt::conclude_unsent(context.worker, slot, failure, context.policy))
}

/// Selects the transport for the request.
async fn select_transport(
    context: &mut AttemptContext<'_>,
    slot: &Slot,
    history: AttemptHistory<'_>,
    now: Time,
) -> Result<OpenedTransport, Failure> {
    let AttemptContext { worker, client, exchange, policy, .. } = context;
    let current = &*policy.backend_config;
    let call = StreamRequest {
        worker: worker.index,
        endpoint: &slot.endpoint,
        backend_config: current,
        proxy_protocol_client: current.settings.proxy_protocol.map(|_| client.peer),
        proxy_protocol_header: client.proxy_protocol_header(&current.settings),
        client_mark: client.mark_for(worker, &slot.endpoint),
        fresh: history.fresh,
        now,
        source: RequestSource { request: &exchange.request, framing: exchange.request.framing },
    };
    match policy.endpoint_protocol {
        EndpointProtocol::Http1 => Ok(OpenedTransport::Http1),
        EndpointProtocol::Http2 => match call.acquire_http2_stream(None)? {
            StreamGrant::Opened(connection) => Ok(OpenedTransport::Stream(connection)),
            StreamGrant::Wait(waiting) => {
                let waits = Box::pin(call.wait_for_http2_stream(waiting));
                let deadline = history.connect_deadline(slot, policy, now);
                let waited = attempt::await_connection(worker, client, deadline, waits).await;
                waited.map(OpenedTransport::Stream)
            }
        },
        EndpointProtocol::Http3 => {
            if let Some(connection) = h3::try_open_existing(worker, &call) {
                return Ok(OpenedTransport::Stream(connection));
            }
            let deadline = history.connect_deadline(slot, policy, now);
            let opening = Box::pin(h3::open(worker, call));
            attempt::await_connection(worker, client, deadline, opening).await
        }
    }
}

/// Reads the head of the endpoint's response on a stream into `response`, interim or final.
pub(crate) fn poll_response(
    cx: &mut Context<'_>,
    connection: &mut EndpointConnection,
    request: &RequestHead,
    response: &mut ResponseHead,
) -> Poll<Result<(), Failure>> {
    let EndpointConnection { stream, stream_guard, .. } = connection;
    let read = match stream {
        PeerStream::H2(message) => message.poll_response(cx, request, response),
        PeerStream::H3(message) => message.poll_response(cx, request, response),
        PeerStream::Tcp(_) | PeerStream::Tls(_) | PeerStream::Framed(_) => {
            unreachable!("the head of a byte stream is parsed in poll_head")
        }
    };
    if let Err(failure) = ready!(read) {
        return Poll::Ready(Err(stream.message_error().map_or(failure, stream_failure)));
    }
    if let Some(stream_guard) = stream_guard {
        stream_guard.record_response();
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

/// True if the endpoint has reported that it did not process the request.
pub(super) fn is_unprocessed(connection: &EndpointConnection) -> bool {
    matches!(
        connection.stream.message_error(),
        Some(StreamError::Refused | StreamError::Unprocessed)
    )
}

/// Decides if the request may be sent again. Its stream has ended or is reset, and its slot is free.
pub(super) fn conclude_stream_failure(
    context: &AttemptContext<'_>,
    attempt: AttemptConnection,
    failure: Failure,
) -> AttemptFailure {
    let AttemptContext { worker, exchange, policy, .. } = context;
    attempt.mark_suspect(failure);
    let AttemptConnection { connection, slot, .. } = attempt;
    let unprocessed = is_unprocessed(&connection);
    let unacknowledged = failure == Failure::EndpointClosed
        && connection.stream_guard.as_ref().is_some_and(StreamGuard::is_unacknowledged);
    let (was_idle, fresh) = connection
        .stream_guard
        .as_ref()
        .map_or((false, true), |stream_guard| (stream_guard.was_idle, stream_guard.fresh));
    // An endpoint may end a connection if it reports which requests it processed, if none is in progress, or before it
    // receives any.
    let stale = failure == Failure::EndpointClosed && (unprocessed || was_idle || unacknowledged);
    let end = if stale {
        AttemptResult::Cancelled
    } else {
        policy.discount_late_timeout(failure.attempt_end(), &slot)
    };
    let conclusion = AttemptConclusion { hold_time_is_signal: true, ..AttemptConclusion::now(end) };
    slot.conclude(worker, &policy.backend_config, conclusion);
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
