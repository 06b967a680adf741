//! PROXY protocol headers, complete and truncated.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::laws::proxy_header(bytes, fuzz::below(bytes.len() + 1, bytes)));
