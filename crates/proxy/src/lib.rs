//! The data plane: sockets, HTTP/1.1 and HTTP/2, connection pools, the life of a request.
//!
//! [`Proxy`] is its handle on the control side. A [`gateway::Snapshot`] (and endpoint sets within it) is its only
//! input. It never waits for the control plane, and must not know where objects come from.

/// The only caller of the system clock.
pub mod clock;
/// System calls and socket options that no safe interface offers.
mod sys;
/// Binding, accepting, and client connections.
mod accept;
/// The stages of a request, from its head to its Outcome.
mod request;
/// The form of a request's path that routes and endpoints see.
mod request_path;
/// Request bodies: what of them arrives before a slot is taken, and how slowly they may arrive.
mod request_body;
/// Retries after a failed attempt.
mod retry;
/// The memory and the policy of one request.
mod exchange;
/// The values that the stages of one request share.
mod context;
/// The attributes of a request by which routes match it.
mod routed_request;
/// Forwarding fields: `X-Forwarded-*`, `Forwarded`, `Via` and the request ID.
mod forwarded;
/// Route filters: changes to requests and responses.
mod filter;
/// Request mirroring.
mod mirror;
/// Requests that are gRPC calls.
mod grpc;
/// Session affinity.
mod affinity;
/// Hash keys of requests, for consistent hashing.
mod hash_key;
/// The queue priority of a request.
mod priority;
/// Announcement of HTTP/3 to clients (`Alt-Svc`).
mod alt_svc;
/// Relaying the response to the client.
mod relay;
/// The table of failures: status, metric label, effect on the endpoint.
mod failure;
/// The endpoint side: connection pools, connections, attempts.
mod dial;
/// Streaming of bodies.
mod body;
/// The byte stream of one peer, over any transport.
mod stream;
/// Pipes for splicing from socket to socket.
mod pipe;
/// Upgraded connections, which no longer carry HTTP.
mod tunnel;
/// The common part of TCP connections and UDP flows.
mod l4_session;
/// TCP connections, forwarded unchanged.
mod tcp;
/// UDP flows.
mod udp;
/// HTTP/2 streams, on top of the `h2` library.
mod h2;
/// HTTP/3 streams, on top of `quic`.
mod h3;
/// PROXY protocol headers that are sent to endpoints.
mod proxy_header;
/// A backend, shared by all workers.
mod backend;
/// The time until a backend without endpoints has one.
mod cold_start;
/// Requests that wake no backend without endpoints.
mod health_check;
/// Rate limits of requests.
mod rate_limit;
/// Client certificates.
mod client_certificate;
/// Credentials of requests.
mod credentials;
/// Authorization of requests by other servers.
mod external_auth;
/// Rewrites, redirects and responses on conditions.
mod request_rules;
/// Responses of a policy in place of those of endpoints.
mod direct_response;
/// Error pages.
mod error_page;
/// Compression of responses.
mod compression;
/// The share of one client address in a backend's slots.
mod address_share;
/// The Outcome of an attempt.
mod outcome;
/// The request demand for a backend.
mod demand;
/// Adaptive concurrency: learned limits, and reduced limits for endpoints that report overload.
mod adaptive_limits;
/// Recording of the load reports that endpoints send with responses (ORCA).
mod load_report;
/// Endpoint health: outlier detection and active health checks.
mod health;
/// Active health checks: one probe of one endpoint.
mod probe;
/// Detection of unreachable endpoints and of their return.
mod reachability;
/// The configuration in force: a Snapshot joined to long-lived state.
mod active_config;
/// Read-mostly values with a cached copy per worker.
mod config_cell;
/// Interception of connections on the node: the boundary to it.
mod interception;
/// Budgets of the process: memory and file descriptors.
mod resources;
/// Memory of the process, and the steps that are taken as it fills.
mod memory;
/// Descriptors of the process, and the shares of it.
mod descriptors;
/// A worker: one thread with its own runtime and connections.
mod worker;
/// Reusable memory that requests borrow.
mod scratch;
/// Buffers of bytes that are read and not yet processed.
mod buffer;
/// One timer per connection.
mod deadline;
/// Locks that outlive a panic of their holder.
mod mutex;
/// Signal from workers to the thread that leases slots.
mod lease_signal;
/// Slots of endpoints that replicas lease to one another.
mod slot_leases;
/// State that replicas report to one another.
mod peer_reports;
/// Learned limits that replicas share.
mod limit_exchange;
/// Keys of session tickets that replicas share.
mod ticket_keys;
/// Metrics and the access log.
pub mod observe;
/// Traces: spans of requests.
pub mod trace;
/// The handle on the control side.
mod control;

pub use balance::demand::{LONGEST_WINDOW, ProxylessRequests, RequestRates, WINDOW};
pub use balance::leases;
pub use balance::limit;
pub use balance::peer_reports::ReportRefusal;
pub use balance::rate_limit as token_buckets;
pub use balance::shared_keys::KeyRefusal;
pub use balance::{RequestDemand, SlotAssigner, SlotAssignment, Time};
pub use control::{
    AccessLog, BackendDemand, BackendTraffic, BackendView, EndpointView, ListenError,
    ListenerTraffic, ListenerView, ListeningSocket, Proxy, ProxySettings, RateLimitTraffic,
    RouteTraffic, RouteView, TrafficSummary,
};
pub use demand::OtherDemand;
pub use interception::{ClientMark, ClientMarkFuture, ConnectionInterceptor, InterceptionCounts};
pub use limit_exchange::{LimitExchange, LimitSharingStatus};
pub use peer_reports::{DueReports, PeerReports, ReportCounts};
pub use quic::GroupShape;
pub use rate_limit::RateLimitSharing;
pub use request_path::normal_path;
pub use slot_leases::{LeaseStatus, SlotLeases};
pub use ticket_keys::{TicketKeyExchange, TicketKeyStatus};
pub use tls::load_system_roots as system_roots;
