//! Code that a program has written, and the text that it was written from.

use crate::none;
use crate::tree::Tree;

#[test]
fn what_keda_says_and_hears_is_made_from_its_interface() {
    let tree = Tree::read();
    let text = |path: &str| {
        let found = std::fs::read_to_string(tree.root.join(path));
        found.unwrap_or_else(|error| panic!("{path}: {error}"))
    };
    let proto = text("tests/scaler/externalscaler.proto");
    let made = format!("of {} bytes with the sum {:016x}.", proto.len(), sum(&proto));
    let both = ["crates/sheave/src/scaler/externalscaler.rs", "tests/src/keda/externalscaler.rs"];
    let old = both.into_iter().filter(|path| !text(path).lines().next().unwrap().ends_with(&made));
    none(old.map(|path| format!("{path}: made from another text than it is now: `make gen`")));
}

/// As `tests/scaler` computes it (FNV-1a).
fn sum(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |sum, byte| {
        (sum ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3)
    })
}
