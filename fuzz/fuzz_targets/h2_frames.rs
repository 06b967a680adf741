//! Frame boundaries of HTTP/2.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::laws::h2::frames(bytes, 1 + fuzz::below(32, bytes), fuzz::below(24, bytes));
});
