//! Minimal HTTP/2 for the lab, for both sides: whole messages with a body of at most one frame, within the flow-control
//! window of the peer. A library does the header compression.

mod frame;

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::rc::Rc;

use httlib_hpack::{Decoder, Encoder};
use mio::net::TcpStream;

use self::frame::{
    ACK, CONTINUATION, DATA, ENABLE_PUSH, END_HEADERS, END_STREAM, GOAWAY, HEADER_TABLE_SIZE,
    HEADERS, Http2Frame, INITIAL_WINDOW_SIZE, MAX_CONCURRENT_STREAMS, PING, RST_STREAM, SETTINGS,
    WINDOW_UPDATE, setting, write_frame,
};
use crate::http::MessageError;
use crate::message::{DecodedFields, HeaderPair, HttpMessage, MessageEvent};

/// Largest body: one frame of the size that every peer must accept.
pub(crate) const MAX_BODY_BYTES: usize = 16_384;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const READ_BYTES: usize = 64 * 1024;
/// Flow-control window for the peer, so large that the peer never waits for it.
const OUR_WINDOW: u32 = 1 << 30;
const INITIAL_WINDOW: u32 = 65_535;
/// Concurrent streams, a value that real servers use: nginx 128, Go 250, Envoy and Apache 100.
const OUR_STREAMS: u32 = 128;
const OUR_TABLE_BYTES: u32 = 4096;

/// One connection, of a client or of a server.
pub(crate) struct Http2Session {
    socket: TcpStream,
    inbox: Vec<u8>,
    /// Number of bytes of the inbox that have been processed.
    consumed: usize,
    /// True if the last read drained the socket, so that another one would find nothing.
    drained: bool,
    closed: bool,
    /// Bytes of the client's preface that are still expected.
    preface_bytes: usize,
    /// A head in several frames: its stream, whether it ends the stream, and the partial block.
    partial: Option<(u32, bool, Vec<u8>)>,
    decoder: Decoder<'static>,
    /// Bytes received since the last window update.
    received: u32,
    outbox: Vec<u8>,
    sent: usize,
    encoder: Encoder<'static>,
    /// Smaller table size that the peer has requested and that is not acknowledged yet.
    table_bytes: Option<u32>,
    /// Connection window for sending.
    window: i64,
    /// Messages that wait for the window.
    blocked_messages: VecDeque<(u32, Rc<HttpMessage>)>,
}

impl Http2Session {
    pub(crate) fn of_client(socket: TcpStream) -> Self {
        let mut session = Self::new(socket, 0);
        session.outbox.extend_from_slice(PREFACE);
        session.send_settings(&[(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, OUR_WINDOW)]);
        session
    }

    pub(crate) fn of_server(socket: TcpStream) -> Self {
        let mut session = Self::new(socket, PREFACE.len());
        session.send_settings(&[
            (MAX_CONCURRENT_STREAMS, OUR_STREAMS),
            (INITIAL_WINDOW_SIZE, OUR_WINDOW),
        ]);
        session
    }

    fn new(socket: TcpStream, preface_bytes: usize) -> Self {
        Self {
            socket,
            inbox: Vec::new(),
            consumed: 0,
            drained: false,
            closed: false,
            preface_bytes,
            partial: None,
            decoder: Decoder::with_dynamic_size(OUR_TABLE_BYTES),
            received: 0,
            outbox: Vec::new(),
            sent: 0,
            encoder: Encoder::with_dynamic_size(OUR_TABLE_BYTES),
            table_bytes: None,
            window: i64::from(INITIAL_WINDOW),
            blocked_messages: VecDeque::new(),
        }
    }

    fn send_settings(&mut self, settings: &[(u16, u32)]) {
        let payload = settings.iter().flat_map(setting).collect::<Vec<u8>>();
        self.put(SETTINGS, 0, 0, &payload);
        self.put(WINDOW_UPDATE, 0, 0, &(OUR_WINDOW - INITIAL_WINDOW).to_be_bytes());
    }

    /// Sends a message, or keeps it until the peer's window has room for it.
    pub(crate) fn send(&mut self, stream: u32, message: Rc<HttpMessage>) {
        self.blocked_messages.push_back((stream, message));
        self.send_blocked();
    }

    fn send_blocked(&mut self) {
        while let Some((stream, message)) = self.blocked_messages.front()
            && message.body.len() as i64 <= self.window
        {
            let (stream, message) = (*stream, Rc::clone(message));
            self.blocked_messages.pop_front();
            self.write(stream, &message);
        }
    }

    fn write(&mut self, stream: u32, message: &HttpMessage) {
        let HttpMessage { head, body, trailers } = message;
        let ends = |last: bool| if last { END_STREAM } else { 0 };
        self.write_fields(stream, head, ends(body.is_empty() && trailers.is_empty()));
        if !body.is_empty() {
            self.window -= body.len() as i64;
            self.put(DATA, ends(trailers.is_empty()), stream, body);
        }
        if !trailers.is_empty() {
            self.write_fields(stream, trailers, END_STREAM);
        }
    }

    fn write_fields(&mut self, stream: u32, fields: &[HeaderPair], flags: u8) {
        const FORMAT: u8 = Encoder::BEST_FORMAT | Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE;
        let mut block = Vec::with_capacity(128);
        if let Some(bytes) = self.table_bytes.take() {
            self.encoder.update_max_dynamic_size(bytes, &mut block).expect("every size is valid");
        }
        for (name, value) in fields {
            // Paths differ between requests: browsers and nghttp2 do not add them to the table.
            let indexing = if name == b":path" { 0 } else { Encoder::WITH_INDEXING };
            let field = (name.clone(), value.clone(), FORMAT | indexing);
            self.encoder.encode(field, &mut block).expect("every octet has a Huffman code");
        }
        self.put(HEADERS, END_HEADERS | flags, stream, &block);
    }

    fn put(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        write_frame(&mut self.outbox, kind, flags, stream, payload);
    }

    /// Writes as much as the socket accepts.
    pub(crate) fn flush(&mut self) -> Result<(), MessageError> {
        while self.sent < self.outbox.len() {
            match self.socket.write(&self.outbox[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if would_block(&error) => return Ok(()),
                Err(error) => return Err(MessageError::Io(error)),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads once; false if the socket had nothing. A read shorter than requested has drained the socket, so the next
    /// read waits for the next event.
    pub(crate) fn fill(&mut self, scratch: &mut [u8]) -> Result<bool, MessageError> {
        if std::mem::take(&mut self.drained) {
            return Ok(false);
        }
        self.inbox.drain(..self.consumed);
        self.consumed = 0;
        let count = match self.socket.read(&mut scratch[..READ_BYTES]) {
            Ok(count) => count,
            Err(error) if would_block(&error) => return Ok(false),
            Err(error) => return Err(MessageError::Io(error)),
        };
        self.inbox.extend_from_slice(&scratch[..count]);
        self.closed = count == 0;
        self.drained = count < READ_BYTES;
        Ok(true)
    }

    /// True if received bytes have not been processed yet.
    pub(crate) fn has_more(&self) -> bool {
        self.consumed < self.inbox.len()
    }

    /// Returns the next complete event. Frames of the connection itself are handled here.
    pub(crate) fn next_event(&mut self) -> Result<Option<MessageEvent>, MessageError> {
        loop {
            let Some(frame) = self.next_frame() else {
                return if self.closed { Err(MessageError::Closed) } else { Ok(None) };
            };
            if let Some(event) = self.take(frame)? {
                return Ok(Some(event));
            }
        }
    }

    fn next_frame(&mut self) -> Option<Http2Frame> {
        let begin = self.consumed + self.preface_bytes;
        let frame = Http2Frame::read(&self.inbox, begin)?;
        self.consumed = frame.payload.end;
        self.preface_bytes = 0;
        Some(frame)
    }

    fn take(&mut self, frame: Http2Frame) -> Result<Option<MessageEvent>, MessageError> {
        let last = frame.has(END_STREAM);
        match frame.kind {
            HEADERS => {
                let block = self.inbox[frame.content(&self.inbox)?].to_vec();
                self.take_block(&frame, frame.stream, last, block)
            }
            CONTINUATION => {
                let (stream, last, mut block) = self.partial.take().ok_or(MessageError::Frame)?;
                block.extend_from_slice(&self.inbox[frame.payload.clone()]);
                self.take_block(&frame, stream, last, block)
            }
            DATA => {
                let bytes = frame.content(&self.inbox)?.len() as u64;
                self.replenish_window(frame.payload.len() as u32);
                Ok(Some(MessageEvent::Data { stream: frame.stream, bytes, last }))
            }
            RST_STREAM => {
                let code = u64::from(frame.number(&self.inbox, 0)?);
                Ok(Some(MessageEvent::Reset { stream: frame.stream, code }))
            }
            GOAWAY => {
                let code = u64::from(frame.number(&self.inbox, 4)?);
                Ok(Some(MessageEvent::GoAway { code }))
            }
            SETTINGS if !frame.has(ACK) => self.take_settings(&frame).map(|()| None),
            PING if !frame.has(ACK) => {
                let text = self.inbox[frame.payload].to_vec();
                self.put(PING, ACK, 0, &text);
                Ok(None)
            }
            WINDOW_UPDATE if frame.stream == 0 => {
                self.window += i64::from(frame.number(&self.inbox, 0)?);
                self.send_blocked();
                Ok(None)
            }
            // Stream windows are larger than a body. Unknown frames are ignored (RFC 9113 §4.1).
            _ => Ok(None),
        }
    }

    fn take_block(
        &mut self,
        frame: &Http2Frame,
        stream: u32,
        last: bool,
        mut block: Vec<u8>,
    ) -> Result<Option<MessageEvent>, MessageError> {
        if !frame.has(END_HEADERS) {
            self.partial = Some((stream, last, block));
            return Ok(None);
        }
        let mut fields = Vec::with_capacity(16);
        self.decoder.decode(&mut block, &mut fields).map_err(|_hpack| MessageError::Frame)?;
        Ok(Some(MessageEvent::Head { stream, fields: DecodedFields(fields), last }))
    }

    fn take_settings(&mut self, frame: &Http2Frame) -> Result<(), MessageError> {
        for (name, value) in frame.settings(&self.inbox) {
            if name == HEADER_TABLE_SIZE && value < OUR_TABLE_BYTES {
                self.table_bytes = Some(value);
            }
            if name == INITIAL_WINDOW_SIZE && (value as usize) < MAX_BODY_BYTES {
                return Err(MessageError::Frame);
            }
        }
        self.put(SETTINGS, ACK, 0, &[]);
        Ok(())
    }

    /// Replenishes the peer's window, in large steps.
    fn replenish_window(&mut self, bytes: u32) {
        self.received += bytes;
        if self.received > OUR_WINDOW / 2 {
            let received = std::mem::take(&mut self.received);
            self.put(WINDOW_UPDATE, 0, 0, &received.to_be_bytes());
        }
    }
}

/// True if the operation would block; a socket that is still connecting returns `NotConnected`.
fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
