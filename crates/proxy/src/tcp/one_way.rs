//! Copy in one direction of a connection: bytes from one socket to the other, in order, until the
//! source ends.
//!
//! An idle direction holds no memory: bytes are read into the worker's one large buffer and written
//! at once. Only the bytes that the sink does not accept are kept, and no more is read until they
//! are written. Bulk transfers are spliced within the kernel instead.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::pipe::SplicePipe;
use crate::scratch::ScratchMemory;
use crate::stream::PeerStream;

/// Bytes in consecutive large reads from which on a direction is spliced, as more are likely to
/// follow. The figure is the one for bodies, see docs/decisions/0001.
const BULK_BYTES: u64 = 256 * 1024;
/// Least size of a large read: below it, copying is cheaper than moving pages.
const LARGE_READ: usize = 16 * 1024;

/// Side of the copy that has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FailedSide {
    Source,
    Sink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CopyState {
    Flowing,
    /// The source has ended; the sink has not been shut down yet.
    Ended,
    Finished,
}

pub(super) struct OneWayCopy {
    state: CopyState,
    /// Bytes read and not yet written, from `sent` on.
    unwritten: Vec<u8>,
    sent: usize,
    /// Pipe that holds spliced bytes not yet written; given back when the source has no more bytes
    /// ready.
    pipe: Option<SplicePipe>,
    /// Sum of the latest consecutive reads of which only the first may be small.
    bulk: u64,
    /// Bytes written to the sink so far.
    pub(super) bytes: u64,
}

impl OneWayCopy {
    /// Returns a copy whose first bytes have already been read.
    pub(super) fn with_initial_bytes(unwritten: Vec<u8>) -> Self {
        Self { state: CopyState::Flowing, unwritten, sent: 0, pipe: None, bulk: 0, bytes: 0 }
    }

    /// Moves as many bytes as possible. Ready when the source has ended and the sink has been shut
    /// down.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut PeerStream,
        sink: &mut PeerStream,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), FailedSide>> {
        loop {
            ready!(self.poll_flush(cx, sink))?;
            match self.state {
                CopyState::Finished => return Poll::Ready(Ok(())),
                CopyState::Ended => {
                    ready!(Pin::new(&mut *sink).poll_shutdown(cx)).map_err(|_| FailedSide::Sink)?;
                    self.state = CopyState::Finished;
                }
                CopyState::Flowing => ready!(self.poll_read(cx, source, sink, scratch))?,
            }
        }
    }

    /// Returns the number of bytes that have been read and not written.
    pub(super) fn held_bytes(&self) -> usize {
        self.unwritten.len() + self.pipe.as_ref().map_or(0, SplicePipe::len)
    }

    /// Writes the bytes that have been read.
    fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut PeerStream,
    ) -> Poll<Result<(), FailedSide>> {
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            let socket = sink.plain_socket().ok_or(FailedSide::Sink)?;
            let moved = ready!(pipe.poll_empty(cx, socket)).map_err(|_| FailedSide::Sink)?;
            self.bytes += moved as u64;
        }
        while self.sent < self.unwritten.len() {
            let written = ready!(Pin::new(&mut *sink).poll_write(cx, &self.unwritten[self.sent..]));
            let count = written.ok().filter(|count| *count > 0).ok_or(FailedSide::Sink)?;
            self.sent += count;
            self.bytes += count as u64;
        }
        // Also frees the memory.
        (self.unwritten, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Reads once; all bytes read before have been written.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut PeerStream,
        sink: &mut PeerStream,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), FailedSide>> {
        let emptied = self.pipe.take();
        if self.bulk >= BULK_BYTES
            && let (Some(socket), Some(_)) = (source.plain_socket(), sink.plain_socket())
            && let Some(pipe) = emptied.or_else(|| scratch.take_pipe())
        {
            return self.poll_splice(cx, socket, pipe, scratch);
        }
        let mut large = scratch.copy_buffer();
        let mut space = ReadBuf::new(&mut large);
        ready!(Pin::new(source).poll_read(cx, &mut space)).map_err(|_| FailedSide::Source)?;
        let data = space.filled();
        self.record_read(data.len());
        if data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        // Writes at once, without polling the sink for readiness first.
        let written = match Pin::new(sink).poll_write(cx, data) {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(FailedSide::Sink)),
            Poll::Pending => 0,
        };
        self.bytes += written as u64;
        self.unwritten = data[written..].to_vec();
        Poll::Ready(Ok(()))
    }

    /// Fills an empty pipe.
    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        source: &TcpStream,
        mut pipe: SplicePipe,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), FailedSide>> {
        match pipe.poll_fill(cx, source, u64::MAX) {
            Poll::Ready(Ok(count)) if count > 0 => {
                self.record_read(count);
                self.pipe = Some(pipe);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(_)) => {
                scratch.give_back_pipe(pipe);
                self.record_read(0);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(FailedSide::Source)),
            Poll::Pending => {
                scratch.give_back_pipe(pipe);
                Poll::Pending
            }
        }
    }

    /// Records a read of `count` bytes; 0 means that the source has ended.
    fn record_read(&mut self, count: usize) {
        let so_far = if count < LARGE_READ { 0 } else { self.bulk };
        self.bulk = so_far.saturating_add(count as u64);
        if count == 0 {
            self.state = CopyState::Ended;
        }
    }
}
