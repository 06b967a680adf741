//! The data plane: sockets, HTTP/1.1 and HTTP/2, connection pools, the life of a request.
//!
//! [`Proxy`] is its handle on the control side. It is told everything by a [`gateway::Snapshot`] (and endpoint sets
//! within it), and never waits for whoever makes them. It must not know where objects come from.

/// The only caller of the system clock.
pub mod clock;
/// What the kernel offers and no safe interface carries.
mod sys;
/// Binding, accepting, and a client's connection.
mod accept;
/// The way of a request.
mod request;
/// How a request goes on after an attempt came to nothing.
mod retry;
/// What one request is made of, and what holds for it.
mod exchange;
/// What a proxy says of a request's origin.
mod forwarded;
/// What filters do to a request and its response.
mod filter;
/// Copies for somebody who only listens along.
mod mirror;
/// Requests that are calls of gRPC.
mod grpc;
/// What keeps a client at its endpoint.
mod affinity;
/// What of a request is hashed.
mod hash_key;
/// Which priority a request has if it has to wait.
mod priority;
/// How clients learn of HTTP/3.
mod alt_svc;
/// The response's way back.
mod relay;
/// What a failure means.
mod failure;
/// The endpoint's side: pools, connections, attempts.
mod dial;
/// Bodies, streamed.
mod body;
/// The bytes of one peer, whatever carries them.
mod stream;
/// TLS, with clients and with endpoints.
mod tls;
/// Pages from socket to socket.
mod pipe;
/// Connections that have left HTTP.
mod tunnel;
/// What TCP connections and UDP flows have in common.
mod l4_session;
/// TCP connections, carried as they are.
mod tcp;
/// UDP flows.
mod udp;
/// The head of a message, for every protocol.
pub mod head;
/// HTTP/1.1: bytes to heads and chunks, and back.
pub mod h1;
/// QUIC: connections and streams.
mod quic;
/// Heads as HTTP/2 and HTTP/3 both say them.
mod binary;
/// HTTP/2: heads and streams as its library gives and takes them.
mod h2;
/// HTTP/3: frames, field sections, and streams as requests see them.
pub mod h3;
/// Who the client of a connection is, by the word of the proxy before us.
pub mod proxy_protocol;
/// A backend as workers share it.
mod backend;
/// How much a backend is asked for.
mod demand;
/// How much endpoints are given: limits that are learned, and less for those that are full.
mod adaptive_limits;
/// What endpoints say of their load with a response.
pub mod orca;
/// Who may be chosen, by what attempts and probes say.
mod health;
/// Whether an endpoint is well: asked by a request of our own.
mod probe;
/// Which endpoints cannot be reached, and when they are back.
mod reachability;
/// A Snapshot at work.
mod active_config;
/// What is replaced whole and looked at all the time.
mod config_cell;
/// One thread with its own runtime and connections.
mod worker;
/// Memory that requests borrow.
mod scratch;
/// Bytes read and not yet used.
mod buffer;
/// One timer per connection.
mod deadline;
/// Metrics and the access log.
pub mod observe;
/// The handle on the control side.
mod control;

pub use balance::demand::{LONGEST_WINDOW, WINDOW};
pub use balance::{RequestDemand, SlotAssigner, SlotAssignment, Time};
pub use control::{
    AccessLog, BackendDemand, BackendView, EndpointView, ListenError, ListenerView, Proxy,
    ProxySettings,
};
