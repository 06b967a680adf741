//! QPACK field sections, and the heads decoded from them.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::laws::h3::section(bytes));
