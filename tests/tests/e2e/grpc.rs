//! gRPC calls over real sockets.

/// Sheave in front of gRPC servers.
pub(crate) mod fixture;
/// Calls pass unchanged, and go to the right server.
mod calls;
/// Responses that Sheave generates itself.
mod refusals;
/// Load reports of servers.
mod load_reports;
/// Failing servers, and servers that report a bad health when probed.
mod failing;
/// gRPC-Web for browsers, which cannot use gRPC.
mod web;
