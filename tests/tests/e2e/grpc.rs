//! gRPC: what a call promises, over real sockets.

/// Sheave in front of servers of gRPC.
mod fixture;
/// Calls as they are, and where they go.
mod calls;
/// What Sheave answers itself, and when.
mod refusals;
/// What servers say of their load.
mod load_reports;
/// Servers that fail, and those that say so when asked.
mod failing;
/// Browsers, which cannot speak it.
mod web;
