//! Entry points of the fuzzers: the properties that the tests of `codec` check on mutated messages, properties of the
//! other parsers, and whole connections through a worker.

/// Whole connections: a client script and an endpoint script, with a worker between them.
pub mod connection;
/// Properties of what a configuration is parsed to.
pub mod configuration;
/// Properties of the parser of ClientHellos.
pub mod client_hello;
/// Revocation lists, from a ConfigMap to the handshakes of clients.
pub mod revocation;
#[path = "../../crates/codec/tests/laws/mod.rs"]
pub mod laws;
#[path = "../../crates/codec/tests/reference/mod.rs"]
pub mod reference;

/// Returns a number below `end` derived from the bytes, so that the corpus contains only messages.
pub fn below(end: usize, bytes: &[u8]) -> usize {
    bytes.iter().map(|&byte| usize::from(byte)).sum::<usize>() % end
}
