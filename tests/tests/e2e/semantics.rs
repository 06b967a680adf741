//! Requirements of RFC 9110 and RFC 9112 for intermediaries, and of our policies, over real
//! sockets.

/// Message framing: keep-alive, pipelining, bodies, versions.
mod messages;
/// Header fields: end-to-end fields, hop-by-hop fields, and fields that Sheave sets.
mod fields;
/// Fields that only a trusted proxy may write.
mod claims;
/// Normalisation of paths.
mod paths;
/// Interim (1xx) responses: 100, 103, and 101 with the tunnel after it.
mod interim;
/// Large bodies, which are streamed and never held in memory.
mod bodies;
/// Limits for slow clients, large requests and many connections.
mod limits;
/// Clients that disconnect.
mod leaving;
/// Failing endpoints.
mod failing;
