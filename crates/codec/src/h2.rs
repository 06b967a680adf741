//! HTTP/2: conversion between the messages of the `h2` crate and heads, and the boundaries of frames.
//!
//! Frames, HPACK and flow-control windows belong to that crate, whose messages are types of `http`. A head becomes a
//! table of spans as in the other protocols; `binary` defines its meaning.

/// Fields and trailers, parsing and writing.
pub mod fields;
/// Request heads, parsing and writing.
pub mod request;
/// Response heads, parsing and writing.
pub mod response;
/// Boundaries of received frames.
pub mod frames;
