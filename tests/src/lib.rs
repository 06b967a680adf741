//! What end-to-end tests share: the binary as a child process, clients and endpoints that do exactly what a test says.
//!
//! Nothing here knows Sheave's crates: it is seen from outside, by its command line, its files and its sockets.

/// HTTP/1.1 messages, read strictly.
pub mod http1;
/// Bodies of any size that can be checked without keeping them.
pub mod payload;
/// Numbers that look random and repeat with the seed.
pub mod random;
/// Certificates, and who signs them.
pub mod certificates;
/// TLS by rustls.
pub mod tls;
/// TLS clients whose server name is sent as it is written.
pub mod server_name;
/// A client that may send slowly, abort, pipeline or be wrong.
pub mod client;
/// A server with a behaviour, which keeps the truth that tests assert on.
pub mod endpoint;
/// HTTP/2 by the crate `h2`.
pub mod http2;
/// HTTP/3 by the crates `quinn` and `h3`, and frame by frame.
pub mod http3;
/// HTTP/2 frame by frame, for what no library would send.
pub mod frames;
/// gRPC, as far as tests look at it.
pub mod grpc;
/// A client of KEDA's interface for scalers.
pub mod keda;
/// A name server that says what a test tells it.
pub mod dns;
/// Servers that know no HTTP.
pub mod raw;
/// Gateway API objects as JSON, which is YAML too.
pub mod objects;
/// A directory of configuration, edited as a careful person would.
pub mod configuration;
/// The binary as a child process.
pub mod sheave;
/// What the binary says of itself over its admin address.
pub mod admin;
/// The usual arrangement: endpoints, their configuration, and the binary in front of them.
pub mod fixture;
/// Many clients that do the same.
pub mod load;
/// What connections cost that do nothing.
pub mod idle;
/// Whether the machine can tell.
pub mod machine;
/// Waiting for something to become true.
pub mod waiting;

pub use client::{Http1TestClient, Http1TestResponse};
pub use configuration::ConfigDirectory;
pub use endpoint::{ConnectionReuse, Endpoint, EndpointBehaviour, ServeStep};
pub use fixture::HttpFixture;
pub use http1::Http1Error;
pub use sheave::SheaveProcess;
pub use waiting::{eventually, within};

/// What a test returns.
pub type Result<T = (), E = anyhow::Error> = std::result::Result<T, E>;
