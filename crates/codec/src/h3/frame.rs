//! Parser and writer of frames (RFC 9114 §7). The parser takes the bytes of a stream in pieces of any size.
//!
//! DATA payloads are never copied or buffered. Payloads that are needed as a whole are buffered up to a limit. Unknown
//! frames are skipped as they arrive. This module decides which frame type is allowed on which stream, but not the
//! order of heads and bodies.

#![expect(
    clippy::indexing_slicing,
    reason = "positions are those of bytes that have just been written"
)]

use bytes::{Buf, Bytes};

use super::varint::{self, EncodedVarint};
use super::{H3ErrorCode, PeerRole};

const DATA: u64 = 0x0;
const HEADERS: u64 = 0x1;
const SETTINGS: u64 = 0x4;
const GOAWAY: u64 = 0x7;

/// Frame types (RFC 9114 §11.2.1, RFC 9218 §7.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum H3FrameType {
    Data,
    Headers,
    CancelPush,
    Settings,
    PushPromise,
    GoAway,
    MaxPushId,
    PriorityUpdate,
    PushPriorityUpdate,
    /// A frame type of HTTP/2 that has no equivalent in HTTP/3.
    Reserved,
    Unknown,
}

impl H3FrameType {
    fn of(number: u64) -> Self {
        match number {
            DATA => Self::Data,
            HEADERS => Self::Headers,
            0x3 => Self::CancelPush,
            SETTINGS => Self::Settings,
            0x5 => Self::PushPromise,
            GOAWAY => Self::GoAway,
            0xd => Self::MaxPushId,
            0xf0700 => Self::PriorityUpdate,
            0xf0701 => Self::PushPriorityUpdate,
            0x2 | 0x6 | 0x8 | 0x9 => Self::Reserved,
            _ => Self::Unknown,
        }
    }
}

/// The kind of stream on which frames arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FrameContext {
    /// A request and its response.
    Request,
    Control,
}

/// Handling of the payload of a frame.
enum FrameHandling {
    Stream,
    Buffer,
    Skip,
}

impl FrameContext {
    /// Implements RFC 9114 §7.2, table 1, for frames sent by `peer`. Server push is never allowed.
    fn classify(
        self,
        peer: PeerRole,
        kind: H3FrameType,
        is_first: bool,
    ) -> Result<FrameHandling, H3ErrorCode> {
        match (self, kind) {
            (Self::Control, H3FrameType::Settings) if is_first => Ok(FrameHandling::Buffer),
            (Self::Control, _) if is_first => Err(H3ErrorCode::MISSING_SETTINGS),
            (Self::Request | Self::Control, H3FrameType::Unknown) => Ok(FrameHandling::Skip),
            (Self::Request, H3FrameType::Data) => Ok(FrameHandling::Stream),
            (Self::Request, H3FrameType::Headers) => Ok(FrameHandling::Buffer),
            (Self::Control, H3FrameType::GoAway | H3FrameType::CancelPush) => {
                Ok(FrameHandling::Buffer)
            }
            (
                Self::Control,
                H3FrameType::MaxPushId
                | H3FrameType::PriorityUpdate
                | H3FrameType::PushPriorityUpdate,
            ) if peer == PeerRole::Client => Ok(FrameHandling::Buffer),
            (Self::Request, H3FrameType::PushPromise) if peer == PeerRole::Endpoint => {
                Err(H3ErrorCode::ID_ERROR)
            }
            (
                Self::Request | Self::Control,
                H3FrameType::Data
                | H3FrameType::Headers
                | H3FrameType::CancelPush
                | H3FrameType::Settings
                | H3FrameType::PushPromise
                | H3FrameType::GoAway
                | H3FrameType::MaxPushId
                | H3FrameType::PriorityUpdate
                | H3FrameType::PushPriorityUpdate
                | H3FrameType::Reserved,
            ) => Err(H3ErrorCode::FRAME_UNEXPECTED),
        }
    }
}

/// Result of parsing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum FramePart {
    /// A part of the payload of a DATA frame; may be empty.
    Data(Bytes),
    /// The complete payload of another frame.
    Whole(H3FrameType, Bytes),
    /// A field section beyond the limit has begun; it is skipped.
    TooLarge,
}

/// Parser of the frames of one stream.
pub struct H3FrameDecoder {
    context: FrameContext,
    peer: PeerRole,
    /// Largest payload that is buffered.
    max_payload: usize,
    has_begun: bool,
    /// Received part of an incomplete frame header.
    header: Vec<u8>,
    state: FrameDecoderState,
    counts: FrameCounts,
}

/// Frames that have begun, by their use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FrameCounts {
    /// Frames with bytes of a body or with a field section.
    pub useful: u32,
    /// All others: control frames, frames of unknown and reserved types, empty DATA frames.
    pub idle: u32,
}

/// Position of the next byte.
enum FrameDecoderState {
    Header,
    Data { left: u64 },
    Buffering { kind: H3FrameType, left: usize, payload: Vec<u8> },
    Skipping { left: u64 },
}

impl H3FrameDecoder {
    /// Creates a parser of frames that `peer` sends; buffers payloads up to `max_payload` bytes.
    pub fn new(context: FrameContext, peer: PeerRole, max_payload: usize) -> Self {
        Self {
            context,
            peer,
            max_payload,
            has_begun: false,
            header: Vec::new(),
            state: FrameDecoderState::Header,
            counts: FrameCounts::default(),
        }
    }

    /// Returns the frames that have begun since the last call.
    pub fn take_counts(&mut self) -> FrameCounts {
        std::mem::take(&mut self.counts)
    }

    /// True at a frame boundary, where the stream may end.
    pub fn is_at_boundary(&self) -> bool {
        matches!(self.state, FrameDecoderState::Header) && self.header.is_empty()
    }

    /// Returns the next part; `None` if all of `input` is consumed and more is needed.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<FramePart>, H3ErrorCode> {
        loop {
            match &mut self.state {
                FrameDecoderState::Header => {
                    let Some((number, length)) = self.read_header(input) else { return Ok(None) };
                    let begun = self.begin(H3FrameType::of(number), length)?;
                    if begun.is_some() {
                        return Ok(begun);
                    }
                }
                FrameDecoderState::Data { .. } if input.is_empty() => return Ok(None),
                FrameDecoderState::Data { left } => {
                    let data = input.split_to(available_bytes(*left, input));
                    *left -= data.len() as u64;
                    if *left == 0 {
                        self.state = FrameDecoderState::Header;
                    }
                    return Ok(Some(FramePart::Data(data)));
                }
                FrameDecoderState::Buffering { kind, left, payload } => {
                    let count = input.len().min(*left);
                    *left -= count;
                    if *left > 0 {
                        payload.extend_from_slice(&input.split_to(count));
                        return Ok(None);
                    }
                    let last = input.split_to(count);
                    let payload = std::mem::take(payload);
                    let whole = if payload.is_empty() {
                        last
                    } else {
                        [&payload[..], &last].concat().into()
                    };
                    let piece = FramePart::Whole(*kind, whole);
                    self.state = FrameDecoderState::Header;
                    return Ok(Some(piece));
                }
                FrameDecoderState::Skipping { left } => {
                    let count = available_bytes(*left, input);
                    input.advance(count);
                    *left -= count as u64;
                    if *left > 0 {
                        return Ok(None);
                    }
                    self.state = FrameDecoderState::Header;
                }
            }
        }
    }

    /// Parses type and length of the next frame.
    fn read_header(&mut self, input: &mut Bytes) -> Option<(u64, u64)> {
        if self.header.is_empty()
            && let Some((number, length, taken)) = header(input)
        {
            input.advance(taken);
            return Some((number, length));
        }
        while !input.is_empty() {
            self.header.push(input.get_u8());
            if let Some((number, length, _)) = header(&self.header) {
                self.header.clear();
                return Some((number, length));
            }
        }
        None
    }

    fn begin(&mut self, kind: H3FrameType, length: u64) -> Result<Option<FramePart>, H3ErrorCode> {
        let is_first = !std::mem::replace(&mut self.has_begun, true);
        let is_useful = match kind {
            H3FrameType::Data => length > 0,
            H3FrameType::Headers => true,
            H3FrameType::CancelPush
            | H3FrameType::Settings
            | H3FrameType::PushPromise
            | H3FrameType::GoAway
            | H3FrameType::MaxPushId
            | H3FrameType::PriorityUpdate
            | H3FrameType::PushPriorityUpdate
            | H3FrameType::Reserved
            | H3FrameType::Unknown => false,
        };
        let count = if is_useful { &mut self.counts.useful } else { &mut self.counts.idle };
        *count = count.saturating_add(1);
        match self.context.classify(self.peer, kind, is_first)? {
            FrameHandling::Stream if length == 0 => return Ok(Some(FramePart::Data(Bytes::new()))),
            FrameHandling::Stream => self.state = FrameDecoderState::Data { left: length },
            FrameHandling::Skip => self.state = FrameDecoderState::Skipping { left: length },
            FrameHandling::Buffer => match usize::try_from(length) {
                Ok(left) if left <= self.max_payload => {
                    self.state = FrameDecoderState::Buffering { kind, left, payload: Vec::new() };
                }
                Ok(_) | Err(_) if kind == H3FrameType::Headers => {
                    self.state = FrameDecoderState::Skipping { left: length };
                    return Ok(Some(FramePart::TooLarge));
                }
                Ok(_) | Err(_) => return Err(H3ErrorCode::EXCESSIVE_LOAD),
            },
        }
        Ok(None)
    }
}

/// Parses type and length, and returns them with the number of bytes that they take.
fn header(bytes: &[u8]) -> Option<(u64, u64, usize)> {
    let (number, taken) = varint::read(bytes)?;
    let (length, more) = varint::read(bytes.get(taken..)?)?;
    Some((number, length, taken + more))
}

/// Returns how many of `left` bytes have arrived.
fn available_bytes(left: u64, input: &Bytes) -> usize {
    usize::try_from(left).map_or(input.len(), |left| left.min(input.len()))
}

/// Writes a HEADERS frame with the field section that `section` appends.
pub fn write_headers(out: &mut Vec<u8>, section: impl FnOnce(&mut Vec<u8>)) {
    write(HEADERS, out, section);
}

pub(super) fn write_settings(out: &mut Vec<u8>, settings: impl FnOnce(&mut Vec<u8>)) {
    write(SETTINGS, out, settings);
}

pub fn write_goaway(id: u64, out: &mut Vec<u8>) {
    write(GOAWAY, out, |out| varint::write(id, out));
}

fn write(kind: u64, out: &mut Vec<u8>, payload: impl FnOnce(&mut Vec<u8>)) {
    varint::write(kind, out);
    // Nearly every length takes at most two bytes.
    let place = out.len();
    out.extend_from_slice(&[0; 2]);
    payload(out);
    let length = out.len() - place - 2;
    if let Ok(length @ 0..0x4000) = u16::try_from(length) {
        out[place..place + 2].copy_from_slice(&(0x4000 | length).to_be_bytes());
    } else {
        let length = EncodedVarint::new(length as u64);
        out.splice(place..place + 2, length.as_bytes().iter().copied());
    }
}

/// The frame header before the payload of a DATA frame.
#[derive(Clone, Copy)]
pub struct DataHeader {
    bytes: [u8; 9],
    len: usize,
}

impl DataHeader {
    /// Returns the header of a frame with `length` bytes of payload. For length 0 there is no frame, and the header is
    /// empty.
    pub fn new(length: u64) -> Self {
        let mut header = Self { bytes: [DATA as u8; 9], len: 0 };
        if length > 0 {
            let length = EncodedVarint::new(length);
            header.len = 1 + length.as_bytes().len();
            header.bytes[1..header.len].copy_from_slice(length.as_bytes());
        }
        header
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

#[cfg(test)]
mod tests;
