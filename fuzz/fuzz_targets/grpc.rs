//! Texts and messages of gRPC: timeouts, statuses, health checks, gRPC-Web.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    fuzz::laws::grpc::timeout(bytes);
    fuzz::laws::grpc::call_status(bytes);
    fuzz::laws::grpc::health_check(bytes);
    fuzz::laws::grpc::web(bytes, 1 + fuzz::below(8, bytes));
});
