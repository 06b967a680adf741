//! What the library reads and writes: the client's bytes, by way of the meter.

use std::cell::{Cell, RefCell};
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use balance::Time;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::meter::Meter;
use crate::stream::Stream;

/// A client's connection under the frames.
pub(super) struct Wire {
    stream: Stream,
    /// Read before it was known that this is HTTP/2, and how much of it the library has had.
    ahead: Vec<u8>,
    taken: usize,
    gauge: Rc<Gauge>,
}

/// What wire and connection know of each other.
pub(super) struct Gauge {
    pub(super) meter: RefCell<Meter>,
    /// All has been sent: what still comes is read and dropped until the client has closed too.
    pub(super) is_closing: Cell<bool>,
}

impl Gauge {
    pub(super) fn new(now: Time) -> Self {
        Self { meter: RefCell::new(Meter::new(now)), is_closing: Cell::new(false) }
    }
}

impl Wire {
    pub(super) fn new(stream: Stream, ahead: Vec<u8>, gauge: Rc<Gauge>) -> Self {
        Self { stream, ahead, taken: 0, gauge }
    }

    fn sent(&self, count: io::Result<usize>) -> io::Result<usize> {
        count.inspect(|count| self.gauge.meter.borrow_mut().sent(*count))
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.gauge.meter.borrow().fault().is_some() {
            // Who polls the connection ends it.
            return Poll::Pending;
        }
        let before = space.filled().len();
        if this.ahead.is_empty() {
            ready!(Pin::new(&mut this.stream).poll_read(cx, space))?;
        } else {
            let rest = &this.ahead[this.taken..];
            let count = rest.len().min(space.remaining());
            space.put_slice(&rest[..count]);
            this.taken += count;
            if this.taken == this.ahead.len() {
                this.ahead = Vec::new();
            }
        }
        this.gauge.meter.borrow_mut().hear(&space.filled()[before..]);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.stream).poll_write(cx, bytes));
        Poll::Ready(this.sent(count))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = ready!(Pin::new(&mut this.stream).poll_write_vectored(cx, slices));
        Poll::Ready(this.sent(count))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    /// Says that nothing more comes, and waits for the client to say so too: a close with unread bytes would be a reset,
    /// and a reset can overtake our last frames. The connection bounds the time.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, gauge, .. } = self.get_mut();
        if !gauge.is_closing.get() {
            ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
            gauge.is_closing.set(true);
        }
        let mut dropped = [0; 4096];
        loop {
            let mut space = ReadBuf::new(&mut dropped);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut space))?;
            if space.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
        }
    }
}
