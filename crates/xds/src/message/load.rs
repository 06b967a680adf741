//! `envoy.service.load_stats.v3`, and the reports of `envoy.config.endpoint.v3`.

use prost::Message;

use super::discovery::ClientNode;
use super::well_known::TimeSpan;

/// A report of a client; the first request of a stream has none.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LoadStatsRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) node: Option<ClientNode>,
    #[prost(message, repeated, tag = "2")]
    pub(crate) cluster_stats: Vec<ClusterStats>,
}

/// Settings of the reports of a client.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LoadStatsResponse {
    #[prost(message, optional, tag = "2")]
    pub(crate) load_reporting_interval: Option<TimeSpan>,
    /// True: of all clusters that name this server for reports.
    #[prost(bool, tag = "4")]
    pub(crate) send_all_clusters: bool,
}

/// Load of a cluster since the last report.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClusterStats {
    #[prost(string, tag = "1")]
    pub(crate) cluster_name: String,
    #[prost(message, repeated, tag = "2")]
    pub(crate) locality_stats: Vec<LocalityStats>,
    /// Requests that the client has not sent: the limit of the cluster was reached.
    #[prost(uint64, tag = "3")]
    pub(crate) total_dropped_requests: u64,
}

/// Load of the endpoints of a locality.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LocalityStats {
    #[prost(uint64, tag = "2")]
    pub(crate) total_successful_requests: u64,
    #[prost(uint64, tag = "3")]
    pub(crate) total_requests_in_progress: u64,
    #[prost(uint64, tag = "4")]
    pub(crate) total_error_requests: u64,
    #[prost(uint64, tag = "8")]
    pub(crate) total_issued_requests: u64,
}
