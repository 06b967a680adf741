//! What a connection's two sides say of it as a whole, beside its requests.
//!
//! Our side of it is one stream: SETTINGS, and GOAWAY when it comes to that. The other side's are up to three, which are
//! listened to as long as the connection lives. Whoever serves the connection polls this, and is told what matters to it;
//! an offence of the peer, here or in a message, closes the connection.

use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};

use crate::quic::{Connection, RecvStream, SendStream, StreamEnd};

use super::control::{Control, Said, StreamKind};
use super::qpack::instructions::{self, DecoderStream};
use super::settings::{self, Settings};
use super::{Code, Peer, Ties, frame, varint};

/// Our control stream says by this what it is.
const CONTROL: u64 = 0x0;

/// What whoever serves the connection has to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The peer has said what it is like, which comes first and once.
    Settings(Settings),
    /// The peer takes leave. Of an endpoint: it serves no request from this stream on.
    GoAway(u64),
}

/// What is said of one connection. It lives as long as that: its streams may not end before.
pub(crate) struct Conversation {
    connection: Connection,
    peer: Peer,
    ties: Rc<Ties>,
    ours: Option<SendStream>,
    /// What we have to say and have not.
    unsaid: Vec<u8>,
    /// Streams that have not said what they are, with what they have said.
    nameless: Vec<(RecvStream, Vec<u8>)>,
    control: Option<(RecvStream, Bytes)>,
    reader: Control,
    encoder: Option<RecvStream>,
    decoder: Option<RecvStream>,
    acknowledgements: DecoderStream,
}

impl Conversation {
    /// With a `peer` of which we take field sections of so many bytes, by the count of RFC 9114 §4.2.2.
    pub(crate) fn new(connection: &Connection, peer: Peer, field_section: u64) -> Self {
        let mut unsaid = Vec::new();
        varint::write(CONTROL, &mut unsaid);
        settings::write(peer, field_section, &mut unsaid);
        Self {
            connection: connection.clone(),
            peer,
            ties: Rc::new(Ties::new()),
            ours: connection.open_uni(),
            unsaid,
            nameless: Vec::new(),
            control: None,
            reader: Control::new(peer),
            encoder: None,
            decoder: None,
            acknowledgements: DecoderStream::default(),
        }
    }

    /// What its messages have to share.
    pub(crate) fn ties(&self) -> &Rc<Ties> {
        &self.ties
    }

    /// Tells a client that from this stream on we serve no request. Sent by the next `poll`.
    pub(crate) fn send_goaway(&mut self, id: u64) {
        frame::write_goaway(id, &mut self.unsaid);
    }

    /// What comes next. An error is for what the connection has been closed; how else it ends, it tells itself.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, Code>> {
        let polled = match self.ties.fault(cx.waker()) {
            Some(code) => Poll::Ready(Err(code)),
            None => self.poll_event(cx),
        };
        if let Poll::Ready(Err(code)) = polled {
            self.connection.close(code.0, code.reason());
        }
        polled
    }

    fn poll_event(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, Code>> {
        self.say(cx)?;
        while let Poll::Ready(Ok(stream)) = self.connection.poll_accept_uni(cx) {
            self.nameless.push((stream, Vec::new()));
        }
        self.name(cx)?;
        self.hear_tables(cx)?;
        self.poll_control(cx)
    }

    /// Sends what there is to say, as far as there is room.
    fn say(&mut self, cx: &mut Context<'_>) -> Result<(), Code> {
        // RFC 9114 §6.2: each side lets the other open three streams at the least.
        let ours = self.ours.as_mut().ok_or(Code::GENERAL_PROTOCOL_ERROR)?;
        while !self.unsaid.is_empty() {
            match ours.poll_write(cx, &[IoSlice::new(&self.unsaid)]) {
                Poll::Ready(Ok(count)) => drop(self.unsaid.drain(..count)),
                Poll::Ready(Err(StreamEnd::Connection(_))) => self.unsaid.clear(),
                Poll::Ready(Err(StreamEnd::Stopped(_) | StreamEnd::Reset(_))) => {
                    return Err(Code::CLOSED_CRITICAL_STREAM);
                }
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }

    /// Finds out what streams are that have just begun.
    fn name(&mut self, cx: &mut Context<'_>) -> Result<(), Code> {
        let mut place = 0;
        while let Some((stream, begun)) = self.nameless.get_mut(place) {
            match poll_kind(cx, stream, begun) {
                Poll::Pending => place += 1,
                Poll::Ready(None) => drop(self.nameless.swap_remove(place)),
                Poll::Ready(Some((kind, rest))) => {
                    let (stream, _) = self.nameless.swap_remove(place);
                    self.take(kind, stream, rest)?;
                }
            }
        }
        Ok(())
    }

    /// Takes a stream for what it is. There is one of each kind, and never a push.
    fn take(&mut self, kind: StreamKind, mut stream: RecvStream, rest: Bytes) -> Result<(), Code> {
        let is_second = match kind {
            StreamKind::Control => self.control.replace((stream, rest)).is_some(),
            StreamKind::Encoder => {
                instructions::check_encoder(&rest)?;
                self.encoder.replace(stream).is_some()
            }
            StreamKind::Decoder => {
                self.acknowledgements.check(&rest)?;
                self.decoder.replace(stream).is_some()
            }
            StreamKind::Push => {
                return Err(match self.peer {
                    Peer::Client => Code::STREAM_CREATION_ERROR,
                    Peer::Endpoint => Code::ID_ERROR,
                });
            }
            StreamKind::Unknown => {
                stream.stop(Code::STREAM_CREATION_ERROR.0);
                false
            }
        };
        if is_second { Err(Code::STREAM_CREATION_ERROR) } else { Ok(()) }
    }

    /// Looks at what the peer says of tables that neither side keeps.
    fn hear_tables(&mut self, cx: &mut Context<'_>) -> Result<(), Code> {
        while let Some(stream) = &mut self.encoder
            && let Poll::Ready(bytes) = poll_critical(cx, stream)?
        {
            instructions::check_encoder(&bytes)?;
        }
        while let Some(stream) = &mut self.decoder
            && let Poll::Ready(bytes) = poll_critical(cx, stream)?
        {
            self.acknowledgements.check(&bytes)?;
        }
        Ok(())
    }

    fn poll_control(&mut self, cx: &mut Context<'_>) -> Poll<Result<Event, Code>> {
        let Some((stream, input)) = &mut self.control else { return Poll::Pending };
        loop {
            match self.reader.next(input)? {
                Some(Said::Settings(settings)) => {
                    return Poll::Ready(Ok(Event::Settings(settings)));
                }
                Some(Said::GoAway(id)) => {
                    if self.peer == Peer::Endpoint {
                        self.ties.go_away(id);
                    }
                    return Poll::Ready(Ok(Event::GoAway(id)));
                }
                Some(Said::Priority(id, priority)) => self.ties.prioritise(id, priority),
                None => *input = ready!(poll_critical(cx, stream))?,
            }
        }
    }
}

/// What a stream is and what it has said since; `None`: it ended before it had said that.
fn poll_kind(
    cx: &mut Context<'_>,
    stream: &mut RecvStream,
    begun: &mut Vec<u8>,
) -> Poll<Option<(StreamKind, Bytes)>> {
    loop {
        let Ok(Some(mut bytes)) = ready!(stream.poll_read(cx)) else { return Poll::Ready(None) };
        while !bytes.is_empty() {
            begun.push(bytes.get_u8());
            if let Some((kind, _)) = StreamKind::read(begun) {
                return Poll::Ready(Some((kind, bytes)));
            }
        }
    }
}

/// What comes next on a stream that may not end before the connection does.
fn poll_critical(cx: &mut Context<'_>, stream: &mut RecvStream) -> Poll<Result<Bytes, Code>> {
    match ready!(stream.poll_read(cx)) {
        Ok(Some(bytes)) => Poll::Ready(Ok(bytes)),
        Ok(None) | Err(StreamEnd::Reset(_) | StreamEnd::Stopped(_)) => {
            Poll::Ready(Err(Code::CLOSED_CRITICAL_STREAM))
        }
        Err(StreamEnd::Connection(_)) => Poll::Pending,
    }
}

#[cfg(test)]
mod tests;
