//! HTTP/1.1 in place of HTTP/3.
//!
//! A request is prepared before its transport is known: its body has no framing, and its end is signalled. The
//! connection here writes the head and frames the body by itself. Responses are read as usual.

use balance::Time;
use codec::h1::write;
use codec::head::BodyFraming;
use tokio::io::AsyncWriteExt;

use super::framed_stream::H1FallbackStream;
use crate::backend::Slot;
use crate::context::AttemptContext;
use crate::dial::attempt::{self, AttemptFailure, AttemptHistory};
use crate::dial::pool::{self, ConnectionRequirements, Endpoint, EndpointConnection};
use crate::dial::stream_call::RequestSource;
use crate::failure::Failure;
use crate::stream::PeerStream;

/// Returns an HTTP/1.1 connection on which the head of the request has been sent.
pub(in crate::dial) async fn connection(
    context: &mut AttemptContext<'_>,
    slot: Slot,
    history: AttemptHistory<'_>,
    now: Time,
) -> Result<(Slot, Box<EndpointConnection>), AttemptFailure> {
    let requirements = attempt::connection_requirements(context, &slot, now);
    let AttemptContext { worker, client, exchange, policy, .. } = context;
    let source = RequestSource { request: &exchange.request, framing: exchange.request.framing };
    let header = client.proxy_protocol_header(policy.backend_settings());
    let opening = Box::pin(open(&slot.endpoint, history.fresh, &header, &requirements, source));
    let deadline = history.connect_deadline(&slot, policy, now);
    match attempt::await_connection(worker, client, deadline, opening).await {
        Ok((connection, head_bytes)) => {
            exchange.upload.written += head_bytes;
            Ok((slot, connection))
        }
        Err(failure) => Err(attempt::conclude_unsent(worker, slot, failure, policy)),
    }
}

/// Returns a connection on which the head has been sent, an idle one if possible, and the length of the head; the
/// caller bounds the time.
pub(crate) async fn open(
    endpoint: &Endpoint,
    fresh: bool,
    header: &[u8],
    requirements: &ConnectionRequirements<'_>,
    source: RequestSource<'_>,
) -> Result<(Box<EndpointConnection>, u64), Failure> {
    if !fresh
        && let Some(idle) = pool::take(endpoint, requirements)
        && let Some(begun) = send_head(idle, source).await
    {
        return Ok(begun);
    }
    let connection = attempt::open(endpoint, header, requirements).await?;
    send_head(connection, source).await.ok_or(Failure::ConnectFailed)
}

/// Sends the head; `None` if the connection has broken.
async fn send_head(
    mut connection: Box<EndpointConnection>,
    source: RequestSource<'_>,
) -> Option<(Box<EndpointConnection>, u64)> {
    let RequestSource { request, framing } = source;
    let framing = if framing == BodyFraming::Stream { BodyFraming::Chunked } else { framing };
    let mut head = Vec::new();
    write::request_head(request, framing, request.upgrade, &mut head);
    let tls = match connection.stream {
        PeerStream::Tls(tls) => *tls,
        // If framed bytes of the previous request are left, a response cannot be attributed to this one.
        PeerStream::Framed(framed) if !framed.has_unsent() => framed.tls,
        PeerStream::Tcp(_) | PeerStream::H2(_) | PeerStream::H3(_) | PeerStream::Framed(_) => {
            return None;
        }
    };
    let chunked = framing == BodyFraming::Chunked;
    let mut framed = H1FallbackStream::new(tls, chunked);
    framed.tls.write_all(&head).await.ok()?;
    connection.stream = PeerStream::Framed(Box::new(framed));
    Some((connection, head.len() as u64))
}
