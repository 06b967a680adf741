//! Attacks that are known by name: each costs us little, is ended or bounded, and is counted; others are served meanwhile.

/// Sheave under attack, and an innocent who uses it.
mod target;
/// Who sends more than anybody needs.
mod floods;
/// Who sends less than anybody needs.
mod slow;
/// Who begins handshakes.
mod handshakes;
