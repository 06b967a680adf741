//! Examines the eight bytes of a word at once.

/// Returns the high bit of each byte that is zero; above a zero byte, of bytes that are one too.
#[inline]
pub(crate) const fn zero_bytes(word: u64) -> u64 {
    const ONES: u64 = u64::from_ne_bytes([1; 8]);
    const HIGH_BITS: u64 = u64::from_ne_bytes([0x80; 8]);
    word.wrapping_sub(ONES) & !word & HIGH_BITS
}
