//! An endpoint's bytes, as many at a time as are passed on before more are read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::dial::link::{Delivery, Tally};
use crate::h2::frames::{Pace, Walk};
use crate::stream::{ConnectionEnd, Stream};

/// A connection to an endpoint under the frames.
pub(super) struct Paced {
    stream: Stream,
    walk: Walk,
    pace: Pace,
    tally: Arc<Tally>,
    delivery: Arc<Delivery>,
    /// Bytes written before anything was sealed.
    unsealed: u64,
    /// Who has been answered has a turn before more is read.
    is_turn_over: bool,
}

impl Paced {
    /// A connection on which `unsealed` bytes have been written. `tally` counts what is under way to the endpoint,
    /// `delivery` what has arrived there.
    pub(super) fn new(
        stream: Stream,
        unsealed: u64,
        tally: Arc<Tally>,
        delivery: Arc<Delivery>,
    ) -> Self {
        let (walk, pace) = (Walk::new(0), Pace::default());
        let mut connection =
            Self { stream, walk, pace, tally, delivery, unsealed, is_turn_over: false };
        connection.count_written(unsealed);
        connection
    }

    fn count_written(&mut self, bytes: u64) {
        let before = self.delivery.written.load(Ordering::Relaxed);
        let written = self.stream.written(self.unsealed, before, bytes);
        self.delivery.written.store(written, Ordering::Relaxed);
    }

    fn wrote(&mut self, written: io::Result<usize>) -> Poll<io::Result<usize>> {
        match &written {
            Ok(bytes) => self.count_written(*bytes as u64),
            Err(_) => self.ended(ConnectionEnd::Broken),
        }
        Poll::Ready(written)
    }

    #[cold]
    fn ended(&self, end: ConnectionEnd) {
        let written = || self.delivery.written.load(Ordering::Relaxed);
        let received = || end.received_at_most(&self.stream).unwrap_or_else(written);
        self.delivery.received_at_most.get_or_init(received);
    }
}

impl AsyncRead for Paced {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if std::mem::take(&mut this.is_turn_over) {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = space.filled().len();
        let read = ready!(this.pace.poll_read(Pin::new(&mut this.stream), cx, space));
        let count = space.filled().len() - before;
        if space.remaining() > 0
            && let Some(end) = ConnectionEnd::of(read.as_ref().map(|_| count))
        {
            this.ended(end);
        }
        this.is_turn_over = read?;
        let mut heard = &space.filled()[before..];
        let (bytes, mut frames) = (heard.len(), 0);
        while this.walk.next(&mut heard).is_some() {
            frames += 1;
        }
        this.pace.note(bytes, frames, this.tally.streams.load(Ordering::Relaxed));
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Paced {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes));
        this.wrote(written)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let written = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, slices));
        this.wrote(written)
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
