//! One HTTP/3 stream: heads and bytes to read and to write, in each direction within the flow-control window.
//!
//! No more is read from the stream than the caller asks for, and nothing is buffered for writing beyond the peer's
//! window: so a slow side slows down the other side by back-pressure and fills no memory here. A message that is
//! dropped before its end resets its stream.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use codec::binary::WebSocketKey;
use codec::h1::{BadSyntax, HeadLimits};
use codec::h3::fields::FieldSectionError;
use codec::h3::frame::{FrameContext, H3FrameDecoder};
use codec::h3::priority::ResponsePriority;
use codec::h3::{H3ErrorCode, PeerRole, request, response};
use codec::head::{BodyFraming, FieldSection, RequestHead, ResponseFraming, ResponseHead};
use quic::{RecvStream, SendStream, StreamEnd};
use tokio::io::ReadBuf;

use crate::dial::RESPONSE_LIMITS;
use crate::failure::Failure;
use crate::stream::StreamError;

use super::H3ConnectionState;

/// The receiving side.
mod incoming;
/// The sending side.
mod outgoing;

use incoming::{IncomingMessage, ReceiveError};
use outgoing::{AfterHead, OutgoingMessage};

/// Bytes that are assumed to wait on a stream that is not read: a quarter of its window.
const ASSUMED_UNREAD_BYTES: usize = 64 * 1024;

/// One request and its response.
pub(crate) struct H3Stream {
    id: u64,
    peer: PeerRole,
    connection_state: Rc<H3ConnectionState>,
    incoming: IncomingMessage,
    outgoing: OutgoingMessage,
    /// Error code that the peer gets if this is dropped before its end.
    drop_code: H3ErrorCode,
    /// Premature end of the stream, by the peer or by its connection.
    error: Option<StreamError>,
}

impl H3Stream {
    /// Creates the stream of a client's request, whose head may have `most_head` bytes.
    pub(crate) fn from_client(
        send: SendStream,
        recv: RecvStream,
        connection_state: &Rc<H3ConnectionState>,
        most_head: usize,
    ) -> Self {
        let frames = H3FrameDecoder::new(FrameContext::Request, PeerRole::Client, most_head);
        Self {
            id: recv.id(),
            peer: PeerRole::Client,
            connection_state: Rc::clone(connection_state),
            incoming: IncomingMessage::new(recv, frames),
            outgoing: OutgoingMessage::to_client(send),
            // Only the reset tells the client that its response is incomplete.
            drop_code: H3ErrorCode::INTERNAL_ERROR,
            error: None,
        }
    }

    /// Creates the stream of a request to an endpoint. `section` appends its head; if `is_whole`, nothing else follows.
    pub(crate) fn to_endpoint(
        send: SendStream,
        recv: RecvStream,
        connection_state: &Rc<H3ConnectionState>,
        section: impl FnOnce(&mut Vec<u8>),
        is_whole: bool,
    ) -> Self {
        let frames = H3FrameDecoder::new(
            FrameContext::Request,
            PeerRole::Endpoint,
            RESPONSE_LIMITS.head_bytes,
        );
        Self {
            id: recv.id(),
            peer: PeerRole::Endpoint,
            connection_state: Rc::clone(connection_state),
            incoming: IncomingMessage::new(recv, frames),
            outgoing: OutgoingMessage::to_endpoint(send, section, is_whole),
            drop_code: H3ErrorCode::REQUEST_CANCELLED,
            error: None,
        }
    }

    /// If the message is incomplete when the stream is dropped, resets the stream as cancelled.
    pub(crate) fn cancel_on_drop(&mut self) {
        self.drop_code = H3ErrorCode::REQUEST_CANCELLED;
    }

    /// Returns the premature end of the stream, if one has been detected.
    pub(crate) fn error(&self) -> Option<StreamError> {
        self.error
    }

    /// Ready when the peer no longer wants the response.
    pub(crate) fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = ready!(self.outgoing.poll_stopped(cx));
        self.error = Some(self.stream_error(end));
        Poll::Ready(())
    }

    /// Ready when `head` holds the head of the client's request. If the request opens a WebSocket, `key` returns the
    /// key for it.
    ///
    /// If the client sends something that is not a request, the stream is reset and the client gets no response:
    /// `ClientGone`.
    pub(crate) fn poll_request(
        &mut self,
        cx: &mut Context<'_>,
        limits: &HeadLimits,
        key: impl FnOnce() -> WebSocketKey,
        head: &mut RequestHead,
    ) -> Poll<Result<(), Failure>> {
        let read = match ready!(self.poll_section(cx)) {
            Ok(Some((section, is_whole))) => request::read(&section, is_whole, limits, key, head),
            Ok(None) => Err(BadSyntax::TooLarge.into()),
            Err(_error) => return Poll::Ready(Err(Failure::ClientGone)),
        };
        Poll::Ready(match self.check_head(read) {
            Ok(Ok(())) => {
                self.incoming.begin_body(head.framing);
                self.apply_priority(head);
                Ok(())
            }
            Ok(Err(bad)) => Err(Failure::BadRequest(bad)),
            Err(_error) => Err(Failure::ClientGone),
        })
    }

    /// Ready when `head` holds the head of a response to `request`, interim or final.
    pub(crate) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        request: &RequestHead,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Failure>> {
        // An endpoint that stops reading the request may still have sent a response.
        if let Poll::Ready(Err(end)) = self.outgoing.poll_flush_prefix(cx) {
            self.error = Some(self.stream_error(end));
        }
        let section = match self.poll_section(cx) {
            Poll::Ready(section) => section,
            Poll::Pending if self.connection_state.is_unprocessed(self.id) => {
                self.error = Some(StreamError::Unprocessed);
                return Poll::Ready(Err(Failure::EndpointClosed));
            }
            Poll::Pending => {
                self.connection_state.add_response_waiter(self.id, cx.waker());
                return Poll::Pending;
            }
        };
        self.connection_state.remove_response_waiter(self.id);
        let read = match section {
            Ok(Some((section, is_whole))) => {
                response::read(&section, is_whole, &RESPONSE_LIMITS, request, head)
            }
            Ok(None) => Err(BadSyntax::TooLarge.into()),
            Err(_error) => return Poll::Ready(Err(Failure::EndpointClosed)),
        };
        Poll::Ready(match self.check_head(read) {
            Ok(Ok(())) => {
                if !head.is_interim() {
                    self.incoming.begin_body(head.framing);
                }
                Ok(())
            }
            Ok(Err(bad)) => Err(Failure::BadResponse(bad)),
            Err(_error) => Err(Failure::EndpointClosed),
        })
    }

    /// Returns the field section of the next head, and true if nothing follows it; `None` if the section is too large.
    fn poll_section(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<(Bytes, bool)>, StreamError>> {
        let section = self.incoming.poll_section(cx);
        self.connection_state.charge_frames(self.incoming.take_counts());
        Poll::Ready(match ready!(section) {
            Ok(Some(section)) => Ok(Some((section, self.incoming.is_whole(cx)))),
            Ok(None) => Ok(None),
            Err(error) => Err(self.record_receive_error(error)),
        })
    }

    /// Separates the results of parsing a head: accepted, rejected with a response, or a stream error without a
    /// response.
    fn check_head<B>(
        &mut self,
        read: Result<(), FieldSectionError<B>>,
    ) -> Result<Result<(), B>, StreamError> {
        match read {
            Ok(()) => Ok(Ok(())),
            Err(FieldSectionError::Refused(bad)) => Ok(Err(bad)),
            Err(FieldSectionError::Malformed) => {
                Err(self.record_receive_error(ReceiveError::Malformed(H3ErrorCode::MESSAGE_ERROR)))
            }
            Err(FieldSectionError::Qpack) => Err(self.record_receive_error(
                ReceiveError::ConnectionError(H3ErrorCode::DECOMPRESSION_FAILED),
            )),
        }
    }

    /// Sets the send priority of the response as the client requests.
    fn apply_priority(&mut self, head: &RequestHead) {
        let update = self.connection_state.take_priority(self.id);
        if let Some(priority) =
            update.or_else(|| head.fields.get("priority").map(ResponsePriority::parse))
        {
            self.outgoing.send.set_priority(priority.rank());
        }
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = self.poll_read_frames(cx, space);
        self.connection_state.charge_frames(self.incoming.take_counts());
        read
    }

    fn poll_read_frames(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let before = space.filled().len();
        while space.remaining() > 0 {
            let more = self.incoming.poll_data(cx, space);
            let has_some = space.filled().len() > before;
            match more {
                Poll::Ready(Ok(true)) => {}
                Poll::Ready(Ok(false)) => break,
                // The error is reported by the next read.
                Poll::Ready(Err(_)) | Poll::Pending if has_some => break,
                Poll::Ready(Err(error)) => {
                    self.record_receive_error(error);
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// Returns the bytes that are assumed to have arrived and not been read, since the library does not tell; `None` if
    /// there are none and no more will arrive.
    pub(crate) fn unread_bytes(&self) -> Option<usize> {
        (!self.incoming.is_over()).then_some(ASSUMED_UNREAD_BYTES)
    }

    /// Returns the trailers of a message whose end has been read.
    pub(crate) fn take_trailers(&mut self) -> Option<Box<FieldSection>> {
        self.incoming.trailers.take()
    }

    /// Writes the head of an interim or final response to the beginning of `out`, which the caller must write next. A
    /// final head ends the stream if no body follows.
    pub(crate) fn put_head(
        &mut self,
        head: &ResponseHead,
        framing: &ResponseFraming,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let follows = match framing.framing {
            _ if head.is_interim() => AfterHead::Head,
            _ if framing.upgrade => AfterHead::Body,
            framing if framing.is_empty() => AfterHead::Nothing,
            BodyFraming::None
            | BodyFraming::Length(_)
            | BodyFraming::Chunked
            | BodyFraming::UntilClose
            | BodyFraming::Stream => AfterHead::Body,
        };
        let is_put = self.outgoing.put_head(out, follows, |section| {
            response::write(head, framing, section);
        });
        is_put.then_some(()).ok_or(Failure::ClientGone)
    }

    /// Sends as much as the peer's window allows. If `is_last` and all bytes are sent, also ends the stream.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        if let Some(priority) = self.connection_state.take_priority(self.id) {
            self.outgoing.send.set_priority(priority.rank());
        }
        let written = ready!(self.outgoing.poll_write(cx, slices, is_last));
        Poll::Ready(written.map_err(|end| self.fail(end)))
    }

    /// Ends the message, with its trailers.
    pub(crate) fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        trailers: Option<&FieldSection>,
    ) -> Poll<io::Result<()>> {
        let ended = ready!(self.outgoing.poll_end(cx, trailers));
        Poll::Ready(ended.map_err(|end| self.fail(end)))
    }

    fn fail(&mut self, end: Option<StreamEnd>) -> io::Error {
        let Some(end) = end else { return io::ErrorKind::BrokenPipe.into() };
        self.error = Some(self.stream_error(end));
        io::ErrorKind::ConnectionReset.into()
    }

    /// Records the error after which nothing more is read. A protocol violation closes the connection.
    fn record_receive_error(&mut self, error: ReceiveError) -> StreamError {
        let stream_error = match error {
            ReceiveError::Ended(end) => self.stream_error(end),
            ReceiveError::Malformed(code) => {
                self.drop_code = code;
                StreamError::Malformed
            }
            ReceiveError::ConnectionError(code) => {
                self.connection_state.raise_connection_error(code);
                StreamError::Malformed
            }
        };
        self.error = Some(stream_error);
        stream_error
    }

    fn stream_error(&self, end: StreamEnd) -> StreamError {
        match end {
            StreamEnd::Connection(_) if self.connection_state.is_unprocessed(self.id) => {
                StreamError::Unprocessed
            }
            StreamEnd::Connection(_) => StreamError::Closed,
            StreamEnd::Reset(code) | StreamEnd::Stopped(code) => {
                let is_refused = self.peer == PeerRole::Endpoint
                    && H3ErrorCode(code) == H3ErrorCode::REQUEST_REJECTED;
                if is_refused { StreamError::Refused } else { StreamError::Reset }
            }
        }
    }
}

impl Drop for H3Stream {
    fn drop(&mut self) {
        self.connection_state.remove_response_waiter(self.id);
        let is_answered = self.peer == PeerRole::Client && self.outgoing.is_ended();
        self.outgoing.reset(self.drop_code);
        // A server that has responded needs no more of the request (RFC 9114 §4.1).
        self.incoming.stop(if is_answered { H3ErrorCode::NO_ERROR } else { self.drop_code });
    }
}

#[cfg(test)]
mod tests;
