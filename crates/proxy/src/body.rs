//! Carries one body from where it is read to where it is written, with back-pressure, never whole in memory.
//!
//! A `Pump` starts with a head in `out`, so that a head and a small body leave in one write. It decodes the framing
//! it reads and writes framing of its own. What may have to be sent again stays in `out` until it is known to be
//! useless.

use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::buffer::{BUFFER_BYTES, Buffer};
use crate::grpc::web::Translation;
use crate::h1::{BadChunk, ChunkedEvent, ChunkedReader, write};
use crate::head::{BodyFraming, FieldSection};
use crate::pipe::Pipe;
use crate::scratch::{KeepBudget, Kept, Scratch};
use crate::stream::Stream;

/// Bodies that are translated from or to gRPC-Web.
mod web;

use web::Delimiting;

/// A request's head and body are kept for another attempt up to this size.
pub(crate) const REPLAY_BYTES: usize = 64 * 1024;
/// From so many bytes on the rest of a body is spliced. See docs/decisions/0001.
const SPLICE_BYTES: u64 = 256 * 1024;
/// Up to so many bytes are copied behind a head, so that both leave as one slice.
const COPY_BYTES: usize = 4 * 1024;
/// Decoded bytes that may wait in `out` before the next write.
const GATHER_BYTES: usize = 64 * 1024;

/// Why a body did not arrive whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    /// The source closed or failed before the body's end.
    SourceEnded,
    /// The source's framing is wrong.
    SourceBad(BadChunk),
    /// More bytes than the policy allows.
    TooLarge,
    /// The body cannot be translated.
    Untranslatable,
    /// The sink closed or failed.
    SinkFailed,
}

/// Whom a pending pump waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Source,
    Sink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Done,
    Length(u64),
    Chunked,
    UntilClose,
    /// As far as the stream goes that carries nothing but this message.
    Stream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Writing {
    Raw,
    Chunked,
    /// As it is, and the stream is told where the message ends.
    Stream,
    /// Translated from or to gRPC-Web.
    Web(Delimiting),
    /// The sink has gone: the body is read to its end and dropped.
    Discard,
}

pub(crate) struct Pump {
    reading: Reading,
    writing: Writing,
    chunks: ChunkedReader,
    /// Of a body that is written as `Web`.
    translation: Option<Box<Translation>>,
    /// What came after the body, for a sink that ends its messages itself.
    trailers: Option<Box<FieldSection>>,
    /// Such a sink has been told.
    ended: bool,
    /// Serialised bytes, of which the first `sent` have been written.
    pub(crate) out: Vec<u8>,
    sent: usize,
    kept: Option<Kept>,
    pipe: Option<Pipe>,
    allowed: u64,
    /// Decoded bytes of the body so far.
    pub(crate) body_bytes: u64,
    /// Bytes written to the sink since the start, or since it was rewound.
    pub(crate) written: u64,
    /// Grows with every byte that moves.
    pub(crate) progress: u64,
    pub(crate) waiting_for: Side,
}

/// A stream and what has been read from it already.
pub(crate) struct Source<'a> {
    pub(crate) stream: &'a mut Stream,
    pub(crate) buffer: &'a mut Option<Buffer>,
}

impl Pump {
    pub(crate) fn new() -> Self {
        Self {
            reading: Reading::Done,
            writing: Writing::Raw,
            chunks: ChunkedReader::new(),
            translation: None,
            trailers: None,
            ended: false,
            out: Vec::new(),
            sent: 0,
            kept: None,
            pipe: None,
            allowed: u64::MAX,
            body_bytes: 0,
            written: 0,
            progress: 0,
            waiting_for: Side::Source,
        }
    }

    /// Gets ready for another message: what is read as `from` is written as `to`.
    pub(crate) fn start(&mut self, from: BodyFraming, to: BodyFraming) {
        self.reading = match from {
            BodyFraming::None | BodyFraming::Length(0) => Reading::Done,
            BodyFraming::Length(length) => Reading::Length(length),
            BodyFraming::Chunked => {
                self.chunks = ChunkedReader::new();
                Reading::Chunked
            }
            BodyFraming::UntilClose => Reading::UntilClose,
            BodyFraming::Stream => Reading::Stream,
        };
        self.write_as(to);
        self.out.clear();
        (self.kept, self.pipe, self.trailers) = (None, None, None);
        (self.sent, self.allowed) = (0, u64::MAX);
        (self.body_bytes, self.written, self.progress) = (0, 0, 0);
    }

    /// The body is written as `to` and not as was said at the start; nothing has been written yet.
    pub(crate) fn write_as(&mut self, to: BodyFraming) {
        self.ended = false;
        self.writing = match to {
            BodyFraming::Chunked => Writing::Chunked,
            BodyFraming::Stream => Writing::Stream,
            BodyFraming::None | BodyFraming::Length(_) | BodyFraming::UntilClose => Writing::Raw,
        };
    }

    /// Keeps what is sent, so that `rewind` can send it again, as far as the budget goes. Once all of it has been sent
    /// and is kept, `listener` gets a copy.
    pub(crate) fn keep(
        &mut self,
        budget: &Rc<KeepBudget>,
        listener: Option<oneshot::Sender<Rc<[u8]>>>,
    ) {
        let mut kept = Kept::new(budget);
        kept.listener = listener;
        self.kept = Some(kept);
    }

    /// What was kept is of no use any more.
    pub(crate) fn forget(&mut self) {
        if self.kept.take().is_some() {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// All that was sent is still here.
    pub(crate) fn is_kept(&self) -> bool {
        self.kept.is_some()
    }

    /// Fails a body of more than `bytes`.
    pub(crate) fn allow(&mut self, bytes: u64) {
        self.allowed = bytes;
    }

    /// Starts again from the first byte, if all that was sent is still here.
    pub(crate) fn rewind(&mut self) -> bool {
        if self.kept.is_some() {
            (self.sent, self.written, self.ended) = (0, 0, false);
        }
        self.kept.is_some()
    }

    /// Forgets everything, and keeps the memory unless it is much.
    pub(crate) fn clear(&mut self) {
        self.start(BodyFraming::None, BodyFraming::None);
        self.translation = None;
        self.out.shrink_to(REPLAY_BYTES);
    }

    /// What came after a body that was read to its end.
    pub(crate) fn trailers(&self) -> Option<&FieldSection> {
        self.trailers.as_deref()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.reading == Reading::Done
            && self.sent == self.out.len()
            && self.pipe.is_none()
            && (!self.writes_stream() || self.ended)
    }

    /// The whole body has been read (though perhaps not yet written).
    pub(crate) fn is_read(&self) -> bool {
        self.reading == Reading::Done
    }

    /// The whole body has been read, and what is not yet written is here: the source is not needed any more.
    pub(crate) fn has_all(&self) -> bool {
        self.is_read() && self.pipe.is_none()
    }

    /// Moves what can be moved. Ready when the body's last byte has been written.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Source<'_>,
        sink: &mut Stream,
        scratch: &Scratch,
    ) -> Poll<Result<(), Stop>> {
        loop {
            // What is in the pipe was read before what is in the buffer.
            ready!(self.poll_splice(cx, source, sink, scratch))?;
            self.gather(source.buffer)?;
            if let Some(buffer) =
                source.buffer.as_mut().filter(|buffer| self.is_worth_a_slice(buffer))
            {
                ready!(self.poll_write_through(cx, buffer, sink))?;
            }
            ready!(self.poll_flush(cx, sink))?;
            if self.reading == Reading::Done {
                return Poll::Ready(Ok(()));
            }
            self.waiting_for = Side::Source;
            if source.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) {
                continue;
            }
            if self.passes_through() {
                scratch.stock.reclaim(source.buffer);
                if self.is_large() && source.stream.plain().is_some() && sink.plain().is_some() {
                    self.forget();
                    self.pipe = scratch.pipe();
                }
                if self.pipe.is_some() {
                    continue;
                }
                ready!(self.poll_copy(cx, source.stream, sink, scratch))?;
            } else {
                ready!(self.poll_fill(cx, source, scratch))?;
            }
        }
    }

    /// Reads the body to its end and drops it. Ready when it has been read.
    pub(crate) fn poll_discard(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Source<'_>,
        scratch: &Scratch,
    ) -> Poll<Result<(), Stop>> {
        self.writing = Writing::Discard;
        (self.kept, self.pipe) = (None, None);
        self.out.clear();
        self.sent = 0;
        loop {
            self.gather(source.buffer)?;
            if self.reading == Reading::Done {
                return Poll::Ready(Ok(()));
            }
            if source.buffer.as_ref().is_none_or(Buffer::is_empty) {
                ready!(self.poll_fill(cx, source, scratch))?;
            }
        }
    }

    /// Decodes what is at hand and appends it to `out`.
    fn gather(&mut self, buffer: &mut Option<Buffer>) -> Result<(), Stop> {
        let Some(buffer) = buffer else { return Ok(()) };
        while !buffer.is_empty() && self.out.len() - self.sent < GATHER_BYTES {
            if self.is_worth_a_slice(buffer) {
                return Ok(());
            }
            let unread = buffer.unread();
            match self.reading {
                Reading::Done => return Ok(()),
                Reading::Length(_) => {
                    let count = unread.len().min(self.left());
                    self.append(&unread[..count])?;
                    buffer.consume(count);
                    self.read(count)?;
                }
                Reading::UntilClose | Reading::Stream => {
                    let count = unread.len();
                    self.append(unread)?;
                    buffer.consume(count);
                    self.read(count)?;
                }
                Reading::Chunked => match self.chunks.next(unread).map_err(Stop::SourceBad)? {
                    ChunkedEvent::Data { skip, len } => {
                        self.append(&unread[skip..skip + len])?;
                        buffer.consume(skip + len);
                        self.read(len)?;
                    }
                    ChunkedEvent::NeedMore { skip } => {
                        buffer.consume(skip);
                        return Ok(());
                    }
                    ChunkedEvent::End { skip } => {
                        buffer.consume(skip);
                        self.finish()?;
                    }
                },
            }
        }
        Ok(())
    }

    /// Accounts for `count` bytes of the body.
    fn read(&mut self, count: usize) -> Result<(), Stop> {
        self.body_bytes += count as u64;
        self.progress += count as u64;
        if self.body_bytes > self.allowed {
            return Err(Stop::TooLarge);
        }
        if let Reading::Length(left) = &mut self.reading {
            *left -= count as u64;
            if *left == 0 {
                return self.finish();
            }
        }
        Ok(())
    }

    /// The last byte of the body has been read, and the trailers.
    fn finish(&mut self) -> Result<(), Stop> {
        match self.writing {
            Writing::Raw | Writing::Discard => {}
            Writing::Chunked | Writing::Stream => self.finish_with_trailers(),
            Writing::Web(delimiting) => self.finish_translation(delimiting)?,
        }
        self.reading = Reading::Done;
        Ok(())
    }

    fn finish_with_trailers(&mut self) {
        let none = FieldSection::new();
        let trailers = match self.reading {
            Reading::Chunked => self.chunks.trailers(),
            Reading::Stream => self.trailers.as_deref().unwrap_or(&none),
            Reading::Done | Reading::Length(_) | Reading::UntilClose => &none,
        };
        if self.writing == Writing::Chunked {
            write::last_chunk(trailers, &mut self.out);
        } else if self.reading == Reading::Chunked && trailers.iter().next().is_some() {
            self.trailers = Some(Box::new(trailers.clone()));
        }
    }

    fn append(&mut self, data: &[u8]) -> Result<(), Stop> {
        match self.writing {
            Writing::Raw | Writing::Stream => self.out.extend_from_slice(data),
            Writing::Chunked => append_chunk(data, &mut self.out),
            Writing::Web(delimiting) => self.append_translated(data, delimiting)?,
            Writing::Discard => {}
        }
        Ok(())
    }

    /// So many bytes go out as they are that a second slice in the same write is cheaper than copying them.
    fn is_worth_a_slice(&self, buffer: &Buffer) -> bool {
        let is_sent_on = self.writing != Writing::Discard && self.kept.is_none();
        is_sent_on && self.passes_through() && buffer.len() > COPY_BYTES
    }

    /// Writes what is gathered and what the buffer holds of the body, without copying the latter.
    fn poll_write_through(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut Buffer,
        sink: &mut Stream,
    ) -> Poll<Result<(), Stop>> {
        while !buffer.is_empty() && self.reading != Reading::Done {
            self.waiting_for = Side::Sink;
            let gathered = &self.out[self.sent..];
            let body = &buffer.unread()[..buffer.len().min(self.left())];
            let slices = [IoSlice::new(gathered), IoSlice::new(body)];
            let written = ready!(Pin::new(&mut *sink).poll_write_vectored(cx, &slices));
            let Some(count) = written.ok().filter(|count| *count > 0) else {
                return Poll::Ready(Err(Stop::SinkFailed));
            };
            let of_gathered = count.min(gathered.len());
            self.sent += of_gathered;
            self.count_written(count);
            buffer.consume(count - of_gathered);
            self.read(count - of_gathered)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Bytes of the body that are still to be read, as far as is known.
    fn left(&self) -> usize {
        match self.reading {
            Reading::Length(left) => usize::try_from(left).unwrap_or(usize::MAX),
            Reading::UntilClose | Reading::Chunked | Reading::Stream => usize::MAX,
            Reading::Done => 0,
        }
    }

    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut Stream,
    ) -> Poll<Result<(), Stop>> {
        while self.sent < self.out.len() {
            self.waiting_for = Side::Sink;
            let rest = &self.out[self.sent..];
            let is_last = self.ends_stream() && self.last_fields().is_none();
            let written = if is_last {
                ready!(sink.poll_write_last(cx, rest))
            } else {
                ready!(Pin::new(&mut *sink).poll_write(cx, rest))
            };
            match written {
                Ok(count) if count > 0 => {
                    self.ended = is_last && count == rest.len();
                    self.sent += count;
                    self.count_written(count);
                }
                _ => return Poll::Ready(Err(Stop::SinkFailed)),
            }
        }
        if self.ends_stream() && !self.ended {
            self.waiting_for = Side::Sink;
            if ready!(sink.poll_end(cx, self.last_fields())).is_err() {
                return Poll::Ready(Err(Stop::SinkFailed));
            }
            self.ended = true;
        }
        let bytes = self.out.len();
        self.kept.take_if(|kept| bytes > REPLAY_BYTES || !kept.grow(bytes));
        match &mut self.kept {
            Some(kept) if self.reading == Reading::Done => kept.complete(&self.out),
            Some(_) => {}
            None => {
                self.out.clear();
                self.sent = 0;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The bytes need no change, so they can go from socket to socket by way of the worker's large buffer.
    fn passes_through(&self) -> bool {
        let plain_in =
            matches!(self.reading, Reading::Length(_) | Reading::UntilClose | Reading::Stream);
        plain_in && !matches!(self.writing, Writing::Chunked | Writing::Web(_))
    }

    /// So much is left that moving pages beats copying bytes.
    fn is_large(&self) -> bool {
        matches!(self.reading, Reading::Length(left) if left >= SPLICE_BYTES)
    }

    /// Moves the rest of the body from socket to socket within the kernel, if that has begun. Ready when all of it has
    /// been written, or when bytes are in the buffer: whoever looks whether the client has gone may read some.
    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        source: &Source<'_>,
        sink: &Stream,
        scratch: &Scratch,
    ) -> Poll<Result<(), Stop>> {
        let is_buffered = source.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty());
        while let Some(mut pipe) = self.pipe.take() {
            let moved = match self.reading {
                _ if !pipe.is_empty() => {
                    self.waiting_for = Side::Sink;
                    let socket = sink.plain().ok_or(Stop::SinkFailed)?;
                    pipe.poll_empty(cx, socket).map_err(|_| Stop::SinkFailed)
                }
                Reading::Length(left) if !is_buffered => {
                    self.waiting_for = Side::Source;
                    let socket = source.stream.plain().ok_or(Stop::SourceEnded)?;
                    pipe.poll_fill(cx, socket, left).map_err(|_| Stop::SourceEnded)
                }
                Reading::Length(_)
                | Reading::Done
                | Reading::Chunked
                | Reading::UntilClose
                | Reading::Stream => {
                    scratch.give_back_pipe(pipe);
                    return Poll::Ready(Ok(()));
                }
            };
            self.pipe = Some(pipe);
            let count = ready!(moved)?;
            match self.waiting_for {
                Side::Sink => self.count_written(count),
                Side::Source if count == 0 => return Poll::Ready(Err(Stop::SourceEnded)),
                Side::Source => self.read(count)?,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// One read and one write by way of the worker's large buffer.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Stream,
        sink: &mut Stream,
        scratch: &Scratch,
    ) -> Poll<Result<(), Stop>> {
        let mut large = scratch.large();
        let most = large.len().min(self.left()).min(sink.most_at_once());
        let mut space = ReadBuf::new(&mut large[..most]);
        let result = ready!(Pin::new(&mut *source).poll_read(cx, &mut space));
        let data = space.filled();
        if result.is_err() {
            return Poll::Ready(Err(Stop::SourceEnded));
        }
        if data.is_empty() {
            return Poll::Ready(self.source_closed(source));
        }
        self.read(data.len())?;
        if self.kept.is_some() && self.out.len() + data.len() <= REPLAY_BYTES {
            self.out.extend_from_slice(data);
            return Poll::Ready(Ok(()));
        }
        self.forget();
        let written = match Pin::new(sink).poll_write(cx, data) {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(Stop::SinkFailed)),
            Poll::Pending => 0,
        };
        self.count_written(written);
        self.out.extend_from_slice(&data[written..]);
        Poll::Ready(Ok(()))
    }

    fn count_written(&mut self, count: usize) {
        self.written += count as u64;
        self.progress += count as u64;
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut Source<'_>,
        scratch: &Scratch,
    ) -> Poll<Result<(), Stop>> {
        let buffer = source.buffer.get_or_insert_with(|| scratch.stock.take());
        match ready!(buffer.poll_fill(cx, source.stream, BUFFER_BYTES)) {
            Ok(0) => Poll::Ready(self.source_closed(source.stream)),
            Ok(_) => Poll::Ready(Ok(())),
            Err(_) => Poll::Ready(Err(Stop::SourceEnded)),
        }
    }

    fn source_closed(&mut self, source: &mut Stream) -> Result<(), Stop> {
        match self.reading {
            Reading::UntilClose => {}
            Reading::Stream => self.trailers = source.take_trailers(),
            Reading::Done | Reading::Length(_) | Reading::Chunked => {
                return Err(Stop::SourceEnded);
            }
        }
        self.finish()
    }

    /// What is left to be written is the message's last, and the sink is to know.
    fn ends_stream(&self) -> bool {
        self.writes_stream() && self.reading == Reading::Done
    }

    fn writes_stream(&self) -> bool {
        matches!(self.writing, Writing::Stream | Writing::Web(Delimiting::Stream))
    }

    /// What goes with the stream's end.
    fn last_fields(&self) -> Option<&FieldSection> {
        self.trailers.as_deref().filter(|_| self.writing == Writing::Stream)
    }
}

fn append_chunk(data: &[u8], out: &mut Vec<u8>) {
    write::chunk_header(data.len(), out);
    out.extend_from_slice(data);
    write::chunk_end(out);
}

#[cfg(test)]
mod tests;
