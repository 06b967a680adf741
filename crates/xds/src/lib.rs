//! Control plane of gRPC clients that balance each call themselves (xDS, "proxyless gRPC"), and of Envoys.
//!
//! [`translate()`] makes the resources of the xDS transport protocol from a Snapshot; it is a pure function. A
//! [`ResourcePublisher`] keeps them up to date as endpoints and their health change, and [`DiscoveryService`] serves
//! them: a client gets the resources that it names, or all Listeners and Clusters, and again what of them has changed.
//! It chooses between the variants of the protocol, the state of the world and the incremental one.
//!
//! # Bounds
//!
//! [`MAX_CLIENTS`] streams, [`MAX_NAMES`] names of [`MAX_NAME_BYTES`] for each type of resource and stream, requests of
//! [`MAX_REQUEST_BYTES`] with [`MAX_KNOWN_RESOURCES`] initial versions. A stream has at most one response of each type
//! that the client has not acknowledged; a client that does not acknowledge within [`ACKNOWLEDGE_TIMEOUT`] is
//! disconnected. Of what clients say, the newest [`MAX_REJECTIONS`] messages are kept, shortened.
//!
//! [`LoadReportService`] takes what clients report of their load: reports of [`MAX_REPORTED_CLUSTERS`] clusters, each
//! [`REPORT_INTERVAL`], of which requests in progress count for [`REPORT_LIFETIME`].
//!
//! The limit of a cluster is divided among its clients by the demand that they report
//! ([`ResourcePublisher::divide_limits`]). The caller says which connection a client has, as the [`ConnectionNumber`] of
//! its [`Connected`](tonic::transport::server::Connected).
//!
//! The crate knows no socket, no flag, no certificate and no metric: the caller serves [`DiscoveryService`], and reads
//! the [`ServerStatus`].

/// Messages of xDS, as far as they are used.
mod message;
/// Names of resources.
mod name;
/// Translation of a Snapshot into resources.
mod translate;
/// A client, as it introduces itself.
mod client;
/// Requests and responses without the variant of the protocol.
mod exchange;
/// Resources with their versions.
mod table;
/// Subscriptions of one client, without its connection.
mod subscription;
/// Limits of clusters, divided among clients.
mod limit;
/// Load that clients report.
mod load;
/// Resources that clients reject now.
mod rejection;
/// The state of the server, and its counts.
mod status;
/// The server.
mod server;
/// The bootstrap file of clients.
mod bootstrap;

pub use bootstrap::{
    BootstrapSettings, ClientCredentials, EnvoySettings, InvalidServer, bootstrap, envoy_bootstrap,
};
pub use limit::{CompetingDemand, ConnectionNumber, LimitReplicas};
pub use load::{ClusterLoad, LoadStatus, MAX_REPORTED_CLUSTERS, REPORT_INTERVAL, REPORT_LIFETIME};
pub use message::ResourceType;
pub use rejection::REJECTION_HOLD;
pub use server::{
    ACKNOWLEDGE_TIMEOUT, DiscoveryService, LoadReportService, MAX_CLIENTS, MAX_REQUEST_BYTES,
};
pub use status::{MAX_REJECTIONS, ResponseRejection, ServerCounts, ServerStatus};
pub use subscription::{MAX_KNOWN_RESOURCES, MAX_NAME_BYTES, MAX_NAMES};
pub use table::{EndpointHealth, ResourcePublisher};
pub use translate::{MAX_FINDINGS, TranslatedResources, TranslationFinding, translate};
