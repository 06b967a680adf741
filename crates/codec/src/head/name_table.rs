//! The table of the field names that are treated specially, found by a hash of the whole name.
//!
//! Most fields have none of these names, and each field of each message is looked up: this takes a few tens of
//! instructions however many names there are.

#![expect(
    clippy::indexing_slicing,
    reason = "a hash has as many bits as the table, and a length is checked before its bytes are read"
)]

use super::KnownFieldName;
use super::proxy_claim::CLAIM_NAMES;
use crate::word::zero_bytes;

/// Length that no name of the table exceeds.
pub(super) const MAX_BYTES: usize = 24;

/// Number of bits of a hash. Nine of ten other names then have a hash that no name of the table has.
const HASH_BITS: u32 = 9;
/// An odd number under which no two names have the same hash. The compiler checks this when it builds the table.
const MULTIPLIER: u64 = 0x63ca_828d_d5f4_b3b3;

/// A field name without regard to case.
pub(super) struct FoldedName<'n> {
    name: &'n [u8],
    words: FoldedWords,
}

/// All bytes of a name of up to 24 bytes, some of them twice, with the bit set that tells `a` from `A`.
///
/// Among the bytes of a token (RFC 9110 §5.6.2), the bit changes upper-case letters, `^` to `~`, and `_` to DEL, which
/// no token contains. So two names that differ in more than case have different words, as the names of the table have
/// no `~`.
type FoldedWords = [u64; 3];

impl<'n> FoldedName<'n> {
    #[inline]
    pub(super) fn new(name: &'n [u8]) -> Self {
        Self { name, words: folded_words(name) }
    }

    #[inline]
    pub(super) fn has_underscore(&self) -> bool {
        if self.name.len() > MAX_BYTES {
            return memchr::memchr(b'_', self.name).is_some();
        }
        let zero_if_found = self.words.map(|word| word ^ u64::from_ne_bytes([b'_' | 0x20; 8]));
        zero_if_found.iter().fold(0, |found, word| found | zero_bytes(*word)) != 0
    }
}

/// Returns the name of the table that equals `name`, `ProxyClaim` for a claim, and `Other` if there is none.
#[inline]
pub(super) fn find(name: &FoldedName<'_>) -> KnownFieldName {
    let place = TABLE.places[hash(name.words)];
    if place == 0 {
        return KnownFieldName::Other;
    }
    let entry = &TABLE.entries[usize::from(place)];
    // Compared by integers: an array would be compared in memory.
    let [first, second, third] = entry.words;
    let differs = first ^ name.words[0] | second ^ name.words[1] | third ^ name.words[2];
    let is_equal = entry.length == name.name.len() && differs == 0;
    if is_equal { entry.known } else { KnownFieldName::Other }
}

const NAMES: usize = KnownFieldName::NAMED.len() + CLAIM_NAMES.len();
static TABLE: NameTable = NameTable::new();

struct NameTable {
    /// Index of the entry of each hash; 0 if there is none.
    places: [u8; 1 << HASH_BITS],
    /// The first one stands for none.
    entries: [NameEntry; NAMES + 1],
}

#[derive(Clone, Copy)]
struct NameEntry {
    words: FoldedWords,
    length: usize,
    known: KnownFieldName,
}

impl NameTable {
    const fn new() -> Self {
        let none = NameEntry { words: [0; 3], length: usize::MAX, known: KnownFieldName::Other };
        let mut table = Self { places: [0; 1 << HASH_BITS], entries: [none; NAMES + 1] };
        let mut at = 0;
        while at < NAMES {
            let (known, name) = match at.checked_sub(CLAIM_NAMES.len()) {
                None => (KnownFieldName::ProxyClaim, CLAIM_NAMES[at]),
                Some(at) => (KnownFieldName::NAMED[at], KnownFieldName::NAMED[at].text()),
            };
            at += 1;
            table.add(at, known, name.as_bytes());
        }
        table
    }

    const fn add(&mut self, at: usize, known: KnownFieldName, name: &[u8]) {
        assert!(name.len() <= MAX_BYTES, "a name is too long for the table");
        let words = folded_words(name);
        let place = &mut self.places[hash(words)];
        assert!(*place == 0, "two names have the same hash: choose another multiplier");
        *place = at as u8;
        self.entries[at] = NameEntry { words, length: name.len(), known };
    }
}

#[inline]
const fn hash(words: FoldedWords) -> usize {
    let [first, second, third] = words;
    let mixed = (first ^ second.rotate_left(17) ^ third.rotate_left(41)).wrapping_mul(MULTIPLIER);
    (mixed >> (u64::BITS - HASH_BITS)) as usize
}

/// Returns the words of a name; of one that is too long for the table, some of its bytes.
#[inline]
const fn folded_words(name: &[u8]) -> FoldedWords {
    const CASE_BITS: u64 = u64::from_ne_bytes([0x20; 8]);
    let [first, second, third] = match name.len() {
        0 => [0; 3],
        length @ 1..4 => [name[0] as u64, name[length / 2] as u64, name[length - 1] as u64],
        length @ 4..8 => [four_bytes(name, 0), four_bytes(name, length - 4), 0],
        length @ 8..16 => [eight_bytes(name, 0), eight_bytes(name, length - 8), 0],
        length => [eight_bytes(name, 0), eight_bytes(name, 8), eight_bytes(name, length - 8)],
    };
    [first | CASE_BITS, second | CASE_BITS, third | CASE_BITS]
}

#[inline]
const fn four_bytes(text: &[u8], at: usize) -> u64 {
    match text.split_at(at).1.first_chunk() {
        Some(word) => u32::from_le_bytes(*word) as u64,
        None => 0,
    }
}

#[inline]
const fn eight_bytes(text: &[u8], at: usize) -> u64 {
    match text.split_at(at).1.first_chunk() {
        Some(word) => u64::from_le_bytes(*word),
        None => 0,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn underscores_are_found_at_every_place() {
        for length in 0..40 {
            let name = vec![b'a'; length];
            assert!(!FoldedName::new(&name).has_underscore());
            for place in 0..length {
                let mut name = name.clone();
                name[place] = b'_';
                assert!(FoldedName::new(&name).has_underscore(), "{place} of {length}");
                name[place] = b'^';
                assert!(!FoldedName::new(&name).has_underscore(), "{place} of {length}");
            }
        }
    }

    #[test]
    fn one_changed_byte_makes_another_name() {
        for known in KnownFieldName::NAMED {
            for at in 0..known.text().len() {
                let mut name = known.text().as_bytes().to_vec();
                name[at] = b'!';
                assert_ne!(find(&FoldedName::new(&name)), known, "{known:?} at {at}");
            }
        }
    }
}
