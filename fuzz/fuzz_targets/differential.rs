//! Connections with several requests: hyper accepts every request that we accept, and parses it identically.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::reference::agrees(bytes));
