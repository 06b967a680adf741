//! Body streaming: carries one body from its source to its sink with back-pressure, never buffering
//! it whole.
//!
//! A `BodyPump` starts with a head in `out`, so that a head and a small body leave in one write.
//! It decodes the source's framing and writes its own. Bytes that may have to be sent again stay in
//! `out` until no retry can need them.

use std::io::IoSlice;
use std::pin::Pin;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use codec::grpc::web::GrpcWebTranslator;
use codec::h1::{BadChunk, ChunkedDecoder, ChunkedEvent, write};
use codec::head::{BodyFraming, FieldSection, KnownFieldName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::oneshot;

use crate::buffer::{BUFFER_BYTES, ReadBuffer};
use crate::compression::encoder::{self, BodyEncoder};
use crate::h2::H2Stream;
use crate::pipe::SplicePipe;
use crate::request_body::connection_share::SharePlace;
use crate::scratch::{ReplayBudget, ReplayReservation, ScratchMemory};
use crate::stream::PeerStream;

/// Arrival of a body before there is a sink for it.
mod arrival;
/// Framing of bodies that are changed.
mod outer_framing;
/// Translation of bodies from and to gRPC-Web.
mod web;
/// Compression of bodies.
mod encoded;

use outer_framing::{OuterFraming, append_chunk};

/// Size up to which a request's head and body are kept for a retry.
pub(crate) const REPLAY_BYTES: usize = 64 * 1024;
/// Remaining size from which on a body is spliced. See docs/decisions/0001.
const SPLICE_BYTES: u64 = 256 * 1024;
/// Size up to which body bytes are copied behind a head, so that both leave as one slice.
const COPY_BYTES: usize = 4 * 1024;
/// Decoded bytes that may wait in `out` before the next write.
const GATHER_BYTES: usize = 64 * 1024;

/// Reason that a body did not arrive complete.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodyError {
    /// The source closed or failed before the body's end.
    SourceEnded,
    /// The source's framing is wrong.
    SourceBad(BadChunk),
    /// More bytes than the policy allows.
    TooLarge,
    /// The body cannot be translated.
    Untranslatable,
    /// The body had to make room for others while it arrived.
    Evicted,
    /// The sink closed or failed.
    SinkFailed,
}

/// Side that a pending pump waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BodySide {
    Source,
    Sink,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SourceFraming {
    Done,
    Length(u64),
    Chunked,
    UntilClose,
    /// The body ends with its stream, which carries no other message.
    Stream,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SinkFraming {
    Raw,
    Chunked,
    /// Unchanged bytes; the stream is told where the message ends.
    Stream,
    /// Translated from or to gRPC-Web.
    GrpcWeb(OuterFraming),
    /// Compressed.
    Encoded(OuterFraming),
    /// The sink has gone: the body is read to its end and dropped.
    Discard,
}

pub(crate) struct BodyPump {
    source_framing: SourceFraming,
    sink_framing: SinkFraming,
    chunks: ChunkedDecoder,
    /// Translator of a body that is written as `GrpcWeb`.
    translator: Option<Box<GrpcWebTranslator>>,
    /// Encoder of a body that is written as `Encoded`, until its end.
    encoder: Option<Box<BodyEncoder>>,
    /// Trailers that followed the body, for a sink that marks the end of a message itself.
    trailers: Option<Box<FieldSection>>,
    /// True if the messages are requests, whose trailers may not have an underscore in their name.
    carries_requests: bool,
    /// True if trailers are not passed on.
    drops_trailers: bool,
    /// True if such a sink has been told the end.
    end_sent: bool,
    /// Serialised bytes, of which the first `sent` have been written.
    pub(crate) out: Vec<u8>,
    sent: usize,
    replay: Option<ReplayReservation>,
    /// Place of the request in the share of its client's connection, until the body is complete.
    pub(crate) share_place: Option<SharePlace>,
    pipe: Option<SplicePipe>,
    max_body_bytes: u64,
    /// Decoded bytes of the body so far.
    pub(crate) body_bytes: u64,
    /// Bytes written to the sink since the start, or since the last rewind.
    pub(crate) written: u64,
    /// Counter that grows with every byte moved.
    pub(crate) progress: u64,
    pub(crate) waiting_for: BodySide,
}

/// Source stream, and the bytes that have already been read from it.
pub(crate) struct BodySource<'a> {
    pub(crate) stream: &'a mut PeerStream,
    pub(crate) buffer: &'a mut Option<ReadBuffer>,
}

impl BodyPump {
    pub(crate) fn new() -> Self {
        Self {
            source_framing: SourceFraming::Done,
            sink_framing: SinkFraming::Raw,
            chunks: ChunkedDecoder::new(),
            translator: None,
            encoder: None,
            trailers: None,
            carries_requests: false,
            drops_trailers: false,
            end_sent: false,
            out: Vec::new(),
            sent: 0,
            replay: None,
            share_place: None,
            pipe: None,
            max_body_bytes: u64::MAX,
            body_bytes: 0,
            written: 0,
            progress: 0,
            waiting_for: BodySide::Source,
        }
    }

    /// Returns a pump for the bodies of requests. Applications could take a trailer with an underscore for a field that
    /// a client may not write.
    pub(crate) fn for_requests() -> Self {
        Self { carries_requests: true, ..Self::new() }
    }

    /// Prepares for another message: it is read with framing `from` and written with framing `to`.
    pub(crate) fn start(&mut self, from: BodyFraming, to: BodyFraming) {
        self.reset();
        self.start_first(from, to);
    }

    /// Prepares a new or cleared pump, as `start` does, for the first message of a request.
    pub(crate) fn start_first(&mut self, from: BodyFraming, to: BodyFraming) {
        debug_assert!(self.out.is_empty() && self.progress == 0, "the pump is new or cleared");
        self.source_framing = match from {
            BodyFraming::None | BodyFraming::Length(0) => SourceFraming::Done,
            BodyFraming::Length(length) => SourceFraming::Length(length),
            BodyFraming::Chunked => {
                self.chunks = ChunkedDecoder::new();
                SourceFraming::Chunked
            }
            BodyFraming::UntilClose => SourceFraming::UntilClose,
            BodyFraming::Stream => SourceFraming::Stream,
        };
        self.write_as(to);
    }

    /// Drops everything of the last message except its framing.
    fn reset(&mut self) {
        self.out.clear();
        (self.replay, self.pipe, self.trailers, self.encoder) = (None, None, None, None);
        (self.sent, self.max_body_bytes, self.drops_trailers) = (0, u64::MAX, false);
        (self.body_bytes, self.written, self.progress) = (0, 0, 0);
    }

    /// Passes no trailers of this message on.
    pub(crate) fn drop_trailers(&mut self) {
        self.drops_trailers = true;
    }

    /// Changes the framing to be written from the one given at the start; nothing has been written
    /// yet.
    pub(crate) fn write_as(&mut self, to: BodyFraming) {
        self.end_sent = false;
        self.sink_framing = match to {
            BodyFraming::Chunked => SinkFraming::Chunked,
            BodyFraming::Stream => SinkFraming::Stream,
            BodyFraming::None | BodyFraming::Length(_) | BodyFraming::UntilClose => {
                SinkFraming::Raw
            }
        };
    }

    /// Keeps the bytes that are sent, as far as the budget allows, so that `rewind` can send them
    /// again. Once all bytes have been sent and kept, `mirror_sender` gets a copy.
    pub(crate) fn keep_for_replay(
        &mut self,
        budget: &Rc<ReplayBudget>,
        mirror_sender: Option<oneshot::Sender<Rc<[u8]>>>,
    ) {
        let mut reservation = ReplayReservation::new(budget);
        reservation.mirror_sender = mirror_sender;
        self.replay = Some(reservation);
    }

    /// Drops the kept bytes, which no retry can need any more.
    pub(crate) fn drop_replay(&mut self) {
        if self.replay.take().is_some() {
            self.out.drain(..self.sent);
            self.sent = 0;
        }
    }

    /// True if all bytes that were sent are still kept.
    pub(crate) fn is_replayable(&self) -> bool {
        self.replay.is_some()
    }

    /// Limits the body to `bytes`; a larger one fails.
    pub(crate) fn set_max_body_bytes(&mut self, bytes: u64) {
        self.max_body_bytes = bytes;
    }

    /// Rewinds to the first byte. Returns false if bytes that were sent are no longer kept.
    pub(crate) fn rewind(&mut self) -> bool {
        if self.replay.is_some() {
            (self.sent, self.written, self.end_sent) = (0, 0, false);
        }
        self.replay.is_some()
    }

    /// Resets the pump; keeps its buffer unless that is large.
    pub(crate) fn clear(&mut self) {
        self.reset();
        (self.source_framing, self.sink_framing) = (SourceFraming::Done, SinkFraming::Raw);
        (self.translator, self.share_place) = (None, None);
        if self.out.capacity() > REPLAY_BYTES {
            self.out.shrink_to(REPLAY_BYTES);
        }
    }

    /// Returns the trailers of a body that was read to its end.
    pub(crate) fn trailers(&self) -> Option<&FieldSection> {
        self.trailers.as_deref()
    }

    pub(crate) fn is_done(&self) -> bool {
        self.source_framing == SourceFraming::Done
            && self.sent == self.out.len()
            && self.pipe.is_none()
            && (!self.writes_stream() || self.end_sent)
    }

    /// True if the whole body has been read, though perhaps not yet written.
    pub(crate) fn is_read(&self) -> bool {
        self.source_framing == SourceFraming::Done
    }

    /// True if the whole body has been read and all unwritten bytes are in `out`: the source is not
    /// needed any more.
    pub(crate) fn has_whole_body(&self) -> bool {
        self.is_read() && self.pipe.is_none()
    }

    /// Moves as many bytes as possible. Ready when the body's last byte has been written.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BodySource<'_>,
        sink: &mut PeerStream,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), BodyError>> {
        loop {
            // Bytes in the pipe were read before those in the buffer.
            ready!(self.poll_splice(cx, source, sink, scratch))?;
            self.decode_buffered(source.buffer)?;
            if let Some(buffer) =
                source.buffer.as_mut().filter(|buffer| self.prefers_vectored_write(buffer))
            {
                ready!(self.poll_write_through(cx, buffer, sink))?;
            }
            ready!(self.poll_flush(cx, sink))?;
            if self.source_framing == SourceFraming::Done {
                return Poll::Ready(Ok(()));
            }
            self.waiting_for = BodySide::Source;
            if source.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty()) {
                continue;
            }
            if self.passes_through() {
                scratch.buffer_pool.reclaim(source.buffer);
                if self.is_large()
                    && source.stream.plain_socket().is_some()
                    && sink.plain_socket().is_some()
                {
                    self.drop_replay();
                    self.pipe = scratch.take_pipe();
                }
                if self.pipe.is_some() {
                    continue;
                }
                ready!(self.poll_copy(cx, source.stream, sink, scratch))?;
            } else if self.yields_encoder(cx) {
                return Poll::Pending;
            } else if let Poll::Ready(filled) = self.poll_fill(cx, source, scratch) {
                filled?;
            } else if self.flush_encoder()? {
                ready!(self.poll_flush(cx, sink))?;
                self.waiting_for = BodySide::Source;
                return Poll::Pending;
            } else {
                return Poll::Pending;
            }
        }
    }

    /// Reads the body to its end and drops it. Ready when it has been read.
    pub(crate) fn poll_discard(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BodySource<'_>,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), BodyError>> {
        self.sink_framing = SinkFraming::Discard;
        (self.replay, self.pipe, self.encoder) = (None, None, None);
        self.out.clear();
        self.sent = 0;
        loop {
            self.decode_buffered(source.buffer)?;
            if self.source_framing == SourceFraming::Done {
                return Poll::Ready(Ok(()));
            }
            if source.buffer.as_ref().is_none_or(ReadBuffer::is_empty) {
                ready!(self.poll_fill(cx, source, scratch))?;
            }
        }
    }

    /// Decodes the buffered bytes and appends them to `out`.
    fn decode_buffered(&mut self, buffer: &mut Option<ReadBuffer>) -> Result<(), BodyError> {
        let Some(buffer) = buffer else { return Ok(()) };
        while !buffer.is_empty() && self.out.len() - self.sent < GATHER_BYTES {
            if self.prefers_vectored_write(buffer) {
                return Ok(());
            }
            let unread = buffer.unread();
            match self.source_framing {
                SourceFraming::Done => return Ok(()),
                SourceFraming::Length(_) => {
                    let count = unread.len().min(self.left());
                    self.append(&unread[..count])?;
                    buffer.consume(count);
                    self.read(count)?;
                }
                SourceFraming::UntilClose | SourceFraming::Stream => {
                    let count = unread.len();
                    self.append(unread)?;
                    buffer.consume(count);
                    self.read(count)?;
                }
                SourceFraming::Chunked => {
                    match self.chunks.next(unread).map_err(BodyError::SourceBad)? {
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
                    }
                }
            }
        }
        Ok(())
    }

    /// Accounts for `count` bytes of the body.
    fn read(&mut self, count: usize) -> Result<(), BodyError> {
        self.body_bytes += count as u64;
        self.progress += count as u64;
        if self.body_bytes > self.max_body_bytes {
            return Err(BodyError::TooLarge);
        }
        if let SourceFraming::Length(left) = &mut self.source_framing {
            *left -= count as u64;
            if *left == 0 {
                return self.finish();
            }
        }
        Ok(())
    }

    /// Ends the body: its last byte and its trailers have been read.
    fn finish(&mut self) -> Result<(), BodyError> {
        match self.sink_framing {
            SinkFraming::Raw | SinkFraming::Discard => {}
            SinkFraming::Chunked | SinkFraming::Stream => self.finish_with_trailers(),
            SinkFraming::GrpcWeb(framing) => self.finish_translation(framing)?,
            SinkFraming::Encoded(framing) => {
                self.finish_encoding(framing)?;
                if framing != OuterFraming::Raw {
                    self.finish_with_trailers();
                }
            }
        }
        self.source_framing = SourceFraming::Done;
        self.share_place = None;
        Ok(())
    }

    fn finish_with_trailers(&mut self) {
        if self.carries_requests {
            let of_stream = self.trailers.as_deref_mut();
            for trailers in of_stream.into_iter().chain([self.chunks.trailers_mut()]) {
                trailers.remove(KnownFieldName::WithUnderscore);
                if self.drops_trailers {
                    trailers.clear();
                }
            }
        }
        let none = FieldSection::new();
        let trailers = match self.source_framing {
            SourceFraming::Chunked => self.chunks.trailers(),
            SourceFraming::Stream => self.trailers.as_deref().unwrap_or(&none),
            SourceFraming::Done | SourceFraming::Length(_) | SourceFraming::UntilClose => &none,
        };
        if self.sink_framing == SinkFraming::Chunked {
            write::last_chunk(trailers, &mut self.out);
        } else if self.source_framing == SourceFraming::Chunked && trailers.iter().next().is_some()
        {
            self.trailers = Some(Box::new(trailers.clone()));
        }
    }

    fn append(&mut self, data: &[u8]) -> Result<(), BodyError> {
        match self.sink_framing {
            SinkFraming::Raw | SinkFraming::Stream => self.out.extend_from_slice(data),
            SinkFraming::Chunked => append_chunk(data, &mut self.out),
            SinkFraming::GrpcWeb(framing) => self.append_translated(data, framing)?,
            SinkFraming::Encoded(framing) => self.append_encoded(data, framing)?,
            SinkFraming::Discard => {}
        }
        Ok(())
    }

    /// True if so many bytes go out unchanged that a second slice in the same write is cheaper than
    /// a copy.
    fn prefers_vectored_write(&self, buffer: &ReadBuffer) -> bool {
        let is_sent_on = self.sink_framing != SinkFraming::Discard && self.replay.is_none();
        is_sent_on && self.passes_through() && buffer.len() > COPY_BYTES
    }

    /// Writes the gathered bytes and the buffered bytes of the body, without copying the latter.
    fn poll_write_through(
        &mut self,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuffer,
        sink: &mut PeerStream,
    ) -> Poll<Result<(), BodyError>> {
        while !buffer.is_empty() && self.source_framing != SourceFraming::Done {
            self.waiting_for = BodySide::Sink;
            let gathered = &self.out[self.sent..];
            let body = &buffer.unread()[..buffer.len().min(self.left())];
            let slices = [IoSlice::new(gathered), IoSlice::new(body)];
            let written = ready!(Pin::new(&mut *sink).poll_write_vectored(cx, &slices));
            let Some(count) = written.ok().filter(|count| *count > 0) else {
                return Poll::Ready(Err(BodyError::SinkFailed));
            };
            let of_gathered = count.min(gathered.len());
            self.sent += of_gathered;
            self.count_written(count);
            buffer.consume(count - of_gathered);
            self.read(count - of_gathered)?;
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the number of body bytes still to be read, as far as it is known.
    fn left(&self) -> usize {
        match self.source_framing {
            SourceFraming::Length(left) => usize::try_from(left).unwrap_or(usize::MAX),
            SourceFraming::UntilClose | SourceFraming::Chunked | SourceFraming::Stream => {
                usize::MAX
            }
            SourceFraming::Done => 0,
        }
    }

    pub(crate) fn poll_flush(
        &mut self,
        cx: &mut Context<'_>,
        sink: &mut PeerStream,
    ) -> Poll<Result<(), BodyError>> {
        while self.sent < self.out.len() {
            self.waiting_for = BodySide::Sink;
            let rest = &self.out[self.sent..];
            let is_last = self.ends_stream() && self.last_fields().is_none();
            let written = if is_last {
                ready!(sink.poll_write_last(cx, rest))
            } else {
                ready!(Pin::new(&mut *sink).poll_write(cx, rest))
            };
            match written {
                Ok(count) if count > 0 => {
                    self.end_sent = is_last && count == rest.len();
                    self.sent += count;
                    self.count_written(count);
                }
                _ => return Poll::Ready(Err(BodyError::SinkFailed)),
            }
        }
        if self.ends_stream() && !self.end_sent {
            self.waiting_for = BodySide::Sink;
            if ready!(sink.poll_end(cx, self.last_fields())).is_err() {
                return Poll::Ready(Err(BodyError::SinkFailed));
            }
            self.end_sent = true;
        }
        let bytes = self.out.len();
        self.replay.take_if(|reservation| bytes > REPLAY_BYTES || !reservation.grow(bytes));
        match &mut self.replay {
            Some(reservation) if self.source_framing == SourceFraming::Done => {
                reservation.complete(&self.out)
            }
            Some(_) => {}
            None => {
                self.out.clear();
                self.sent = 0;
            }
        }
        Poll::Ready(Ok(()))
    }

    /// True if the bytes need no change, so that they can go from socket to socket through the
    /// worker's large buffer.
    fn passes_through(&self) -> bool {
        let plain_in = matches!(
            self.source_framing,
            SourceFraming::Length(_) | SourceFraming::UntilClose | SourceFraming::Stream
        );
        let is_changed = matches!(
            self.sink_framing,
            SinkFraming::Chunked | SinkFraming::GrpcWeb(_) | SinkFraming::Encoded(_)
        );
        plain_in && !is_changed
    }

    /// True if so many bytes remain that moving pages is cheaper than copying them.
    fn is_large(&self) -> bool {
        matches!(self.source_framing, SourceFraming::Length(left) if left >= SPLICE_BYTES)
    }

    /// Splices the rest of the body from socket to socket within the kernel, if that has begun.
    /// Ready when all of it has been written, or when bytes are in the buffer: the check for a
    /// client disconnect may read some.
    fn poll_splice(
        &mut self,
        cx: &mut Context<'_>,
        source: &BodySource<'_>,
        sink: &PeerStream,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), BodyError>> {
        let is_buffered = source.buffer.as_ref().is_some_and(|buffer| !buffer.is_empty());
        while let Some(mut pipe) = self.pipe.take() {
            let moved = match self.source_framing {
                _ if !pipe.is_empty() => {
                    self.waiting_for = BodySide::Sink;
                    let socket = sink.plain_socket().ok_or(BodyError::SinkFailed)?;
                    pipe.poll_empty(cx, socket).map_err(|_| BodyError::SinkFailed)
                }
                SourceFraming::Length(left) if !is_buffered => {
                    self.waiting_for = BodySide::Source;
                    let socket = source.stream.plain_socket().ok_or(BodyError::SourceEnded)?;
                    pipe.poll_fill(cx, socket, left).map_err(|_| BodyError::SourceEnded)
                }
                SourceFraming::Length(_)
                | SourceFraming::Done
                | SourceFraming::Chunked
                | SourceFraming::UntilClose
                | SourceFraming::Stream => {
                    scratch.give_back_pipe(pipe);
                    return Poll::Ready(Ok(()));
                }
            };
            self.pipe = Some(pipe);
            let count = ready!(moved)?;
            match self.waiting_for {
                BodySide::Sink => self.count_written(count),
                BodySide::Source if count == 0 => return Poll::Ready(Err(BodyError::SourceEnded)),
                BodySide::Source => self.read(count)?,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Reads once and writes once, through the worker's large buffer.
    fn poll_copy(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut PeerStream,
        sink: &mut PeerStream,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), BodyError>> {
        if self.replay.is_none()
            && let PeerStream::H2(message) = source
        {
            let has_ended = ready!(self.poll_forward(cx, message, sink))?;
            return Poll::Ready(if has_ended { self.source_closed(source) } else { Ok(()) });
        }
        let mut large = scratch.copy_buffer();
        let most = large.len().min(self.left()).min(sink.max_read(self.written));
        let mut space = ReadBuf::new(&mut large[..most]);
        let result = ready!(Pin::new(&mut *source).poll_read(cx, &mut space));
        let data = space.filled();
        if result.is_err() {
            return Poll::Ready(Err(BodyError::SourceEnded));
        }
        if data.is_empty() {
            return Poll::Ready(self.source_closed(source));
        }
        self.read(data.len())?;
        if self.replay.is_some() && self.out.len() + data.len() <= REPLAY_BYTES {
            self.out.extend_from_slice(data);
            return Poll::Ready(Ok(()));
        }
        self.drop_replay();
        let written = match Pin::new(sink).poll_write(cx, data) {
            Poll::Ready(Ok(count)) => count,
            Poll::Ready(Err(_)) => return Poll::Ready(Err(BodyError::SinkFailed)),
            Poll::Pending => 0,
        };
        self.count_written(written);
        self.out.extend_from_slice(&data[written..]);
        Poll::Ready(Ok(()))
    }

    /// Writes the next bytes of a stream where they are. Those that the sink does not accept stay in the stream's
    /// flow-control window, so the peer sends no more of them. Returns true at the stream's end.
    fn poll_forward(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut H2Stream,
        sink: &mut PeerStream,
    ) -> Poll<Result<bool, BodyError>> {
        let peeked = ready!(source.poll_peek(cx));
        let data = peeked.map_err(|_closed| BodyError::SourceEnded)?;
        let data = &data[..data.len().min(self.left())];
        if data.is_empty() {
            return Poll::Ready(Ok(true));
        }
        if self.body_bytes + data.len() as u64 > self.max_body_bytes {
            return Poll::Ready(Err(BodyError::TooLarge));
        }
        self.waiting_for = BodySide::Sink;
        let written = ready!(Pin::new(sink).poll_write(cx, data));
        let Some(count) = written.ok().filter(|count| *count > 0) else {
            return Poll::Ready(Err(BodyError::SinkFailed));
        };
        source.consume(count);
        self.count_written(count);
        self.read(count)?;
        Poll::Ready(Ok(false))
    }

    /// Returns the number of bytes that have been read and not written, in our memory or in a pipe.
    pub(crate) fn held_bytes(&self) -> usize {
        let of_encoder = self.encoder.as_ref().map_or(0, |_| encoder::MEMORY_BYTES);
        self.out.len() + self.pipe.as_ref().map_or(0, SplicePipe::len) + of_encoder
    }

    fn count_written(&mut self, count: usize) {
        self.written += count as u64;
        self.progress += count as u64;
    }

    fn poll_fill(
        &mut self,
        cx: &mut Context<'_>,
        source: &mut BodySource<'_>,
        scratch: &ScratchMemory,
    ) -> Poll<Result<(), BodyError>> {
        let buffer = source.buffer.get_or_insert_with(|| scratch.buffer_pool.take());
        match ready!(buffer.poll_fill(cx, source.stream, BUFFER_BYTES)) {
            Ok(0) => Poll::Ready(self.source_closed(source.stream)),
            Ok(_) => Poll::Ready(Ok(())),
            Err(_) => Poll::Ready(Err(BodyError::SourceEnded)),
        }
    }

    fn source_closed(&mut self, source: &mut PeerStream) -> Result<(), BodyError> {
        match self.source_framing {
            SourceFraming::UntilClose => {}
            SourceFraming::Stream => self.trailers = source.take_trailers(),
            SourceFraming::Done | SourceFraming::Length(_) | SourceFraming::Chunked => {
                return Err(BodyError::SourceEnded);
            }
        }
        self.finish()
    }

    /// True if the unwritten bytes are the last of the message, and the sink needs to be told.
    fn ends_stream(&self) -> bool {
        self.writes_stream() && self.source_framing == SourceFraming::Done
    }

    fn writes_stream(&self) -> bool {
        matches!(
            self.sink_framing,
            SinkFraming::Stream | SinkFraming::GrpcWeb(OuterFraming::Stream)
        )
    }

    /// Returns the trailers to send at the end of the stream.
    fn last_fields(&self) -> Option<&FieldSection> {
        self.trailers.as_deref().filter(|_| self.sink_framing == SinkFraming::Stream)
    }
}

#[cfg(test)]
mod tests;
