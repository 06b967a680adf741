//! Parser of the frames of a response, independent of read boundaries.

use bytes::Buf;
use quinn_proto::VarInt;
use quinn_proto::coding::Codec as _;

use super::{DATA, HEADERS, fields};
use crate::http::MessageError;

/// Parser state of one response.
#[derive(Default)]
pub(super) struct ResponseReader {
    /// The current frame.
    frame: Option<Http3Frame>,
    /// The first bytes of an incomplete frame header, or an incomplete head.
    partial: Vec<u8>,
}

struct Http3Frame {
    kind: u64,
    left: u64,
}

pub(super) enum ResponsePart {
    /// Status of a head; trailers have no status and are not reported.
    Head(u16),
    Data(u64),
}

impl ResponseReader {
    /// Reports each part that these bytes complete. Unknown frames are ignored (RFC 9114 §9).
    pub(super) fn take(
        &mut self,
        mut bytes: &[u8],
        mut emit: impl FnMut(ResponsePart),
    ) -> Result<(), MessageError> {
        while let Some(&first) = bytes.first() {
            let Some(frame) = &mut self.frame else {
                self.partial.push(first);
                bytes = &bytes[1..];
                self.frame = self.begun_frame();
                self.end_frame(&mut emit)?;
                continue;
            };
            let count = frame.left.min(bytes.len() as u64);
            frame.left -= count;
            let (now, later) = bytes.split_at(count as usize);
            bytes = later;
            if frame.kind == u64::from(HEADERS) {
                self.partial.extend_from_slice(now);
            } else if frame.kind == u64::from(DATA) {
                emit(ResponsePart::Data(count));
            }
            self.end_frame(&mut emit)?;
        }
        Ok(())
    }

    /// True if no frame is incomplete.
    pub(super) fn is_whole(&self) -> bool {
        self.frame.is_none() && self.partial.is_empty()
    }

    fn begun_frame(&mut self) -> Option<Http3Frame> {
        let mut bytes = self.partial.as_slice();
        let kind = VarInt::decode(&mut bytes).ok()?.into_inner();
        let left = VarInt::decode(&mut bytes).ok()?.into_inner();
        debug_assert!(!bytes.has_remaining(), "bytes are parsed one by one");
        self.partial.clear();
        Some(Http3Frame { kind, left })
    }

    fn end_frame(&mut self, emit: &mut impl FnMut(ResponsePart)) -> Result<(), MessageError> {
        let Some(Http3Frame { kind, left: 0 }) = self.frame else { return Ok(()) };
        self.frame = None;
        if kind == u64::from(HEADERS) {
            if let Some(status) = fields::status(&self.partial)? {
                emit(ResponsePart::Head(status));
            }
            self.partial.clear();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Head of status 200, data in two frames with an unknown frame between them, and trailers.
    const ANSWER: &[u8] = b"\x01\x03\0\0\xd9\x00\x02ab\x21\x01?\x00\x01c\x01\x05\0\0\x21a\0";

    fn parts(pieces: &[&[u8]]) -> (Vec<u16>, u64, bool) {
        let (mut answer, mut heads, mut bytes) = (ResponseReader::default(), Vec::new(), 0);
        for piece in pieces {
            let emit = |part| match part {
                ResponsePart::Head(status) => heads.push(status),
                ResponsePart::Data(count) => bytes += count,
            };
            answer.take(piece, emit).unwrap();
        }
        (heads, bytes, answer.is_whole())
    }

    #[test]
    fn response_is_parsed_alike_across_any_read_boundary() {
        for at in 0..=ANSWER.len() {
            let (first, second) = ANSWER.split_at(at);
            assert_eq!(parts(&[first, second]), (vec![200], 3, true), "split at {at}");
        }
    }

    #[test]
    fn truncated_response_is_incomplete() {
        assert!(!parts(&[b"\x00\x02a"]).2);
        assert!(!parts(&[b"\x00"]).2);
    }

    #[test]
    fn empty_frames_are_complete_at_once() {
        assert_eq!(parts(&[b"\x00\x00\x01\x03\0\0\xd9"]), (vec![200], 0, true));
    }
}
