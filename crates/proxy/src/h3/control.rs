//! What a peer says of the connection as a whole: on its control stream, and by the streams that it opens beside it.

use bytes::Bytes;

use super::frame::{Frames, Kind, Piece, Place};
use super::priority::Priority;
use super::settings::Settings;
use super::{Code, Peer, varint};

/// More than any frame has that is not skipped.
const PAYLOAD_BYTES: usize = 4 * 1024;

/// What a stream of one direction is for (RFC 9114 §6.2, RFC 9204 §4.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum StreamKind {
    Control,
    Push,
    Encoder,
    Decoder,
    Unknown,
}

impl StreamKind {
    /// What it says of itself at its beginning, and how many bytes that takes; `None`: more has to come.
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

/// What came by the control stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Settings(Settings),
    /// Of a server: the first stream whose request it does not serve. Of a client it means nothing where nobody pushes.
    GoAway(u64),
    /// Of the response on this stream.
    Priority(u64, Priority),
}

/// Takes a control stream apart.
pub struct Control {
    peer: Peer,
    frames: Frames,
    /// As the peer has said; both may only move one way.
    last_goaway: u64,
    max_push: u64,
}

impl Control {
    pub fn new(peer: Peer) -> Self {
        let frames = Frames::new(Place::Control, peer, PAYLOAD_BYTES);
        Self { peer, frames, last_goaway: varint::MAX, max_push: 0 }
    }

    /// What comes next; `None`: all of `input` is taken, and more is needed.
    pub fn next(&mut self, input: &mut Bytes) -> Result<Option<Said>, Code> {
        while let Some(piece) = self.frames.next(input)? {
            let Piece::Whole(kind, payload) = piece else { return Err(Code::FRAME_UNEXPECTED) };
            let said = self.take(kind, &payload)?;
            if said.is_some() {
                return Ok(said);
            }
        }
        Ok(None)
    }

    fn take(&mut self, kind: Kind, payload: &[u8]) -> Result<Option<Said>, Code> {
        let number = || varint::read_only(payload).ok_or(Code::FRAME_ERROR);
        match kind {
            Kind::Settings => Settings::read(payload).map(Said::Settings).map(Some),
            Kind::GoAway => {
                let id = number()?;
                if id > self.last_goaway || (self.peer == Peer::Endpoint && !is_request(id)) {
                    return Err(Code::ID_ERROR);
                }
                self.last_goaway = id;
                Ok(Some(Said::GoAway(id)))
            }
            Kind::MaxPushId => {
                let id = number()?;
                if id < self.max_push {
                    return Err(Code::ID_ERROR);
                }
                self.max_push = id;
                Ok(None)
            }
            Kind::PriorityUpdate => {
                let (id, taken) = varint::read(payload).ok_or(Code::FRAME_ERROR)?;
                if !is_request(id) {
                    return Err(Code::ID_ERROR);
                }
                Ok(Some(Said::Priority(id, Priority::parse(&payload[taken..]))))
            }
            // There never was a push.
            Kind::CancelPush => number().and(Err(Code::ID_ERROR)),
            Kind::PushPriorityUpdate => Err(Code::ID_ERROR),
            Kind::Data | Kind::Headers | Kind::PushPromise | Kind::Reserved | Kind::Unknown => {
                Err(Code::FRAME_UNEXPECTED)
            }
        }
    }
}

/// Whether a stream is one of those that carry requests: opened by a client, in both directions (RFC 9000 §2.1).
fn is_request(id: u64) -> bool {
    id & 0b11 == 0
}

#[cfg(test)]
mod tests;
