//! Directives of nginx in an annotation of an Ingress.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &str| fuzz::configuration::snippet(text));
