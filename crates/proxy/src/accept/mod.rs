//! The client's side: accepting connections and the protocols they speak.

/// Binding addresses and accepting connections.
pub(crate) mod listen;
/// How a connection comes to the worker that serves it.
pub(crate) mod accepted_connection;
/// Who the client is, where a proxy before us says so.
mod proxy_protocol_step;
/// The TLS handshake of a client.
pub(crate) mod handshake;
/// A client's connection as its requests see it.
pub(crate) mod client;
/// A connection that carries many requests at a time.
mod multiplexed_client;
/// What a client may do for nothing.
mod token_bucket;
/// A client's HTTP/2 connection.
pub(crate) mod h2;
/// A client's HTTP/3 connection.
pub(crate) mod h3;
/// A client's HTTP/1.1 connection.
pub(crate) mod h1;
