//! Clusters, and their policies of load balancing.

use std::collections::HashMap;

use prost::Message;

use super::discovery::ConfigSource;
use super::tls::TransportSocket;
use super::well_known::{AnyMessage, EmptyMessage, TimeSpan, UInt32Value, UInt64Value};

/// `Cluster`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct ClusterResource {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(int32, tag = "2")]
    pub(crate) r#type: i32,
    #[prost(message, optional, tag = "3")]
    pub(crate) eds_cluster_config: Option<EdsClusterConfig>,
    #[prost(message, optional, tag = "4")]
    pub(crate) connect_timeout: Option<TimeSpan>,
    #[prost(message, optional, tag = "10")]
    pub(crate) circuit_breakers: Option<CircuitBreakers>,
    #[prost(message, optional, tag = "19")]
    pub(crate) outlier_detection: Option<OutlierDetection>,
    /// TLS to endpoints.
    #[prost(message, optional, tag = "24")]
    pub(crate) transport_socket: Option<TransportSocket>,
    #[prost(message, optional, tag = "27")]
    pub(crate) common_lb_config: Option<CommonLbConfig>,
    #[prost(map = "string, message", tag = "36")]
    pub(crate) typed_extension_protocol_options: HashMap<String, AnyMessage>,
    #[prost(message, optional, tag = "41")]
    pub(crate) load_balancing_policy: Option<LoadBalancingPolicy>,
    /// The server to which clients report the load of the cluster.
    #[prost(message, optional, tag = "42")]
    pub(crate) lrs_server: Option<ConfigSource>,
}

impl ClusterResource {
    /// The type of a cluster whose endpoints are a resource of their own.
    pub(crate) const EDS: i32 = 3;
}

/// The source of the endpoints.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct EdsClusterConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) eds_config: Option<ConfigSource>,
}

/// Limits of the cluster, for each client.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct CircuitBreakers {
    #[prost(message, repeated, tag = "1")]
    pub(crate) thresholds: Vec<RequestThresholds>,
}

/// `Thresholds`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RequestThresholds {
    #[prost(message, optional, tag = "2")]
    pub(crate) max_connections: Option<UInt32Value>,
    #[prost(message, optional, tag = "3")]
    pub(crate) max_pending_requests: Option<UInt32Value>,
    #[prost(message, optional, tag = "4")]
    pub(crate) max_requests: Option<UInt32Value>,
    #[prost(message, optional, tag = "8")]
    pub(crate) retry_budget: Option<RetryShare>,
}

/// `RetryBudget`: the retries of a cluster at one time.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RetryShare {
    #[prost(message, optional, tag = "1")]
    pub(crate) budget_percent: Option<PercentValue>,
    #[prost(message, optional, tag = "2")]
    pub(crate) min_retry_concurrency: Option<UInt32Value>,
}

/// Settings of all policies of load balancing.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct CommonLbConfig {
    /// The share of healthy endpoints below which an Envoy ignores health.
    #[prost(message, optional, tag = "1")]
    pub(crate) healthy_panic_threshold: Option<PercentValue>,
}

/// `envoy.extensions.upstreams.http.v3.HttpProtocolOptions`: the protocol of connections to endpoints. One of the fields
/// is set.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HttpProtocolOptions {
    #[prost(message, optional, tag = "3")]
    pub(crate) explicit_http_config: Option<HttpVersions>,
    /// The protocol of the request.
    #[prost(message, optional, tag = "4")]
    pub(crate) use_request_protocol_config: Option<HttpVersions>,
}

impl HttpProtocolOptions {
    /// The name of the type.
    pub(crate) const NAME: &str = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions";
}

/// Versions of HTTP that are used.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct HttpVersions {
    #[prost(message, optional, tag = "1")]
    pub(crate) http_protocol_options: Option<EmptyMessage>,
    #[prost(message, optional, tag = "2")]
    pub(crate) http2_protocol_options: Option<EmptyMessage>,
}

impl HttpVersions {
    /// HTTP/1.1.
    pub(crate) const HTTP1: Self =
        Self { http_protocol_options: Some(EmptyMessage {}), http2_protocol_options: None };
    /// HTTP/2.
    pub(crate) const HTTP2: Self =
        Self { http_protocol_options: None, http2_protocol_options: Some(EmptyMessage {}) };
    /// Both.
    pub(crate) const ANY: Self = Self {
        http_protocol_options: Some(EmptyMessage {}),
        http2_protocol_options: Some(EmptyMessage {}),
    };
}

/// Ejection of endpoints by the results of their requests. gRPC clients have the part by success rates (gRFC A50).
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct OutlierDetection {
    #[prost(message, optional, tag = "1")]
    pub(crate) consecutive_5xx: Option<UInt32Value>,
    #[prost(message, optional, tag = "2")]
    pub(crate) interval: Option<TimeSpan>,
    #[prost(message, optional, tag = "3")]
    pub(crate) base_ejection_time: Option<TimeSpan>,
    #[prost(message, optional, tag = "4")]
    pub(crate) max_ejection_percent: Option<UInt32Value>,
    #[prost(message, optional, tag = "6")]
    pub(crate) enforcing_success_rate: Option<UInt32Value>,
    #[prost(message, optional, tag = "7")]
    pub(crate) success_rate_minimum_hosts: Option<UInt32Value>,
    #[prost(message, optional, tag = "8")]
    pub(crate) success_rate_request_volume: Option<UInt32Value>,
    /// In thousandths of the standard deviation.
    #[prost(message, optional, tag = "9")]
    pub(crate) success_rate_stdev_factor: Option<UInt32Value>,
    #[prost(message, optional, tag = "21")]
    pub(crate) max_ejection_time: Option<TimeSpan>,
}

/// Policies of load balancing. A client uses the first that it knows (gRFC A52).
#[derive(Clone, PartialEq, Message)]
pub(crate) struct LoadBalancingPolicy {
    #[prost(message, repeated, tag = "1")]
    pub(crate) policies: Vec<PolicyEntry>,
}

/// `LoadBalancingPolicy.Policy`.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct PolicyEntry {
    #[prost(message, optional, tag = "4")]
    pub(crate) typed_extension_config: Option<TypedExtensionConfig>,
}

/// A policy with its name.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct TypedExtensionConfig {
    #[prost(string, tag = "1")]
    pub(crate) name: String,
    #[prost(message, optional, tag = "2")]
    pub(crate) typed_config: Option<AnyMessage>,
}

impl LoadBalancingPolicy {
    /// Appends a policy that is used if the client knows none before it.
    pub(crate) fn or(mut self, name: &str, policy: &impl Message) -> Self {
        let typed_config = Some(AnyMessage::of(name, policy));
        let config = TypedExtensionConfig { name: name.to_owned(), typed_config };
        self.policies.push(PolicyEntry { typed_extension_config: Some(config) });
        self
    }
}

/// `envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality`: localities by weight, endpoints by another
/// policy.
#[derive(Clone, PartialEq, Message)]
pub(crate) struct WrrLocality {
    #[prost(message, optional, tag = "1")]
    pub(crate) endpoint_picking_policy: Option<LoadBalancingPolicy>,
}

impl WrrLocality {
    /// The name of the type.
    pub(crate) const NAME: &str =
        "envoy.extensions.load_balancing_policies.wrr_locality.v3.WrrLocality";
}

/// `envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RoundRobin {
    #[prost(message, optional, tag = "1")]
    pub(crate) slow_start_config: Option<SlowStartConfig>,
}

impl RoundRobin {
    /// The name of the type.
    pub(crate) const NAME: &str =
        "envoy.extensions.load_balancing_policies.round_robin.v3.RoundRobin";
}

/// `envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct LeastRequest {
    #[prost(message, optional, tag = "1")]
    pub(crate) choice_count: Option<UInt32Value>,
    #[prost(message, optional, tag = "3")]
    pub(crate) slow_start_config: Option<SlowStartConfig>,
}

impl LeastRequest {
    /// The name of the type.
    pub(crate) const NAME: &str =
        "envoy.extensions.load_balancing_policies.least_request.v3.LeastRequest";
}

/// `envoy.extensions.load_balancing_policies.random.v3.Random`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RandomChoice {}

impl RandomChoice {
    /// The name of the type.
    pub(crate) const NAME: &str = "envoy.extensions.load_balancing_policies.random.v3.Random";
}

/// `envoy.extensions.load_balancing_policies.maglev.v3.Maglev`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct MaglevHash {}

impl MaglevHash {
    /// The name of the type.
    pub(crate) const NAME: &str = "envoy.extensions.load_balancing_policies.maglev.v3.Maglev";
}

/// `envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct RingHash {
    #[prost(int32, tag = "1")]
    pub(crate) hash_function: i32,
    #[prost(message, optional, tag = "2")]
    pub(crate) minimum_ring_size: Option<UInt64Value>,
}

impl RingHash {
    /// The name of the type.
    pub(crate) const NAME: &str = "envoy.extensions.load_balancing_policies.ring_hash.v3.RingHash";
    /// The hash function that all clients have.
    pub(crate) const XX_HASH: i32 = 1;
}

/// `envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin`: in turn,
/// by what endpoints report of their load (ORCA, gRFC A58); without reports, plainly in turn.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct WeightedRoundRobin {}

impl WeightedRoundRobin {
    /// The name of the type.
    pub(crate) const NAME: &str = "envoy.extensions.load_balancing_policies.client_side_weighted_round_robin.v3.ClientSideWeightedRoundRobin";
}

/// `envoy.extensions.load_balancing_policies.common.v3.SlowStartConfig`. gRPC clients ignore it.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct SlowStartConfig {
    #[prost(message, optional, tag = "1")]
    pub(crate) slow_start_window: Option<TimeSpan>,
    #[prost(message, optional, tag = "3")]
    pub(crate) min_weight_percent: Option<PercentValue>,
}

/// `envoy.type.v3.Percent`.
#[derive(Clone, Copy, PartialEq, Message)]
pub(crate) struct PercentValue {
    #[prost(double, tag = "1")]
    pub(crate) value: f64,
}
