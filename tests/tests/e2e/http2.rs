//! HTTP/2 in front and behind, over real sockets.

/// Sheave in front of endpoints of either protocol.
mod fixture;
/// Each stream is a request of its own: where it goes, and how many there may be.
mod streams;
/// What messages say, whichever version they are told in.
mod messages;
/// Responses before the response, and WebSockets.
mod interim;
/// Readers who are slower than writers.
mod pressure;
/// How connections end without losing anything.
mod ending;
/// Endpoints that speak HTTP/2, and what they may refuse.
mod endpoints;
