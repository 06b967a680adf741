//! The receiving side of a stream: heads, a body and trailers, in this order. The body must have the length that its
//! head declares.

use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use codec::h3::H3ErrorCode;
use codec::h3::fields::{self, FieldSectionError};
use codec::h3::frame::{FrameCounts, FramePart, H3FrameDecoder};
use codec::head::{BodyFraming, FieldSection};
use quic::{RecvStream, StreamEnd};
use tokio::io::ReadBuf;

use crate::dial::RESPONSE_LIMITS;

/// Reason for which nothing more is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReceiveError {
    /// The peer has reset the stream, or its connection has ended.
    Ended(StreamEnd),
    /// The message is malformed; its stream is reset with this code.
    Malformed(H3ErrorCode),
    /// The peer has violated the protocol; the connection is closed with this code.
    ConnectionError(H3ErrorCode),
}

pub(super) struct IncomingMessage {
    recv: RecvStream,
    state: H3ReadState,
    frame_decoder: H3FrameDecoder,
    /// Received bytes that have not been parsed.
    input: Bytes,
    /// A frame parsed in advance, to find out if a head is the complete message.
    peeked_part: Option<FramePart>,
    /// Bytes of the body that have been parsed and not consumed.
    data: Bytes,
    /// Remaining bytes of the body, if the head declares its length.
    left: Option<u64>,
    pub(super) trailers: Option<Box<FieldSection>>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum H3ReadState {
    Head,
    Body,
    /// After the trailers, where only the end of the stream may follow.
    AfterTrailers,
    Ended,
    Failed(ReceiveError),
}

impl IncomingMessage {
    pub(super) fn new(recv: RecvStream, frame_decoder: H3FrameDecoder) -> Self {
        Self {
            recv,
            state: H3ReadState::Head,
            frame_decoder,
            input: Bytes::new(),
            peeked_part: None,
            data: Bytes::new(),
            left: None,
            trailers: None,
        }
    }

    /// Returns the field section of the next head; `None` if it is too large.
    pub(super) fn poll_section(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Bytes>, ReceiveError>> {
        Poll::Ready(match ready!(self.poll_part(cx))? {
            Some(FramePart::Whole(_, section)) => Ok(Some(section)),
            Some(FramePart::TooLarge) => Ok(None),
            Some(FramePart::Data(_)) => {
                Err(self.fail(ReceiveError::ConnectionError(H3ErrorCode::FRAME_UNEXPECTED)))
            }
            None => Err(self.fail(ReceiveError::Malformed(H3ErrorCode::REQUEST_INCOMPLETE))),
        })
    }

    /// True if the end of the stream has been received, and nothing before it.
    pub(super) fn is_whole(&mut self, cx: &mut Context<'_>) -> bool {
        match self.poll_part(cx) {
            Poll::Ready(Ok(None)) => true,
            Poll::Ready(Ok(piece)) => {
                self.peeked_part = piece;
                false
            }
            Poll::Ready(Err(_)) | Poll::Pending => false,
        }
    }

    /// Expects the body of the last head next, and no other head.
    pub(super) fn begin_body(&mut self, framing: BodyFraming) {
        if self.state == H3ReadState::Head {
            self.state = H3ReadState::Body;
        }
        if let BodyFraming::Length(length) = framing {
            self.left = Some(length);
        }
    }

    /// Reads some of the body; false after its end, when the trailers have been stored.
    pub(super) fn poll_data(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<Result<bool, ReceiveError>> {
        while self.data.is_empty() {
            match ready!(self.poll_part(cx))? {
                Some(FramePart::Data(data)) if self.state == H3ReadState::Body => {
                    self.take_data(data)?
                }
                Some(FramePart::Whole(_, section)) if self.state == H3ReadState::Body => {
                    self.take_trailers(&section)?;
                }
                Some(FramePart::TooLarge) => {
                    return Poll::Ready(Err(
                        self.fail(ReceiveError::Malformed(H3ErrorCode::EXCESSIVE_LOAD))
                    ));
                }
                Some(FramePart::Data(_) | FramePart::Whole(..)) => {
                    return Poll::Ready(Err(
                        self.fail(ReceiveError::ConnectionError(H3ErrorCode::FRAME_UNEXPECTED))
                    ));
                }
                None if self.left.is_some_and(|left| left > 0) => {
                    return Poll::Ready(Err(
                        self.fail(ReceiveError::Malformed(H3ErrorCode::MESSAGE_ERROR))
                    ));
                }
                None => return Poll::Ready(Ok(false)),
            }
        }
        let count = space.remaining().min(self.data.len());
        space.put_slice(&self.data[..count]);
        self.data.advance(count);
        Poll::Ready(Ok(true))
    }

    fn take_data(&mut self, data: Bytes) -> Result<(), ReceiveError> {
        if let Some(left) = &mut self.left {
            let Some(rest) = left.checked_sub(data.len() as u64) else {
                return Err(self.fail(ReceiveError::Malformed(H3ErrorCode::MESSAGE_ERROR)));
            };
            *left = rest;
        }
        self.data = data;
        Ok(())
    }

    fn take_trailers(&mut self, section: &[u8]) -> Result<(), ReceiveError> {
        self.state = H3ReadState::AfterTrailers;
        match fields::read_trailers(section, &RESPONSE_LIMITS) {
            Ok(trailers) => {
                self.trailers = trailers;
                Ok(())
            }
            Err(FieldSectionError::Qpack) => {
                Err(self.fail(ReceiveError::ConnectionError(H3ErrorCode::DECOMPRESSION_FAILED)))
            }
            Err(FieldSectionError::Malformed | FieldSectionError::Refused(_)) => {
                Err(self.fail(ReceiveError::Malformed(H3ErrorCode::MESSAGE_ERROR)))
            }
        }
    }

    /// Returns the next part; `None` after the end of the stream.
    fn poll_part(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<FramePart>, ReceiveError>> {
        if let Some(piece) = self.peeked_part.take() {
            return Poll::Ready(Ok(Some(piece)));
        }
        match self.state {
            H3ReadState::Ended => return Poll::Ready(Ok(None)),
            H3ReadState::Failed(error) => return Poll::Ready(Err(error)),
            H3ReadState::Head | H3ReadState::Body | H3ReadState::AfterTrailers => {}
        }
        loop {
            match self.frame_decoder.next(&mut self.input) {
                Ok(None) => {}
                Ok(piece) => return Poll::Ready(Ok(piece)),
                Err(code) => {
                    return Poll::Ready(Err(self.fail(ReceiveError::ConnectionError(code))));
                }
            }
            match ready!(self.recv.poll_read(cx)) {
                Ok(Some(input)) => self.input = input,
                Ok(None) if self.frame_decoder.is_at_boundary() => {
                    self.state = H3ReadState::Ended;
                    return Poll::Ready(Ok(None));
                }
                Ok(None) => {
                    return Poll::Ready(Err(
                        self.fail(ReceiveError::ConnectionError(H3ErrorCode::FRAME_ERROR))
                    ));
                }
                Err(end) => return Poll::Ready(Err(self.fail(ReceiveError::Ended(end)))),
            }
        }
    }

    /// Records the error; later calls return the same error.
    fn fail(&mut self, error: ReceiveError) -> ReceiveError {
        self.state = H3ReadState::Failed(error);
        error
    }

    /// True if the message has been read to its end, or has failed.
    pub(super) fn is_over(&self) -> bool {
        matches!(self.state, H3ReadState::Ended | H3ReadState::Failed(_)) && self.data.is_empty()
    }

    /// Returns the frames that have begun since the last call.
    pub(super) fn take_counts(&mut self) -> FrameCounts {
        self.frame_decoder.take_counts()
    }

    /// Asks the peer to stop sending, unless the stream has ended.
    pub(super) fn stop(&mut self, code: H3ErrorCode) {
        if self.state != H3ReadState::Ended {
            self.recv.stop(code.0);
        }
    }
}
