//! An endpoint's bytes, as many at a time as are passed on before more are read.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use crate::dial::link::Tally;
use crate::h2::frames::{Pace, Walk};
use crate::stream::Stream;

/// A connection to an endpoint under the frames.
pub(super) struct Paced {
    stream: Stream,
    walk: Walk,
    pace: Pace,
    tally: Arc<Tally>,
    /// Who has been answered has a turn before more is read.
    is_turn_over: bool,
}

impl Paced {
    /// `tally` counts what is under way to the endpoint.
    pub(super) fn new(stream: Stream, tally: Arc<Tally>) -> Self {
        Self { stream, walk: Walk::new(0), pace: Pace::default(), tally, is_turn_over: false }
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
        this.is_turn_over = ready!(this.pace.poll_read(Pin::new(&mut this.stream), cx, space))?;
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
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write_vectored(cx, slices)
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
