//! HTTP/3 request and control streams, in one piece and in steps.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::laws::h3::frames(bytes, 1);
    fuzz::laws::h3::frames(bytes, 1 + fuzz::below(32, bytes));
});
