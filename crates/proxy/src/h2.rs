//! HTTP/2: what the `h2` crate gives and takes, as the rest of the data plane knows it, and back.
//!
//! Frames, HPACK and windows are that crate's; of frames only where one begins is known here. Here a head becomes a
//! table of spans like any other; what it means, `binary` decides.

/// Fields and trailers, both ways.
mod fields;
/// Heads of requests, both ways.
pub(crate) mod request;
/// Heads of responses, both ways.
pub(crate) mod response;
/// Frames as they come in.
pub(crate) mod frames;
/// A stream as its request sees it.
mod stream;
/// In which order responses are handed over.
mod response_scheduler;

pub(crate) use response_scheduler::{ResponseScheduler, ScheduledResponse};
pub(crate) use stream::H2Stream;
