//! Path normalisation against a simple implementation.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::laws::path::normal_form(bytes));
