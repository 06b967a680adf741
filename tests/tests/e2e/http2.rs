//! HTTP/2 to clients and to endpoints, over real sockets: what HTTP/3 does not have, or has
//! otherwise.

/// Sheave in front of HTTP/1.1 or HTTP/2 endpoints.
pub(crate) mod fixture;
/// Streams are requests: balancing, and limits of concurrency.
mod streams;
/// Translation of messages between HTTP versions.
mod messages;
/// WebSockets.
mod websocket;
/// Slow readers.
mod pressure;
/// Connections close without losing requests.
mod ending;
/// HTTP/2 endpoints: requests that they have not processed are retried elsewhere.
mod endpoints;

pub(crate) use fixture::Http2Fixture;
