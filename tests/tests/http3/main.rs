//! HTTP/3 to clients, over real sockets.

/// Sheave with one listener that also serves HTTP/3.
mod fixture;
/// Streams are requests: balancing, and limits of concurrency.
mod streams;
/// Translation of messages between HTTP versions.
mod messages;
/// Interim (1xx) responses and WebSockets.
mod interim;
/// Discovery of HTTP/3 by clients, and HTTP/3 without configuration files.
mod discovery;
/// Early data (0-RTT).
mod early;
/// Connection migration during configuration changes.
mod migration;
/// Connections close without losing requests.
mod ending;
/// Memory cost of slow readers and of idle connections.
mod pressure;
/// Protocol violations, floods and starvation.
mod attacks;
