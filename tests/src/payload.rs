//! Bodies of any size that can be checked without keeping them.

use std::ops::Range;
use std::sync::LazyLock;

use crate::random::SeededRandom;

/// Period of the pattern: a prime, so that a piece that is lost, duplicated or moved by any round
/// number of bytes is detected.
const PERIOD: usize = 65_521;

/// The pattern twice, so that any period of it is one slice.
static PATTERN: LazyLock<Vec<u8>> = LazyLock::new(|| {
    let mut random = SeededRandom::new(7);
    let period: Vec<u8> = (0..PERIOD).map(|_| random.next_u64() as u8).collect();
    period.repeat(2)
});

/// Returns the bytes of the pattern at these offsets; at most one period of them.
pub fn pattern(places: Range<u64>) -> &'static [u8] {
    let length = (places.end - places.start) as usize;
    assert!(length <= PERIOD, "a piece is at most one period");
    let start = (places.start % PERIOD as u64) as usize;
    &PATTERN[start..start + length]
}

/// Returns the pattern from its start to `length`, in pieces to be sent one after another.
pub fn pieces(length: u64) -> impl Iterator<Item = &'static [u8]> {
    let period = PERIOD as u64;
    (0..length).step_by(PERIOD).map(move |start| pattern(start..length.min(start + period)))
}

/// Digest of a body: its length and a hash of its bytes (FNV-1a, eight lanes).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BodyDigest {
    pub length: u64,
    lanes: [u64; 8],
}

impl Default for BodyDigest {
    fn default() -> Self {
        Self { length: 0, lanes: [0xcbf2_9ce4_8422_2325; 8] }
    }
}

impl BodyDigest {
    /// Returns the digest of the pattern's first `length` bytes.
    pub fn of_pattern(length: u64) -> Self {
        let mut digest = Self::default();
        pieces(length).for_each(|piece| digest.add(piece));
        digest
    }

    pub fn of(bytes: &[u8]) -> Self {
        let mut digest = Self::default();
        digest.add(bytes);
        digest
    }

    /// Adds these bytes; the split of a body into pieces makes no difference.
    pub fn add(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            let lane = &mut self.lanes[(self.length % 8) as usize];
            *lane = (*lane ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3);
            self.length += 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_is_independent_of_chunk_boundaries() {
        let mut digest = BodyDigest::default();
        for piece in pieces(200_000) {
            let (left, right) = piece.split_at(piece.len() / 3);
            digest.add(left);
            digest.add(right);
        }
        assert_eq!(digest, BodyDigest::of_pattern(200_000));
    }

    #[test]
    fn digest_sees_a_lost_byte() {
        let whole: Vec<u8> = pieces(1000).flatten().copied().collect();
        let mut lost = whole.clone();
        lost.remove(500);
        lost.push(0);
        assert_ne!(BodyDigest::of(&whole), BodyDigest::of(&lost));
    }
}
