//! Connections over HTTP/1.1 through a worker.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::connection::http1(bytes));
