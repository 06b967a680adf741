//! HTTP/2 streams, on top of the `h2` crate; `codec` reads and writes their heads.

/// The size of each read from a connection.
mod read_pacer;
/// One stream: a request and its response.
mod stream;
/// Order in which the responses of a connection are sent.
mod response_scheduler;

pub(crate) use read_pacer::ReadPacer;
pub(crate) use response_scheduler::{ResponseScheduler, ScheduledResponse};
pub(crate) use stream::H2Stream;
