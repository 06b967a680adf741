//! Parser of the peer's control stream, and of the types of its unidirectional streams.

use bytes::Bytes;

use super::frame::{FrameContext, FrameCounts, FramePart, H3FrameDecoder, H3FrameType};
use super::priority::ResponsePriority;
use super::settings::H3Settings;
use super::{H3ErrorCode, PeerRole, varint};

/// Payload limit; no frame that is not skipped needs more.
const PAYLOAD_BYTES: usize = 4 * 1024;

/// Type of a unidirectional stream (RFC 9114 §6.2, RFC 9204 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UniStreamType {
    Control,
    Push,
    Encoder,
    Decoder,
    Unknown,
}

impl UniStreamType {
    /// Parses the type at the start of a stream, and returns it with its length; `None` if more bytes are needed.
    pub fn read(bytes: &[u8]) -> Option<(Self, usize)> {
        let (number, taken) = varint::read(bytes)?;
        let kind = match number {
            0x0 => Self::Control,
            0x1 => Self::Push,
            0x2 => Self::Encoder,
            0x3 => Self::Decoder,
            _ => Self::Unknown,
        };
        Some((kind, taken))
    }
}

/// A frame received on the control stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ControlFrame {
    Settings(H3Settings),
    /// From a server: the first stream whose request it does not process. From a client: a push ID, which has no
    /// meaning without server push.
    GoAway(u64),
    /// Priority of the response on this stream.
    Priority(u64, ResponsePriority),
}

/// Parser of a control stream.
pub struct ControlStreamReader {
    peer: PeerRole,
    frame_decoder: H3FrameDecoder,
    /// Last values that the peer has sent. GOAWAY IDs may only decrease, the maximum push ID may only increase.
    last_goaway: u64,
    max_push_id: u64,
}

impl ControlStreamReader {
    pub fn new(peer: PeerRole) -> Self {
        let frame_decoder = H3FrameDecoder::new(FrameContext::Control, peer, PAYLOAD_BYTES);
        Self { peer, frame_decoder, last_goaway: varint::MAX, max_push_id: 0 }
    }

    /// Returns the next frame; `None` if all of `input` is consumed and more is needed.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<ControlFrame>, H3ErrorCode> {
        while let Some(piece) = self.frame_decoder.next(input)? {
            let FramePart::Whole(kind, payload) = piece else {
                return Err(H3ErrorCode::FRAME_UNEXPECTED);
            };
            let frame = self.handle_frame(kind, &payload)?;
            if frame.is_some() {
                return Ok(frame);
            }
        }
        Ok(None)
    }

    /// Returns the frames that have begun since the last call.
    pub fn take_counts(&mut self) -> FrameCounts {
        self.frame_decoder.take_counts()
    }

    fn handle_frame(
        &mut self,
        kind: H3FrameType,
        payload: &[u8],
    ) -> Result<Option<ControlFrame>, H3ErrorCode> {
        let number = || varint::read_only(payload).ok_or(H3ErrorCode::FRAME_ERROR);
        match kind {
            H3FrameType::Settings => {
                H3Settings::read(payload).map(ControlFrame::Settings).map(Some)
            }
            H3FrameType::GoAway => {
                let id = number()?;
                if id > self.last_goaway
                    || (self.peer == PeerRole::Endpoint && !is_request_stream(id))
                {
                    return Err(H3ErrorCode::ID_ERROR);
                }
                self.last_goaway = id;
                Ok(Some(ControlFrame::GoAway(id)))
            }
            H3FrameType::MaxPushId => {
                let id = number()?;
                if id < self.max_push_id {
                    return Err(H3ErrorCode::ID_ERROR);
                }
                self.max_push_id = id;
                Ok(None)
            }
            H3FrameType::PriorityUpdate => {
                let (id, taken) = varint::read(payload).ok_or(H3ErrorCode::FRAME_ERROR)?;
                if !is_request_stream(id) {
                    return Err(H3ErrorCode::ID_ERROR);
                }
                let value = payload.get(taken..).unwrap_or_default();
                Ok(Some(ControlFrame::Priority(id, ResponsePriority::parse(value))))
            }
            // There are no pushes.
            H3FrameType::CancelPush => number().and(Err(H3ErrorCode::ID_ERROR)),
            H3FrameType::PushPriorityUpdate => Err(H3ErrorCode::ID_ERROR),
            H3FrameType::Data
            | H3FrameType::Headers
            | H3FrameType::PushPromise
            | H3FrameType::Reserved
            | H3FrameType::Unknown => Err(H3ErrorCode::FRAME_UNEXPECTED),
        }
    }
}

/// True for a stream that carries requests: opened by a client, bidirectional (RFC 9000 §2.1).
fn is_request_stream(id: u64) -> bool {
    id & 0b11 == 0
}

#[cfg(test)]
mod tests;
