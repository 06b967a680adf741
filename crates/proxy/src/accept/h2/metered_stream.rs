//! What the library reads and writes: the client's bytes, by way of the meter.

use std::cell::RefCell;
use std::io::{self, IoSlice};
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};

use super::flood_detector::FloodDetector;
use crate::h2::ResponseScheduler;
use crate::stream::PeerStream;
use crate::sys;

/// What a client may still send when all has been sent to it.
const LINGER_BYTES: usize = 1024 * 1024;

/// From so far away on a client for which there is more than the kernel takes at once gets it spread over the round trip:
/// a window that comes at once keeps it from growing its own (docs/internals/http2.md). Nearer that would gain little and
/// cost timers.
const PACING_MIN_RTT: Duration = Duration::from_millis(10);

/// A client's connection under the frames.
pub(super) struct MeteredStream {
    stream: PeerStream,
    /// Read before it was known that this is HTTP/2, and how much of it the library has had.
    preread: Vec<u8>,
    preread_used: usize,
    meter: Rc<RefCell<FloodDetector>>,
    turns: Rc<ResponseScheduler>,
    /// The kernel did not take all at once, and the connection is paced since if the client is far away.
    has_waited: bool,
    /// All has been sent: what still comes is dropped, and not more than this of it.
    discard_left: Option<usize>,
}

impl MeteredStream {
    pub(super) fn new(
        stream: PeerStream,
        preread: Vec<u8>,
        meter: Rc<RefCell<FloodDetector>>,
        turns: Rc<ResponseScheduler>,
    ) -> Self {
        Self {
            stream,
            preread,
            preread_used: 0,
            meter,
            turns,
            has_waited: false,
            discard_left: None,
        }
    }

    fn record_written(&mut self, count: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if count.is_pending() && !std::mem::replace(&mut self.has_waited, true) {
            pace_if_far(&self.stream);
        }
        if let Poll::Ready(Ok(count)) = count {
            self.meter.borrow_mut().record_sent(count);
            self.turns.written(Some(count));
        } else {
            self.turns.written(None);
        }
        count
    }
}

fn pace_if_far(stream: &PeerStream) {
    let Some(socket) = stream.socket() else { return };
    if sys::round_trip(socket).is_some_and(|seen| seen >= PACING_MIN_RTT) {
        // A kernel that cannot sends at once, as before.
        drop(sys::enable_pacing(socket));
    }
}

impl AsyncRead for MeteredStream {
    fn poll_read(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        let pace = {
            let mut meter = this.meter.borrow_mut();
            meter.mark_processed();
            if meter.fault().is_some() {
                // Who polls the connection sees that too, and ends it.
                return Poll::Pending;
            }
            if meter.is_poll_exhausted() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            meter.pace
        };
        let before = space.filled().len();
        if this.preread.is_empty() {
            ready!(pace.poll_read(Pin::new(&mut this.stream), cx, space))?;
        } else {
            let rest = &this.preread[this.preread_used..];
            let count = rest.len().min(space.remaining());
            space.put_slice(&rest[..count]);
            this.preread_used += count;
            if this.preread_used == this.preread.len() {
                this.preread = Vec::new();
            }
        }
        let passed_on = this.meter.borrow_mut().record_received(&space.filled()[before..]);
        space.set_filled(before + passed_on);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for MeteredStream {
    fn poll_write(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = Pin::new(&mut this.stream).poll_write(cx, bytes);
        this.record_written(count)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        let count = Pin::new(&mut this.stream).poll_write_vectored(cx, slices);
        this.record_written(count)
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
        let Self { stream, discard_left: dropping, meter, .. } = self.get_mut();
        let left = match dropping {
            Some(left) => left,
            None => {
                meter.borrow_mut().is_closing = true;
                ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
                dropping.insert(LINGER_BYTES)
            }
        };
        let mut dropped = [0; 4096];
        while *left > 0 && !meter.borrow().close_wait_expired {
            let mut space = ReadBuf::new(&mut dropped);
            ready!(Pin::new(&mut *stream).poll_read(cx, &mut space))?;
            if space.filled().is_empty() {
                break;
            }
            *left = left.saturating_sub(space.filled().len());
        }
        Poll::Ready(Ok(()))
    }
}
