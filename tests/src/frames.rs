//! HTTP/2 frame by frame, for sequences that no library sends: floods, starvation, protocol
//! violations.

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

/// First byte of a response head with status 200: an entry of the static table (RFC 7541, appendix
/// A).
pub const STATUS_200: u8 = 0x88;

/// HTTP/2 frame.
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

    /// Returns a SETTINGS frame with these parameters, by their identifiers.
    pub fn settings(settings: &[(u16, u32)]) -> Self {
        let pair =
            |(id, value): &(u16, u32)| [&id.to_be_bytes()[..], &value.to_be_bytes()].concat();
        Self::new(SETTINGS, 0, 0, settings.iter().flat_map(pair).collect::<Vec<_>>())
    }

    /// Returns the head of a GET without a body.
    pub fn get(stream: u32) -> Self {
        Self::new(HEADERS, END_STREAM | END_HEADERS, stream, block(&fields("GET")))
    }

    /// Returns the head of a POST whose body follows.
    pub fn post(stream: u32) -> Self {
        Self::new(HEADERS, END_HEADERS, stream, block(&fields("POST")))
    }

    pub fn reset(stream: u32, reason: u32) -> Self {
        Self::new(RST_STREAM, 0, stream, reason.to_be_bytes())
    }

    pub fn window_update(stream: u32, bytes: u32) -> Self {
        Self::new(WINDOW_UPDATE, 0, stream, bytes.to_be_bytes())
    }

    /// Returns a GOAWAY frame with the last stream that was or will be processed, and the error
    /// code.
    pub fn goaway(last: u32, reason: u32) -> Self {
        Self::new(GOAWAY, 0, 0, [last.to_be_bytes(), reason.to_be_bytes()].concat())
    }

    /// Returns the error code in a GOAWAY or RST_STREAM.
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

/// Returns the pseudo-header fields of every request.
pub fn fields(method: &str) -> [(&str, &str); 4] {
    [(":method", method), (":scheme", "http"), (":authority", "test"), (":path", "/")]
}

/// Returns a header block of literals without indexing (RFC 7541 §6.2.2).
pub fn block(fields: &[(&str, &str)]) -> Vec<u8> {
    fields.iter().flat_map(|(name, value)| [vec![0], text(name), text(value)].concat()).collect()
}

/// Returns a string literal without Huffman coding (RFC 7541 §5.2).
pub fn text(text: &str) -> Vec<u8> {
    [integer(7, text.len()), text.as_bytes().to_vec()].concat()
}

/// Returns an integer with a prefix of `bits` bits (RFC 7541 §5.1).
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

/// Frames received on a connection.
pub struct RawFrameReader(OwnedReadHalf);

impl RawHttp2Connection {
    /// Connects as a client, with these settings; waits for the server's settings and acknowledges
    /// them.
    pub async fn connect(address: SocketAddr, settings: &[(u16, u32)]) -> Result<Self> {
        let mut connection = Self::over(TcpStream::connect(address).await?)?;
        connection.send([PREFACE, &RawHttp2Frame::settings(settings).bytes()].concat()).await?;
        let first = connection.reader.next_frame().await?.context("settings")?;
        ensure!(first.kind == SETTINGS, "settings come first: {first:?}");
        connection.write(&RawHttp2Frame::new(SETTINGS, ACK, 0, [])).await?;
        Ok(connection)
    }

    /// Accepts the next connection as a server.
    pub async fn accept(listener: &TcpListener) -> Result<Self> {
        let (stream, _) = within("a connection", listener.accept()).await??;
        let mut connection = Self::over(stream)?;
        let preface = connection.reader.read_exact(PREFACE.len()).await?.context("a preface")?;
        ensure!(preface == PREFACE, "{preface:?}");
        connection.write(&RawHttp2Frame::settings(&[])).await?;
        Ok(connection)
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
    /// Returns the next frame; `None` at the end of the connection, be it orderly or a reset.
    pub async fn next_frame(&mut self) -> Result<Option<RawHttp2Frame>> {
        let Some(head) = self.read_exact(9).await? else { return Ok(None) };
        let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
        let stream = u32::from_be_bytes(head[5..9].try_into()?);
        let Some(payload) = self.read_exact(length).await? else { return Ok(None) };
        Ok(Some(RawHttp2Frame { kind: head[3], flags: head[4], stream, payload }))
    }

    /// Returns the next frame of this type; `None` if the connection ends before.
    pub async fn next_of_kind(&mut self, kind: u8) -> Result<Option<RawHttp2Frame>> {
        loop {
            match self.next_frame().await? {
                Some(frame) if frame.kind == kind => return Ok(Some(frame)),
                Some(_) => {}
                None => return Ok(None),
            }
        }
    }

    /// Returns the next HEADERS or RST_STREAM of this stream; `None` if the connection ends before.
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
