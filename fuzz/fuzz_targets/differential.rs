//! Connections full of requests: what we accept, hyper accepts, and sees the same in it.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::reference::agrees(bytes));
