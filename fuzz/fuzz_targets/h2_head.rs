//! Heads and trailers of HTTP/2, and their meaning in HTTP/1.1.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::laws::h2::head(bytes));
