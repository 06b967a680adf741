//! A stream of HTTP/3 as its request sees it: heads and bytes to read and to write, each way within its window.
//!
//! No more is read from the stream than is asked for, and what is written waits in the window of the peer and nowhere
//! else: so whoever is slow slows down the other side and fills no memory here. A message that is dropped before its end
//! resets its stream.

use std::io::{self, IoSlice};
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::Bytes;
use tokio::io::ReadBuf;

use crate::binary::WebSocketKey;
use crate::dial::attempt::RESPONSE_LIMITS;
use crate::failure::Failure;
use crate::h1::{BadSyntax, HeadLimits};
use crate::head::{Fields, Framing, RequestHead, ResponseHead};
use crate::quic::{RecvStream, SendStream, StreamEnd};
use crate::stream::{Broken, Manner};

use super::fields::Unfit;
use super::frame::{Frames, Place};
use super::priority::Priority;
use super::{Code, Peer, Ties, request, response};

/// What comes by the stream.
mod incoming;
/// What goes by the stream.
mod outgoing;

use incoming::{Halt, Incoming};
use outgoing::{Follows, Outgoing};

/// One request and its response.
pub(crate) struct Message {
    id: u64,
    peer: Peer,
    ties: Rc<Ties>,
    incoming: Incoming,
    outgoing: Outgoing,
    /// What the peer is told if this is dropped before its end.
    unfinished: Code,
    /// The peer, or its connection, has ended the stream before its time.
    broken: Option<Broken>,
}

impl Message {
    /// A client's request, of whose head `most_head` bytes are taken.
    pub(crate) fn from_client(
        send: SendStream,
        recv: RecvStream,
        ties: &Rc<Ties>,
        most_head: usize,
    ) -> Self {
        let frames = Frames::new(Place::Message, Peer::Client, most_head);
        Self {
            id: recv.id(),
            peer: Peer::Client,
            ties: Rc::clone(ties),
            incoming: Incoming::new(recv, frames),
            outgoing: Outgoing::to_client(send),
            // Nothing else tells the client that what it got is not whole.
            unfinished: Code::INTERNAL_ERROR,
            broken: None,
        }
    }

    /// A request to an endpoint that begins with the head which `section` appends, and is no more if `is_whole`.
    pub(crate) fn to_endpoint(
        send: SendStream,
        recv: RecvStream,
        ties: &Rc<Ties>,
        section: impl FnOnce(&mut Vec<u8>),
        is_whole: bool,
    ) -> Self {
        let frames = Frames::new(Place::Message, Peer::Endpoint, RESPONSE_LIMITS.head_bytes);
        Self {
            id: recv.id(),
            peer: Peer::Endpoint,
            ties: Rc::clone(ties),
            incoming: Incoming::new(recv, frames),
            outgoing: Outgoing::to_endpoint(send, section, is_whole),
            unfinished: Code::REQUEST_CANCELLED,
            broken: None,
        }
    }

    /// How the stream was ended before its time, as far as that has been seen.
    pub(crate) fn broken(&self) -> Option<Broken> {
        self.broken
    }

    /// Ready when the peer wants no answer any more.
    pub(crate) fn poll_gone(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let end = ready!(self.outgoing.poll_gone(cx));
        self.broken = Some(self.broken_by(end));
        Poll::Ready(())
    }

    /// Ready when `head` is the head of the client's request. `key` is asked for a key if a WebSocket is to be opened.
    ///
    /// Whoever sends what is no request at all is told so by the stream's end and gets no answer: `ClientGone`.
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
            Err(_broken) => return Poll::Ready(Err(Failure::ClientGone)),
        };
        Poll::Ready(match self.judge(read) {
            Ok(Ok(())) => {
                self.incoming.begin_body(head.framing);
                self.prioritise(head);
                Ok(())
            }
            Ok(Err(bad)) => Err(Failure::BadRequest(bad)),
            Err(_broken) => Err(Failure::ClientGone),
        })
    }

    /// Ready when `head` is the head of a response to `request`, interim or final.
    pub(crate) fn poll_response(
        &mut self,
        cx: &mut Context<'_>,
        request: &RequestHead,
        head: &mut ResponseHead,
    ) -> Poll<Result<(), Failure>> {
        // Who takes no more of the request may have answered nevertheless.
        if let Poll::Ready(Err(end)) = self.outgoing.poll_ahead(cx) {
            self.broken = Some(self.broken_by(end));
        }
        let section = match self.poll_section(cx) {
            Poll::Ready(section) => section,
            Poll::Pending if self.ties.is_unprocessed(self.id) => {
                self.broken = Some(Broken::Unprocessed);
                return Poll::Ready(Err(Failure::EndpointClosed));
            }
            Poll::Pending => {
                self.ties.wait(self.id, cx.waker());
                return Poll::Pending;
            }
        };
        self.ties.wait_no_more(self.id);
        let read = match section {
            Ok(Some((section, is_whole))) => {
                response::read(&section, is_whole, &RESPONSE_LIMITS, request, head)
            }
            Ok(None) => Err(BadSyntax::TooLarge.into()),
            Err(_broken) => return Poll::Ready(Err(Failure::EndpointClosed)),
        };
        Poll::Ready(match self.judge(read) {
            Ok(Ok(())) => {
                if !head.is_interim() {
                    self.incoming.begin_body(head.framing);
                }
                Ok(())
            }
            Ok(Err(bad)) => Err(Failure::BadResponse(bad)),
            Err(_broken) => Err(Failure::EndpointClosed),
        })
    }

    /// The section of the next head, and whether it is all there is; `None`: it is too large.
    fn poll_section(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<(Bytes, bool)>, Broken>> {
        Poll::Ready(match ready!(self.incoming.poll_section(cx)) {
            Ok(Some(section)) => Ok(Some((section, self.incoming.is_whole(cx)))),
            Ok(None) => Ok(None),
            Err(halt) => Err(self.halted(halt)),
        })
    }

    /// What came of reading a head: one, or why there is no answer but that, or why there is none at all.
    fn judge<B>(&mut self, read: Result<(), Unfit<B>>) -> Result<Result<(), B>, Broken> {
        match read {
            Ok(()) => Ok(Ok(())),
            Err(Unfit::Bad(bad)) => Ok(Err(bad)),
            Err(Unfit::Malformed) => Err(self.halted(Halt::Malformed(Code::MESSAGE_ERROR))),
            Err(Unfit::Corrupt) => Err(self.halted(Halt::Offence(Code::DECOMPRESSION_FAILED))),
        }
    }

    /// Lets the response go before or behind others, as the client asks.
    fn prioritise(&mut self, head: &RequestHead) {
        let said = self.ties.take_priority(self.id);
        if let Some(priority) = said.or_else(|| head.fields.get("priority").map(Priority::parse)) {
            self.outgoing.send.set_priority(priority.rank());
        }
    }

    pub(crate) fn poll_read(
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
                // What ends the stream is told when it is read on.
                Poll::Ready(Err(_)) | Poll::Pending if has_some => break,
                Poll::Ready(Err(halt)) => {
                    self.halted(halt);
                    return Poll::Ready(Err(io::ErrorKind::ConnectionReset.into()));
                }
                Poll::Pending => return Poll::Pending,
            }
        }
        Poll::Ready(Ok(()))
    }

    /// The trailers of a message whose end has been read.
    pub(crate) fn take_trailers(&mut self) -> Option<Box<Fields>> {
        self.incoming.trailers.take()
    }

    /// Puts a response's head at the beginning of `out`, which is to be written next: an interim one, or the one, which
    /// ends the stream if nothing is to follow.
    pub(crate) fn put_head(
        &mut self,
        head: &ResponseHead,
        manner: &Manner,
        out: &mut Vec<u8>,
    ) -> Result<(), Failure> {
        let follows = match manner.framing {
            _ if head.is_interim() => Follows::Head,
            _ if manner.upgrade => Follows::Body,
            framing if framing.is_empty() => Follows::Nothing,
            Framing::None
            | Framing::Length(_)
            | Framing::Chunked
            | Framing::UntilClose
            | Framing::Stream => Follows::Body,
        };
        let is_put = self.outgoing.put_head(out, follows, |section| {
            response::write(head, manner, section);
        });
        is_put.then_some(()).ok_or(Failure::ClientGone)
    }

    /// Sends what the peer has room for; the stream's end with it if `is_last` and all of it goes.
    pub(crate) fn poll_write(
        &mut self,
        cx: &mut Context<'_>,
        slices: &[IoSlice<'_>],
        is_last: bool,
    ) -> Poll<io::Result<usize>> {
        if let Some(priority) = self.ties.take_priority(self.id) {
            self.outgoing.send.set_priority(priority.rank());
        }
        let written = ready!(self.outgoing.poll_write(cx, slices, is_last));
        Poll::Ready(written.map_err(|end| self.fail(end)))
    }

    /// Ends the message, with its trailers.
    pub(crate) fn poll_end(
        &mut self,
        cx: &mut Context<'_>,
        trailers: Option<&Fields>,
    ) -> Poll<io::Result<()>> {
        let ended = ready!(self.outgoing.poll_end(cx, trailers));
        Poll::Ready(ended.map_err(|end| self.fail(end)))
    }

    fn fail(&mut self, end: Option<StreamEnd>) -> io::Error {
        let Some(end) = end else { return io::ErrorKind::BrokenPipe.into() };
        self.broken = Some(self.broken_by(end));
        io::ErrorKind::ConnectionReset.into()
    }

    /// No more is read. An offence ends the connection.
    fn halted(&mut self, halt: Halt) -> Broken {
        let broken = match halt {
            Halt::Ended(end) => self.broken_by(end),
            Halt::Malformed(code) => {
                self.unfinished = code;
                Broken::Malformed
            }
            Halt::Offence(code) => {
                self.ties.offend(code);
                Broken::Malformed
            }
        };
        self.broken = Some(broken);
        broken
    }

    fn broken_by(&self, end: StreamEnd) -> Broken {
        match end {
            StreamEnd::Connection(_) if self.ties.is_unprocessed(self.id) => Broken::Unprocessed,
            StreamEnd::Connection(_) => Broken::Closed,
            StreamEnd::Reset(code) | StreamEnd::Stopped(code) => {
                let is_refused =
                    self.peer == Peer::Endpoint && Code(code) == Code::REQUEST_REJECTED;
                if is_refused { Broken::Refused } else { Broken::Reset }
            }
        }
    }
}

impl Drop for Message {
    fn drop(&mut self) {
        self.ties.wait_no_more(self.id);
        let is_answered = self.peer == Peer::Client && self.outgoing.is_ended();
        self.outgoing.reset(self.unfinished);
        // Who has answered needs no more of the request (RFC 9114 §4.1).
        self.incoming.stop(if is_answered { Code::NO_ERROR } else { self.unfinished });
    }
}

#[cfg(test)]
mod tests;
