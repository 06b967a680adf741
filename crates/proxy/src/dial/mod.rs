//! The upstream side: connections to endpoints, their reuse, and the requests on them.

/// Connection pool of an endpoint.
pub(crate) mod pool;
/// Sockets with the marks by which the node's rules know them.
pub(crate) mod marked_socket;
/// The address of an endpoint in the other IP version.
pub(crate) mod other_address;
/// Opens connections.
pub(crate) mod connect;
/// Requests that share connections.
pub(crate) mod stream_request;
/// One such request, and what it gets.
pub(crate) mod stream_call;
/// Pools of connections that multiplex requests, for any protocol.
pub(crate) mod multiplex_pool;
/// One such connection.
pub(crate) mod multiplex_connection;
/// HTTP/2.
pub(crate) mod h2;
/// HTTP/3, and the fallback to TCP.
pub(crate) mod h3;
/// WebSocket over an HTTP/2 or HTTP/3 stream.
pub(crate) mod websocket;
/// One attempt on one connection.
pub(crate) mod attempt;
/// Requests of this proxy itself.
pub(crate) mod subrequest;
/// Queries: requests of this proxy whose answer is read whole.
pub(crate) mod query;
/// Draining of a request whose client has disconnected.
pub(crate) mod abandon;

use codec::h1::HeadLimits;

/// Size limits of a response head.
pub(crate) const RESPONSE_LIMITS: HeadLimits =
    HeadLimits { head_bytes: 64 * 1024, fields: 256, target_bytes: 0 };
