//! HTTP/1.0 and 1.1 codec: bytes to heads and chunks, and back. It knows no socket, no clock and no routes.
//!
//! An accepted message has exactly one meaning, the same for this proxy and for the next hop. A message that could have
//! two is rejected, and its connection is closed. The tables `tests/data/strict-*.tsv` define each case.

/// Parse errors and their statuses.
pub mod error;
/// Byte classes of the grammar.
pub(crate) mod syntax;
/// Body length and Connection options, the same for both directions.
pub(crate) mod framing;
/// Request targets, authorities and Host.
pub(crate) mod target;
/// Parser of heads.
pub mod parse;
/// Decoder of chunked bodies.
pub mod chunked;
/// Encoder of heads and chunks.
pub mod write;

pub use chunked::{ChunkedDecoder, ChunkedEvent};
pub use error::{BadChunk, BadFraming, BadRequest, BadResponse, BadSyntax};
pub use parse::HeadLimits;
