//! As much HTTP/2 as the lab needs, for both sides: whole messages whose body fits into one frame, within
//! the flow control that the other side keeps. Compression of heads is a library's.

use std::collections::VecDeque;
use std::io::{self, Read as _, Write as _};
use std::ops::Range;
use std::rc::Rc;

use httlib_hpack::{Decoder, Encoder};
use mio::net::TcpStream;

use crate::http::Fault;

/// The largest body: a frame of the size that everybody must accept.
pub(crate) const MAX_BODY_BYTES: usize = 16_384;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const FRAME_HEAD_BYTES: usize = 9;
const READ_BYTES: usize = 64 * 1024;
/// What we let the other side send: so much that it never waits for us.
const OUR_WINDOW: u32 = 1 << 30;
const INITIAL_WINDOW: u32 = 65_535;
/// As real servers allow: nginx 128, Go 250, Envoy and Apache 100.
const OUR_STREAMS: u32 = 128;
const OUR_TABLE_BYTES: u32 = 4096;

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const RST_STREAM: u8 = 3;
const SETTINGS: u8 = 4;
const PING: u8 = 6;
const GOAWAY: u8 = 7;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

const END_STREAM: u8 = 0x1;
const ACK: u8 = 0x1;
const END_HEADERS: u8 = 0x4;
const PADDED: u8 = 0x8;
const PRIORITY: u8 = 0x20;

const HEADER_TABLE_SIZE: u16 = 1;
const ENABLE_PUSH: u16 = 2;
const MAX_CONCURRENT_STREAMS: u16 = 3;
const INITIAL_WINDOW_SIZE: u16 = 4;

/// Name and value.
pub(crate) type Field = (Vec<u8>, Vec<u8>);

pub(crate) fn field(name: &str, value: &str) -> Field {
    (name.into(), value.into())
}

/// A request or a response; its stream ends with its last part.
pub(crate) struct Message {
    pub(crate) head: Vec<Field>,
    pub(crate) body: Vec<u8>,
    pub(crate) trailers: Vec<Field>,
}

/// What came from the other side.
pub(crate) enum Event {
    Head { stream: u32, fields: Fields, last: bool },
    Data { stream: u32, bytes: u64, last: bool },
    Reset { stream: u32, code: u32 },
    GoAway { code: u32 },
}

/// A head or trailers as they were decoded.
pub(crate) struct Fields(Vec<(Vec<u8>, Vec<u8>, u8)>);

impl Fields {
    pub(crate) fn value(&self, name: &str) -> Option<&[u8]> {
        let found = self.0.iter().find(|(own, ..)| own == name.as_bytes());
        found.map(|(_, value, _)| value.as_slice())
    }

    /// A line for each, as HTTP/1.1 would have it.
    pub(crate) fn to_text(&self) -> Vec<u8> {
        let line = |(name, value, _): &(Vec<u8>, Vec<u8>, u8)| {
            [name, ": ".as_bytes(), value, b"\r\n"].concat()
        };
        self.0.iter().flat_map(line).collect()
    }
}

/// One connection, of a client or of a server.
pub(crate) struct Wire {
    socket: TcpStream,
    inbox: Vec<u8>,
    /// How far the inbox has been read.
    taken: usize,
    /// The last read had all that was there; another one would find nothing.
    drained: bool,
    closed: bool,
    /// Bytes of the client's preface that are still to come.
    preface_bytes: usize,
    /// A head that comes in several frames: its stream, whether it is all of the message, and the block.
    partial: Option<(u32, bool, Vec<u8>)>,
    decoder: Decoder<'static>,
    /// What the other side has sent of what we let it send.
    received: u32,
    outbox: Vec<u8>,
    sent: usize,
    encoder: Encoder<'static>,
    /// A smaller table that the other side wants, of which it is yet to be told that we have it.
    table_bytes: Option<u32>,
    /// What we may send.
    window: i64,
    /// Messages that wait for the window.
    held_back: VecDeque<(u32, Rc<Message>)>,
}

struct Frame {
    kind: u8,
    flags: u8,
    stream: u32,
    payload: Range<usize>,
}

impl Wire {
    pub(crate) fn of_client(socket: TcpStream) -> Self {
        let mut wire = Self::new(socket, 0);
        wire.outbox.extend_from_slice(PREFACE);
        wire.introduce(&[(ENABLE_PUSH, 0), (INITIAL_WINDOW_SIZE, OUR_WINDOW)]);
        wire
    }

    pub(crate) fn of_server(socket: TcpStream) -> Self {
        let mut wire = Self::new(socket, PREFACE.len());
        wire.introduce(&[(MAX_CONCURRENT_STREAMS, OUR_STREAMS), (INITIAL_WINDOW_SIZE, OUR_WINDOW)]);
        wire
    }

    fn new(socket: TcpStream, preface_bytes: usize) -> Self {
        Self {
            socket,
            inbox: Vec::new(),
            taken: 0,
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
            held_back: VecDeque::new(),
        }
    }

    fn introduce(&mut self, settings: &[(u16, u32)]) {
        let payload: Vec<u8> = settings
            .iter()
            .flat_map(|(name, value)| {
                name.to_be_bytes().into_iter().chain(value.to_be_bytes()).collect::<Vec<u8>>()
            })
            .collect();
        self.put(SETTINGS, 0, 0, &payload);
        self.put(WINDOW_UPDATE, 0, 0, &(OUR_WINDOW - INITIAL_WINDOW).to_be_bytes());
    }

    /// Sends a message, or keeps it until the other side's window has room for it.
    pub(crate) fn send(&mut self, stream: u32, message: Rc<Message>) {
        self.held_back.push_back((stream, message));
        self.send_held_back();
    }

    fn send_held_back(&mut self) {
        while let Some((stream, message)) = self.held_back.front()
            && message.body.len() as i64 <= self.window
        {
            let (stream, message) = (*stream, Rc::clone(message));
            self.held_back.pop_front();
            self.write(stream, &message);
        }
    }

    fn write(&mut self, stream: u32, message: &Message) {
        let Message { head, body, trailers } = message;
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

    fn write_fields(&mut self, stream: u32, fields: &[Field], flags: u8) {
        const FORMAT: u8 = Encoder::BEST_FORMAT | Encoder::HUFFMAN_NAME | Encoder::HUFFMAN_VALUE;
        let mut block = Vec::with_capacity(128);
        if let Some(bytes) = self.table_bytes.take() {
            self.encoder.update_max_dynamic_size(bytes, &mut block).expect("any size is a size");
        }
        for (name, value) in fields {
            // Paths differ from request to request: browsers and nghttp2 do not fill the table with them.
            let indexing = if name == b":path" { 0 } else { Encoder::WITH_INDEXING };
            let field = (name.clone(), value.clone(), FORMAT | indexing);
            self.encoder.encode(field, &mut block).expect("any octet has a code");
        }
        self.put(HEADERS, END_HEADERS | flags, stream, &block);
    }

    fn put(&mut self, kind: u8, flags: u8, stream: u32, payload: &[u8]) {
        let length = u32::try_from(payload.len()).expect("a payload of the lab is small");
        self.outbox.extend_from_slice(&length.to_be_bytes()[1..]);
        self.outbox.extend_from_slice(&[kind, flags]);
        self.outbox.extend_from_slice(&stream.to_be_bytes());
        self.outbox.extend_from_slice(payload);
    }

    /// Writes as much as the socket takes.
    pub(crate) fn flush(&mut self) -> Result<(), Fault> {
        while self.sent < self.outbox.len() {
            match self.socket.write(&self.outbox[self.sent..]) {
                Ok(count) => self.sent += count,
                Err(error) if not_yet(&error) => return Ok(()),
                Err(error) => return Err(Fault::Io(error)),
            }
        }
        self.outbox.clear();
        self.sent = 0;
        Ok(())
    }

    /// Reads once; false if the socket had nothing. A read shorter than asked for has drained it, so that the
    /// next one is left to the next event.
    pub(crate) fn fill(&mut self, scratch: &mut [u8]) -> Result<bool, Fault> {
        if std::mem::take(&mut self.drained) {
            return Ok(false);
        }
        self.inbox.drain(..self.taken);
        self.taken = 0;
        let count = match self.socket.read(&mut scratch[..READ_BYTES]) {
            Ok(count) => count,
            Err(error) if not_yet(&error) => return Ok(false),
            Err(error) => return Err(Fault::Io(error)),
        };
        self.inbox.extend_from_slice(&scratch[..count]);
        self.closed = count == 0;
        self.drained = count < READ_BYTES;
        Ok(true)
    }

    /// Whether something has come that has not been looked at.
    pub(crate) fn has_more(&self) -> bool {
        self.taken < self.inbox.len()
    }

    /// The next thing that has come in whole. What concerns the connection alone is dealt with here.
    pub(crate) fn next_event(&mut self) -> Result<Option<Event>, Fault> {
        loop {
            let Some(frame) = self.next_frame() else {
                return if self.closed { Err(Fault::Closed) } else { Ok(None) };
            };
            if let Some(event) = self.take(frame)? {
                return Ok(Some(event));
            }
        }
    }

    fn next_frame(&mut self) -> Option<Frame> {
        let waiting = &self.inbox[self.taken..];
        if waiting.len() < self.preface_bytes + FRAME_HEAD_BYTES {
            return None;
        }
        let head = &waiting[self.preface_bytes..][..FRAME_HEAD_BYTES];
        let length = number([0, head[0], head[1], head[2]]) as usize;
        let begin = self.taken + self.preface_bytes + FRAME_HEAD_BYTES;
        if self.inbox.len() < begin + length {
            return None;
        }
        let stream = number([head[5], head[6], head[7], head[8]]) & 0x7fff_ffff;
        let frame = Frame { kind: head[3], flags: head[4], stream, payload: begin..begin + length };
        self.taken = frame.payload.end;
        self.preface_bytes = 0;
        Some(frame)
    }

    fn take(&mut self, frame: Frame) -> Result<Option<Event>, Fault> {
        let Frame { kind, flags, stream, payload } = frame;
        match kind {
            HEADERS => {
                let content = self.content(flags, payload)?;
                let block = self.inbox[content].to_vec();
                self.take_block(stream, flags & END_STREAM != 0, block, flags)
            }
            CONTINUATION => {
                let (stream, last, mut block) = self.partial.take().ok_or(Fault::Frame)?;
                block.extend_from_slice(&self.inbox[payload]);
                self.take_block(stream, last, block, flags)
            }
            DATA => {
                self.give_back(payload.len() as u32);
                let bytes = self.content(flags, payload)?.len() as u64;
                Ok(Some(Event::Data { stream, bytes, last: flags & END_STREAM != 0 }))
            }
            RST_STREAM => Ok(Some(Event::Reset { stream, code: self.first_number(payload, 0)? })),
            GOAWAY => Ok(Some(Event::GoAway { code: self.first_number(payload, 4)? })),
            SETTINGS if flags & ACK == 0 => self.take_settings(payload).map(|()| None),
            PING if flags & ACK == 0 => {
                let text = self.inbox[payload].to_vec();
                self.put(PING, ACK, 0, &text);
                Ok(None)
            }
            WINDOW_UPDATE if stream == 0 => {
                self.window += i64::from(self.first_number(payload, 0)?);
                self.send_held_back();
                Ok(None)
            }
            // Windows of streams are larger than a body. What is unknown is to be ignored (RFC 9113 §4.1).
            _ => Ok(None),
        }
    }

    /// The payload without padding and priority.
    fn content(&self, flags: u8, payload: Range<usize>) -> Result<Range<usize>, Fault> {
        let Range { mut start, mut end } = payload;
        if flags & PADDED != 0 {
            let padding = self.inbox.get(start).ok_or(Fault::Frame)?;
            end = end.saturating_sub(usize::from(*padding));
            start += 1;
        }
        if flags & PRIORITY != 0 {
            start += 5;
        }
        if start <= end { Ok(start..end) } else { Err(Fault::Frame) }
    }

    fn take_block(
        &mut self,
        stream: u32,
        last: bool,
        mut block: Vec<u8>,
        flags: u8,
    ) -> Result<Option<Event>, Fault> {
        if flags & END_HEADERS == 0 {
            self.partial = Some((stream, last, block));
            return Ok(None);
        }
        let mut fields = Vec::with_capacity(16);
        self.decoder.decode(&mut block, &mut fields).map_err(|_hpack| Fault::Frame)?;
        Ok(Some(Event::Head { stream, fields: Fields(fields), last }))
    }

    fn take_settings(&mut self, payload: Range<usize>) -> Result<(), Fault> {
        for setting in self.inbox[payload].chunks_exact(6) {
            let name = u16::from_be_bytes([setting[0], setting[1]]);
            let value = number([setting[2], setting[3], setting[4], setting[5]]);
            if name == HEADER_TABLE_SIZE && value < OUR_TABLE_BYTES {
                self.table_bytes = Some(value);
            }
            if name == INITIAL_WINDOW_SIZE && (value as usize) < MAX_BODY_BYTES {
                return Err(Fault::Frame);
            }
        }
        self.put(SETTINGS, ACK, 0, &[]);
        Ok(())
    }

    /// Lets the other side send again what it has sent, in large pieces.
    fn give_back(&mut self, bytes: u32) {
        self.received += bytes;
        if self.received > OUR_WINDOW / 2 {
            let received = std::mem::take(&mut self.received);
            self.put(WINDOW_UPDATE, 0, 0, &received.to_be_bytes());
        }
    }

    fn first_number(&self, payload: Range<usize>, offset: usize) -> Result<u32, Fault> {
        let bytes = self.inbox[payload].get(offset..offset + 4).ok_or(Fault::Frame)?;
        Ok(number([bytes[0], bytes[1], bytes[2], bytes[3]]))
    }
}

fn number(bytes: [u8; 4]) -> u32 {
    u32::from_be_bytes(bytes)
}

/// A socket that is still connecting says `NotConnected`.
fn not_yet(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::NotConnected)
}
