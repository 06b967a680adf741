//! Incremental decoder of chunked bodies (RFC 9112 §7.1); its memory does not grow with the body.
//!
//! Only the trailers are kept. Chunk extensions are skipped and not forwarded: nothing needs them, and parsers have
//! disagreed over where they end.

#![expect(clippy::indexing_slicing, reason = "counts are those of bytes that have just been seen")]

use crate::head::FieldSection;

use super::error::{BadChunk, BadSyntax};
use super::parse;

/// Limit of all chunk extensions of a body, against clients that cause work for nothing. A body in large chunks has no
/// extensions.
const MAX_EXTENSION_BYTES: usize = 4096;
/// Limit of the trailer section, which is buffered until it is complete.
const MAX_TRAILER_BYTES: usize = 8192;
/// Largest chunk size. Endpoints parse it as a signed number.
const MAX_CHUNK: u64 = i64::MAX as u64;
/// Largest number of hexadecimal digits in a chunk size, leading zeros included.
const MAX_SIZE_DIGITS: u8 = 16;

/// The next event in a chunked body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ChunkedEvent {
    /// `skip` bytes of framing, then `len` bytes of data, at least one. Consume both.
    Data { skip: usize, len: usize },
    /// Consume `skip`, then read more.
    NeedMore { skip: usize },
    /// Consume `skip`: the body is complete.
    End { skip: usize },
}

/// Decoder of a chunked body. The caller passes each byte until an event says to consume it, and never again after
/// that.
#[derive(Debug)]
pub struct ChunkedDecoder {
    state: ChunkedState,
    extension_bytes: usize,
    /// The part of the trailer section that has been received.
    trailer_text: Vec<u8>,
    trailers: FieldSection,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkedState {
    Line(ChunkLineState),
    Data { left: u64 },
    Trailers,
    Done,
}

/// Position within the bytes between the data of two chunks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ChunkLineState {
    Size {
        size: u64,
        digits: u8,
    },
    /// Blanks after the size; only an extension may follow.
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

impl ChunkedDecoder {
    pub fn new() -> Self {
        Self {
            state: ChunkedState::Line(ChunkLineState::START),
            extension_bytes: 0,
            trailer_text: Vec::new(),
            trailers: FieldSection::new(),
        }
    }

    /// Examines `input`, the bytes not consumed so far, and returns the next event.
    pub fn next(&mut self, input: &[u8]) -> Result<ChunkedEvent, BadChunk> {
        let mut skip = 0;
        while let Some(&byte) = input.get(skip) {
            match self.state {
                ChunkedState::Line(line) => {
                    self.count_extension(line)?;
                    self.state = line.after(byte)?;
                    skip += 1;
                }
                ChunkedState::Data { left } => {
                    let available = input.len() - skip;
                    let len = usize::try_from(left).map_or(available, |left| left.min(available));
                    self.state = ChunkedState::after_data(left - len as u64);
                    return Ok(ChunkedEvent::Data { skip, len });
                }
                ChunkedState::Trailers => skip += self.take_trailers(&input[skip..])?,
                ChunkedState::Done => break,
            }
        }
        match self.state {
            ChunkedState::Done => Ok(ChunkedEvent::End { skip }),
            ChunkedState::Line(_) | ChunkedState::Data { .. } | ChunkedState::Trailers => {
                Ok(ChunkedEvent::NeedMore { skip })
            }
        }
    }

    /// Returns the trailers, once the body is complete.
    pub fn trailers(&self) -> &FieldSection {
        &self.trailers
    }

    /// Returns the trailers, once the body is complete, to remove some of them.
    pub fn trailers_mut(&mut self) -> &mut FieldSection {
        &mut self.trailers
    }

    fn count_extension(&mut self, line: ChunkLineState) -> Result<(), BadChunk> {
        self.extension_bytes += usize::from(line.is_extension());
        if self.extension_bytes > MAX_EXTENSION_BYTES {
            return Err(BadChunk::ExtensionsTooLong);
        }
        Ok(())
    }

    /// Consumes at most one line of the trailer section, and returns the number of bytes.
    fn take_trailers(&mut self, input: &[u8]) -> Result<usize, BadChunk> {
        if self.trailer_text.is_empty() && input.starts_with(b"\r\n") {
            self.state = ChunkedState::Done;
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
            self.state = ChunkedState::Done;
        }
        if text == b"\r\n" {
            self.state = ChunkedState::Done;
        }
        Ok(())
    }
}

impl Default for ChunkedDecoder {
    fn default() -> Self {
        Self::new()
    }
}

impl ChunkedState {
    fn after_data(left: u64) -> Self {
        if left == 0 { Self::Line(ChunkLineState::DataCarriageReturn) } else { Self::Data { left } }
    }

    fn after_size(size: u64) -> Self {
        if size == 0 { Self::Trailers } else { Self::Data { left: size } }
    }
}

impl ChunkLineState {
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

    fn after(self, byte: u8) -> Result<ChunkedState, BadChunk> {
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
            (Self::SizeLineFeed { size }, b'\n') => return Ok(ChunkedState::after_size(size)),
            (Self::SizeLineFeed { .. }, _) => return Err(BadChunk::LineEnd),
            (Self::DataCarriageReturn, b'\r') => Self::DataLineFeed,
            (Self::DataLineFeed, b'\n') => Self::START,
            (Self::DataCarriageReturn | Self::DataLineFeed, _) => return Err(BadChunk::DataEnd),
        };
        Ok(ChunkedState::Line(line))
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
