//! A stream that frames bodies by itself, for a request that was prepared before its transport was known.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tls::TlsStream;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use codec::h1::write;
use codec::head::FieldSection;

/// An HTTP/1.1 connection, used if HTTP/3 is unavailable, that applies the transfer coding of the body itself.
pub(crate) struct H1FallbackStream {
    pub(crate) tls: TlsStream,
    /// True if the body is sent in chunks.
    chunked: bool,
    /// Framed bytes, of which the first `sent` are written, and the number of body bytes in them.
    out: Vec<u8>,
    sent: usize,
    held_body_bytes: usize,
}

impl H1FallbackStream {
    pub(super) fn new(tls: TlsStream, chunked: bool) -> Self {
        Self { tls, chunked, out: Vec::new(), sent: 0, held_body_bytes: 0 }
    }

    /// True if framed bytes are left to be written.
    pub(super) fn has_unsent(&self) -> bool {
        !self.out.is_empty()
    }

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
