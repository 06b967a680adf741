//! Prefix integers (RFC 7541 §5.1) of up to 62 bits (RFC 9204 §4.1.1).

/// Parses the integer at the start of `input`, with a prefix of `bits` bits in the first byte. Returns `None` if it is
/// incomplete or too large.
pub(super) fn read(bits: u32, input: &mut &[u8]) -> Option<u64> {
    let (&first, mut rest) = input.split_first()?;
    let full = (1 << bits) - 1;
    let mut number = u64::from(first) & full;
    if number == full {
        let mut shift = 0;
        loop {
            let (&byte, after) = rest.split_first()?;
            rest = after;
            // The sum stays below 64 bits: this byte adds at most 63 bits, and the earlier ones are less.
            number += u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                break;
            }
            shift += 7;
            if shift > 56 {
                return None;
            }
        }
    }
    *input = rest;
    (number < 1 << 62).then_some(number)
}

/// Appends an integer with a prefix of `bits` bits in the first byte; `mark` holds the bits above the prefix.
pub(super) fn write(bits: u32, mark: u8, number: u64, out: &mut Vec<u8>) {
    let full = (1 << bits) - 1;
    if number < full {
        return out.push(mark | number as u8);
    }
    out.push(mark | full as u8);
    let mut rest = number - full;
    while rest >= 0x80 {
        out.push(rest as u8 | 0x80);
        rest >>= 7;
    }
    out.push(rest as u8);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// RFC 7541 §C.1.
    #[test]
    fn prefix_integers_match_the_rfc_7541_examples() {
        let cases: &[(u32, u64, &[u8])] =
            &[(5, 10, &[0x0a]), (5, 1337, &[0x1f, 0x9a, 0x0a]), (8, 42, &[0x2a])];
        for (bits, number, bytes) in cases {
            let mut out = Vec::new();
            write(*bits, 0, *number, &mut out);
            assert_eq!(out, *bytes);
            assert_eq!(read(*bits, &mut &bytes[..]), Some(*number));
        }
    }

    #[test]
    fn truncated_or_oversized_integers_are_rejected() {
        let cases: &[&[u8]] = &[
            &[],
            &[0x7f],
            &[0x7f, 0x80],
            // 2^62 and more.
            &[0x7f, 0x81, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x3f],
            &[0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x7f],
            // Zero bytes that never end.
            &[0x7f, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x00],
        ];
        for bytes in cases {
            assert_eq!(read(7, &mut &bytes[..]), None, "{bytes:x?}");
        }
    }

    proptest! {
        #[test]
        fn prefix_integers_round_trip(bits in 3_u32..=8, number in 0_u64..1 << 62) {
            for number in [number, number >> 40, number >> 54] {
                let mut out = Vec::new();
                write(bits, 0, number, &mut out);
                let mut input = &out[..];
                prop_assert_eq!(read(bits, &mut input), Some(number));
                prop_assert!(input.is_empty());
            }
        }
    }
}
