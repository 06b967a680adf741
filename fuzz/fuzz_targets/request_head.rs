//! Request heads, complete and truncated.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::laws::request(bytes, fuzz::below(bytes.len() + 1, bytes)));
