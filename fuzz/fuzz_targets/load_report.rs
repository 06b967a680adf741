//! Load reports of endpoints (ORCA): text, JSON and Protocol Buffers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::laws::grpc::load_report(bytes));
