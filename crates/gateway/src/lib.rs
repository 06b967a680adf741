//! What was asked for: Gateway API objects become a checked [`Snapshot`] and statuses.
//!
//! Pure: objects in, Snapshot and statuses out. It reads no file and no clock and opens no socket; it must not know
//! where objects come from, nor how a request is carried.
#![warn(missing_docs, clippy::wildcard_enum_match_arm)]

/// Everything the data plane is asked to do.
pub mod snapshot;
/// From a request's host and path to the rule that serves it.
pub mod matching;

pub use snapshot::Snapshot;
