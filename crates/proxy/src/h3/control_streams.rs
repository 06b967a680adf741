//! Unidirectional streams of a connection: control and QPACK, of both sides.
//!
//! Our side is one stream, which carries SETTINGS and, when the connection drains, GOAWAY. The peer has up to three,
//! which are read for the lifetime of the connection. The owner of the connection polls this and receives the events
//! that matter to it. A protocol violation by the peer, here or on a request stream, closes the connection.

use std::io::IoSlice;
use std::rc::Rc;
use std::task::{Context, Poll, ready};

use bytes::{Buf, Bytes};
use codec::h3::control::{ControlFrame, ControlStreamReader, UniStreamType};
use codec::h3::qpack::instructions::{self, QpackDecoderStream};
use codec::h3::settings::{self, H3Settings};
use codec::h3::{H3ErrorCode, PeerRole, frame, varint};
use quic::{QuicConnection, RecvStream, SendStream, StreamEnd};

use super::H3ConnectionState;

/// Stream type at the start of our control stream.
const CONTROL_STREAM_TYPE: u64 = 0x0;

/// Event for the owner of the connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ControlStreamEvent {
    /// The SETTINGS of the peer; received first, and once.
    Settings(H3Settings),
    /// GOAWAY. From an endpoint: it processes no request from this stream on.
    GoAway(u64),
}

/// Control and QPACK streams of one connection. They live as long as the connection: its critical streams may not end
/// earlier.
pub(crate) struct ControlStreams {
    connection: QuicConnection,
    peer: PeerRole,
    connection_state: Rc<H3ConnectionState>,
    our_control: Option<SendStream>,
    /// Bytes for our control stream that have not been sent.
    pending_output: Vec<u8>,
    /// Streams whose type is not yet known, with the bytes received on them.
    untyped_streams: Vec<(RecvStream, Vec<u8>)>,
    control: Option<(RecvStream, Bytes)>,
    control_reader: ControlStreamReader,
    encoder: Option<RecvStream>,
    decoder: Option<RecvStream>,
    decoder_instructions: QpackDecoderStream,
}

impl ControlStreams {
    /// Creates the streams for a `peer` whose field sections may have `field_section` bytes, as counted by RFC 9114
    /// §4.2.2.
    pub(crate) fn new(connection: &QuicConnection, peer: PeerRole, field_section: u64) -> Self {
        let mut pending_output = Vec::new();
        varint::write(CONTROL_STREAM_TYPE, &mut pending_output);
        settings::write(peer, field_section, &mut pending_output);
        Self {
            connection: connection.clone(),
            peer,
            connection_state: Rc::new(H3ConnectionState::new()),
            our_control: connection.open_uni(),
            pending_output,
            untyped_streams: Vec::new(),
            control: None,
            control_reader: ControlStreamReader::new(peer),
            encoder: None,
            decoder: None,
            decoder_instructions: QpackDecoderStream::default(),
        }
    }

    /// Returns the state that the request streams share.
    pub(crate) fn connection_state(&self) -> &Rc<H3ConnectionState> {
        &self.connection_state
    }

    /// Sends GOAWAY to a client: no request from this stream on is processed. The next `poll` sends it.
    pub(crate) fn send_goaway(&mut self, id: u64) {
        frame::write_goaway(id, &mut self.pending_output);
    }

    /// Returns the next event. An error is the reason for which this has closed the connection. If the connection ends
    /// otherwise, the connection itself reports it.
    pub(crate) fn poll(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ControlStreamEvent, H3ErrorCode>> {
        let polled = match self.connection_state.connection_error(cx.waker()) {
            Some(code) => Poll::Ready(Err(code)),
            None => self.poll_event(cx),
        };
        if let Poll::Ready(Err(code)) = polled {
            self.connection.close(code.0, code.reason());
        }
        polled
    }

    fn poll_event(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ControlStreamEvent, H3ErrorCode>> {
        self.flush_output(cx)?;
        while let Poll::Ready(Ok(stream)) = self.connection.poll_accept_uni(cx) {
            self.untyped_streams.push((stream, Vec::new()));
        }
        self.identify_streams(cx)?;
        self.check_qpack_streams(cx)?;
        let polled = self.poll_control(cx);
        self.connection_state.charge_frames(self.control_reader.take_counts());
        polled
    }

    /// Sends pending output, as far as flow control allows.
    fn flush_output(&mut self, cx: &mut Context<'_>) -> Result<(), H3ErrorCode> {
        // RFC 9114 §6.2: each side allows the other to open at least three unidirectional streams.
        let ours = self.our_control.as_mut().ok_or(H3ErrorCode::GENERAL_PROTOCOL_ERROR)?;
        while !self.pending_output.is_empty() {
            match ours.poll_write(cx, &[IoSlice::new(&self.pending_output)]) {
                Poll::Ready(Ok(count)) => drop(self.pending_output.drain(..count)),
                Poll::Ready(Err(StreamEnd::Connection(_))) => self.pending_output.clear(),
                Poll::Ready(Err(StreamEnd::Stopped(_) | StreamEnd::Reset(_))) => {
                    return Err(H3ErrorCode::CLOSED_CRITICAL_STREAM);
                }
                Poll::Pending => return Ok(()),
            }
        }
        Ok(())
    }

    /// Reads the types of newly opened streams.
    fn identify_streams(&mut self, cx: &mut Context<'_>) -> Result<(), H3ErrorCode> {
        let mut place = 0;
        while let Some((stream, received)) = self.untyped_streams.get_mut(place) {
            match poll_stream_type(cx, stream, received) {
                Poll::Pending => place += 1,
                Poll::Ready(None) => drop(self.untyped_streams.swap_remove(place)),
                Poll::Ready(Some((kind, rest))) => {
                    let (stream, _) = self.untyped_streams.swap_remove(place);
                    self.assign_stream(kind, stream, rest)?;
                }
            }
        }
        Ok(())
    }

    /// Stores a stream under its type. There may be one of each type, and no push stream.
    fn assign_stream(
        &mut self,
        kind: UniStreamType,
        mut stream: RecvStream,
        rest: Bytes,
    ) -> Result<(), H3ErrorCode> {
        let is_second = match kind {
            UniStreamType::Control => self.control.replace((stream, rest)).is_some(),
            UniStreamType::Encoder => {
                instructions::check_encoder(&rest)?;
                self.encoder.replace(stream).is_some()
            }
            UniStreamType::Decoder => {
                self.decoder_instructions.check(&rest)?;
                self.decoder.replace(stream).is_some()
            }
            UniStreamType::Push => {
                return Err(match self.peer {
                    PeerRole::Client => H3ErrorCode::STREAM_CREATION_ERROR,
                    PeerRole::Endpoint => H3ErrorCode::ID_ERROR,
                });
            }
            UniStreamType::Unknown => {
                stream.stop(H3ErrorCode::STREAM_CREATION_ERROR.0);
                false
            }
        };
        if is_second { Err(H3ErrorCode::STREAM_CREATION_ERROR) } else { Ok(()) }
    }

    /// Checks the QPACK instructions of the peer. Neither side uses a dynamic table.
    fn check_qpack_streams(&mut self, cx: &mut Context<'_>) -> Result<(), H3ErrorCode> {
        while let Some(stream) = &mut self.encoder
            && let Poll::Ready(bytes) = poll_critical(cx, stream)?
        {
            instructions::check_encoder(&bytes)?;
        }
        while let Some(stream) = &mut self.decoder
            && let Poll::Ready(bytes) = poll_critical(cx, stream)?
        {
            self.decoder_instructions.check(&bytes)?;
        }
        Ok(())
    }

    fn poll_control(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<ControlStreamEvent, H3ErrorCode>> {
        let Some((stream, input)) = &mut self.control else { return Poll::Pending };
        loop {
            match self.control_reader.next(input)? {
                Some(ControlFrame::Settings(settings)) => {
                    return Poll::Ready(Ok(ControlStreamEvent::Settings(settings)));
                }
                Some(ControlFrame::GoAway(id)) => {
                    if self.peer == PeerRole::Endpoint {
                        self.connection_state.record_goaway(id);
                    }
                    return Poll::Ready(Ok(ControlStreamEvent::GoAway(id)));
                }
                Some(ControlFrame::Priority(id, priority)) => {
                    self.connection_state.record_priority(id, priority)
                }
                None => *input = ready!(poll_critical(cx, stream))?,
            }
        }
    }
}

/// Returns the type of a stream and the bytes received after it; `None` if the stream ended before its type was
/// complete.
fn poll_stream_type(
    cx: &mut Context<'_>,
    stream: &mut RecvStream,
    received: &mut Vec<u8>,
) -> Poll<Option<(UniStreamType, Bytes)>> {
    loop {
        let Ok(Some(mut bytes)) = ready!(stream.poll_read(cx)) else { return Poll::Ready(None) };
        while !bytes.is_empty() {
            received.push(bytes.get_u8());
            if let Some((kind, _)) = UniStreamType::read(received) {
                return Poll::Ready(Some((kind, bytes)));
            }
        }
    }
}

/// Returns the next bytes of a critical stream, which may not end before the connection does.
fn poll_critical(
    cx: &mut Context<'_>,
    stream: &mut RecvStream,
) -> Poll<Result<Bytes, H3ErrorCode>> {
    match ready!(stream.poll_read(cx)) {
        Ok(Some(bytes)) => Poll::Ready(Ok(bytes)),
        Ok(None) | Err(StreamEnd::Reset(_) | StreamEnd::Stopped(_)) => {
            Poll::Ready(Err(H3ErrorCode::CLOSED_CRITICAL_STREAM))
        }
        Err(StreamEnd::Connection(_)) => Poll::Pending,
    }
}

#[cfg(test)]
mod tests;
