//! Semantics of heads that HTTP/2 and HTTP/3 share (RFC 9113 §8.3, RFC 9114 §4.3), independent of framing.
//!
//! Each protocol decodes and encodes its heads itself. This module decides which fields are valid, how the body is
//! delimited, and what an extended CONNECT means. It rejects what HTTP/1.1 rejects, with the same messages, because a
//! head may be forwarded as HTTP/1.1.

/// Validity and number of fields.
pub(crate) mod fields;
/// Semantics of request heads.
pub(crate) mod request;
/// Semantics of response heads.
pub(crate) mod response;

pub use request::{WEBSOCKET, WebSocketKey};
