//! HTTP/3: frames and field sections to heads and bodies, and back (RFC 9114, RFC 9204).
//!
//! `binary` defines the meaning of heads. A head is decoded directly into a table of spans: its names and values are
//! decompressed to the place where the spans point. There is no dynamic table in either direction, so no request ever
//! waits for another, and no compression state is kept between requests.

/// Error codes that end streams and connections.
pub mod error_code;
/// Variable-length integers of one to eight bytes.
pub mod varint;
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

pub use error_code::H3ErrorCode;

/// Role of the peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PeerRole {
    Client,
    Endpoint,
}
