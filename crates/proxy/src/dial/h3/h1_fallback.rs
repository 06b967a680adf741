//! HTTP/1.1 in place of HTTP/3.
//!
//! A request is prepared before its transport is known: its body has no framing, and its end is signalled. The
//! connection here writes the head and frames the body by itself. Responses are read as usual.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tls::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, ReadBuf};

use crate::accept::client::ClientConnection;
use crate::backend::Slot;
use crate::dial::attempt::{self, AttemptFailure, AttemptHistory};
use crate::dial::pool::{self, ConnectionRequirements, Endpoint, EndpointConnection};
use crate::dial::stream_request::RequestSource;
use crate::exchange::{Exchange, RequestPolicy};
use crate::failure::Failure;
use crate::h1::write;
use crate::head::{BodyFraming, FieldSection};
use crate::stream::PeerStream;
use crate::worker::Worker;

/// A connection that frames the data written to it.
pub(crate) struct H1Fallback {
    pub(crate) tls: TlsStream,
    /// True if the body is sent in chunks.
    chunked: bool,
    /// Framed bytes, of which the first `sent` are written, and the number of body bytes in them.
    out: Vec<u8>,
    sent: usize,
    held_body_bytes: usize,
}

impl H1Fallback {
    /// Writes the framed bytes. Ready when the connection has all of them.
    fn poll_flush(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.out.len() {
            let rest = &self.out[self.sent..];
            match ready!(Pin::new(&mut self.tls).poll_write(cx, rest))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        self.out.clear();
        self.sent = 0;
        Poll::Ready(Ok(()))
    }

    /// Sends a part of the body, and its end if `is_last`. After `Pending`, the caller must pass the same bytes again.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        if !self.chunked {
            return Pin::new(&mut self.tls).poll_write_vectored(cx, slices);
        }
        let offered: usize = slices.iter().map(|slice| slice.len()).sum();
        if self.held_body_bytes == 0 {
            ready!(self.poll_flush(cx))?;
            write::chunk_header(offered, &mut self.out);
            slices.iter().for_each(|slice| self.out.extend_from_slice(slice));
            write::chunk_end(&mut self.out);
            self.held_body_bytes = offered;
        }
        ready!(self.poll_flush(cx))?;
        let accepted = std::mem::take(&mut self.held_body_bytes);
        if is_last && accepted == offered {
            // If the connection does not accept the end at once, it is written before the next read.
            let _pushed = self.poll_end(cx, None)?;
        }
        Poll::Ready(Ok(accepted))
    }

    /// Ends the body.
    pub(crate) fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        trailers: Option<&FieldSection>,
    ) -> Poll<io::Result<()>> {
        if std::mem::take(&mut self.chunked) {
            let none = FieldSection::new();
            write::last_chunk(trailers.unwrap_or(&none), &mut self.out);
        }
        self.poll_flush(cx)
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Poll::Ready(pushed) = self.poll_flush(cx) {
            pushed?;
        }
        Pin::new(&mut self.tls).poll_read(cx, space)
    }

    /// Ready when a read would not wait, or when framed bytes have to be written first.
    pub(crate) fn poll_read_ready(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        if self.out.is_empty() { self.tls.poll_read_ready(cx) } else { Poll::Ready(Ok(())) }
    }

    pub(crate) fn poll_shutdown(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_flush(cx))?;
        Pin::new(&mut self.tls).poll_shutdown(cx)
    }
}

/// Returns an HTTP/1.1 connection on which the head of the request has been sent.
pub(in crate::dial) async fn connection(
    worker: &Worker,
    client: &mut ClientConnection,
    exchange: &mut Exchange,
    slot: Slot,
    history: AttemptHistory<'_>,
    terms: &RequestPolicy<'_>,
    requirements: &ConnectionRequirements<'_>,
) -> Result<(Slot, Box<EndpointConnection>), AttemptFailure> {
    let source = RequestSource { request: &exchange.request, framing: exchange.request.framing };
    let header = client.proxy_protocol_header(terms.backend_settings());
    let opening = open(&slot.endpoint, history.fresh, &header, requirements, source);
    let slow_after = history.patience(&slot, terms);
    match attempt::await_connection(
        worker,
        client,
        terms,
        requirements.now,
        slow_after,
        Box::pin(opening),
    )
    .await
    {
        Ok((connection, head_bytes)) => {
            exchange.upload.written += head_bytes;
            Ok((slot, connection))
        }
        Err(failure) => Err(attempt::conclude_unsent(worker, slot, failure, terms)),
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
        PeerStream::Framed(framed) if framed.out.is_empty() => framed.tls,
        PeerStream::Tcp(_) | PeerStream::H2(_) | PeerStream::H3(_) | PeerStream::Framed(_) => {
            return None;
        }
    };
    let chunked = framing == BodyFraming::Chunked;
    let mut framed = H1Fallback { tls, chunked, out: Vec::new(), sent: 0, held_body_bytes: 0 };
    framed.tls.write_all(&head).await.ok()?;
    connection.stream = PeerStream::Framed(Box::new(framed));
    Some((connection, head.len() as u64))
}
