//! What RFC 9110 and RFC 9112 ask of an intermediary, and what our policies promise, over real sockets.

/// Where messages begin and end: keep-alive, pipelining, bodies, versions.
mod messages;
/// Which header fields pass, which end here, and which are ours.
mod fields;
/// Responses before the response: 100, 103, and 101 with what follows it.
mod interim;
/// Bodies larger than memory should ever hold.
mod bodies;
/// Clients that are slow, large or many.
mod limits;
/// Clients that leave.
mod leaving;
/// Endpoints that fail.
mod failing;
