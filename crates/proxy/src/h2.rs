//! HTTP/2: conversion between the messages of the `h2` crate and the message types of the data plane.
//!
//! Frames, HPACK and flow-control windows belong to that crate; this module only detects frame boundaries. A head
//! becomes a table of spans as in the other protocols; `binary` defines its meaning.

/// Fields and trailers, parsing and writing.
mod fields;
/// Request heads, parsing and writing.
pub(crate) mod request;
/// Response heads, parsing and writing.
pub(crate) mod response;
/// Boundaries of received frames.
pub(crate) mod frames;
/// The size of each read from a connection.
mod read_pacer;
/// One stream: a request and its response.
mod stream;
/// Order in which the responses of a connection are sent.
mod response_scheduler;

pub(crate) use read_pacer::ReadPacer;
pub(crate) use response_scheduler::{ResponseScheduler, ScheduledResponse};
pub(crate) use stream::H2Stream;
