//! Field sections (RFC 9204) without a dynamic table: to field lines, and from them. What a field means is no business of
//! this.
//!
//! We say that we keep no table, and use none of a peer that would: so each section stands for itself, and one that refers
//! to anything but the static table is `QpackError`.

/// Integers that begin within a byte.
mod integer;
/// Text in fewer bits.
mod huffman;
/// Fields that have a number.
mod static_table;
/// What comes beside the sections.
pub mod instructions;

use super::H3ErrorCode;
use static_table::StaticTableMatch;

/// Bytes that are no field section, or one of a dynamic table. Its connection cannot go on (RFC 9204 §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpackError;

impl From<QpackError> for H3ErrorCode {
    fn from(_: QpackError) -> Self {
        Self::DECOMPRESSION_FAILED
    }
}

/// One field, as it stands in its section.
#[derive(Clone, Copy, Debug)]
pub struct FieldLine<'s> {
    pub name: QpackString<'s>,
    pub value: QpackString<'s>,
}

/// A name or a value, folded or not.
#[derive(Clone, Copy, Debug)]
pub struct QpackString<'s> {
    bytes: &'s [u8],
    is_huffman: bool,
}

impl QpackString<'_> {
    /// Appends the text itself: at most 8/5 of the bytes it takes in the section, if it is not of the static table.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), QpackError> {
        if self.is_huffman {
            return huffman::decode(self.bytes, out).ok_or(QpackError);
        }
        out.extend_from_slice(self.bytes);
        Ok(())
    }
}

/// Reads the lines of a section, one after the other.
#[derive(Debug)]
pub struct FieldSectionDecoder<'s> {
    rest: &'s [u8],
}

impl<'s> FieldSectionDecoder<'s> {
    pub fn new(bytes: &'s [u8]) -> Result<Self, QpackError> {
        let mut section = Self { rest: bytes };
        let required_inserts = section.integer(8)?;
        let is_negative = section.rest.first().is_some_and(|byte| byte & 0x80 != 0);
        section.integer(7)?;
        // RFC 9204 §4.5.1.2: where nothing is required, a base before the first entry cannot be.
        if required_inserts > 0 || is_negative {
            return Err(QpackError);
        }
        Ok(section)
    }

    /// The next line; `None`: that was all. RFC 9204 §4.5.2 to §4.5.6.
    pub fn next_line(&mut self) -> Result<Option<FieldLine<'s>>, QpackError> {
        let Some(&first) = self.rest.first() else { return Ok(None) };
        let plain = |text: &'static str| QpackString { bytes: text.as_bytes(), is_huffman: false };
        let line = match first {
            // With a number in the static table.
            0b1100_0000.. => {
                let (name, value) = self.entry(6)?;
                FieldLine { name: plain(name), value: plain(value) }
            }
            // With the name of such.
            0b0101_0000..0b0110_0000 | 0b0111_0000..0b1000_0000 => {
                let (name, _) = self.entry(4)?;
                FieldLine { name: plain(name), value: self.text(7)? }
            }
            // With a name of its own.
            0b0010_0000..0b0100_0000 => FieldLine { name: self.text(3)?, value: self.text(7)? },
            // In the dynamic table.
            0b1000_0000..0b1100_0000
            | 0b0100_0000..0b0101_0000
            | 0b0110_0000..0b0111_0000
            | 0b0000_0000..0b0010_0000 => return Err(QpackError),
        };
        Ok(Some(line))
    }

    fn integer(&mut self, bits: u32) -> Result<u64, QpackError> {
        integer::read(bits, &mut self.rest).ok_or(QpackError)
    }

    fn entry(&mut self, bits: u32) -> Result<(&'static str, &'static str), QpackError> {
        let number = self.integer(bits)?;
        static_table::entry(number).ok_or(QpackError)
    }

    /// A text whose length has so many bits in the first byte, behind the one that says whether it is folded.
    fn text(&mut self, bits: u32) -> Result<QpackString<'s>, QpackError> {
        let is_folded = self.rest.first().is_some_and(|byte| byte >> bits & 1 == 1);
        let length = usize::try_from(self.integer(bits)?).map_err(|_beyond_memory| QpackError)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(QpackError)?;
        self.rest = rest;
        Ok(QpackString { bytes, is_huffman: is_folded })
    }
}

/// Begins a section that needs no dynamic table.
pub fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends a line to a section. The name may be in any case of letters, and is sent in lower case.
///
/// Nothing is folded: that would be work for both sides, and more than all else here, to save a few bytes of a head.
pub fn write(name: &[u8], value: &[u8], out: &mut Vec<u8>) {
    match static_table::find(name, value) {
        StaticTableMatch::NameAndValue(number) => {
            return integer::write(6, 0b1100_0000, number, out);
        }
        StaticTableMatch::Name(number) => integer::write(4, 0b0101_0000, number, out),
        StaticTableMatch::NoMatch => {
            integer::write(3, 0b0010_0000, name.len() as u64, out);
            let start = out.len();
            out.extend_from_slice(name);
            out[start..].make_ascii_lowercase();
        }
    }
    integer::write(7, 0, value.len() as u64, out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests;
