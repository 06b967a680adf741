//! Configuration: YAML to objects, and their translation.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fuzz::configuration::objects(text));
