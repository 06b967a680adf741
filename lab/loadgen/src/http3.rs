//! Minimal HTTP/3 client for the lab: the same request on every stream, and the status and body length of each
//! response.

mod response_reader;
mod fields;

use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Instant;

use quinn_proto::coding::Codec as _;
use quinn_proto::{Dir, Event as QuicEvent, ReadError, StreamEvent, StreamId, VarInt};

use self::response_reader::{ResponsePart, ResponseReader};
use crate::http::MessageError;
use crate::message::{DecodedFields, HttpMessage, MessageEvent};
use crate::quic::QuicClient;

/// Frame types (RFC 9114 §7.2).
const DATA: u32 = 0;
const HEADERS: u32 = 1;
const SETTINGS: u32 = 4;
/// Type of a unidirectional stream: control (RFC 9114 §6.2).
const CONTROL: u32 = 0;

/// Returns the bytes of a request stream with this message.
pub(crate) fn request(message: &HttpMessage) -> Rc<[u8]> {
    let mut bytes = Vec::new();
    put_frame(&mut bytes, HEADERS, &fields::encode(&message.head));
    if !message.body.is_empty() {
        put_frame(&mut bytes, DATA, &message.body);
    }
    bytes.into()
}

fn put_frame(bytes: &mut Vec<u8>, kind: u32, payload: &[u8]) {
    VarInt::from_u32(kind).encode(bytes);
    VarInt::try_from(payload.len()).expect("payloads of the lab are small").encode(bytes);
    bytes.extend_from_slice(payload);
}

/// One client connection. Streams have the numbers of their requests, from 0.
pub(crate) struct Http3Session {
    quic: QuicClient,
    request: Rc<[u8]>,
    connected: bool,
    /// Requests that were begun, and those of them that have a stream.
    begun: u32,
    opened: u32,
    /// Streams with an unsent part of the request, with the number of bytes sent.
    unsent: Vec<(StreamId, usize)>,
    answers: Vec<(StreamId, ResponseReader)>,
    events: VecDeque<MessageEvent>,
}

impl Http3Session {
    pub(crate) fn new(quic: QuicClient, request: Rc<[u8]>) -> Self {
        Self {
            quic,
            request,
            connected: false,
            begun: 0,
            opened: 0,
            unsent: Vec::new(),
            answers: Vec::new(),
            events: VecDeque::new(),
        }
    }

    /// Begins a request, or queues it until the server permits another stream.
    pub(crate) fn begin(&mut self) -> u32 {
        let number = self.begun;
        self.begun += 1;
        self.open_streams();
        number
    }

    fn open_streams(&mut self) {
        while self.connected && self.opened < self.begun {
            let Some(stream) = self.quic.connection().streams().open(Dir::Bi) else { return };
            self.opened += 1;
            self.answers.push((stream, ResponseReader::default()));
            self.unsent.push((stream, 0));
            self.write(stream);
        }
    }

    /// Sends as much of the request as flow control permits.
    fn write(&mut self, stream: StreamId) {
        let Some(index) = self.unsent.iter().position(|(own, _)| *own == stream) else { return };
        let sent = &mut self.unsent[index].1;
        let mut writer = self.quic.connection().send_stream(stream);
        while *sent < self.request.len() {
            match writer.write(&self.request[*sent..]) {
                Ok(count) => *sent += count,
                Err(quinn_proto::WriteError::Blocked) => return,
                // The server stopped reading the request. Its response counts.
                Err(_) => break,
            }
        }
        writer.finish().ok();
        self.unsent.swap_remove(index);
    }

    /// Handles due timers, and writes as much as the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), MessageError> {
        self.quic.flush()
    }

    /// Reads once; false if the socket had nothing.
    pub(crate) fn fill(&mut self, scratch: &mut [u8]) -> Result<bool, MessageError> {
        self.quic.fill(scratch)
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        self.quic.is_due(now)
    }

    /// Returns the next event. Events of the connection itself are handled here.
    pub(crate) fn next_event(&mut self) -> Result<Option<MessageEvent>, MessageError> {
        loop {
            if let Some(event) = self.events.pop_front() {
                return Ok(Some(event));
            }
            let Some(quic_event) = self.quic.next_event() else { return Ok(None) };
            self.take(quic_event)?;
        }
    }

    fn take(&mut self, event: QuicEvent) -> Result<(), MessageError> {
        match event {
            QuicEvent::Connected => self.send_settings()?,
            QuicEvent::ConnectionLost { reason } => return Err(MessageError::Quic(reason)),
            QuicEvent::Stream(StreamEvent::Available { dir: Dir::Bi }) => self.open_streams(),
            QuicEvent::Stream(StreamEvent::Writable { id }) => self.write(id),
            QuicEvent::Stream(StreamEvent::Readable { id }) => self.read(id)?,
            QuicEvent::Stream(StreamEvent::Opened { dir }) => {
                while let Some(stream) = self.quic.connection().streams().accept(dir) {
                    self.read(stream)?;
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// Opens the control stream with default settings, so there is no dynamic table.
    fn send_settings(&mut self) -> Result<(), MessageError> {
        let stream = self.quic.connection().streams().open(Dir::Uni).ok_or(MessageError::Frame)?;
        let mut bytes = Vec::new();
        VarInt::from_u32(CONTROL).encode(&mut bytes);
        put_frame(&mut bytes, SETTINGS, &[]);
        let written = self.quic.connection().send_stream(stream).write(&bytes);
        if written != Ok(bytes.len()) {
            return Err(MessageError::Frame);
        }
        self.connected = true;
        self.open_streams();
        Ok(())
    }

    fn read(&mut self, stream: StreamId) -> Result<(), MessageError> {
        let index = self.answers.iter().position(|(own, _)| *own == stream);
        let number = stream.index() as u32;
        let mut reader = self.quic.connection().recv_stream(stream);
        let Ok(mut chunks) = reader.read(true) else { return Ok(()) };
        let end = loop {
            let chunk = match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => chunk,
                Ok(None) => break Some(ResponseEnd::Finished),
                Err(ReadError::Blocked) => break None,
                Err(ReadError::Reset(code)) => break Some(ResponseEnd::Reset(code.into_inner())),
            };
            // Control and QPACK streams of the server are ignored.
            let Some(index) = index else { continue };
            let emit = |part| self.events.push_back(event(number, part));
            self.answers[index].1.take(&chunk.bytes, emit)?;
        };
        // Dropping the chunks extends the flow-control window; the next datagram announces it.
        drop(chunks);
        let (Some(index), Some(end)) = (index, end) else { return Ok(()) };
        let (_, answer) = self.answers.swap_remove(index);
        self.events.push_back(match end {
            ResponseEnd::Reset(code) => MessageEvent::Reset { stream: number, code },
            ResponseEnd::Finished if answer.is_whole() => {
                MessageEvent::Data { stream: number, bytes: 0, last: true }
            }
            ResponseEnd::Finished => return Err(MessageError::Frame),
        });
        Ok(())
    }
}

/// End of a response stream.
enum ResponseEnd {
    Finished,
    Reset(u64),
}

fn event(stream: u32, part: ResponsePart) -> MessageEvent {
    match part {
        ResponsePart::Data(bytes) => MessageEvent::Data { stream, bytes, last: false },
        ResponsePart::Head(status) => {
            let fields =
                DecodedFields(vec![(b":status".to_vec(), status.to_string().into_bytes(), 0)]);
            MessageEvent::Head { stream, fields, last: false }
        }
    }
}
