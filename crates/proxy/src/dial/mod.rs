//! The endpoint's side: connections, when they may be used again, and what travels on them.

/// Idle connections of an endpoint.
pub(crate) mod pool;
/// Opening a connection.
pub(crate) mod connect;
/// One attempt on one connection.
pub(crate) mod attempt;
/// What is done with a request whose client has gone.
pub(crate) mod abandon;
