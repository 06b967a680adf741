//! Patterns of hosts and paths, parameters of queries, durations.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| fuzz::configuration::patterns(bytes));
