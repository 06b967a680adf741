//! What the fuzzers try: the same laws that the tests of `proxy` try on mutated messages.

#[path = "../../crates/proxy/tests/laws/mod.rs"]
pub mod laws;
#[path = "../../crates/proxy/tests/reference/mod.rs"]
pub mod reference;

/// A number below `end` that follows from the bytes, so that a corpus holds messages and nothing else.
pub fn below(end: usize, bytes: &[u8]) -> usize {
    bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>() % end
}
