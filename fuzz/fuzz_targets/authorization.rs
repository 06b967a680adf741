//! Answers of gRPC authorizers.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|body: &[u8]| fuzz::laws::grpc::authorization(body));
