//! Frames on a connection: four bytes of length in network order, then protobuf.

use std::io;

use bytes::{Buf, BufMut, BytesMut};
use prost::Message;
use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::message::ReplicaMessage;
use crate::wire::{FrameBody, WireFrame};

/// Maximum size of a frame in bytes, without its length. The largest message of leases has
/// 36 kB. Decoded, a frame of empty entries takes up to 3 MB, for a moment.
pub const MAX_FRAME_BYTES: usize = 64 * 1024;

/// Size of the length that precedes a frame.
const LENGTH_BYTES: usize = 4;

/// Free space for one read in bytes.
const READ_BYTES: usize = 8 * 1024;

/// Reason why bytes are no frame.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub(crate) enum FrameError {
    /// The length is above the maximum.
    #[error("frame of {0} bytes")]
    TooLarge(usize),
    /// The bytes are not the protobuf of a frame.
    #[error("frame is not protobuf")]
    Malformed,
}

/// Appends a frame. If it is too large, appends nothing and returns false.
pub(crate) fn append_frame(frame: &WireFrame, out: &mut BytesMut) -> bool {
    let length = frame.encoded_len();
    let fits = length <= MAX_FRAME_BYTES;
    if fits {
        out.put_u32(u32::try_from(length).expect("a frame is small"));
        frame.encode(out).expect("the buffer grows");
    }
    fits
}

/// Returns the frame of a message.
pub(crate) fn message_frame(message: &ReplicaMessage) -> WireFrame {
    let body = match message {
        ReplicaMessage::Lease(lease) => FrameBody::Lease(lease.into()),
        ReplicaMessage::Demand(demand) => FrameBody::Demand(demand.into()),
        ReplicaMessage::Refusals(refusals) => FrameBody::Refusals(refusals.into()),
        ReplicaMessage::Outages(outages) => FrameBody::Outages(outages.into()),
        ReplicaMessage::Limits(limits) => FrameBody::Limits(limits.into()),
        ReplicaMessage::TicketKeys(keys) => FrameBody::TicketKeys(keys.into()),
        ReplicaMessage::Tokens(tokens) => FrameBody::Tokens(tokens.into()),
    };
    WireFrame { body: Some(body) }
}

/// Returns the frame that carries nothing and shows that the sender is alive.
pub(crate) fn keep_alive_frame() -> WireFrame {
    WireFrame { body: None }
}

/// Bytes that were received and not decoded yet: less than one frame, and what came with it.
#[derive(Debug, Default)]
pub(crate) struct FrameBuffer {
    bytes: BytesMut,
}

impl FrameBuffer {
    /// Returns the next whole frame of at most `max` bytes; none if bytes are missing.
    pub(crate) fn next_frame(&mut self, max: usize) -> Result<Option<WireFrame>, FrameError> {
        let Some(length) = self.bytes.first_chunk::<LENGTH_BYTES>() else { return Ok(None) };
        let length = u32::from_be_bytes(*length) as usize;
        if length > max {
            return Err(FrameError::TooLarge(length));
        }
        if self.bytes.len() - LENGTH_BYTES < length {
            return Ok(None);
        }
        self.bytes.advance(LENGTH_BYTES);
        let frame = self.bytes.split_to(length);
        WireFrame::decode(frame).map(Some).map_err(|_error| FrameError::Malformed)
    }

    /// Reads more bytes and returns their number; 0 at the end of the connection. If the future is
    /// dropped, nothing is lost.
    pub(crate) async fn read(
        &mut self,
        connection: &mut (impl AsyncRead + Unpin),
    ) -> io::Result<usize> {
        self.bytes.reserve(READ_BYTES);
        connection.read_buf(&mut self.bytes).await
    }

    #[cfg(test)]
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }
}
