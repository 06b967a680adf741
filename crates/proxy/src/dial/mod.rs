//! The endpoint's side: connections, when they may be used again, and what travels on them.

/// Idle connections of an endpoint.
pub(crate) mod pool;
/// Opening a connection.
pub(crate) mod connect;
/// Requests that share connections.
pub(crate) mod stream_request;
/// The connections that they share, whatever the protocol.
pub(crate) mod multiplex_pool;
/// One of them.
pub(crate) mod multiplex_connection;
/// HTTP/2.
pub(crate) mod h2;
/// HTTP/3, and what is done where it cannot be had.
pub(crate) mod h3;
/// WebSocket over a stream.
pub(crate) mod websocket;
/// One attempt on one connection.
pub(crate) mod attempt;
/// What is done with a request whose client has gone.
pub(crate) mod abandon;
