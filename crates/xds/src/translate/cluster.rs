//! Clusters: the policy of load balancing of a backend, and its limit.

use std::collections::BTreeSet;

use balance::Algorithm;
use balance::health::{PassiveSettings, SlowStartSettings};
use gateway::snapshot::{AffinitySettings, Backend, BackendSettings};

use super::{TranslationFinding, tls};
use crate::message::{
    CircuitBreakers, ClusterLoadAssignment, ClusterResource, ConfigSource, EdsClusterConfig,
    LeastRequest, LoadBalancingPolicy, OutlierDetection, PercentValue, RequestThresholds, RingHash,
    RoundRobin, SlowStartConfig, UInt64Value, WeightedRoundRobin, WrrLocality,
};
use crate::name::{self, UNRESOLVED};

/// The number of endpoints that a client compares: power of two choices.
pub(super) const CHOICE_COUNT: u32 = 2;
/// The least number of places on the ring of hashes.
pub(super) const MIN_RING_SIZE: u64 = 1_024;

/// The limit of a Cluster without one: a client would keep to 1,024.
pub(super) const UNLIMITED: u32 = u32::MAX;

/// Returns the Cluster of a backend.
pub(crate) fn cluster(backend: &Backend) -> ClusterResource {
    let BackendSettings { algorithm, health, .. } = &backend.settings;
    let cluster = resource(
        &name::cluster(&backend.key),
        max_requests(backend).unwrap_or(UNLIMITED),
        policy(*algorithm, health.slow_start.map(slow_start)),
    );
    ClusterResource { outlier_detection: health.passive.and_then(outlier_detection), ..cluster }
}

/// Returns the Cluster for clients with certificates; `None`: it is the same, as the endpoints have no TLS.
pub(crate) fn encrypted_cluster(backend: &Backend) -> Option<ClusterResource> {
    let transport_socket = Some(tls::endpoint_socket(backend.settings.tls.as_deref()?));
    Some(ClusterResource { transport_socket, ..cluster(backend) })
}

/// Returns the limits of all endpoints together, which clients share; `None`: there are none.
pub(crate) fn max_requests(backend: &Backend) -> Option<u32> {
    let cap = backend.settings.max_in_flight_per_endpoint;
    let endpoints = u32::try_from(backend.endpoints.len()).unwrap_or(u32::MAX).max(1);
    cap.map(|cap| cap.get().saturating_mul(endpoints))
}

/// Returns the field of a Cluster that limits the requests of a client in flight, alone.
pub(crate) fn limit_field(max_requests: u32) -> ClusterResource {
    let thresholds = RequestThresholds {
        max_requests: Some(max_requests.into()),
        ..RequestThresholds::default()
    };
    ClusterResource {
        circuit_breakers: Some(CircuitBreakers { thresholds: vec![thresholds] }),
        ..ClusterResource::default()
    }
}

/// Returns the Cluster of references that cannot be resolved.
pub(crate) fn unresolved_cluster() -> ClusterResource {
    resource(UNRESOLVED, UNLIMITED, policy(Algorithm::RoundRobin, None))
}

/// Returns the endpoints of that: none.
pub(crate) fn unresolved_assignment() -> ClusterLoadAssignment {
    ClusterLoadAssignment { cluster_name: UNRESOLVED.to_owned(), endpoints: Vec::new() }
}

fn resource(name: &str, max_requests: u32, policy: LoadBalancingPolicy) -> ClusterResource {
    ClusterResource {
        name: name.to_owned(),
        r#type: ClusterResource::EDS,
        eds_cluster_config: Some(EdsClusterConfig {
            eds_config: Some(ConfigSource::same_stream()),
        }),
        load_balancing_policy: Some(policy),
        lrs_server: Some(ConfigSource::same_server()),
        ..limit_field(max_requests)
    }
}

/// Returns the policies, of which a client uses the first that it knows. Each list ends with one that all know.
fn policy(algorithm: Algorithm, slow_start_config: Option<SlowStartConfig>) -> LoadBalancingPolicy {
    let list = LoadBalancingPolicy::default;
    let least_request = LeastRequest { choice_count: Some(CHOICE_COUNT.into()), slow_start_config };
    let round_robin = RoundRobin { slow_start_config };
    // A client without the first weighs endpoints by their own reports, if they send any.
    let by_load = list()
        .or(LeastRequest::NAME, &least_request)
        .or(WeightedRoundRobin::NAME, &WeightedRoundRobin {})
        .or(RoundRobin::NAME, &round_robin);
    let in_turn = list().or(RoundRobin::NAME, &round_robin);
    let by_locality = |policy| WrrLocality { endpoint_picking_policy: Some(policy) };
    match algorithm {
        Algorithm::LeastLoad | Algorithm::PeakEwma => {
            list().or(WrrLocality::NAME, &by_locality(by_load))
        }
        Algorithm::RoundRobin | Algorithm::Random => {
            list().or(WrrLocality::NAME, &by_locality(in_turn))
        }
        Algorithm::ConsistentHash | Algorithm::Maglev => {
            let ring = RingHash {
                hash_function: RingHash::XX_HASH,
                minimum_ring_size: Some(UInt64Value { value: MIN_RING_SIZE }),
            };
            list().or(RingHash::NAME, &ring).or(WrrLocality::NAME, &by_locality(in_turn))
        }
    }
}

pub(super) fn slow_start(settings: SlowStartSettings) -> SlowStartConfig {
    SlowStartConfig {
        slow_start_window: Some(settings.window.into()),
        min_weight_percent: Some(PercentValue { value: settings.floor_percent.into() }),
    }
}

/// Returns the ejection of endpoints that fail more requests than others. If failures of connections alone eject, clients
/// need none: they do not use an endpoint that they cannot reach.
pub(super) fn outlier_detection(settings: PassiveSettings) -> Option<OutlierDetection> {
    let count = |count: usize| Some(u32::try_from(count).unwrap_or(u32::MAX).into());
    let volume = u32::try_from(settings.outlier_minimum_requests).unwrap_or(u32::MAX);
    settings.server_errors.then(|| OutlierDetection {
        consecutive_5xx: Some(settings.consecutive_failures.get().into()),
        interval: Some(settings.interval.into()),
        base_ejection_time: Some(settings.base_ejection_time.into()),
        max_ejection_percent: Some(settings.max_ejection_percent.min(100).into()),
        enforcing_success_rate: Some(100.into()),
        success_rate_minimum_hosts: count(settings.outlier_minimum_endpoints),
        success_rate_request_volume: Some(volume.into()),
        success_rate_stdev_factor: Some(
            settings.outlier_deviation_percent.saturating_mul(10).into(),
        ),
        max_ejection_time: Some(settings.max_ejection_time.into()),
    })
}

/// Adds the settings of a backend that clients do not follow.
pub(super) fn findings(backend: &Backend, findings: &mut BTreeSet<TranslationFinding>) {
    let settings = &backend.settings;
    let has_tokens = settings.affinity.as_ref().is_some_and(AffinitySettings::has_tokens);
    let affinity = has_tokens || settings.has_rule_affinity;
    let ignored = [
        (
            settings.max_in_flight_per_endpoint.is_some() || settings.auto_limit.is_some(),
            "a limit of each endpoint is none of gRPC clients: they share the limits of all endpoints together, \
             wherever their requests go",
        ),
        (affinity, "session affinity is not kept by gRPC clients"),
        (
            settings.tls.as_ref().is_some_and(|it| it.client.is_some()),
            "the client certificate of a Gateway: clients and Envoys do not have its key",
        ),
    ];
    let subject = name::cluster(&backend.key);
    findings.extend(ignored.into_iter().filter(|(is_there, _)| *is_there).map(|(_, message)| {
        TranslationFinding { subject: subject.clone(), message: message.to_owned() }
    }));
}
