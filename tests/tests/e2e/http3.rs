//! HTTP/3 in front, over real sockets.

/// Sheave with one listener that serves HTTP/3 too.
mod fixture;
/// Each stream is a request of its own: where it goes, and how many there may be.
mod streams;
/// What messages say, whichever version they are told in.
mod messages;
/// Responses before the response, and WebSockets.
mod interim;
/// How clients learn of it, and that it can be had without files.
mod discovery;
/// Requests before the handshake is over.
mod early;
/// Clients that move, while the configuration changes.
mod migration;
/// How connections end without losing anything.
mod ending;
/// Readers who are slower than writers, and connections that do nothing: what they cost us in memory.
mod pressure;
/// Who breaks rules, floods or starves.
mod attacks;
