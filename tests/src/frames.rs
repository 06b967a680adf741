//! HTTP/2 frame by frame, for what no library would send: who floods, starves and lies.

use std::net::SocketAddr;

use anyhow::{Context, Result, ensure};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};

use crate::waiting::within;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

pub const DATA: u8 = 0;
pub const HEADERS: u8 = 1;
pub const RST_STREAM: u8 = 3;
pub const SETTINGS: u8 = 4;
pub const PING: u8 = 6;
pub const GOAWAY: u8 = 7;
pub const WINDOW_UPDATE: u8 = 8;
pub const CONTINUATION: u8 = 9;

pub const END_STREAM: u8 = 0x1;
pub const ACK: u8 = 0x1;
pub const END_HEADERS: u8 = 0x4;

pub const NO_ERROR: u32 = 0x0;
pub const PROTOCOL_ERROR: u32 = 0x1;
pub const REFUSED_STREAM: u32 = 0x7;
pub const CANCEL: u32 = 0x8;
pub const ENHANCE_YOUR_CALM: u32 = 0xb;

/// How a head begins that says 200: an entry of the static table (RFC 7541, appendix A).
pub const STATUS_200: u8 = 0x88;

/// What a frame says, and of which stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RawHttp2Frame {
    pub kind: u8,
    pub flags: u8,
    pub stream: u32,
    pub payload: Vec<u8>,
}

impl RawHttp2Frame {
    pub fn new(kind: u8, flags: u8, stream: u32, payload: impl Into<Vec<u8>>) -> Self {
        Self { kind, flags, stream, payload: payload.into() }
    }

    /// Settings by their numbers.
    pub fn settings(settings: &[(u16, u32)]) -> Self {
        let pair =
            |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
        Self::new(SETTINGS, 0, 0, settings.iter().flat_map(pair).collect::<Vec<_>>())
    }

    /// The head of a GET that is the whole request.
    pub fn get(stream: u32) -> Self {
        Self::new(HEADERS, END_STREAM | END_HEADERS, stream, block(&fields("GET")))
    }

    /// The head of a POST whose body follows.
    pub fn post(stream: u32) -> Self {
        Self::new(HEADERS, END_HEADERS, stream, block(&fields("POST")))
    }

    pub fn reset(stream: u32, reason: u32) -> Self {
        Self::new(RST_STREAM, 0, stream, reason.to_be_bytes())
    }

    pub fn window_update(stream: u32, bytes: u32) -> Self {
        Self::new(WINDOW_UPDATE, 0, stream, bytes.to_be_bytes())
    }

    /// The last stream that was or will be served, and why there will be no more.
    pub fn goaway(last: u32, reason: u32) -> Self {
        Self::new(GOAWAY, 0, 0, [last.to_be_bytes(), reason.to_be_bytes()].concat())
    }

    /// The reason in a GOAWAY or RST_STREAM.
    pub fn reason(&self) -> Option<u32> {
        let bytes = self.payload.get(if self.kind == GOAWAY { 4..8 } else { 0..4 })?;
        Some(u32::from_be_bytes(bytes.try_into().ok()?))
    }

    pub fn bytes(&self) -> Vec<u8> {
        let length = u32::try_from(self.payload.len()).expect("a test's frame is small");
        let mut bytes = length.to_be_bytes()[1..].to_vec();
        bytes.extend([self.kind, self.flags]);
        bytes.extend(self.stream.to_be_bytes());
        bytes.extend(&self.payload);
        bytes
    }
}

/// What every request says.
pub fn fields(method: &str) -> [(&str, &str); 4] {
    [(":method", method), (":scheme", "http"), (":authority", "test"), (":path", "/")]
}

/// A block of fields, each written out and none kept (RFC 7541 §6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// A text as it is, behind its length (RFC 7541 §5.2).
pub fn text(text: &str) -> Vec<u8> {
    [integer(7, text.len()), text.as_bytes().to_vec()].concat()
}

/// A number whose first byte has so many bits for it (RFC 7541 §5.1).
pub fn integer(bits: u32, mut value: usize) -> Vec<u8> {
    let most = (1 << bits) - 1;
    if value < most {
        return vec![value as u8];
    }
    let mut bytes = vec![most as u8];
    value -= most;
    while value >= 128 {
        bytes.push((value % 128) as u8 | 128);
        value /= 128;
    }
    bytes.push(value as u8);
    bytes
}

/// One end of a connection.
pub struct RawHttp2Connection {
    pub reader: RawFrameReader,
    pub writer: OwnedWriteHalf,
}

/// The frames that come.
pub struct RawFrameReader(OwnedReadHalf);

impl RawHttp2Connection {
    /// As a client, with these settings; the server's are awaited and taken.
    pub async fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> Result<Self> {
        let mut wire = Self::over(TcpStream::connect(address).await?)?;
        wire.send([PREFACE, &RawHttp2Frame::settings(settings).bytes()].concat()).await?;
        let first = wire.reader.next_frame().await?.context("settings")?;
        ensure!(first.kind == SETTINGS, "settings come first: {first:?}");
        wire.write(&RawHttp2Frame::new(SETTINGS, ACK, 0, [])).await?;
        Ok(wire)
    }

    /// As a server, on the next connection.
    pub async fn accept(listener: &TcpListener) -> Result<Self> {
        let (stream, _) = within("a connection", listener.accept()).await??;
        let mut wire = Self::over(stream)?;
        let preface = wire.reader.read_exact(PREFACE.len()).await?.context("a preface")?;
        ensure!(preface == PREFACE, "{preface:?}");
        wire.write(&RawHttp2Frame::settings(&[])).await?;
        Ok(wire)
    }

    fn over(stream: TcpStream) -> Result<Self> {
        stream.set_nodelay(true)?;
        let (reader, writer) = stream.into_split();
        Ok(Self { reader: RawFrameReader(reader), writer })
    }

    pub async fn write(&mut self, frame: &RawHttp2Frame) -> Result<()> {
        self.send(frame.bytes()).await
    }

    pub async fn send(&mut self, bytes: Vec<u8>) -> Result<()> {
        Ok(self.writer.write_all(&bytes).await?)
    }
}

impl RawFrameReader {
    /// The next frame; `None` at the end, be it orderly or a reset.
    pub async fn next_frame(&mut self) -> Result<Option<RawHttp2Frame>> {
        let Some(head) = self.read_exact(9).await? else { return Ok(None) };
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes(head[5..9].try_into()?);
        let Some(payload) = self.read_exact(length).await? else { return Ok(None) };
        Ok(Some(RawHttp2Frame { kind: head[3], flags: head[4], stream, payload }))
    }

    /// The next frame of this kind; `None` if the connection ends before.
    pub async fn next_of_kind(&mut self, kind: u8) -> Result<Option<RawHttp2Frame>> {
        loop {
            match self.next_frame().await? {
                Some(frame) if frame.kind == kind => return Ok(Some(frame)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// The next HEADERS or RST_STREAM of this stream; `None` if the connection ends before.
    pub async fn next_of_stream(&mut self, stream: u32) -> Result<Option<RawHttp2Frame>> {
        loop {
            match self.next_frame().await? {
                Some(frame)
                    if frame.stream == stream && [HEADERS, RST_STREAM].contains(&frame.kind) =>
                {
                    return Ok(Some(frame));
                }
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    async fn read_exact(&mut self, length: usize) -> Result<Option<Vec<u8>>> {
        let mut bytes = vec![0; length];
        match within("a frame", self.0.read_exact(&mut bytes)).await? {
            Ok(_) => Ok(Some(bytes)),
            Err(_ended) => Ok(None),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The examples of RFC 7541, C.1.
    #[test]
    fn integers_match_the_hpack_examples() {
        assert_eq!(integer(5, 10), [10]);
        assert_eq!(integer(5, 1337), [31, 154, 10]);
        assert_eq!(integer(8, 42), [42]);
    }

    #[test]
    fn frame_has_a_nine_byte_header_and_its_payload() {
        let frame = RawHttp2Frame::window_update(3, 5);
        assert_eq!(frame.bytes(), [0, 0, 4, 8, 0, 0, 0, 0, 3, 0, 0, 0, 5]);
    }
}
