//! HTTP/3 to clients, over real sockets: what HTTP/2 does not have, or has otherwise.

/// Sheave with one listener that also serves HTTP/3.
pub(crate) mod fixture;
/// Priorities of streams.
mod streams;
/// Messages over HTTP/3.
mod messages;
/// WebSockets.
mod websocket;
/// Discovery of HTTP/3 by clients, and HTTP/3 without configuration files.
mod discovery;
/// Early data (0-RTT).
mod early;
/// Connection migration during configuration changes.
mod migration;
/// Connections close without losing requests.
mod ending;
/// Slow readers.
mod pressure;
/// Protocol violations, floods and starvation.
mod attacks;

pub(crate) use fixture::Http3Fixture;
