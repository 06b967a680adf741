//! HTTP/3: frames and field sections to heads and bodies, and back (RFC 9114, RFC 9204).
//!
//! Streams are `quic`'s; what a head means, `binary` decides. A head becomes a table of spans without a detour: its names
//! and values are unfolded where the spans point. There is no dynamic table, in neither direction, so no request ever
//! waits for another and nothing is kept between two.

/// The words in which streams and connections are ended.
pub mod error_code;
/// Numbers of one to eight bytes.
mod varint;
/// Frames from bytes, and to bytes.
pub mod frame;
/// Field sections from bytes, and to bytes.
pub mod qpack;
/// Fields and trailers, both ways.
pub mod fields;
/// Heads of requests, both ways.
pub mod request;
/// Heads of responses, both ways.
pub mod response;
/// What each side says of itself.
pub mod settings;
/// Which response a client needs first.
pub mod priority;
/// What a peer says of the connection as a whole.
pub mod control;
/// What messages and conversation of a connection know of each other.
mod connection_state;
/// A stream as its request sees it.
mod stream;
/// The connection as a whole.
mod control_streams;
#[cfg(test)]
mod fixture;

pub use error_code::H3ErrorCode;

pub(crate) use connection_state::H3ConnectionState;
pub(crate) use control_streams::{ControlEvent, ControlStreams};
pub(crate) use stream::H3Stream;

/// Who is at the other end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    Client,
    Endpoint,
}
