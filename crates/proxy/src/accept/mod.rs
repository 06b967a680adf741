//! Downstream side: accepts client connections and serves the protocols on them.

/// Binding addresses.
pub(crate) mod bind;
/// Accepting connections.
pub(crate) mod listen;
/// Clients of intercepted connections, and the marks by which their address is kept.
pub(crate) mod intercepted_client;
/// Intercepted connections.
mod intercepted;
/// Accepted connections, and their hand-over between workers.
pub(crate) mod accepted_connection;
/// Start of a connection on its worker, in the listener's protocol.
pub(crate) mod dispatch;
/// Client address from a PROXY protocol header of a trusted proxy.
mod proxy_protocol_step;
/// Detection of the protocol by the first bytes of a connection.
pub(crate) mod detect;
/// The TLS handshake of a client.
mod handshake;
/// One handshake step at a time.
pub(crate) mod handshake_limiter;
/// A client's connection as its requests see it.
pub(crate) mod client;
/// State shared by the requests of one multiplexed connection (HTTP/2 and HTTP/3).
mod multiplexed_client;
/// Token bucket that bounds useless work, such as stream resets, per connection.
pub(crate) mod token_bucket;
/// A client's HTTP/2 connection.
pub(crate) mod h2;
/// A client's HTTP/3 connection.
pub(crate) mod h3;
/// Client connections over QUIC: settings, counts, and the worker that each datagram belongs to.
pub(crate) mod quic_host;
/// A client's HTTP/1.1 connection.
pub(crate) mod h1;
