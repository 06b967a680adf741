//! Sheave: one binary.

fn main() {}
