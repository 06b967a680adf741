//! What comes by a stream: heads, a body and trailers, in this order, and as much of a body as its head has said.

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use tokio::io::ReadBuf;

use crate::dial::attempt::RESPONSE_LIMITS;
use crate::h3::Code;
use crate::h3::fields::{self, Unfit};
use crate::h3::frame::{Frames, Piece};
use crate::head::{Fields, Framing};
use crate::quic::{RecvStream, StreamEnd};

/// Why no more is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// The peer has given up, or its connection has ended.
    Ended(StreamEnd),
    /// The message breaks the rules, and its stream is ended for that.
    Malformed(Code),
    /// The peer does, and the connection is ended.
    Offence(Code),
}

pub(super) struct Incoming {
    recv: RecvStream,
    reading: Reading,
    frames: Frames,
    /// Received and not yet taken apart.
    input: Bytes,
    /// Taken apart ahead of its time, to see whether a head is all there is.
    piece: Option<Piece>,
    /// Of the body, and not yet taken.
    data: Bytes,
    /// Bytes of the body that are to come, if the head has said how many.
    left: Option<u64>,
    pub(super) trailers: Option<Box<Fields>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Reading {
    Head,
    Body,
    /// Behind the trailers, where nothing is but the end.
    Trailed,
    Ended,
    Failed(Halt),
}

impl Incoming {
    pub(super) fn new(recv: RecvStream, frames: Frames) -> Self {
        Self {
            recv,
            reading: Reading::Head,
            frames,
            input: Bytes::new(),
            piece: None,
            data: Bytes::new(),
            left: None,
            trailers: None,
        }
    }

    /// The section of the next head; `None`: it is too large.
    pub(super) fn poll_section(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, Halt>> {
        Poll::Ready(match ready!(self.poll_piece(cx))? {
            Some(Piece::Whole(_, section)) => Ok(Some(section)),
            Some(Piece::TooLarge) => Ok(None),
            Some(Piece::Data(_)) => Err(self.fail(Halt::Offence(Code::FRAME_UNEXPECTED))),
            None => Err(self.fail(Halt::Malformed(Code::REQUEST_INCOMPLETE))),
        })
    }

    /// Whether nothing follows, as far as has come.
    pub(super) fn is_whole(&mut self, cx: &mut Context<'_>) -> bool {
        match self.poll_piece(cx) {
            Poll::Ready(Ok(None)) => true,
            Poll::Ready(Ok(piece)) => {
                self.piece = piece;
                false
            }
            Poll::Ready(Err(_)) | Poll::Pending => false,
        }
    }

    /// No other head follows, but what the last one says.
    pub(super) fn begin_body(&mut self, framing: Framing) {
        if self.reading == Reading::Head {
            self.reading = Reading::Body;
        }
        if let Framing::Length(length) = framing {
            self.left = Some(length);
        }
    }

    /// Reads some of the body; false: it has ended, and the trailers are there.
    pub(super) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<Result<bool, Halt>> {
        while self.data.is_empty() {
            match ready!(self.poll_piece(cx))? {
                Some(Piece::Data(data)) if self.reading == Reading::Body => self.take(data)?,
                Some(Piece::Whole(_, section)) if self.reading == Reading::Body => {
                    self.take_trailers(&section)?;
                }
                Some(Piece::TooLarge) => {
                    return Poll::Ready(Err(self.fail(Halt::Malformed(Code::EXCESSIVE_LOAD))));
                }
                Some(Piece::Data(_) | Piece::Whole(..)) => {
                    return Poll::Ready(Err(self.fail(Halt::Offence(Code::FRAME_UNEXPECTED))));
                }
                None if self.left.is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(self.fail(Halt::Malformed(Code::MESSAGE_ERROR))));
                }
                None => return Poll::Ready(Ok(false)),
            }
        }
        let count = space.remaining().min(self.data.len());
        space.put_slice(&self.data[..count]);
        self.data.advance(count);
        Poll::Ready(Ok(true))
    }

    fn take(&mut self, data: Bytes) -> Result<(), Halt> {
        if let Some(left) = &mut self.left {
            let Some(rest) = left.checked_sub(data.len() as u64) else {
                return Err(self.fail(Halt::Malformed(Code::MESSAGE_ERROR)));
            };
            *left = rest;
        }
        self.data = data;
        Ok(())
    }

    fn take_trailers(&mut self, section: &[u8]) -> Result<(), Halt> {
        self.reading = Reading::Trailed;
        match fields::read_trailers(section, &RESPONSE_LIMITS) {
            Ok(trailers) => {
                self.trailers = trailers;
                Ok(())
            }
            Err(Unfit::Corrupt) => Err(self.fail(Halt::Offence(Code::DECOMPRESSION_FAILED))),
            Err(Unfit::Malformed | Unfit::Bad(_)) => {
                Err(self.fail(Halt::Malformed(Code::MESSAGE_ERROR)))
            }
        }
    }

    /// What comes next; `None`: the stream has ended.
    fn poll_piece(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Piece>, Halt>> {
        if let Some(piece) = self.piece.take() {
            return Poll::Ready(Ok(Some(piece)));
        }
        match self.reading {
            Reading::Ended => return Poll::Ready(Ok(None)),
            Reading::Failed(halt) => return Poll::Ready(Err(halt)),
            Reading::Head | Reading::Body | Reading::Trailed => {}
        }
        loop {
            match self.frames.next(&mut self.input) {
                Ok(None) => {}
                Ok(piece) => return Poll::Ready(Ok(piece)),
                Err(code) => return Poll::Ready(Err(self.fail(Halt::Offence(code)))),
            }
            match ready!(self.recv.poll_read(cx)) {
                Ok(Some(input)) => self.input = input,
                Ok(None) if self.frames.is_between() => {
                    self.reading = Reading::Ended;
                    return Poll::Ready(Ok(None));
                }
                Ok(None) => {
                    return Poll::Ready(Err(self.fail(Halt::Offence(Code::FRAME_ERROR))));
                }
                Err(end) => return Poll::Ready(Err(self.fail(Halt::Ended(end)))),
            }
        }
    }

    /// Whoever asks again is told the same.
    fn fail(&mut self, halt: Halt) -> Halt {
        self.reading = Reading::Failed(halt);
        halt
    }

    /// Nobody reads on.
    pub(super) fn stop(&mut self, code: Code) {
        if self.reading != Reading::Ended {
            self.recv.stop(code.0);
        }
    }
}
