//! QPACK (RFC 9204) without a dynamic table: parser and writer of field lines. It does not know the meaning of fields.
//!
//! Our SETTINGS announce a table capacity of 0, and we use no table of a peer that offers one. So each section is
//! independent, and a section that refers to anything but the static table is a `QpackError`.

/// Prefix integers.
mod integer;
/// Huffman code.
mod huffman;
/// Static table.
mod static_table;
/// Instructions on the encoder and decoder streams.
pub mod instructions;

use super::H3ErrorCode;
use static_table::StaticTableMatch;

/// Bytes that are not a field section, or one that uses a dynamic table. The connection cannot continue (RFC 9204
/// §2.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QpackError;

impl From<QpackError> for H3ErrorCode {
    fn from(_: QpackError) -> Self {
        Self::DECOMPRESSION_FAILED
    }
}

/// One field line, as encoded in its section.
#[derive(Clone, Copy, Debug)]
pub struct FieldLine<'s> {
    pub name: QpackString<'s>,
    pub value: QpackString<'s>,
}

/// A name or a value, Huffman-coded or literal.
#[derive(Clone, Copy, Debug)]
pub struct QpackString<'s> {
    bytes: &'s [u8],
    is_huffman: bool,
}

impl QpackString<'_> {
    /// Appends the decoded text. Unless it comes from the static table, it is at most 8/5 as long as its encoding.
    pub fn append_to(&self, out: &mut Vec<u8>) -> Result<(), QpackError> {
        if self.is_huffman {
            return huffman::decode(self.bytes, out).ok_or(QpackError);
        }
        out.extend_from_slice(self.bytes);
        Ok(())
    }
}

/// Parser of the field lines of a section, in their order.
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
        // RFC 9204 §4.5.1.2: if the required insert count is 0, a base before the first entry is invalid.
        if required_inserts > 0 || is_negative {
            return Err(QpackError);
        }
        Ok(section)
    }

    /// Returns the next line; `None` after the last. RFC 9204 §4.5.2 to §4.5.6.
    pub fn next_line(&mut self) -> Result<Option<FieldLine<'s>>, QpackError> {
        let Some(&first) = self.rest.first() else { return Ok(None) };
        let plain = |text: &'static str| QpackString { bytes: text.as_bytes(), is_huffman: false };
        let line = match first {
            // Indexed field line, static table.
            0b1100_0000.. => {
                let (name, value) = self.entry(6)?;
                FieldLine { name: plain(name), value: plain(value) }
            }
            // Literal field line with a static name reference.
            0b0101_0000..0b0110_0000 | 0b0111_0000..0b1000_0000 => {
                let (name, _) = self.entry(4)?;
                FieldLine { name: plain(name), value: self.text(7)? }
            }
            // Literal field line with a literal name.
            0b0010_0000..0b0100_0000 => FieldLine { name: self.text(3)?, value: self.text(7)? },
            // Dynamic table.
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

    /// Parses a string whose length begins with a prefix of `bits` bits; the bit before them is the Huffman flag.
    fn text(&mut self, bits: u32) -> Result<QpackString<'s>, QpackError> {
        let is_huffman = self.rest.first().is_some_and(|byte| byte >> bits & 1 == 1);
        let length = usize::try_from(self.integer(bits)?).map_err(|_beyond_memory| QpackError)?;
        let (bytes, rest) = self.rest.split_at_checked(length).ok_or(QpackError)?;
        self.rest = rest;
        Ok(QpackString { bytes, is_huffman })
    }
}

/// Writes the prefix of a section that uses no dynamic table.
pub fn begin(out: &mut Vec<u8>) {
    out.extend_from_slice(&[0, 0]);
}

/// Appends a line to a section. The name may contain upper-case letters; it is sent in lower case.
///
/// Strings are not Huffman-coded: the coding would cost both sides more than all other work here, to save a few bytes
/// of a head.
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
            out.iter_mut().skip(start).for_each(u8::make_ascii_lowercase);
        }
    }
    integer::write(7, 0, value.len() as u64, out);
    out.extend_from_slice(value);
}

#[cfg(test)]
mod tests;
