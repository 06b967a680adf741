//! HTTP/3 streams (RFC 9114): `quic` provides them, `codec` reads and writes their bytes.

/// State that the streams of a connection share.
mod connection_state;
/// One stream: a request and its response.
mod stream;
/// Unidirectional streams of the connection as a whole.
mod control_streams;
#[cfg(test)]
mod fixture;

pub(crate) use connection_state::H3ConnectionState;
pub(crate) use control_streams::{ControlStreamEvent, ControlStreams};
pub(crate) use stream::H3Stream;
