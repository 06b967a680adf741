//! Values of single fields: lists, cookies, priorities.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::laws::fields::value(bytes));
