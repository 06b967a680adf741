//! End-to-end tests: the binary as a process, between real clients and endpoints.
//!
//! They are one program, because each program links the whole harness: TLS, QUIC, HTTP/3 and gRPC.
//! They run at the same time in one process, so a test must not change the state of the process
//! (environment, working directory, limits). `cargo test -p tests --test e2e queue::` runs the tests
//! of one module.

/// Clients and endpoints of HTTP/1.1 against one another: the other tests rely on them.
mod harness;
/// The same for TLS, HTTP/2 and gRPC.
mod protocols;
/// Command line: messages and exit codes.
mod cli;
/// Admin address: health, metrics and state.
mod admin;
/// Traces of requests, as a collector gets them.
mod traces;
/// The dashboard, and the paths that it asks.
mod dashboard;
/// Deployment files: they match the metrics, flags and version of the binary.
mod install;

/// RFC 9110 and RFC 9112 for an intermediary, and the policies of requests.
mod semantics;
/// Tables of what is refused, byte for byte.
mod strict;
/// Requests that another server authorizes.
mod external_auth;
/// HTTP/2 and HTTP/3 with clients: what holds for either version.
mod multiplexed;
/// HTTP/2 with clients and endpoints.
mod http2;
/// HTTP/3 with clients.
mod http3;
/// gRPC and gRPC-Web.
mod grpc;
/// TLS with clients and endpoints, and passthrough by server name.
mod tls;
/// Certificates from files: errors and renewal.
mod certificates;
/// TCP connections without HTTP.
mod tcp;
/// UDP flows.
mod udp;
/// PROXY protocol, received and sent.
mod proxy_protocol;

/// Matching and filters of HTTPRoutes, mirroring and session affinity.
mod routes;
/// Ingresses and their annotations.
mod ingress;
/// Endpoints from DNS.
mod names;
/// Configuration changes under load.
mod reload;

/// Rate limits of requests.
mod rate_limits;
/// Clients that are allowed and denied by their addresses.
mod client_addresses;
/// Tokens of issuers that requests need.
mod jwt;
/// Limits of the size of bodies.
mod body_limits;
/// Responses in place of those of endpoints.
mod direct_responses;
/// Rewrites, redirects and responses on conditions.
mod request_rules;
/// Pages in place of error responses.
mod error_pages;
/// Compression of responses.
mod compression;
/// Clients that are admitted with their keys.
mod api_keys;
/// Users that are admitted with their passwords.
mod basic_auth;
/// Endpoint selection and connection reuse.
mod choosing;
/// New endpoints under kept-alive connections.
mod join;
/// Connections shared out over the workers.
mod spread;
/// Caps on requests and connections, under every disturbance.
mod exact;
/// Requests that wait, and requests that are refused.
mod queue;
/// Services without endpoints.
mod cold_start;
/// Bodies that arrive slowly: they hold no slot, or keep a rate, or are bounded.
mod slow_bodies;
/// Learned limits and load reports.
mod limits;
/// Metrics for autoscalers, and KEDA's external scaler.
mod scaler;
/// One limit shared by several replicas.
mod replicas;
/// Slots that replicas lease to one another.
mod leased_slots;
/// What replicas report to one another.
mod peer_reports;
/// The xDS server.
mod xds;

/// Outlier detection and probes.
mod health;
/// Namespaces whose Services name the same endpoints.
mod namespaces;
/// Endpoints that die, fall silent or fail under load.
mod lost_endpoints;
/// Endpoints that close connections while a request is on its way.
mod stale;
/// Known attacks on HTTP and TLS.
mod attacks;
/// Memory and file descriptors of the process under attack.
mod resources;
/// Addresses that nodes announce by BGP.
mod bgp;
/// Graceful shutdown.
mod drain;
/// Comparison of two servers by an access log.
mod compare;
/// Upgrade in place.
mod upgrade;
