//! QPACK without a dynamic table (RFC 9204): encodes requests, and decodes one field, the status of a response.

use httlib_huffman::{DecoderSpeed, decode, encode as compress};

use crate::http::MessageError;
use crate::message::HeaderPair;

/// Fields with their value in the static table, of those that the lab sends (RFC 9204, appendix A).
const STATIC_FIELDS: &[(u64, &str, &str)] = &[
    (17, ":method", "GET"),
    (20, ":method", "POST"),
    (23, ":scheme", "https"),
    (29, "accept", "*/*"),
];
/// Names in the static table.
const STATIC_NAMES: &[(u64, &str)] = &[
    (0, ":authority"),
    (1, ":path"),
    (4, "content-length"),
    (15, ":method"),
    (44, "content-type"),
    (95, "user-agent"),
];
/// Statuses in the static table.
const STATIC_STATUSES: &[(u64, u16)] = &[
    (24, 103),
    (25, 200),
    (26, 304),
    (27, 404),
    (28, 503),
    (63, 100),
    (64, 204),
    (65, 206),
    (66, 302),
    (67, 400),
    (68, 403),
    (69, 421),
    (70, 425),
    (71, 500),
];
const MAX_INTEGER_BYTES: usize = 8;

pub(super) fn encode(fields: &[HeaderPair]) -> Vec<u8> {
    // Prefix of the block: it needs no dynamic table.
    let mut block = vec![0, 0];
    for (name, value) in fields {
        let is = |own: &str| own.as_bytes() == name.as_slice();
        if let Some((index, ..)) =
            STATIC_FIELDS.iter().find(|(_, own, all)| is(own) && all.as_bytes() == value.as_slice())
        {
            put_integer(&mut block, 0b1100_0000, 6, *index);
            continue;
        }
        match STATIC_NAMES.iter().find(|(_, own)| is(own)) {
            Some((index, _)) => put_integer(&mut block, 0b0101_0000, 4, *index),
            None => put_text(&mut block, 0b0010_0000, 3, name),
        }
        put_text(&mut block, 0, 7, value);
    }
    block
}

fn put_integer(block: &mut Vec<u8>, first: u8, bits: u32, value: u64) {
    let most = (1 << bits) - 1;
    if value < most {
        block.push(first | value as u8);
        return;
    }
    block.push(first | most as u8);
    let mut left = value - most;
    while left >= 0x80 {
        block.push(left as u8 | 0x80);
        left >>= 7;
    }
    block.push(left as u8);
}

/// Writes a Huffman-coded string, as clients do. The bit above the length marks the coding.
fn put_text(block: &mut Vec<u8>, first: u8, bits: u32, text: &[u8]) {
    let mut compressed = Vec::with_capacity(text.len());
    compress(text, &mut compressed).expect("every octet has a Huffman code");
    put_integer(block, first | 1 << bits, bits, compressed.len() as u64);
    block.extend_from_slice(&compressed);
}

/// Returns the status in a field section; trailers have none.
pub(super) fn status(block: &[u8]) -> Result<Option<u16>, MessageError> {
    let mut rest = BlockReader(block);
    // Our dynamic table has no capacity, so no reference to it is valid.
    if (rest.integer(8)?, rest.integer(7)?) != (0, 0) {
        return Err(MessageError::Frame);
    }
    while let Some(&first) = rest.0.first() {
        let (is_status, value) = match first {
            0b1100_0000.. => {
                let index = rest.integer(6)?;
                if let Some((_, status)) = STATIC_STATUSES.iter().find(|(own, _)| *own == index) {
                    return Ok(Some(*status));
                }
                continue;
            }
            0b0101_0000..=0b0101_1111 | 0b0111_0000..=0b0111_1111 => {
                let index = rest.integer(4)?;
                (STATIC_STATUSES.iter().any(|(own, _)| *own == index), rest.text(7)?)
            }
            0b0010_0000..=0b0011_1111 => (rest.text(3)? == b":status", rest.text(7)?),
            _ => return Err(MessageError::Frame),
        };
        if is_status {
            let text = std::str::from_utf8(&value).map_err(|_utf8| MessageError::Frame)?;
            return text.parse().map(Some).map_err(|_number| MessageError::Frame);
        }
    }
    Ok(None)
}

/// The unread part of a block.
struct BlockReader<'a>(&'a [u8]);

impl BlockReader<'_> {
    fn byte(&mut self) -> Result<u8, MessageError> {
        let (first, rest) = self.0.split_first().ok_or(MessageError::Frame)?;
        self.0 = rest;
        Ok(*first)
    }

    fn integer(&mut self, bits: u32) -> Result<u64, MessageError> {
        let most = (1_u64 << bits) - 1;
        let first = u64::from(self.byte()?) & most;
        if first < most {
            return Ok(first);
        }
        let mut value = most;
        for place in 0..MAX_INTEGER_BYTES {
            let byte = self.byte()?;
            value += u64::from(byte & 0x7f) << (7 * place);
            if byte < 0x80 {
                return Ok(value);
            }
        }
        Err(MessageError::Frame)
    }

    fn text(&mut self, bits: u32) -> Result<Vec<u8>, MessageError> {
        let compressed = self.0.first().is_some_and(|first| first & 1 << bits != 0);
        let length = self.integer(bits)? as usize;
        let (text, rest) = self.0.split_at_checked(length).ok_or(MessageError::Frame)?;
        self.0 = rest;
        if !compressed {
            return Ok(text.to_vec());
        }
        let mut plain = Vec::new();
        decode(text, &mut plain, DecoderSpeed::FourBits).map_err(|_huffman| MessageError::Frame)?;
        Ok(plain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::field;

    #[test]
    fn status_is_read_in_every_qpack_representation() {
        let literal = encode(&[field(":status", "404"), field("server", "x")]);
        let blocks: [(&[u8], Option<u16>); 5] = [
            (b"\0\0\xd9", Some(200)),
            (b"\0\0\xff\x08", Some(500)),
            (b"\0\0\x5f\x09\x03418", Some(418)),
            (&literal, Some(404)),
            (b"\0\0\x21a\x01b", None),
        ];
        for (block, expected) in blocks {
            assert_eq!(status(block).unwrap(), expected, "{block:x?}");
        }
    }

    #[test]
    fn dynamic_table_or_truncated_field_section_is_an_error() {
        for block in [
            &b"\x01\0\xd9"[..],
            b"\0\0\x80",
            b"\0\0\x10",
            b"\0\0\x40",
            b"\0\0\x5f",
            b"\0",
            b"\0\0\xff\xff",
        ] {
            assert!(status(block).is_err(), "{block:x?}");
        }
    }

    #[test]
    fn request_uses_the_static_table() {
        let head = [field(":method", "GET"), field(":scheme", "https"), field(":path", "/")];
        assert_eq!(encode(&head), b"\0\0\xd1\xd7\x51\x81\x63");
    }

    #[test]
    fn indices_beyond_the_prefix_take_another_byte() {
        assert_eq!(encode(&[field("user-agent", "")]), b"\0\0\x5f\x50\x80");
    }
}
