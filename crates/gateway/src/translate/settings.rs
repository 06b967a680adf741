//! Settings of policies: fills in the defaults, and validates combinations of fields.

use std::num::{NonZeroU16, NonZeroU32};
use std::sync::Arc;

use balance::health::{ActiveSettings, HealthSettings, PassiveSettings, SlowStartSettings};
use balance::retry::{RetrySettings, RetryWindow};
use balance::{LimitSettings, PriorityLevel};

use super::report::ValidationFault;
use crate::objects::{
    self, ActiveHealth, AffinityType, AutoLimit, BackendClients, BackendPolicySpec,
    BackendProtocol, BackendQueue, BackendRetry, ClientHttp3, ClientPolicySpec, CookieSecurity,
    EjectOn, GrpcStatus, HashOn, HashOnType, MaxInFlight, PassiveHealth, PriorityValue, ProbeType,
    QueueFairness, QueuePriority, RoutePriority,
};
use crate::snapshot::{
    AffinityCookie, AffinitySettings, BackendSettings, ClientSettings, CongestionControl,
    EndpointProtocol, HashKey, Http3Settings, PathSettings, PriorityHeader, PriorityRules,
    ProbeSettings, ProxyProtocol, ProxyVersion,
};
use crate::status::ConditionReason;

/// Default queue length if there is a concurrency limit.
const QUEUE_WHEN_CAPPED: u32 = 1024;
/// Default cookie or header name of session affinity.
const AFFINITY_NAME: &str = "sheave-endpoint";
/// Default statuses of a successful probe.
const GOOD_STATUSES: (u16, u16) = (200, 399);

/// Settings of a Service without a policy.
impl Default for BackendSettings {
    fn default() -> Self {
        backend_settings(&BackendPolicySpec::for_targets(Vec::new()), "")
    }
}

/// Settings of a Gateway without a policy.
impl Default for ClientSettings {
    fn default() -> Self {
        client_settings(&ClientPolicySpec::for_targets(Vec::new()))
    }
}

/// Returns the settings of a BackendPolicy. Fields in error are left out.
///
/// `namespace` is the namespace of the policy.
pub(super) fn backend_settings(spec: &BackendPolicySpec, namespace: &str) -> BackendSettings {
    let (cap, auto_limit) = match spec.max_in_flight_per_endpoint {
        Some(MaxInFlight::Number(number)) => (NonZeroU32::new(number), None),
        Some(MaxInFlight::Auto) => (None, Some(limits(spec.auto_limit))),
        None => (None, None),
    };
    let is_capped = cap.is_some() || auto_limit.is_some();
    let default_queue = if is_capped { QUEUE_WHEN_CAPPED } else { 0 };
    let probe = spec.health.active.as_ref().map(probe);
    BackendSettings {
        algorithm: match spec.algorithm {
            objects::Algorithm::LeastLoad => balance::Algorithm::LeastLoad,
            objects::Algorithm::RoundRobin => balance::Algorithm::RoundRobin,
            objects::Algorithm::Random => balance::Algorithm::Random,
            objects::Algorithm::PeakEwma => balance::Algorithm::PeakEwma,
            objects::Algorithm::ConsistentHash => balance::Algorithm::ConsistentHash,
            objects::Algorithm::Maglev => balance::Algorithm::Maglev,
        },
        hash_key: spec.hash_on.as_ref().and_then(hash_key).unwrap_or_default(),
        affinity: spec.affinity.as_ref().map(affinity),
        has_rule_affinity: false,
        service_uid: None,
        prefers_same_zone: spec.prefer_same_zone.unwrap_or(false),
        preferred_location: None,
        max_in_flight_per_endpoint: cap,
        auto_limit,
        heed_refusals: spec.heed_refusals,
        queue_max_requests: spec.queue.max_requests.unwrap_or(default_queue),
        queue_timeout: spec.queue.timeout.0,
        queue_target: spec.queue.target.map(|target| target.0),
        queue_fair: spec.queue.fairness == QueueFairness::PerRoute,
        queue_priority: priorities(&spec.queue.priority, namespace).map(Arc::new),
        max_incomplete_per_connection: limit(spec.clients.max_incomplete),
        max_requests_per_address: limit(spec.clients.max_per_address),
        overload_status: spec.overload.status,
        overload_retry_after: spec.overload.retry_after.0,
        connect_timeout: spec.timeouts.connect.0,
        request_timeout: spec.timeouts.request.map(|timeout| timeout.0),
        per_attempt_timeout: spec.timeouts.per_attempt.map(|timeout| timeout.0),
        idle_timeout: spec.timeouts.idle.0,
        unacknowledged_timeout: spec.timeouts.unacknowledged.0,
        abandoned_timeout: spec.timeouts.abandoned.0,
        connection_max_age: spec.connections.max_age.map(|age| age.0),
        connection_max_requests: limit(spec.connections.max_requests),
        connection_idle_timeout: spec.connections.idle_timeout.0,
        connection_max: limit(spec.connections.max),
        retry: retry(&spec.retry),
        retry_statuses: sorted(&spec.retry.statuses),
        health: health(spec),
        probe,
        proxy_protocol: spec.proxy_protocol.map(|version| match version {
            objects::BackendProxyProtocol::V1 => ProxyVersion::V1,
            objects::BackendProxyProtocol::V2 => ProxyVersion::V2,
        }),
        protocol: EndpointProtocol::Http1,
        protocol_is_assumed: false,
        tls: None,
        retry_grpc_statuses: sorted(&grpc_codes(&spec.retry.grpc_statuses)),
    }
}

/// Converts an optional limit. The schema rejects 0.
fn limit(most: Option<u32>) -> Option<NonZeroU32> {
    most.and_then(NonZeroU32::new)
}

fn limits(AutoLimit { min, max, start }: AutoLimit) -> LimitSettings {
    let max = max.max(min);
    LimitSettings { min, max, start: start.clamp(min, max) }
}

/// Returns the settings of a ClientPolicy.
pub(super) fn client_settings(spec: &ClientPolicySpec) -> ClientSettings {
    ClientSettings {
        max_connections: spec.connections.max,
        connection_max_age: spec.connections.max_age.map(|age| age.0),
        connection_idle_timeout: spec.connections.idle_timeout.0,
        max_head_bytes: spec.limits.head_bytes,
        max_header_fields: spec.limits.header_fields,
        max_target_bytes: spec.limits.target_bytes,
        max_body_bytes: spec.limits.body_bytes,
        min_body_rate: NonZeroU32::new(spec.limits.min_body_rate),
        forwards_unchanged: false,
        appends_forwarded_for: false,
        keeps_underscores: spec.headers.with_underscore == objects::UntrustedFields::Keep,
        keeps_proxy_fields: spec.headers.proxy_fields == objects::UntrustedFields::Keep,
        path: PathSettings {
            normalise: spec.path.normalize,
            merge_slashes: spec.path.merge_slashes,
            reject_escaped_slashes: spec.path.escaped_slashes == objects::EscapedSlashes::Reject,
        },
        head_timeout: spec.timeouts.head.0,
        body_timeout: spec.timeouts.body.0,
        body_buffering_timeout: spec.timeouts.body_buffering.0,
        trusted_proxies: spec.trusted_proxies.iter().map(|network| network.0).collect(),
        proxy_protocol: match spec.proxy_protocol {
            objects::ClientProxyProtocol::Off => ProxyProtocol::Off,
            objects::ClientProxyProtocol::FromTrusted => ProxyProtocol::FromTrusted,
            objects::ClientProxyProtocol::Required => ProxyProtocol::Required,
        },
        stream_idle_timeout: spec.timeouts.stream.0,
        flow_idle_timeout: spec.timeouts.flow.0,
        http2_max_concurrent_streams: spec.http2.max_concurrent_streams,
    }
}

/// Returns the HTTP/3 settings of a ClientPolicy, or `None` if HTTP/3 is not enabled. HTTP/3 cannot carry a PROXY
/// protocol header, so `proxyProtocol` disables it.
pub(super) fn http3(spec: &ClientPolicySpec) -> Option<Http3Settings> {
    let is_asked_for =
        spec.http3.enabled && spec.proxy_protocol == objects::ClientProxyProtocol::Off;
    is_asked_for.then(|| Http3Settings {
        max_concurrent_streams: spec.http3.max_concurrent_streams,
        zero_rtt: spec.http3.zero_rtt,
        congestion_control: match spec.http3.congestion_control {
            objects::ClientCongestionControl::Cubic => CongestionControl::Cubic,
            objects::ClientCongestionControl::Bbr => CongestionControl::Bbr,
        },
        advertised_port: spec.http3.advertised_port.and_then(NonZeroU16::new),
    })
}

/// Returns all contradictions in a BackendPolicy between values that are allowed individually.
pub(super) fn backend_faults(spec: &BackendPolicySpec) -> Vec<ValidationFault> {
    use objects::Algorithm::{ConsistentHash, LeastLoad, Maglev, PeakEwma, Random, RoundRobin};
    let hashes = match spec.algorithm {
        ConsistentHash | Maglev => true,
        LeastLoad | RoundRobin | Random | PeakEwma => false,
    };
    let mut faults = PolicyFaults::default();
    if let Some(hash_on) = &spec.hash_on {
        faults.when(!hashes, "hashOn", "is only for the algorithms ConsistentHash and Maglev");
        let is_named = needs_name(hash_on.kind);
        faults.when(is_named && hash_on.name.is_none(), "hashOn.name", "is missing");
        let surplus = !is_named && hash_on.name.is_some();
        faults.when(surplus, "hashOn.name", "is not for this type");
    }
    if let Some(affinity) = &spec.affinity {
        let (is_cookie, is_source) =
            (affinity.kind == AffinityType::Cookie, affinity.kind == AffinityType::Source);
        faults.when(is_source && affinity.name.is_some(), "affinity.name", "is not for this type");
        let surplus = !is_cookie && affinity.max_age.is_some();
        faults.when(surplus, "affinity.maxAge", "is only for cookies");
        let surplus = !is_cookie && affinity.cookie.is_some();
        faults.when(surplus, "affinity.cookie", "is only for cookies");
    }
    queue_faults(&spec.queue, &mut faults);
    let is_capped = spec.max_in_flight_per_endpoint.is_some() || spec.connections.max.is_some();
    let surplus = !is_capped && spec.clients != BackendClients::default();
    faults.when(surplus, "clients", "needs `maxInFlightPerEndpoint` or `connections.max`");
    let AutoLimit { min, max, start } = spec.auto_limit;
    let is_auto = spec.max_in_flight_per_endpoint == Some(MaxInFlight::Auto);
    let surplus = !is_auto && spec.auto_limit != AutoLimit::default();
    faults.when(surplus, "autoLimit", "is only for `maxInFlightPerEndpoint: auto`");
    faults.when(min > max, "autoLimit.min", "must not be more than `max`");
    let outside = min <= max && !(min..=max).contains(&start);
    faults.when(outside, "autoLimit.start", "must be from `min` to `max`");
    let is_late = spec.retry.backoff_base > spec.retry.backoff_max;
    faults.when(is_late, "retry.backoffBase", "must not be longer than `backoffMax`");
    if let Some(active) = &spec.health.active {
        probe_faults(active, &mut faults);
    }
    if let Some(passive) = &spec.health.passive {
        let is_late = passive.base_ejection_time > passive.max_ejection_time;
        let message = "must not be longer than `maxEjectionTime`";
        faults.when(is_late, "health.passive.baseEjectionTime", message);
    }
    let is_plain = spec.protocol == Some(BackendProtocol::H2c);
    let contradicts = spec.tls.insecure_skip_verify && is_plain;
    faults.when(contradicts, "tls.insecureSkipVerify", "is not allowed with H2C, which has no TLS");
    faults.0
}

/// Returns all contradictions in a ClientPolicy between values that are allowed individually.
pub(super) fn client_faults(spec: &ClientPolicySpec) -> Vec<ValidationFault> {
    let mut faults = PolicyFaults::default();
    let has_header = spec.proxy_protocol != objects::ClientProxyProtocol::Off;
    let message = "needs `trustedProxies`: the header is read only from trusted proxies";
    faults.when(has_header && spec.trusted_proxies.is_empty(), "proxyProtocol", message);
    let ClientHttp3 { enabled, zero_rtt, congestion_control, advertised_port, .. } = &spec.http3;
    let message = "cannot be combined with `proxyProtocol`: HTTP/3 has no PROXY protocol header";
    faults.when(*enabled && has_header, "http3.enabled", message);
    faults.when(*zero_rtt && !enabled, "http3.zeroRtt", "needs `enabled`");
    let is_chosen = *congestion_control != objects::ClientCongestionControl::default();
    faults.when(is_chosen && !enabled, "http3.congestionControl", "needs `enabled`");
    faults.when(advertised_port.is_some() && !enabled, "http3.advertisedPort", "needs `enabled`");
    faults.0
}

fn queue_faults(queue: &BackendQueue, faults: &mut PolicyFaults) {
    let QueuePriority { header, values, .. } = &queue.priority;
    let surplus = header.is_none() && !values.is_empty();
    faults.when(surplus, "queue.priority.values", "needs `header`");
    let mut names: Vec<&str> = values.iter().map(|value| value.value.as_str()).collect();
    names.sort_unstable();
    let twice = names.windows(2).any(|pair| pair[0] == pair[1]);
    faults.when(twice, "queue.priority.values", "names a value twice");
    let is_long = queue.target.is_some_and(|target| target > queue.timeout);
    faults.when(is_long, "queue.target", "must not be longer than `timeout`");
}

#[derive(Default)]
struct PolicyFaults(Vec<ValidationFault>);

impl PolicyFaults {
    fn when(&mut self, is_fault: bool, field: &str, message: &str) {
        if is_fault {
            self.0.push(ValidationFault::new(
                ConditionReason::Invalid,
                format!("spec.{field}"),
                message,
            ));
        }
    }
}

fn probe_faults(active: &ActiveHealth, faults: &mut PolicyFaults) {
    let (is_http, is_grpc) = match active.kind {
        ProbeType::Http => (true, false),
        ProbeType::Tcp => (false, false),
        ProbeType::Grpc => (false, true),
    };
    let parts = [
        (active.path.is_some() && !is_http, "path", "HTTP"),
        (active.min_status.is_some() && !is_http, "minStatus", "HTTP"),
        (active.max_status.is_some() && !is_http, "maxStatus", "HTTP"),
        (active.host.is_some() && !is_http && !is_grpc, "host", "HTTP and GRPC"),
        (active.service.is_some() && !is_grpc, "service", "GRPC"),
    ];
    for (is_surplus, part, of) in parts {
        let field = format!("health.active.{part}");
        faults.when(is_surplus, &field, &format!("is only for type {of}"));
    }
    let (least, most) = good_statuses(active);
    faults.when(least > most, "health.active.minStatus", "must not be above `maxStatus`");
}

fn good_statuses(active: &ActiveHealth) -> (u16, u16) {
    let (least, most) = GOOD_STATUSES;
    (active.min_status.unwrap_or(least), active.max_status.unwrap_or(most))
}

const fn needs_name(kind: HashOnType) -> bool {
    match kind {
        HashOnType::Header | HashOnType::Cookie | HashOnType::QueryParam => true,
        HashOnType::Source | HashOnType::Path | HashOnType::Host => false,
    }
}

fn hash_key(asked: &HashOn) -> Option<HashKey> {
    let name = asked.name.as_deref();
    match asked.kind {
        HashOnType::Source => Some(HashKey::Source),
        HashOnType::Header => name.map(|name| HashKey::Header(name.to_ascii_lowercase().into())),
        HashOnType::Cookie => name.map(|name| HashKey::Cookie(name.into())),
        HashOnType::QueryParam => name.map(|name| HashKey::QueryParam(name.into())),
        HashOnType::Path => Some(HashKey::Path),
        HashOnType::Host => Some(HashKey::Host),
    }
}

/// Returns the priority rules, or `None` if no priorities are set.
fn priorities(asked: &QueuePriority, namespace: &str) -> Option<PriorityRules> {
    if *asked == QueuePriority::default() {
        return None;
    }
    let value = |asked: &PriorityValue| (asked.value.as_str().into(), priority(asked.priority));
    let header = asked.header.as_deref().map(|name| PriorityHeader {
        name: name.to_ascii_lowercase().into(),
        values: asked.values.iter().map(value).collect(),
    });
    let mut routes: Vec<&RoutePriority> = asked.routes.iter().collect();
    routes.sort_by_key(|route| route.section_name.is_none());
    let route = |asked: &RoutePriority| {
        let namespace = asked.namespace.as_deref().unwrap_or(namespace);
        let rule = asked.section_name.as_deref().unwrap_or_default();
        (format!("{namespace}/{}/{rule}", asked.name).into(), priority(asked.priority))
    };
    Some(PriorityRules {
        header,
        routes: routes.into_iter().map(route).collect(),
        default: priority(asked.default),
    })
}

/// Converts a priority. The schema rejects other numbers.
fn priority(number: u8) -> PriorityLevel {
    PriorityLevel::new(number).unwrap_or_default()
}

fn affinity(asked: &objects::BackendAffinity) -> AffinitySettings {
    let name = asked.name.as_deref().unwrap_or(AFFINITY_NAME);
    match asked.kind {
        AffinityType::Cookie => {
            let cookie = asked.cookie.clone().unwrap_or_default();
            AffinitySettings::Cookie(AffinityCookie {
                name: name.into(),
                path: cookie.path.as_deref().unwrap_or("/").into(),
                max_age: asked.max_age.map(|age| age.0),
                domain: cookie.domain.as_deref().map(Into::into),
                is_always_secure: cookie.secure == CookieSecurity::Always,
                same_site: cookie.same_site,
                session_timeout: None,
            })
        }
        AffinityType::Header => AffinitySettings::Header {
            name: name.to_ascii_lowercase().into(),
            session_timeout: None,
        },
        AffinityType::Source => AffinitySettings::Source,
    }
}

fn retry(asked: &BackendRetry) -> RetrySettings {
    RetrySettings {
        attempts: at_least_one(asked.attempts),
        budget_percent: asked.budget_percent,
        budget_window: RetryWindow::default(),
        budget_floor: 10 * asked.budget_floor_per_second,
        backoff_base: asked.backoff_base.0,
        backoff_max: asked.backoff_max.0,
        hedge: None,
    }
}

/// Returns the codes as in `grpc-status`.
fn grpc_codes(statuses: &[GrpcStatus]) -> Vec<u8> {
    statuses.iter().map(|status| *status as u8).collect()
}

/// Sorts values and removes duplicates.
pub(super) fn sorted<T: Ord + Clone>(statuses: &[T]) -> Box<[T]> {
    let mut statuses = statuses.to_vec();
    statuses.sort_unstable();
    statuses.dedup();
    statuses.into()
}

fn health(spec: &BackendPolicySpec) -> HealthSettings {
    let active = spec.health.active.as_ref();
    HealthSettings {
        passive: match &spec.health.passive {
            None => Some(PassiveSettings::of_connections()),
            Some(asked) => (asked.eject_on != EjectOn::Nothing).then(|| passive(asked)),
        },
        active: active.map(|active| ActiveSettings {
            interval: active.interval.0,
            timeout: active.timeout.0,
            rise: at_least_one(active.rise),
            fall: at_least_one(active.fall),
        }),
        slow_start: spec.slow_start.as_ref().map(|slow| SlowStartSettings {
            window: slow.window.0,
            floor_percent: slow.floor_percent,
        }),
        panic_percent: spec.health.panic_percent,
    }
}

fn passive(asked: &PassiveHealth) -> PassiveSettings {
    PassiveSettings {
        consecutive_failures: at_least_one(asked.consecutive_failures),
        server_errors: asked.eject_on == EjectOn::ServerErrors,
        interval: asked.interval.0,
        outlier_deviation_percent: asked.outlier_deviation_percent,
        outlier_failure_percent: asked.outlier_failure_percent,
        outlier_minimum_requests: asked.outlier_minimum_requests,
        outlier_minimum_endpoints: usize::try_from(asked.outlier_minimum_endpoints)
            .unwrap_or(usize::MAX),
        base_ejection_time: asked.base_ejection_time.0,
        max_ejection_time: asked.max_ejection_time.0,
        max_ejection_percent: asked.max_ejection_percent,
    }
}

fn probe(active: &ActiveHealth) -> ProbeSettings {
    let port = active.port.and_then(NonZeroU16::new);
    let (least, most) = good_statuses(active);
    match active.kind {
        ProbeType::Http => ProbeSettings::Http {
            target: active.path.as_deref().unwrap_or("/").into(),
            host: active.host.as_deref().map(Into::into),
            port,
            statuses: least..=most,
        },
        ProbeType::Tcp => ProbeSettings::Tcp { port },
        ProbeType::Grpc => ProbeSettings::Grpc {
            service: active.service.as_deref().unwrap_or_default().into(),
            host: active.host.as_deref().map(Into::into),
            port,
        },
    }
}

/// Converts a positive number. The schema rejects 0.
fn at_least_one(number: u32) -> NonZeroU32 {
    NonZeroU32::new(number).unwrap_or(NonZeroU32::MIN)
}
