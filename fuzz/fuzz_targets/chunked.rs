//! Chunked bodies, in one piece and in steps.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::laws::chunked(bytes, 1);
    fuzz::laws::chunked(bytes, 1 + fuzz::below(32, bytes));
});
