//! One way of a connection: bytes from one socket to the other, in order, until the source ends.
//!
//! A way in which nothing moves holds no memory: what is read is written at once by way of the worker's one large buffer,
//! and only what the sink does not take is kept, before more is read. Where bytes come in bulk, pages are moved within the
//! kernel instead.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use crate::pipe::Pipe;
use crate::scratch::Scratch;
use crate::stream::Stream;

/// So many bytes in large reads, one after the other, promise more: from then on pages are moved. The figure is
/// that of bodies, see docs/decisions/0001.
const BULK_BYTES: u64 = 256 * 1024;
/// A read below this is no large one: copying it is cheaper than moving its pages.
const LARGE_READ: usize = 16 * 1024;

/// Which side has failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Broken {
    Source,
    Sink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Flowing,
    /// The source has ended; the sink is still to be told.
    Ended,
    Finished,
}

pub(super) struct OneWay {
    state: State,
    /// Read and not yet written, from `sent` on.
    rest: Vec<u8>,
    sent: usize,
    /// Holds what was spliced and not yet written; given back when the source has no more at hand.
    pipe: Option<Pipe>,
    /// Bytes of the last reads in a row of which only the first may be small.
    bulk: u64,
    /// Bytes written to the sink so far.
    pub(super) bytes: u64,
}

impl OneWay {
    /// A way whose first bytes have been read already.
    pub(super) fn beginning_with(rest: Vec<u8>) -> Self {
        Self { state: State::Flowing, rest, sent: 0, pipe: None, bulk: 0, bytes: 0 }
    }

    /// Moves what can be moved. Ready when the source has ended and the sink knows it.
    pub(super) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
        scratch: &Scratch,
    ) -> Poll<Result<(), Broken>> {
        loop {
            ready!(self.poll_flush(cx, sink))?;
            match self.state {
                State::Finished => return Poll::Ready(Ok(())),
                State::Ended => {
                    ready!(Pin::new(&mut *sink).poll_shutdown(cx)).map_err(|_| Broken::Sink)?;
                    self.state = State::Finished;
                }
                State::Flowing => ready!(self.poll_read(cx, source, sink, scratch))?,
            }
        }
    }

    /// Writes what has been read.
    fn poll_flush(&mut self, cx: &mut Context<'_>, sink: &mut Stream) -> Poll<Result<(), Broken>> {
        while let Some(pipe) = self.pipe.as_mut().filter(|pipe| !pipe.is_empty()) {
            let socket = sink.plain().ok_or(Broken::Sink)?;
            let moved = ready!(pipe.poll_empty(cx, socket)).map_err(|_| Broken::Sink)?;
            self.bytes += moved as u64;
        }
        while self.sent < self.rest.len() {
            let written = ready!(Pin::new(&mut *sink).poll_write(cx, &self.rest[self.sent..]));
            let count = written.ok().filter(|count| *count > 0).ok_or(Broken::Sink)?;
            self.sent += count;
            self.bytes += count as u64;
        }
        // Its memory goes with it.
        (self.rest, self.sent) = (Vec::new(), 0);
        Poll::Ready(Ok(()))
    }

    /// Reads once; everything read before has been written.
    fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
        scratch: &Scratch,
    ) -> Poll<Result<(), Broken>> {
        let emptied = self.pipe.take();
        if self.bulk >= BULK_BYTES
            && let (Some(socket), Some(_)) = (source.plain(), sink.plain())
            && let Some(pipe) = emptied.or_else(|| scratch.pipe())
        {
            return self.poll_splice(cx, socket, pipe, scratch);
        }
        let mut large = scratch.large();
        let mut space = ReadBuf::new(&mut large);
        ready!(Pin::new(source).poll_read(cx, &mut space)).map_err(|_| Broken::Source)?;
        let data = space.filled();
        self.account(data.len());
        if data.is_empty() {
            return Poll::Ready(Ok(()));
        }
        // At once: that the sink takes no more is known soon enough.
        let written = match Pin::new(sink).poll_write(cx, data) {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Broken::Sink)),
            Poll::Pending => 0,
        };
        self.bytes += written as u64;
        self.rest = data[written..].to_vec();
        Poll::Ready(Ok(()))
    }

    /// Fills an empty pipe.
    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        source: &TcpStream,
        mut pipe: Pipe,
        scratch: &Scratch,
    ) -> Poll<Result<(), Broken>> {
        match pipe.poll_fill(cx, source, u64::MAX) {
            Poll::Ready(Ok(count)) if count > 0 => {
                self.account(count);
                self.pipe = Some(pipe);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Ok(_)) => {
                scratch.give_back_pipe(pipe);
                self.account(0);
                Poll::Ready(Ok(()))
            }
            Poll::Ready(Err(_)) => Poll::Ready(Err(Broken::Source)),
            Poll::Pending => {
                scratch.give_back_pipe(pipe);
                Poll::Pending
            }
        }
    }

    /// So many bytes have been read; 0: the source has ended.
    fn account(&mut self, count: usize) {
        let so_far = if count < LARGE_READ { 0 } else { self.bulk };
        self.bulk = so_far.saturating_add(count as u64);
        if count == 0 {
            self.state = State::Ended;
        }
    }
}
