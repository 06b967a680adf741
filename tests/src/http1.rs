//! HTTP/1.1 messages with a strict parser: any violation by the sender is an error.
//!
//! It reads heads, bodies and trailers from a socket and does not interpret them.

use std::io;
use std::time::Duration;

use thiserror::Error;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::time::timeout;

use crate::payload::BodyDigest;

/// Longest silence that a test accepts, unless it says otherwise.
const SILENCE: Duration = Duration::from_secs(20);

/// Limit on a head; tests that parse heads send none that are longer.
const HEAD_LIMIT: usize = 256 * 1024;

/// Reason that there is no message.
#[derive(Debug, Error)]
pub enum Http1Error {
    #[error("closed before the first byte of a message")]
    Closed,
    #[error("closed in the middle of {0}")]
    Truncated(&'static str),
    #[error("malformed: {0}")]
    Malformed(String),
    #[error("no data for {SILENCE:?}")]
    Silent,
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl Http1Error {
    /// True if the connection has ended, as opposed to a protocol violation.
    pub fn is_connection_end(&self) -> bool {
        matches!(self, Self::Closed | Self::Truncated(_) | Self::Io(_))
    }
}

/// Start line and header fields.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ParsedHead {
    pub start: String,
    pub fields: Vec<(String, String)>,
}

impl ParsedHead {
    /// Returns all values of the fields with this name, in order.
    pub fn field_values(&self, name: &str) -> Vec<&str> {
        let of_name = |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.fields.iter().filter(of_name).map(|(_, value)| value.as_str()).collect()
    }

    /// Returns the value of the field with this name; several values are joined, as RFC 9110 §5.3
    /// allows.
    pub fn field(&self, name: &str) -> Option<String> {
        let all = self.field_values(name);
        (!all.is_empty()).then(|| all.join(", "))
    }

    pub fn has_field(&self, name: &str) -> bool {
        !self.field_values(name).is_empty()
    }

    /// True if a list field contains this word.
    pub fn field_lists(&self, name: &str, word: &str) -> bool {
        let mut words = self.field_values(name).into_iter().flat_map(|value| value.split(','));
        words.any(|listed| listed.trim().eq_ignore_ascii_case(word))
    }

    /// Returns the status of a response.
    pub fn status(&self) -> u16 {
        self.word(1).parse().unwrap_or(0)
    }

    pub fn method(&self) -> &str {
        self.word(0)
    }

    pub fn target(&self) -> &str {
        self.word(1)
    }

    fn word(&self, index: usize) -> &str {
        self.start.split(' ').nth(index).unwrap_or("")
    }

    /// Returns the framing of the body of a request with this head.
    pub fn request_body(&self) -> Result<RemainingBody, Http1Error> {
        Ok(self.declared_body()?.unwrap_or(RemainingBody::Nothing))
    }

    /// Returns the framing of the body of a response with this head, to a request with this method.
    pub fn response_body(&self, method: &str) -> Result<RemainingBody, Http1Error> {
        let declared = self.declared_body()?;
        let status = self.status();
        if method == "HEAD" || status < 200 || status == 204 || status == 304 {
            return Ok(RemainingBody::Nothing);
        }
        Ok(declared.unwrap_or(RemainingBody::UntilClose))
    }

    fn declared_body(&self) -> Result<Option<RemainingBody>, Http1Error> {
        let lengths = self.field_values("content-length");
        let codings = self.field_values("transfer-encoding");
        match (lengths.as_slice(), codings.as_slice()) {
            ([], []) => Ok(None),
            ([length], []) if !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit()) => {
                let length =
                    length.parse().map_err(|_overflow| malformed("content-length", length))?;
                Ok(Some(RemainingBody::Bytes(length)))
            }
            ([], [coding]) if coding.eq_ignore_ascii_case("chunked") => {
                Ok(Some(RemainingBody::ChunkHead))
            }
            _ => Err(Http1Error::Malformed(format!("framing: {lengths:?} and {codings:?}"))),
        }
    }
}

/// Remaining part of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RemainingBody {
    Nothing,
    Bytes(u64),
    /// The next bytes are the size of a chunk.
    ChunkHead,
    /// Number of data bytes left in this chunk.
    Chunk(u64),
    UntilClose,
}

/// Body kept in memory.
#[derive(Clone, Debug, Default)]
pub struct BufferedBody {
    pub bytes: Vec<u8>,
    pub trailers: Vec<(String, String)>,
}

/// Receiving side of a connection, with the bytes that were read ahead.
pub struct Http1Reader {
    half: Box<dyn AsyncRead + Send + Unpin>,
    buffer: Vec<u8>,
    trailers: Vec<(String, String)>,
}

impl Http1Reader {
    pub fn new(half: impl AsyncRead + Send + Unpin + 'static) -> Self {
        Self { half: Box::new(half), buffer: Vec::new(), trailers: Vec::new() }
    }

    /// Reads the next start line and fields.
    pub async fn head(&mut self) -> Result<ParsedHead, Http1Error> {
        let Some(end) = self.read_until(b"\r\n\r\n", "a head").await? else {
            return Err(Http1Error::Closed);
        };
        let text: Vec<u8> = self.buffer.drain(..end).collect();
        let mut lines = lines(&text[..end - 4])?;
        let start = lines.remove(0);
        Ok(ParsedHead { start, fields: fields(&lines)? })
    }

    /// Reads the next piece of a body; `None` at its end.
    pub async fn read_piece(
        &mut self,
        left: &mut RemainingBody,
    ) -> Result<Option<Vec<u8>>, Http1Error> {
        loop {
            match *left {
                RemainingBody::Nothing | RemainingBody::Bytes(0) => return Ok(None),
                RemainingBody::Bytes(count) => {
                    let piece = self.read_some(count, "a body").await?;
                    *left = RemainingBody::Bytes(count - piece.len() as u64);
                    return Ok(Some(piece));
                }
                RemainingBody::ChunkHead => {
                    let size = self.chunk_size().await?;
                    *left =
                        if size == 0 { RemainingBody::Nothing } else { RemainingBody::Chunk(size) };
                    if size == 0 {
                        self.trailers = self.trailer_section().await?;
                    }
                }
                RemainingBody::Chunk(count) => {
                    let piece = self.read_some(count, "a chunk").await?;
                    let rest = count - piece.len() as u64;
                    *left = if rest == 0 {
                        RemainingBody::ChunkHead
                    } else {
                        RemainingBody::Chunk(rest)
                    };
                    if rest == 0 {
                        self.line_end().await?;
                    }
                    return Ok(Some(piece));
                }
                RemainingBody::UntilClose => {
                    if self.buffer.is_empty() && self.fill().await? == 0 {
                        *left = RemainingBody::Nothing;
                        return Ok(None);
                    }
                    return Ok(Some(std::mem::take(&mut self.buffer)));
                }
            }
        }
    }

    /// Reads a whole body.
    pub async fn body(&mut self, mut left: RemainingBody) -> Result<BufferedBody, Http1Error> {
        let mut bytes = Vec::new();
        while let Some(piece) = self.read_piece(&mut left).await? {
            bytes.extend(piece);
        }
        Ok(BufferedBody { bytes, trailers: std::mem::take(&mut self.trailers) })
    }

    /// Reads a whole body; keeps only its digest.
    pub async fn digest(&mut self, mut left: RemainingBody) -> Result<BodyDigest, Http1Error> {
        let mut digest = BodyDigest::default();
        while let Some(piece) = self.read_piece(&mut left).await? {
            digest.add(&piece);
        }
        Ok(digest)
    }

    /// Returns the trailers of the chunked body that was read last.
    pub fn take_trailers(&mut self) -> Vec<(String, String)> {
        std::mem::take(&mut self.trailers)
    }

    /// Reads at least one byte, without interpreting it; empty at the end.
    pub async fn read_available(&mut self) -> Result<Vec<u8>, Http1Error> {
        if self.buffer.is_empty() {
            self.fill().await?;
        }
        Ok(std::mem::take(&mut self.buffer))
    }

    /// Reads exactly this many bytes, without interpreting them.
    pub async fn read_exact(&mut self, count: usize) -> Result<Vec<u8>, Http1Error> {
        while self.buffer.len() < count {
            if self.fill().await? == 0 {
                return Err(Http1Error::Truncated("raw bytes"));
            }
        }
        Ok(self.buffer.drain(..count).collect())
    }

    /// Waits for the end of the connection; it is an error if bytes arrive before. A reset counts
    /// as an end.
    pub async fn expect_end(&mut self) -> Result<(), Http1Error> {
        if self.buffer.is_empty() {
            match self.fill().await {
                Ok(0) => return Ok(()),
                Err(Http1Error::Io(error)) if error.kind() == io::ErrorKind::ConnectionReset => {
                    return Ok(());
                }
                Ok(_) => {}
                Err(error) => return Err(error),
            }
        }
        Err(malformed("bytes where the end should be", &String::from_utf8_lossy(&self.buffer)))
    }

    async fn chunk_size(&mut self) -> Result<u64, Http1Error> {
        let line = self.line().await?;
        let digits = line.split(';').next().unwrap_or("");
        if digits.is_empty() || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Err(malformed("chunk size", &line));
        }
        u64::from_str_radix(digits, 16).map_err(|_overflow| malformed("chunk size", &line))
    }

    async fn trailer_section(&mut self) -> Result<Vec<(String, String)>, Http1Error> {
        let mut lines = Vec::new();
        loop {
            let line = self.line().await?;
            if line.is_empty() {
                return fields(&lines);
            }
            lines.push(line);
        }
    }

    async fn line(&mut self) -> Result<String, Http1Error> {
        let Some(end) = self.read_until(b"\r\n", "a line").await? else {
            return Err(Http1Error::Truncated("a chunked body"));
        };
        let line: Vec<u8> = self.buffer.drain(..end).collect();
        Ok(lines(&line[..end - 2])?.remove(0))
    }

    async fn line_end(&mut self) -> Result<(), Http1Error> {
        match self.line().await?.as_str() {
            "" => Ok(()),
            other => Err(malformed("after a chunk", other)),
        }
    }

    /// Reads until the buffer contains `mark`; returns the offset just after it, or `None` if the
    /// connection ended without a byte.
    async fn read_until(
        &mut self,
        mark: &[u8],
        what: &'static str,
    ) -> Result<Option<usize>, Http1Error> {
        let mut searched = 0;
        loop {
            let place =
                self.buffer[searched..].windows(mark.len()).position(|window| window == mark);
            if let Some(place) = place {
                return Ok(Some(searched + place + mark.len()));
            }
            searched = self.buffer.len().saturating_sub(mark.len() - 1);
            if self.buffer.len() > HEAD_LIMIT {
                return Err(Http1Error::Malformed(format!(
                    "{what} of more than {HEAD_LIMIT} bytes"
                )));
            }
            if self.fill().await? == 0 {
                return if self.buffer.is_empty() {
                    Ok(None)
                } else {
                    Err(Http1Error::Truncated(what))
                };
            }
        }
    }

    async fn read_some(&mut self, most: u64, what: &'static str) -> Result<Vec<u8>, Http1Error> {
        if self.buffer.is_empty() && self.fill().await? == 0 {
            return Err(Http1Error::Truncated(what));
        }
        let count = self.buffer.len().min(usize::try_from(most).unwrap_or(usize::MAX));
        Ok(self.buffer.drain(..count).collect())
    }

    async fn fill(&mut self) -> Result<usize, Http1Error> {
        if self.buffer.capacity() - self.buffer.len() < 4096 {
            self.buffer.reserve(64 * 1024);
        }
        let read = self.half.read_buf(&mut self.buffer);
        timeout(SILENCE, read).await.map_err(|_elapsed| Http1Error::Silent)?.map_err(Http1Error::Io)
    }
}

/// Splits a head into its lines, without their ends.
fn lines(text: &[u8]) -> Result<Vec<String>, Http1Error> {
    // Heads may contain any bytes (RFC 9110 §5.5): each becomes a character here.
    let text: String = text.iter().copied().map(char::from).collect();
    let lines: Vec<String> = text.split("\r\n").map(str::to_owned).collect();
    match lines.iter().find(|line| line.contains(['\r', '\n', '\0'])) {
        Some(line) => Err(malformed("line", line)),
        None => Ok(lines),
    }
}

fn fields(lines: &[String]) -> Result<Vec<(String, String)>, Http1Error> {
    lines.iter().map(|line| field(line)).collect()
}

fn field(line: &str) -> Result<(String, String), Http1Error> {
    let (name, value) = line.split_once(':').ok_or_else(|| malformed("field", line))?;
    let token = |byte: u8| byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte);
    if name.is_empty() || !name.bytes().all(token) {
        return Err(malformed("field name", line));
    }
    Ok((name.to_owned(), value.trim_matches([' ', '\t']).to_owned()))
}

fn malformed(what: &str, text: &str) -> Http1Error {
    Http1Error::Malformed(format!("{what}: {text:?}"))
}
