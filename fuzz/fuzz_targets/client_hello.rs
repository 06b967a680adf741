//! ClientHellos, complete and truncated.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::client_hello::prefix(bytes, fuzz::below(bytes.len() + 1, bytes));
});
