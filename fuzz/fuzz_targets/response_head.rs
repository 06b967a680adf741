//! Heads of responses, and what a part of each gives.
#![no_main]

use libfuzzer_sys::fuzz_target;
use proxy::head::Method;

fuzz_target!(|bytes: &[u8]| {
    let len = fuzz::below(bytes.len() + 1, bytes);
    fuzz::laws::response(bytes, len, Method::Get);
    fuzz::laws::response(bytes, len, Method::Head);
});
