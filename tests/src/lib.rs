//! Harness of the end-to-end tests: the binary as a child process, and clients and endpoints under
//! the full control of a test.
//!
//! The harness does not use Sheave's crates: it sees Sheave from outside, by its command line, its
//! files and its sockets.

/// HTTP/1.1 messages with a strict parser.
pub mod http1;
/// Bodies of any size that can be checked without keeping them.
pub mod payload;
/// Seeded pseudo-random numbers.
pub mod random;
/// Certificate authorities and the certificates that they issue.
pub mod certificates;
/// TLS clients and servers by rustls.
pub mod tls;
/// TLS sessions of QUIC clients that send something else than the library's.
mod changed_session;
/// TLS clients that send any server name, even an invalid one.
pub mod server_name;
/// HTTP/1.1 client that may send slowly, abort, pipeline or violate the protocol.
pub mod client;
/// HTTP/1.1 server with a configurable behaviour; it records the facts that tests assert.
pub mod endpoint;
/// HTTP/2 by the crate `h2`.
pub mod http2;
/// HTTP/3 by the crates `quinn` and `h3`, and frame by frame.
pub mod http3;
/// HTTP/2 frame by frame, for sequences that no library sends.
pub mod frames;
/// gRPC, as far as the tests need it.
pub mod grpc;
/// Client of KEDA's external scaler interface.
pub mod keda;
/// Collector of traces.
pub mod collector;
/// DNS server whose records a test sets.
pub mod dns;
/// TCP and UDP servers without HTTP.
pub mod raw;
/// Lossy line for UDP, between clients and a server.
pub mod udp_relay;
/// Snippets of ingress-nginx, and the answers of nginx.
pub mod nginx_rules;
/// Gateway API objects as JSON, which is also YAML.
pub mod objects;
/// Configuration directory with atomic file updates.
pub mod configuration;
/// The binary as a child process.
pub mod sheave;
/// Client of the binary's admin API.
pub mod admin;
/// Standard fixture: endpoints, their configuration, and the binary in front of them.
pub mod fixture;
/// Load generator: many clients with the same request pattern.
pub mod load;
/// Memory cost of idle connections.
pub mod idle;
/// CPU contention on the machine, which would distort timings.
pub mod machine;
/// Bounded waits for a condition.
pub mod waiting;

pub use client::{Http1TestClient, Http1TestResponse};
pub use configuration::ConfigDirectory;
pub use endpoint::{ConnectionReuse, Endpoint, EndpointBehaviour, ServeStep};
pub use fixture::HttpFixture;
pub use http1::Http1Error;
pub use sheave::SheaveProcess;
pub use waiting::{eventually, within};

/// Result of a test.
pub type Result<T = (), E = anyhow::Error> = std::result::Result<T, E>;
