//! Clusters: the policy of load balancing of a backend, its limits, and the protocol of its endpoints.

use std::collections::HashMap;

use balance::Algorithm;
use gateway::snapshot::{Backend, BackendSettings, EndpointProtocol};

use super::tls::endpoint_socket;
use crate::message::{
    AnyMessage, CircuitBreakers, ClusterResource, CommonLbConfig, ConfigSource, EdsClusterConfig,
    HttpProtocolOptions, HttpVersions, LeastRequest, LoadBalancingPolicy, MaglevHash, PercentValue,
    RandomChoice, RequestThresholds, RetryShare, RingHash, RoundRobin, SlowStartConfig,
    UInt64Value,
};
use crate::name::{self, UNRESOLVED};
use crate::translate::cluster::{
    CHOICE_COUNT, MIN_RING_SIZE, UNLIMITED, max_requests, outlier_detection, slow_start,
};

/// Returns the Cluster of a backend.
pub(crate) fn cluster(backend: &Backend) -> ClusterResource {
    let settings = &backend.settings;
    let slow_start = settings.health.slow_start.map(slow_start);
    let retry = &settings.retry;
    let thresholds = RequestThresholds {
        // Without limits of their own, they would be 1,024, and 3 retries.
        max_connections: Some(u32::MAX.into()),
        max_pending_requests: Some(u32::MAX.into()),
        max_requests: Some(max_requests(backend).unwrap_or(UNLIMITED).into()),
        retry_budget: Some(RetryShare {
            budget_percent: Some(PercentValue { value: f64::from(retry.budget_percent.min(100)) }),
            min_retry_concurrency: Some(retry.budget_floor_per_second().into()),
        }),
    };
    let options = AnyMessage::of(HttpProtocolOptions::NAME, &protocol_options(settings));
    ClusterResource {
        connect_timeout: Some(settings.connect_timeout.into()),
        circuit_breakers: Some(CircuitBreakers { thresholds: vec![thresholds] }),
        typed_extension_protocol_options: HashMap::from([(
            HttpProtocolOptions::NAME.to_owned(),
            options,
        )]),
        outlier_detection: settings.health.passive.and_then(outlier_detection),
        transport_socket: settings.tls.as_deref().map(|it| endpoint_socket(it, alpn(settings))),
        ..resource(&name::cluster(&backend.key), policy(settings.algorithm, slow_start))
    }
}

/// Returns the Cluster of references that cannot be resolved.
pub(crate) fn unresolved_cluster() -> ClusterResource {
    resource(UNRESOLVED, policy(Algorithm::RoundRobin, None))
}

fn resource(name: &str, policy: LoadBalancingPolicy) -> ClusterResource {
    ClusterResource {
        name: name.to_owned(),
        r#type: ClusterResource::EDS,
        eds_cluster_config: Some(EdsClusterConfig {
            eds_config: Some(ConfigSource::same_stream()),
        }),
        // That health is ignored if no endpoint is healthy is in the endpoints already.
        common_lb_config: Some(CommonLbConfig {
            healthy_panic_threshold: Some(PercentValue { value: 0.0 }),
        }),
        load_balancing_policy: Some(policy),
        ..ClusterResource::default()
    }
}

/// Returns the protocol of connections to endpoints. If nothing says what they speak, it is that of the request: the
/// endpoint would have got it in that one.
fn protocol_options(settings: &BackendSettings) -> HttpProtocolOptions {
    let mut options = HttpProtocolOptions::default();
    match settings.protocol {
        _ if settings.protocol_is_assumed => {
            options.use_request_protocol_config = Some(HttpVersions::ANY);
        }
        EndpointProtocol::Http1 => options.explicit_http_config = Some(HttpVersions::HTTP1),
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => {
            options.explicit_http_config = Some(HttpVersions::HTTP2);
        }
    }
    options
}

/// Returns the protocols that TLS offers; none if they are those of the request.
fn alpn(settings: &BackendSettings) -> Vec<String> {
    match settings.protocol {
        _ if settings.protocol_is_assumed => Vec::new(),
        EndpointProtocol::Http1 => vec!["http/1.1".to_owned()],
        EndpointProtocol::Http2 | EndpointProtocol::Http3 => vec!["h2".to_owned()],
    }
}

/// Returns the policy. Envoy has no locality-weighted one for each of them, and needs none: all endpoints of a priority
/// get shares by their weights.
fn policy(algorithm: Algorithm, slow_start_config: Option<SlowStartConfig>) -> LoadBalancingPolicy {
    let list = LoadBalancingPolicy::default();
    match algorithm {
        Algorithm::LeastLoad | Algorithm::PeakEwma => {
            let choice_count = Some(CHOICE_COUNT.into());
            list.or(LeastRequest::NAME, &LeastRequest { choice_count, slow_start_config })
        }
        Algorithm::RoundRobin => list.or(RoundRobin::NAME, &RoundRobin { slow_start_config }),
        Algorithm::Random => list.or(RandomChoice::NAME, &RandomChoice {}),
        Algorithm::ConsistentHash => {
            let ring = RingHash {
                hash_function: RingHash::XX_HASH,
                minimum_ring_size: Some(UInt64Value { value: MIN_RING_SIZE }),
            };
            list.or(RingHash::NAME, &ring)
        }
        Algorithm::Maglev => list.or(MaglevHash::NAME, &MaglevHash {}),
    }
}
