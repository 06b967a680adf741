//! Variable-length integers of one to eight bytes; the first two bits encode the length (RFC 9000 §16).

#![expect(clippy::indexing_slicing, reason = "lengths are 1, 2, 4 or 8 of 8 bytes")]

/// The largest integer.
pub const MAX: u64 = (1 << 62) - 1;

/// An encoded integer.
#[derive(Clone, Copy)]
pub(super) struct EncodedVarint {
    bytes: [u8; 8],
    len: u8,
}

impl EncodedVarint {
    pub(super) fn new(number: u64) -> Self {
        debug_assert!(number <= MAX);
        let (len, mark) = match number {
            0..0x40 => (1, 0),
            0x40..0x4000 => (2, 0x4000),
            0x4000..0x4000_0000 => (4, 0x8000_0000),
            0x4000_0000.. => (8, 0xc000_0000_0000_0000),
        };
        let mut bytes = [0; 8];
        bytes[..len].copy_from_slice(&(number | mark).to_be_bytes()[8 - len..]);
        Self { bytes, len: len as u8 }
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..usize::from(self.len)]
    }
}

/// Parses the integer at the start of `bytes`, and returns it with its length; `None` if it is incomplete.
pub(super) fn read(bytes: &[u8]) -> Option<(u64, usize)> {
    let (&first, rest) = bytes.split_first()?;
    let more = (1 << (first >> 6)) - 1;
    let append = |number: u64, &byte: &u8| number << 8 | u64::from(byte);
    let number = rest.get(..more)?.iter().fold(u64::from(first & 0x3f), append);
    Some((number, 1 + more))
}

/// Parses an integer that takes exactly all of `bytes`.
pub(super) fn read_only(bytes: &[u8]) -> Option<u64> {
    read(bytes).filter(|(_, len)| *len == bytes.len()).map(|(number, _)| number)
}

pub fn write(number: u64, out: &mut Vec<u8>) {
    out.extend_from_slice(EncodedVarint::new(number).as_bytes());
}

#[cfg(test)]
mod tests {
    use super::*;

    /// RFC 9000 §A.1.
    #[test]
    fn varint_matches_the_rfc_9000_examples() {
        let cases: &[(&[u8], u64)] = &[
            (&[0xc2, 0x19, 0x7c, 0x5e, 0xff, 0x14, 0xe8, 0x8c], 151_288_809_941_952_652),
            (&[0x9d, 0x7f, 0x3e, 0x7d], 494_878_333),
            (&[0x7b, 0xbd], 15_293),
            (&[0x25], 37),
            (&[0x40, 0x25], 37),
        ];
        for (bytes, number) in cases {
            assert_eq!(read(bytes), Some((*number, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
            assert_eq!(read_only(&[bytes, &[0][..]].concat()), None);
        }
    }

    #[test]
    fn varint_uses_the_shortest_encoding_and_round_trips() {
        let steps = [(0, 1), (63, 1), (64, 2), (16_383, 2), (16_384, 4), (1 << 30, 8), (MAX, 8)];
        for (number, len) in steps {
            let mut out = Vec::new();
            write(number, &mut out);
            assert_eq!((out.len(), read_only(&out)), (len, Some(number)));
        }
    }
}
