//! Revocation lists: from a ConfigMap to the handshakes of clients.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::revocation::lists(bytes));
