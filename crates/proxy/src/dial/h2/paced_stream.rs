//! Paces reads from an endpoint: no more bytes at a time than are passed on before the next read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use codec::h2::frames::H2FrameScanner;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::dial::multiplex_connection::{ConnectionCounts, DeliveryProgress};
use crate::h2::ReadPacer;
use crate::stream::{ConnectionEnd, PeerStream};

/// The byte stream of a connection to an endpoint, below the frames.
pub(super) struct PacedStream {
    stream: PeerStream,
    frame_scanner: H2FrameScanner,
    read_pacer: ReadPacer,
    counts: Arc<ConnectionCounts>,
    delivery: Arc<DeliveryProgress>,
    /// Bytes written before TLS began.
    plaintext_bytes: u64,
    /// True if tasks with new data must run before the next read.
    yields_before_read: bool,
}

impl PacedStream {
    /// Creates the stream of a connection on which `unsealed` bytes have been written. `counts` has the streams to
    /// the endpoint, `delivery` the bytes that arrived there.
    pub(super) fn new(
        stream: PeerStream,
        unsealed: u64,
        counts: Arc<ConnectionCounts>,
        delivery: Arc<DeliveryProgress>,
    ) -> Self {
        let (frame_scanner, read_pacer) = (H2FrameScanner::new(0), ReadPacer::default());
        let mut connection = Self {
            stream,
            frame_scanner,
            read_pacer,
            counts,
            delivery,
            plaintext_bytes: unsealed,
            yields_before_read: false,
        };
        connection.count_written(unsealed);
        connection
    }

    fn count_written(&mut self, bytes: u64) {
        let before = self.delivery.written.load(Ordering::Relaxed);
        let written = self.stream.wire_bytes_written(self.plaintext_bytes, before, bytes);
        self.delivery.written.store(written, Ordering::Relaxed);
    }

    fn record_write(&mut self, written: io::Result<usize>) -> Poll<io::Result<usize>> {
        match &written {
            Ok(bytes) => self.count_written(*bytes as u64),
            Err(_) => self.record_end(ConnectionEnd::Broken),
        }
        Poll::Ready(written)
    }

    #[cold]
    fn record_end(&self, end: ConnectionEnd) {
        let written = || self.delivery.written.load(Ordering::Relaxed);
        let received = || end.received_at_most(&self.stream).unwrap_or_else(written);
        self.delivery.received_at_most.get_or_init(received);
    }
}

impl AsyncRead for PacedStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if std::mem::take(&mut this.yields_before_read) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = space.filled().len();
        let read = ready!(this.read_pacer.poll_read(Pin::new(&mut this.stream), cx, space));
        let count = space.filled().len() - before;
        if space.remaining() > 0
            && let Some(end) = ConnectionEnd::of(read.as_ref().map(|_| count))
        {
            this.record_end(end);
        }
        this.yields_before_read = read?;
        let mut received = &space.filled()[before..];
        let (bytes, mut frames) = (received.len(), 0);
        while this.frame_scanner.next(&mut received).is_some() {
            frames += 1;
        }
        this.read_pacer.record_read(bytes, frames, this.counts.streams.load(Ordering::Relaxed));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for PacedStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes));
        this.record_write(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, slices));
        this.record_write(written)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}
