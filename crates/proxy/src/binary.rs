//! Heads as HTTP/2 and HTTP/3 both say them (RFC 9113 §8.3, RFC 9114 §4.3): what they mean, whatever frames they come in.
//!
//! How a head is taken from the wire, and put there, is the business of each protocol; which fields it may have, how its
//! body is delimited and what an extended CONNECT is are decided here. What is refused in HTTP/1.1 is refused here, in the
//! same words, for a head may leave as such.

/// Which fields there may be.
pub(crate) mod fields;
/// What the head of a request means.
pub(crate) mod request;
/// What the head of a response means.
pub(crate) mod response;

pub(crate) use request::WebSocketKey;
