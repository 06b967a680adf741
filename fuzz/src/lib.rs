//! Entry points of the fuzzers: the same properties that the tests of `codec` check on mutated messages.

#[path = "../../crates/codec/tests/laws/mod.rs"]
pub mod laws;
#[path = "../../crates/codec/tests/reference/mod.rs"]
pub mod reference;

/// Returns a number below `end` derived from the bytes, so that the corpus contains only messages.
pub fn below(end: usize, bytes: &[u8]) -> usize {
    bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>() % end
}
