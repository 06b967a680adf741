//! HTTP/1.0 and 1.1 on the wire: bytes to heads and chunks, and back. No socket, no clock, no decision about routes.
//!
//! What is accepted has one meaning only, ours and the next hop's; whatever could have two is refused, and the
//! connection with it. The tables `tests/data/strict-*.tsv` say so case by case.

/// Why bytes were refused, and with which status.
pub mod error;
/// Which bytes may stand where.
pub(crate) mod syntax;
/// How long the body is, and what Connection says: the same for both directions.
pub(crate) mod framing;
/// Request targets, authorities and Host.
pub(crate) mod target;
/// Heads from bytes.
pub mod parse;
/// Chunked bodies from bytes.
pub mod chunked;
/// Heads and chunks to bytes.
pub mod write;

pub use chunked::{ChunkedEvent, ChunkedReader};
pub use error::{BadChunk, BadFraming, BadRequest, BadResponse, BadSyntax};
pub use parse::HeadLimits;
