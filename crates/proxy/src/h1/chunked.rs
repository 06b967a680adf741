//! Chunked bodies from bytes (RFC 9112 §7.1), piece by piece as they come in, in memory that does not grow with them.
//!
//! Only the trailers are kept. Extensions are read past and end here: nothing needs them, and parsers have disagreed
//! over where they end.

use crate::head::Fields;

use super::bad::{BadChunk, BadSyntax};
use super::parse;

/// More would be work for nothing; a body in large chunks has none.
const MAX_EXTENSION_BYTES: usize = 4096;
/// They are kept until the last of them has come in.
const MAX_TRAILER_BYTES: usize = 8192;
/// Endpoints count in signed numbers.
const MAX_CHUNK: u64 = i64::MAX as u64;
/// With the zeros before it.
const MAX_SIZE_DIGITS: u8 = 16;

/// What comes next in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Chunk {
    /// `skip` bytes of framing, then `len` bytes of data, at least one. Consume both.
    Data { skip: usize, len: usize },
    /// Consume `skip`, then read more.
    NeedMore { skip: usize },
    /// Consume `skip`: the body is complete.
    End { skip: usize },
}

/// Takes a chunked body apart. It is shown each byte until it says to consume it, and never again.
#[derive(Debug)]
pub struct ChunkedReader {
    state: State,
    extension_bytes: usize,
    /// The trailer section so far.
    trailer_text: Vec<u8>,
    trailers: Fields,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Line(Line),
    Data { left: u64 },
    Trailers,
    Done,
}

/// Within the bytes between the data of two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Line {
    Size {
        size: u64,
        digits: u8,
    },
    /// Blanks after the size, which only an extension may follow.
    Blanks {
        size: u64,
    },
    Extension {
        size: u64,
    },
    SizeLineFeed {
        size: u64,
    },
    DataCarriageReturn,
    DataLineFeed,
}

impl ChunkedReader {
    pub fn new() -> Self {
        Self {
            state: State::Line(Line::START),
            extension_bytes: 0,
            trailer_text: Vec::new(),
            trailers: Fields::new(),
        }
    }

    /// Looks at `input`, the bytes not consumed so far, and says what is next.
    pub fn next(&mut self, input: &[u8]) -> Result<Chunk, BadChunk> {
        let mut skip = 0;
        while let Some(&byte) = input.get(skip) {
            match self.state {
                State::Line(line) => {
                    self.count_extension(line)?;
                    self.state = line.after(byte)?;
                    skip += 1;
                }
                State::Data { left } => {
                    let available = input.len() - skip;
                    let len = usize::try_from(left).map_or(available, |left| left.min(available));
                    self.state = State::after_data(left - len as u64);
                    return Ok(Chunk::Data { skip, len });
                }
                State::Trailers => skip += self.take_trailers(&input[skip..])?,
                State::Done => break,
            }
        }
        match self.state {
            State::Done => Ok(Chunk::End { skip }),
            State::Line(_) | State::Data { .. } | State::Trailers => Ok(Chunk::NeedMore { skip }),
        }
    }

    /// The trailers, once the body is complete.
    pub fn trailers(&self) -> &Fields {
        &self.trailers
    }

    fn count_extension(&mut self, line: Line) -> Result<(), BadChunk> {
        self.extension_bytes += usize::from(line.is_extension());
        if self.extension_bytes > MAX_EXTENSION_BYTES {
            return Err(BadChunk::ExtensionsTooLong);
        }
        Ok(())
    }

    /// Takes up to one line of the trailer section, and says how many bytes that were.
    fn take_trailers(&mut self, input: &[u8]) -> Result<usize, BadChunk> {
        if self.trailer_text.is_empty() && input.starts_with(b"\r\n") {
            self.state = State::Done;
            return Ok(2);
        }
        let line_end = memchr::memchr(b'\n', input).map(|at| at + 1);
        let taken = line_end.unwrap_or(input.len());
        if self.trailer_text.len() + taken > MAX_TRAILER_BYTES {
            return Err(BadChunk::Trailers(BadSyntax::TooLarge));
        }
        self.trailer_text.extend_from_slice(&input[..taken]);
        if line_end.is_some() {
            self.end_trailer_line()?;
        }
        Ok(taken)
    }

    fn end_trailer_line(&mut self) -> Result<(), BadChunk> {
        let text = self.trailer_text.as_slice();
        if !text.ends_with(b"\r\n") {
            return Err(BadChunk::Trailers(BadSyntax::LineEnd));
        }
        if text.ends_with(b"\r\n\r\n") {
            parse::trailers(text, &mut self.trailers).map_err(BadChunk::Trailers)?;
            self.state = State::Done;
        }
        if text == b"\r\n" {
            self.state = State::Done;
        }
        Ok(())
    }
}

impl Default for ChunkedReader {
    fn default() -> Self {
        Self::new()
    }
}

impl State {
    fn after_data(left: u64) -> Self {
        if left == 0 { Self::Line(Line::DataCarriageReturn) } else { Self::Data { left } }
    }

    fn after_size(size: u64) -> Self {
        if size == 0 { Self::Trailers } else { Self::Data { left: size } }
    }
}

impl Line {
    const START: Self = Self::Size { size: 0, digits: 0 };

    fn is_extension(self) -> bool {
        match self {
            Self::Blanks { .. } | Self::Extension { .. } => true,
            Self::Size { .. }
            | Self::SizeLineFeed { .. }
            | Self::DataCarriageReturn
            | Self::DataLineFeed => false,
        }
    }

    fn after(self, byte: u8) -> Result<State, BadChunk> {
        let line = match (self, byte) {
            (Self::Size { size, digits }, b'0'..=b'9' | b'a'..=b'f' | b'A'..=b'F') => {
                Self::Size { size: with_digit(size, digits, byte)?, digits: digits + 1 }
            }
            (Self::Size { digits: 0, .. }, _) => return Err(BadChunk::Size),
            (Self::Size { size, .. } | Self::Extension { size }, b'\r') => {
                Self::SizeLineFeed { size }
            }
            (Self::Size { size, .. } | Self::Blanks { size }, b';') => Self::Extension { size },
            (Self::Size { size, .. } | Self::Blanks { size }, b' ' | b'\t') => {
                Self::Blanks { size }
            }
            (Self::Size { .. } | Self::Blanks { .. }, _) => return Err(BadChunk::Size),
            (Self::Extension { size }, b'\t' | b' '..=b'~' | 0x80..) => Self::Extension { size },
            (Self::Extension { .. }, _) => return Err(BadChunk::Extension),
            (Self::SizeLineFeed { size }, b'\n') => return Ok(State::after_size(size)),
            (Self::SizeLineFeed { .. }, _) => return Err(BadChunk::LineEnd),
            (Self::DataCarriageReturn, b'\r') => Self::DataLineFeed,
            (Self::DataLineFeed, b'\n') => Self::START,
            (Self::DataCarriageReturn | Self::DataLineFeed, _) => return Err(BadChunk::DataEnd),
        };
        Ok(State::Line(line))
    }
}

fn with_digit(size: u64, digits: u8, digit: u8) -> Result<u64, BadChunk> {
    let value = char::from(digit).to_digit(16).ok_or(BadChunk::Size)?;
    let size = size << 4 | u64::from(value);
    if digits >= MAX_SIZE_DIGITS || size > MAX_CHUNK {
        return Err(BadChunk::SizeTooLarge);
    }
    Ok(size)
}
