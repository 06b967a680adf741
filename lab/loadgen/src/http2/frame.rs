//! Frames in bytes (RFC 9113 §4 and §6).

use std::ops::Range;

use crate::http::MessageError;

const HEAD_BYTES: usize = 9;
const SETTING_BYTES: usize = 6;
const PRIORITY_BYTES: usize = 5;

pub(super) const DATA: u8 = 0;
pub(super) const HEADERS: u8 = 1;
pub(super) const RST_STREAM: u8 = 3;
pub(super) const SETTINGS: u8 = 4;
pub(super) const PING: u8 = 6;
pub(super) const GOAWAY: u8 = 7;
pub(super) const WINDOW_UPDATE: u8 = 8;
pub(super) const CONTINUATION: u8 = 9;

pub(super) const END_STREAM: u8 = 0x1;
pub(super) const ACK: u8 = 0x1;
pub(super) const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

pub(super) const HEADER_TABLE_SIZE: u16 = 1;
pub(super) const ENABLE_PUSH: u16 = 2;
pub(super) const MAX_CONCURRENT_STREAMS: u16 = 3;
pub(super) const INITIAL_WINDOW_SIZE: u16 = 4;

/// A complete frame, as positions in the receive buffer.
pub(super) struct Http2Frame {
    pub(super) kind: u8,
    flags: u8,
    pub(super) stream: u32,
    pub(super) payload: Range<usize>,
}

impl Http2Frame {
    /// Reads the frame at this position; `None` if it is incomplete.
    pub(super) fn read(inbox: &[u8], begin: usize) -> Option<Self> {
        let head = inbox.get(begin..begin + HEAD_BYTES)?;
        let length = number([0, head[0], head[1], head[2]]) as usize;
        let stream = number([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let payload = begin + HEAD_BYTES..begin + HEAD_BYTES + length;
        let whole = payload.end <= inbox.len();
        whole.then_some(Self { kind: head[3], flags: head[4], stream, payload })
    }

    pub(super) fn has(&self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    /// Returns the position of the payload of HEADERS or DATA without padding and priority.
    pub(super) fn content(&self, inbox: &[u8]) -> Result<Range<usize>, MessageError> {
        let Range { mut start, mut end } = self.payload;
        if self.has(PADDED) {
            let padding = inbox[self.payload.clone()].first().ok_or(MessageError::Frame)?;
            end = end.saturating_sub(usize::from(*padding));
            start += 1;
        }
        if self.kind == HEADERS && self.has(PRIORITY) {
            start += PRIORITY_BYTES;
        }
        if start <= end { Ok(start..end) } else { Err(MessageError::Frame) }
    }

    pub(super) fn number(&self, inbox: &[u8], offset: usize) -> Result<u32, MessageError> {
        let bytes =
            inbox[self.payload.clone()].get(offset..offset + 4).ok_or(MessageError::Frame)?;
        Ok(number([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }

    pub(super) fn settings<'a>(
        &self,
        inbox: &'a [u8],
    ) -> impl Iterator<Item = (u16, u32)> + use<'a> {
        inbox[self.payload.clone()].chunks_exact(SETTING_BYTES).map(|setting| {
            let value = number([setting[2], setting[3], setting[4], setting[5]]);
            (u16::from_be_bytes([setting[0], setting[1]]), value)
        })
    }
}

pub(super) fn write_frame(out: &mut Vec<u8>, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
    let length = u32::try_from(payload.len()).expect("payloads of the lab are small");
    out.extend_from_slice(&length.to_be_bytes()[1..]);
    out.extend_from_slice(&[kind, flags]);
    out.extend_from_slice(&stream.to_be_bytes());
    out.extend_from_slice(payload);
}

pub(super) fn setting((name, value): &(u16, u32)) -> Vec<u8> {
    [&name.to_be_bytes()[..], &value.to_be_bytes()].concat()
}

fn number(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frame_round_trips() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, SETTINGS, ACK, 7, &setting(&(INITIAL_WINDOW_SIZE, 70_000)));
        let frame = Http2Frame::read(&bytes, 0).unwrap();
        assert_eq!((frame.kind, frame.stream, frame.has(ACK)), (SETTINGS, 7, true));
        assert_eq!(frame.settings(&bytes).collect::<Vec<_>>(), [(INITIAL_WINDOW_SIZE, 70_000)]);
        assert!(Http2Frame::read(&bytes[..bytes.len() - 1], 0).is_none());
    }

    #[test]
    fn padding_is_no_content() {
        let mut bytes = Vec::new();
        write_frame(&mut bytes, DATA, PADDED, 1, b"\x02body\0\0");
        let frame = Http2Frame::read(&bytes, 0).unwrap();
        assert_eq!(&bytes[frame.content(&bytes).unwrap()], b"body");
        write_frame(&mut bytes, HEADERS, PADDED, 1, b"\x09x");
        let frame = Http2Frame::read(&bytes, frame.payload.end).unwrap();
        assert!(frame.content(&bytes).is_err());
    }
}
