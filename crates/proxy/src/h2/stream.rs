//! One HTTP/2 stream: bytes to read and bytes to write, in each direction within the flow-control window.
//!
//! Received bytes release their window only after they have been consumed, and no more is handed over for sending than
//! the peer's window allows: so a slow side slows down the other side by back-pressure and fills no memory here. A
//! message that is dropped before its end resets its stream.

use std::io::{self, IoSlice};
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use ::h2::client::ResponseFuture;
use ::h2::server::SendResponse;
use ::h2::{Error, Reason, RecvStream, SendStream};
use bytes::{Buf, Bytes};
use codec::h2::fields::{read_trailers, write_trailers};
use codec::h2::response;
use codec::head::{FieldSection, RequestHead, ResponseFraming, ResponseHead};
use tokio::io::ReadBuf;

use crate::dial::RESPONSE_LIMITS;
use crate::failure::Failure;
use crate::stream::StreamError;
use crate::sys::ThreadBound;

use super::response_scheduler::ScheduledResponse;

/// One request and its response.
pub(crate) struct H2Stream {
    reading: H2ReadState,
    writing: H2WriteState,
    /// Bytes received and not yet consumed.
    data: Bytes,
    trailers: Option<Box<FieldSection>>,
    /// Reason of the RST_STREAM that the peer gets if this is dropped before its end.
    drop_reason: Reason,
    /// Premature end of the stream, by the peer or by its connection.
    error: Option<StreamError>,
    /// The place among the responses to a client; `None` for requests to an endpoint.
    scheduled: Option<ThreadBound<ScheduledResponse>>,
}

enum H2ReadState {
    /// The response of an endpoint.
    Head(ResponseFuture),
    Body(RecvStream),
    Ended,
}

enum H2WriteState {
    /// The response to a client.
    Head(SendResponse<Bytes>),
    Body(SendStream<Bytes>),
    Ended,
}

impl H2Stream {
    /// Creates the stream of a client's request whose head has been read.
    pub(crate) fn from_client(
        body: RecvStream,
        response: SendResponse<Bytes>,
        scheduled: ScheduledResponse,
    ) -> Self {
        let reading =
            if body.is_end_stream() { H2ReadState::Ended } else { H2ReadState::Body(body) };
        // Only the reset tells the client that its response is incomplete.
        let mut message = Self::new(reading, H2WriteState::Head(response), Reason::INTERNAL_ERROR);
        message.scheduled = Some(ThreadBound::new(scheduled));
        message
    }

    /// Creates the stream of a request to an endpoint. Its head has been sent; if `is_whole`, nothing else follows.
    pub(crate) fn to_endpoint(
        response: ResponseFuture,
        body: SendStream<Bytes>,
        is_whole: bool,
    ) -> Self {
        let writing = if is_whole { H2WriteState::Ended } else { H2WriteState::Body(body) };
        Self::new(H2ReadState::Head(response), writing, Reason::CANCEL)
    }

    fn new(reading: H2ReadState, writing: H2WriteState, drop_reason: Reason) -> Self {
        let (data, trailers, error) = (Bytes::new(), None, None);
        Self { reading, writing, data, trailers, drop_reason, error, scheduled: None }
    }

    /// If the message is incomplete when the stream is dropped, resets the stream as cancelled.
    pub(crate) fn cancel_on_drop(&mut self) {
        self.drop_reason = Reason::CANCEL;
    }

    /// Returns the premature end of the stream, if one has been detected.
    pub(crate) fn error(&self) -> Option<StreamError> {
        self.error
    }

    /// Ready when the peer no longer wants the response.
    pub(crate) fn poll_cancelled(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let reset = match &mut self.writing {
            H2WriteState::Head(response) => ready!(response.poll_reset(cx)),
            H2WriteState::Body(body) => ready!(body.poll_reset(cx)),
            H2WriteState::Ended => return Poll::Pending,
        };
        self.error =
            Some(reset.map_or_else(|error| stream_error(&error), |_reason| StreamError::Reset));
        Poll::Ready(())
    }

    /// Sends the head of an interim or final response. A final head ends the stream if no body follows.
    pub(crate) fn put_head(
        &mut self,
        head: &ResponseHead,
        framing: &ResponseFraming,
    ) -> Result<(), Failure> {
        let message = response::write(head, framing).map_err(Failure::BadResponse)?;
        let H2WriteState::Head(response) = &mut self.writing else {
            return Err(Failure::ClientGone);
        };
        if head.is_interim() {
            return response.send_informational(message).map_err(|_reset| Failure::ClientGone);
        }
        let has_body = !framing.framing.is_empty();
        let is_whole = !framing.upgrade && !has_body;
        let body =
            response.send_response(message, is_whole).map_err(|_reset| Failure::ClientGone)?;
        self.writing = if is_whole { H2WriteState::Ended } else { H2WriteState::Body(body) };
        Ok(())
    }

    /// Ready when `head` holds the head of a response to `request`, interim or final.
    pub(crate) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        request: &RequestHead,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Failure>> {
        let H2ReadState::Head(response) = &mut self.reading else {
            return Poll::Ready(Err(Failure::EndpointClosed));
        };
        let (parts, body) = match response.poll_informational(cx) {
            Poll::Ready(Some(Ok(interim))) => (interim.into_parts().0, None),
            Poll::Ready(Some(Err(error))) => {
                return Poll::Ready(Err(self.record_head_error(&error)));
            }
            Poll::Ready(None) | Poll::Pending => match ready!(Pin::new(response).poll(cx)) {
                Ok(response) => {
                    let (parts, body) = response.into_parts();
                    (parts, Some(body))
                }
                Err(error) => return Poll::Ready(Err(self.record_head_error(&error))),
            },
        };
        let is_whole = body.as_ref().is_some_and(RecvStream::is_end_stream);
        if let Some(body) = body {
            self.reading = if is_whole { H2ReadState::Ended } else { H2ReadState::Body(body) };
        }
        let read = response::read(&parts, is_whole, &RESPONSE_LIMITS, request, head);
        Poll::Ready(read.map_err(Failure::BadResponse))
    }

    fn record_head_error(&mut self, error: &Error) -> Failure {
        self.error = Some(stream_error(error));
        Failure::EndpointClosed
    }

    pub(crate) fn poll_read(
        &mut self,
        cx: &mut Context<'_>,
        space: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let data = ready!(self.poll_peek(cx))?;
        let count = space.remaining().min(data.len());
        space.put_slice(&data[..count]);
        self.consume(count);
        Poll::Ready(Ok(()))
    }

    /// Returns the next bytes of the body without consuming them: they keep their part of the flow-control window.
    /// Empty after the body's end.
    pub(crate) fn poll_peek(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<&[u8]>> {
        if self.data.is_empty()
            && let Some(data) = ready!(self.poll_data(cx))?
        {
            self.data = data;
        }
        Poll::Ready(Ok(&self.data))
    }

    /// Consumes bytes that [`poll_peek`](Self::poll_peek) returned, and so allows the peer to send as many more.
    pub(crate) fn consume(&mut self, count: usize) {
        self.data.advance(count);
        if let H2ReadState::Body(body) = &mut self.reading {
            // Fails for a stream that has been reset; the next read reports that.
            drop(body.flow_control().release_capacity(count));
        }
    }

    /// Returns the bytes that have arrived and have not been consumed; `None` if there are none and no more will arrive.
    pub(crate) fn unread_bytes(&mut self) -> Option<usize> {
        match &mut self.reading {
            H2ReadState::Body(body) => Some(body.flow_control().used_capacity()),
            H2ReadState::Head(_) => None,
            H2ReadState::Ended => (!self.data.is_empty()).then(|| self.data.len()),
        }
    }

    /// Returns the next bytes of the body; `None` after its end, when the trailers have been stored.
    fn poll_data(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<Option<Bytes>>> {
        let H2ReadState::Body(body) = &mut self.reading else { return Poll::Ready(Ok(None)) };
        let outcome = loop {
            match ready!(body.poll_data(cx)) {
                Some(Ok(data)) if data.is_empty() => {}
                Some(Ok(data)) => return Poll::Ready(Ok(Some(data))),
                Some(Err(error)) => break Err(error),
                None => break ready!(body.poll_trailers(cx)),
            }
        };
        self.reading = H2ReadState::Ended;
        Poll::Ready(match outcome {
            Ok(trailers) => {
                self.trailers = trailers.as_ref().and_then(read_trailers);
                Ok(None)
            }
            Err(error) => Err(self.fail(error)),
        })
    }

    /// Returns the trailers of a message whose end has been read.
    pub(crate) fn take_trailers(&mut self) -> Option<Box<FieldSection>> {
        self.trailers.take()
    }

    /// Sends as much as the peer's window allows. If `is_last` and all bytes are sent, also ends the stream.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        let H2WriteState::Body(body) = &mut self.writing else {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        };
        let wanted = slices.iter().map(|slice| slice.len()).sum();
        debug_assert!(wanted > 0, "an empty write has nothing to wait for");
        let mut room = poll_send_capacity(cx, body, wanted);
        if let Some(scheduled) = &mut self.scheduled {
            match room {
                Poll::Pending => scheduled.withdraw(),
                Poll::Ready(Ok(open)) => match scheduled.poll(cx) {
                    Poll::Ready(most) => room = Poll::Ready(Ok(open.min(most))),
                    Poll::Pending => {
                        // While the response does not wait for window, only this reports a reset.
                        ready!(self.poll_cancelled(cx));
                        return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
                    }
                },
                Poll::Ready(Err(_)) => {}
            }
        }
        let sent = ready!(room).and_then(|room| {
            let count = wanted.min(room);
            let ends = is_last && count == wanted;
            body.send_data(first(slices, count), ends)?;
            Ok((count, ends))
        });
        Poll::Ready(match sent {
            Ok((count, ends)) => {
                if let Some(scheduled) = &mut self.scheduled {
                    scheduled.record_sent(count);
                }
                if ends {
                    self.writing = H2WriteState::Ended;
                }
                Ok(count)
            }
            Err(error) => Err(self.fail(error)),
        })
    }

    /// Ends the message, with its trailers.
    pub(crate) fn end(&mut self, trailers: Option<&FieldSection>) -> io::Result<()> {
        let H2WriteState::Body(body) = &mut self.writing else { return Ok(()) };
        let ended = match trailers.and_then(write_trailers) {
            Some(trailers) => body.send_trailers(trailers),
            None => body.send_data(Bytes::new(), true),
        };
        self.writing = H2WriteState::Ended;
        ended.map_err(|error| self.fail(error))
    }

    fn fail(&mut self, error: Error) -> io::Error {
        self.error = Some(stream_error(&error));
        io::Error::other(error)
    }
}

fn stream_error(error: &Error) -> StreamError {
    match error.reason() {
        // A GOAWAY fails only the streams beyond its last stream ID; others continue.
        Some(_) if error.is_remote() && error.is_go_away() => StreamError::Unprocessed,
        Some(Reason::REFUSED_STREAM) if error.is_remote() => StreamError::Refused,
        Some(_) if error.is_remote() => StreamError::Reset,
        Some(_) if error.is_library() => StreamError::Malformed,
        Some(_) | None => StreamError::Closed,
    }
}

impl Drop for H2Stream {
    fn drop(&mut self) {
        match &mut self.writing {
            H2WriteState::Head(response) => response.send_reset(self.drop_reason),
            H2WriteState::Body(body) => body.send_reset(self.drop_reason),
            // The `h2` crate resets the receiving side.
            H2WriteState::Ended => {}
        }
    }
}

/// Returns how many of `wanted` bytes the peer's window allows, at least one.
///
/// Capacity is reserved only when there are bytes to send: capacity assigned to one stream is not available to others.
fn poll_send_capacity(
    cx: &mut Context<'_>,
    body: &mut SendStream<Bytes>,
    wanted: usize,
) -> Poll<Result<usize, Error>> {
    body.reserve_capacity(wanted);
    while body.capacity() == 0 {
        match ready!(body.poll_capacity(cx)) {
            Some(Ok(_)) => {}
            Some(Err(error)) => return Poll::Ready(Err(error)),
            None => return Poll::Ready(Err(Reason::STREAM_CLOSED.into())),
        }
    }
    Poll::Ready(Ok(body.capacity()))
}

/// Returns a copy of the first `count` bytes.
fn first(slices: &[IoSlice<'_>], count: usize) -> Bytes {
    let mut bytes = Vec::with_capacity(count);
    for slice in slices {
        let left = count - bytes.len();
        bytes.extend_from_slice(&slice[..left.min(slice.len())]);
    }
    bytes.into()
}

#[cfg(test)]
mod tests;
