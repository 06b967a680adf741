//! The endpoint's side: connections, when they may be used again, and what travels on them.

/// Idle connections of an endpoint.
pub(crate) mod pool;
/// Opening a connection.
pub(crate) mod connect;
/// Requests over HTTP/2: streams on few connections.
pub(crate) mod h2;
/// One attempt on one connection.
pub(crate) mod attempt;
/// What is done with a request whose client has gone.
pub(crate) mod abandon;
