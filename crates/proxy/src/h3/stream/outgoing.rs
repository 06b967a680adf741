//! The sending side of a stream: heads, a body in frames, trailers.
//!
//! No body bytes are copied into a buffer. A DATA frame is begun with the length of all available bytes. If the peer's
//! window is smaller, later writes fill the rest of the frame; the caller keeps the bytes until then.

use std::io::IoSlice;
use std::ops::Range;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use codec::h3::frame::{self, DataHeader};
use codec::h3::{H3ErrorCode, fields};
use codec::head::FieldSection;
use quic::{SendStream, StreamEnd};

/// Largest number of slices in one write.
const SLICES: usize = 8;

/// The part of the message after a head.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AfterHead {
    Head,
    Body,
    Nothing,
}

pub(super) struct OutgoingMessage {
    pub(super) send: SendStream,
    state: H3WriteState,
    /// Bytes sent before all others: the head of a request, or the rest of a frame header.
    pending_prefix: Bytes,
    /// Number of the next bytes to write that belong to a head, already framed.
    head_left: usize,
    after_head: AfterHead,
    /// Remaining payload of the current DATA frame.
    frame_left: u64,
    has_trailers: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H3WriteState {
    /// A head may be added; an earlier head, if any, may still be replaced because none of it has been sent.
    Head,
    Body,
    Ended,
}

impl OutgoingMessage {
    pub(super) fn to_client(send: SendStream) -> Self {
        Self {
            send,
            state: H3WriteState::Head,
            pending_prefix: Bytes::new(),
            head_left: 0,
            after_head: AfterHead::Head,
            frame_left: 0,
            has_trailers: false,
        }
    }

    /// Creates a message that begins with the head that `section` appends.
    pub(super) fn to_endpoint(
        send: SendStream,
        section: impl FnOnce(&mut Vec<u8>),
        is_whole: bool,
    ) -> Self {
        let mut head = Vec::new();
        frame::write_headers(&mut head, section);
        let after_head = if is_whole { AfterHead::Nothing } else { AfterHead::Body };
        Self {
            state: H3WriteState::Body,
            pending_prefix: head.into(),
            after_head,
            ..Self::to_client(send)
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.state == H3WriteState::Ended
    }

    /// Writes a head to the beginning of `out`, which the caller must write next; false if it is too late for a head.
    pub(super) fn put_head(
        &mut self,
        out: &mut Vec<u8>,
        follows: AfterHead,
        section: impl FnOnce(&mut Vec<u8>),
    ) -> bool {
        debug_assert!(out.is_empty(), "a head comes first in the buffer");
        if self.state != H3WriteState::Head {
            return false;
        }
        frame::write_headers(out, section);
        (self.head_left, self.after_head) = (out.len(), follows);
        true
    }

    /// Ready when the peer no longer wants the message.
    pub(super) fn poll_stopped(&mut self, cx: &mut Context<'_>) -> Poll<StreamEnd> {
        if self.is_ended() {
            return Poll::Pending;
        }
        let stopped = ready!(self.send.poll_stopped(cx));
        Poll::Ready(stopped.map_or_else(StreamEnd::Connection, StreamEnd::Stopped))
    }

    /// Writes as much as the peer's window allows, at least one byte. If `is_last` and all bytes are written, also ends
    /// the stream.
    ///
    /// The error is `None` for a stream that has ended.
    pub(super) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        is_last: bool,
    ) -> Poll<Result<usize, Option<StreamEnd>>> {
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        debug_assert!(wanted > 0, "an empty write has nothing to wait for");
        loop {
            if self.is_ended() {
                return Poll::Ready(Err(None));
            }
            let count = ready!(self.poll_write_once(cx, slices, wanted))?;
            if is_last && count == wanted && self.frame_left == 0 {
                self.finish();
            }
            if count > 0 {
                return Poll::Ready(Ok(count));
            }
        }
    }

    /// Writes once, and returns how many bytes of `slices` were sent.
    fn poll_write_once(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        wanted: usize,
    ) -> Poll<Result<usize, StreamEnd>> {
        let head = wanted.min(self.head_left);
        let of_frame = usize::try_from(self.frame_left).unwrap_or(usize::MAX);
        let (header, body) = if of_frame == 0 {
            (DataHeader::new((wanted - head) as u64), wanted - head)
        } else {
            (DataHeader::new(0), of_frame.min(wanted - head))
        };
        let parts = [IoSlice::new(&self.pending_prefix)]
            .into_iter()
            .chain(slice_range(slices, 0..head))
            .chain([IoSlice::new(header.as_bytes())])
            .chain(slice_range(slices, head..head + body));
        let mut pieces = [IoSlice::new(&[]); SLICES];
        let mut count = 0;
        for part in parts.filter(|part| !part.is_empty()).take(SLICES) {
            pieces[count] = part;
            count += 1;
        }
        let sent = ready!(self.send.poll_write(cx, &pieces[..count]));
        let sent = sent.inspect_err(|_| self.state = H3WriteState::Ended)?;
        Poll::Ready(Ok(self.record_sent(sent, head, header, wanted - head)))
    }

    /// Updates the state after `sent` bytes, and returns how many of them came from the caller.
    fn record_sent(
        &mut self,
        mut sent: usize,
        head: usize,
        header: DataHeader,
        body: usize,
    ) -> usize {
        let mut take = |most: usize| {
            let taken = sent.min(most);
            sent -= taken;
            taken
        };
        self.pending_prefix.advance(take(self.pending_prefix.len()));
        let of_head = take(head);
        let of_header = take(header.as_bytes().len());
        let of_body = take(usize::MAX);
        if of_header > 0 {
            self.pending_prefix = Bytes::copy_from_slice(&header.as_bytes()[of_header..]);
            self.frame_left = body as u64;
        }
        self.frame_left -= of_body as u64;
        if of_head > 0 {
            self.head_left -= of_head;
            self.record_head_sent();
        }
        of_head + of_body
    }

    /// Updates the state after some bytes of a head.
    fn record_head_sent(&mut self) {
        self.state = H3WriteState::Body;
        match self.after_head {
            _ if self.head_left > 0 => {}
            AfterHead::Head => self.state = H3WriteState::Head,
            AfterHead::Body => {}
            AfterHead::Nothing => self.finish(),
        }
    }

    /// Sends the head of a request, and the end of the stream if no body follows.
    pub(super) fn poll_flush_prefix(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<(), StreamEnd>> {
        while !self.pending_prefix.is_empty() && !self.is_ended() {
            let written = ready!(self.send.poll_write_bytes(cx, &mut self.pending_prefix));
            written.inspect_err(|_| self.state = H3WriteState::Ended)?;
        }
        if self.state == H3WriteState::Body && self.after_head == AfterHead::Nothing {
            self.finish();
        }
        Poll::Ready(Ok(()))
    }

    /// Ends the stream, with trailers. The error is `None` if a head or a frame is incomplete and the stream cannot be
    /// ended.
    pub(super) fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        trailers: Option<&FieldSection>,
    ) -> Poll<Result<(), Option<StreamEnd>>> {
        if self.is_ended() {
            return Poll::Ready(Ok(()));
        }
        if self.state == H3WriteState::Head || self.head_left > 0 || self.frame_left > 0 {
            return Poll::Ready(Err(None));
        }
        if let Some(trailers) = trailers
            && !std::mem::replace(&mut self.has_trailers, true)
        {
            let mut ahead = self.pending_prefix.to_vec();
            frame::write_headers(&mut ahead, |section| fields::write_trailers(trailers, section));
            self.pending_prefix = ahead.into();
        }
        ready!(self.poll_flush_prefix(cx))?;
        self.finish();
        Poll::Ready(Ok(()))
    }

    fn finish(&mut self) {
        self.state = H3WriteState::Ended;
        self.send.finish();
    }

    /// Resets the stream, unless it has ended: the message is incomplete.
    pub(super) fn reset(&mut self, code: H3ErrorCode) {
        if !self.is_ended() {
            self.send.reset(code.0);
        }
    }
}

/// Returns the slices that cover a range of their bytes.
fn slice_range<'s>(
    slices: &'s [IoSlice<'_>],
    range: Range<usize>,
) -> impl Iterator<Item = IoSlice<'s>> {
    let mut passed = 0;
    slices.iter().map(move |slice| {
        let within = |at: usize| at.saturating_sub(passed).min(slice.len());
        let part = &slice[within(range.start)..within(range.end)];
        passed += slice.len();
        IoSlice::new(part)
    })
}
