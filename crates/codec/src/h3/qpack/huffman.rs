//! Huffman decoder: the code of RFC 7541 §5.2 and appendix B, which RFC 9204 uses too. This proxy decodes it and never
//! encodes.
//!
//! The code is canonical: codes of equal length count up in the order of their symbols, and the next length continues
//! from there. So the table stores only the lengths, and the decoder finds a code by its length, without a tree.

#![expect(
    clippy::indexing_slicing,
    reason = "tables are indexed by symbols and lengths of the code itself, and a test decodes every symbol"
)]

/// Number of symbols: all bytes, and the end-of-string symbol (EOS), which occurs in no text.
const SYMBOLS: usize = 257;
/// Length of the longest code, in bits.
const LONGEST: usize = 30;

/// Code length of each symbol, in bits (RFC 7541, appendix B).
#[rustfmt::skip]
static LENGTHS: [u8; SYMBOLS] = [
    13, 23, 28, 28, 28, 28, 28, 28, 28, 24, 30, 28, 28, 30, 28, 28,
    28, 28, 28, 28, 28, 28, 30, 28, 28, 28, 28, 28, 28, 28, 28, 28,
    6, 10, 10, 12, 13, 6, 8, 11, 10, 10, 8, 11, 8, 6, 6, 6,
    5, 5, 5, 6, 6, 6, 6, 6, 6, 6, 7, 8, 15, 6, 12, 10,
    13, 6, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7, 7,
    7, 7, 7, 7, 7, 7, 7, 7, 8, 7, 8, 13, 19, 13, 14, 6,
    15, 5, 6, 5, 6, 5, 6, 6, 6, 5, 7, 7, 6, 6, 6, 5,
    6, 7, 6, 5, 5, 6, 7, 7, 7, 7, 7, 15, 11, 14, 13, 28,
    20, 22, 20, 20, 22, 22, 22, 23, 22, 23, 23, 23, 23, 23, 24, 23,
    24, 24, 22, 23, 24, 23, 23, 23, 23, 21, 22, 23, 22, 23, 23, 24,
    22, 21, 20, 22, 22, 23, 23, 21, 23, 22, 22, 24, 21, 22, 23, 23,
    21, 21, 22, 21, 23, 22, 23, 23, 20, 22, 22, 22, 23, 22, 22, 23,
    26, 26, 20, 19, 22, 23, 22, 25, 26, 26, 26, 27, 27, 26, 24, 25,
    19, 21, 26, 27, 27, 26, 27, 24, 21, 21, 26, 26, 28, 27, 27, 27,
    20, 24, 20, 21, 22, 21, 21, 23, 22, 22, 25, 25, 24, 24, 26, 23,
    26, 27, 26, 26, 27, 27, 27, 27, 27, 28, 27, 27, 27, 27, 27, 26,
    30,
];

/// The symbols in the order of their codes.
static SORTED: [u16; SYMBOLS] = {
    let mut sorted = [0; SYMBOLS];
    let mut place = 0;
    let mut length = 1;
    while length <= LONGEST {
        let mut symbol = 0;
        while symbol < SYMBOLS {
            if LENGTHS[symbol] as usize == length {
                sorted[place] = symbol as u16;
                place += 1;
            }
            symbol += 1;
        }
        length += 1;
    }
    sorted
};

/// The codes of one length.
#[derive(Clone, Copy)]
struct HuffmanCodeRange {
    first: u32,
    count: u32,
    /// Index in `SORTED` of the first symbol with this length.
    place: usize,
}

static BY_LENGTH: [HuffmanCodeRange; LONGEST + 1] = {
    let mut by_length = [HuffmanCodeRange { first: 0, count: 0, place: 0 }; LONGEST + 1];
    let (mut first, mut place, mut length) = (0, 0, 1);
    while length <= LONGEST {
        let (mut symbol, mut count) = (0, 0);
        while symbol < SYMBOLS {
            count += (LENGTHS[symbol] as usize == length) as u32;
            symbol += 1;
        }
        by_length[length] = HuffmanCodeRange { first, count, place };
        place += count as usize;
        first = (first + count) << 1;
        length += 1;
    }
    by_length
};

/// The code of each symbol.
static CODES: [u32; SYMBOLS] = {
    let mut codes = [0; SYMBOLS];
    let mut length = 1;
    while length <= LONGEST {
        let HuffmanCodeRange { first, count, place } = BY_LENGTH[length];
        let mut nth = 0;
        while nth < count {
            codes[SORTED[place + nth as usize] as usize] = first + nth;
            nth += 1;
        }
        length += 1;
    }
    codes
};

/// A symbol and the length of its code.
#[derive(Clone, Copy)]
struct HuffmanSymbol {
    byte: u8,
    /// 0 if the code is longer than the bits that were looked up.
    length: u8,
}

/// Lookup table from eight bits to the symbol whose code they begin with.
static SHORT: [HuffmanSymbol; 256] = {
    let mut short = [HuffmanSymbol { byte: 0, length: 0 }; 256];
    let mut symbol = 0;
    while symbol < 256 {
        let length = LENGTHS[symbol];
        if length <= 8 {
            let first = CODES[symbol] << (8 - length);
            let mut rest = 0;
            while rest < 1 << (8 - length) {
                short[(first + rest) as usize] = HuffmanSymbol { byte: symbol as u8, length };
                rest += 1;
            }
        }
        symbol += 1;
    }
    short
};

/// Appends the text that `bytes` encode; `None` if the encoding is invalid.
pub(super) fn decode(mut bytes: &[u8], out: &mut Vec<u8>) -> Option<()> {
    let start = out.len();
    // The shortest code has five bits.
    out.resize(start + bytes.len() * 8 / 5, 0);
    let space = &mut out[start..];
    let mut place = 0;
    // Buffered bits, left-aligned, and their count.
    let (mut bits, mut count) = (0_u64, 0);
    while !bytes.is_empty() {
        bytes = refill(bytes, &mut bits, &mut count);
        // With this many bits, the next code is complete.
        while count >= LONGEST as u32 {
            let symbol = first_symbol(bits)?;
            space[place] = symbol.byte;
            place += 1;
            bits <<= symbol.length;
            count -= u32::from(symbol.length);
        }
    }
    while count > 0 {
        let symbol = first_symbol(bits)?;
        if u32::from(symbol.length) > count {
            break;
        }
        space[place] = symbol.byte;
        place += 1;
        bits <<= symbol.length;
        count -= u32::from(symbol.length);
    }
    out.truncate(start + place);
    is_padding(bits, count).then_some(())
}

/// Loads as many bytes as there is room for, and returns the rest.
fn refill<'b>(bytes: &'b [u8], bits: &mut u64, count: &mut u32) -> &'b [u8] {
    let room = (64 - *count) / 8;
    let (taken, rest) = bytes.split_at(bytes.len().min(room as usize));
    let mut eight = [0; 8];
    match bytes.first_chunk() {
        // Loads eight bytes at once; some of them may be loaded again.
        Some(next) => eight = *next,
        None => eight[..taken.len()].copy_from_slice(taken),
    }
    let beyond = u64::MAX.checked_shr(8 * room).unwrap_or(0);
    *bits |= (u64::from_be_bytes(eight) & !beyond).checked_shr(*count).unwrap_or(0);
    *count += 8 * taken.len() as u32;
    rest
}

/// Returns the symbol whose code `bits` begin with; `None` for EOS, which occurs in no text.
fn first_symbol(bits: u64) -> Option<HuffmanSymbol> {
    let symbol = SHORT[(bits >> 56) as usize];
    if symbol.length > 0 { Some(symbol) } else { first_long_symbol(bits) }
}

#[cold]
fn first_long_symbol(bits: u64) -> Option<HuffmanSymbol> {
    (9..=LONGEST).find_map(|length| {
        let codes = BY_LENGTH[length];
        let nth = (bits >> (64 - length)) as u32 - codes.first;
        let symbol = (nth < codes.count).then(|| SORTED[codes.place + nth as usize])?;
        Some(HuffmanSymbol { byte: u8::try_from(symbol).ok()?, length: length as u8 })
    })
}

/// True if the remaining bits are valid padding: fewer than eight bits of the EOS code, which is all ones.
fn is_padding(bits: u64, count: u32) -> bool {
    count < 8 && bits.leading_ones() == count
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Returns the encoding of the text, padded with ones to a whole byte.
    fn encode(text: &[u8]) -> Vec<u8> {
        let bits = |byte: &u8| {
            let (code, length) = (CODES[usize::from(*byte)], LENGTHS[usize::from(*byte)]);
            (0..length).rev().map(move |nth| code >> nth & 1 == 1)
        };
        let bits: Vec<_> = text.iter().flat_map(bits).collect();
        let byte = |bits: &[bool]| {
            (0..8).fold(0, |byte, nth| byte << 1 | u8::from(*bits.get(nth).unwrap_or(&true)))
        };
        bits.chunks(8).map(byte).collect()
    }

    fn decoded(bytes: &[u8]) -> Option<Vec<u8>> {
        let mut out = Vec::new();
        decode(bytes, &mut out).map(|()| out)
    }

    /// RFC 7541, appendix B.
    #[test]
    fn huffman_codes_match_rfc_7541() {
        let cases = [
            (b'0', 0x0),
            (b'a', 0x3),
            (b' ', 0x14),
            (b':', 0x5c),
            (b'&', 0xf8),
            (b'!', 0x3f8),
            (b'<', 0x7ffc),
            (b'\\', 0x7fff0),
            (0x80, 0xfffe6),
            (0xff, 0x3ff_ffee),
            (b'\n', 0x3fff_fffc),
            (0x16, 0x3fff_fffe),
        ];
        for (byte, code) in cases {
            assert_eq!(CODES[usize::from(byte)], code, "{byte}");
        }
        assert_eq!(CODES[SYMBOLS - 1], 0x3fff_ffff);
    }

    /// RFC 7541 §C.4 and §C.6.
    #[test]
    fn huffman_matches_the_rfc_7541_examples() {
        let cases: &[(&str, &[u8])] = &[
            (
                "www.example.com",
                &[0xf1, 0xe3, 0xc2, 0xe5, 0xf2, 0x3a, 0x6b, 0xa0, 0xab, 0x90, 0xf4, 0xff],
            ),
            ("no-cache", &[0xa8, 0xeb, 0x10, 0x64, 0x9c, 0xbf]),
            ("302", &[0x64, 0x02]),
            ("private", &[0xae, 0xc3, 0x77, 0x1a, 0x4b]),
        ];
        for (text, bytes) in cases {
            assert_eq!(encode(text.as_bytes()), *bytes, "{text}");
            assert_eq!(decoded(bytes).as_deref(), Some(text.as_bytes()));
        }
    }

    #[test]
    fn invalid_huffman_padding_and_eos_are_rejected() {
        let cases: &[&[u8]] = &[
            // More than seven bits of padding.
            &[0xff],
            &[0x64, 0x02, 0xff],
            // Padding that is not all ones: after `0`, three bits.
            &[0b0000_0000],
            &[0b0000_0110],
            // EOS, alone and within a text.
            &[0xff, 0xff, 0xff, 0xff],
            &[0b0000_0111, 0xff, 0xff, 0xff, 0xff],
        ];
        for bytes in cases {
            assert_eq!(decoded(bytes), None, "{bytes:x?}");
        }
        assert_eq!(decoded(&[0b0000_0111]).as_deref(), Some(&b"0"[..]));
        assert_eq!(decoded(&[]).as_deref(), Some(&b""[..]));
    }

    proptest! {
        #[test]
        fn huffman_text_round_trips(text in prop::collection::vec(any::<u8>(), 0..100)) {
            prop_assert_eq!(decoded(&encode(&text)), Some(text));
        }

        #[test]
        fn huffman_encoding_is_canonical(bytes in prop::collection::vec(any::<u8>(), 0..20)) {
            if let Some(text) = decoded(&bytes) {
                prop_assert_eq!(encode(&text), bytes);
            }
        }
    }
}
