//! Key sets of issuers of tokens (RFC 7517).
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| fuzz::configuration::key_set(text));
