//! HTTP/3: frames and field sections to heads and bodies, and back (RFC 9114, RFC 9204).
//!
//! `quic` provides the streams; `binary` defines the meaning of heads. A head is decoded directly into a table of
//! spans: its names and values are decompressed to the place where the spans point. There is no dynamic table in either
//! direction, so no request ever waits for another, and no compression state is kept between requests.

/// Error codes that end streams and connections.
pub mod error_code;
/// Variable-length integers of one to eight bytes.
mod varint;
/// Frames, parsing and writing.
pub mod frame;
/// Field sections, parsing and writing.
pub mod qpack;
/// Fields and trailers, parsing and writing.
pub mod fields;
/// Request heads, parsing and writing.
pub mod request;
/// Response heads, parsing and writing.
pub mod response;
/// SETTINGS of each side.
pub mod settings;
/// Priority of responses.
pub mod priority;
/// Control stream of the peer.
pub mod control;
/// State that the streams of a connection share.
mod connection_state;
/// One stream: a request and its response.
mod stream;
/// Unidirectional streams of the connection as a whole.
mod control_streams;
#[cfg(test)]
mod fixture;

pub use error_code::H3ErrorCode;

pub(crate) use connection_state::H3ConnectionState;
pub(crate) use control_streams::{ControlEvent, ControlStreams};
pub(crate) use stream::H3Stream;

/// Role of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    Client,
    Endpoint,
}
