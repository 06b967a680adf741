//! Byte stream for the HTTP/2 library; passes the client's bytes through the flood detector.

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

/// Bytes that the client may still send after everything has been sent to it.
const LINGER_BYTES: usize = 1024 * 1024;

/// Round-trip time from which a client is paced if the kernel does not take a response at once: the
/// data is then spread over the round trip. Data that arrives in one burst, a whole window at once,
/// would keep the client from growing its window (docs/internals/http2.md). Below this time pacing
/// would gain little and cost timers.
const PACING_MIN_RTT: Duration = Duration::from_millis(10);

/// Client connection below the frames.
pub(super) struct MeteredStream {
    stream: PeerStream,
    /// Bytes read before HTTP/2 was detected; the library has consumed `preread_used` of them.
    preread: Vec<u8>,
    preread_used: usize,
    detector: Rc<RefCell<FloodDetector>>,
    scheduler: Rc<ResponseScheduler>,
    /// True once a write had to wait; from then on the connection is paced if the client is far
    /// away.
    has_waited: bool,
    /// Set once everything has been sent: bytes that still arrive are dropped, up to this number.
    discard_left: Option<usize>,
}

impl MeteredStream {
    pub(super) fn new(
        stream: PeerStream,
        preread: Vec<u8>,
        detector: Rc<RefCell<FloodDetector>>,
        scheduler: Rc<ResponseScheduler>,
    ) -> Self {
        Self {
            stream,
            preread,
            preread_used: 0,
            detector,
            scheduler,
            has_waited: false,
            discard_left: None,
        }
    }

    fn record_written(&mut self, count: Poll<io::Result<usize>>) -> Poll<io::Result<usize>> {
        if count.is_pending() && !std::mem::replace(&mut self.has_waited, true) {
            pace_if_far(&self.stream);
        }
        if let Poll::Ready(Ok(count)) = count {
            let mut detector = self.detector.borrow_mut();
            detector.record_sent(count);
            detector.record_data_frames(self.scheduler.take_data_frames());
            self.scheduler.written(Some(count));
        } else {
            self.scheduler.written(None);
        }
        count
    }
}

fn pace_if_far(stream: &PeerStream) {
    let Some(socket) = stream.socket() else { return };
    if sys::round_trip(socket).is_some_and(|seen| seen >= PACING_MIN_RTT) {
        // A kernel without pacing sends at once, as before.
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
            let mut detector = this.detector.borrow_mut();
            detector.mark_processed();
            if detector.fault().is_some() {
                // The task that polls the connection sees the fault too, and ends the connection.
                return Poll::Pending;
            }
            if detector.is_poll_exhausted() {
                cx.waker().wake_by_ref();
                return Poll::Pending;
            }
            detector.pace
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
        let passed_on = this.detector.borrow_mut().record_received(&space.filled()[before..]);
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

    /// Shuts down our sending side and waits for the client to close: a close with unread bytes
    /// would be a reset, and a reset can overtake our last frames. The connection bounds the time.
    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let Self { stream, discard_left, detector, .. } = self.get_mut();
        let left = match discard_left {
            Some(left) => left,
            None => {
                detector.borrow_mut().is_closing = true;
                ready!(Pin::new(&mut *stream).poll_shutdown(cx))?;
                discard_left.insert(LINGER_BYTES)
            }
        };
        let mut dropped = [0; 4096];
        while *left > 0 && !detector.borrow().close_wait_expired {
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
