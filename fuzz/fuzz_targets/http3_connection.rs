//! Connections over HTTP/3 through a worker, to an endpoint that speaks HTTP/1.1.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::connection::http3(bytes));
