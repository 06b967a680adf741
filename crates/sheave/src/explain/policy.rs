//! The settings of a backend, each with its source: a policy or the default.

use std::fmt::Debug;
use std::time::Duration;

use gateway::ApiObject;
use gateway::snapshot::{BackendKey, BackendSettings, PriorityRules};
use gateway::status::{ConditionType, ResourceStatus, StatusDetail, TargetStatus};

/// Returns `namespace/name` of the BackendPolicy that applies to the backend: a policy for its port takes precedence
/// over one for its Service.
pub(super) fn policy_name(
    objects: &[ApiObject],
    statuses: &[ResourceStatus],
    key: &BackendKey,
) -> Option<String> {
    let port = port_name(objects, key).unwrap_or_default();
    let policies = || statuses.iter().filter(|it| it.object.kind == "BackendPolicy");
    let for_section = |section: Option<&str>| {
        let holds = |status: &&ResourceStatus| {
            status.object.namespace == key.namespace && accepts(status, &key.service, section)
        };
        policies().find(holds).map(|it| format!("{}/{}", it.object.namespace, it.object.name))
    };
    for_section(Some(port)).or_else(|| for_section(None))
}

/// Returns the source of a backend's session affinity, if it has one. `policy` is `namespace/name` of its BackendPolicy.
pub(super) fn affinity_source(
    objects: &[ApiObject],
    policy: Option<&str>,
    key: &BackendKey,
) -> String {
    let is_own = |object: &ApiObject| match object {
        ApiObject::BackendPolicy(it) => {
            let name = format!("{}/{}", it.metadata.namespace, it.metadata.name);
            it.spec.affinity.is_some() && policy == Some(&*name)
        }
        _ => false,
    };
    if let Some(policy) = policy.filter(|_| objects.iter().any(is_own)) {
        return format!("BackendPolicy {policy}");
    }
    let standard = objects.iter().filter_map(|object| match object {
        ApiObject::BackendTrafficPolicy(it) => Some(it),
        _ => None,
    });
    let mut standard: Vec<_> = standard
        .filter(|it| *it.metadata.namespace == *key.namespace)
        .filter(|it| it.spec.target_refs.iter().any(|target| *target.name == *key.service))
        .collect();
    standard.sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
    match standard.first().filter(|it| it.spec.session_persistence.is_some()) {
        Some(it) => format!("XBackendTrafficPolicy {}/{}", key.namespace, it.metadata.name),
        None => format!("Service {}/{}", key.namespace, key.service),
    }
}

fn port_name<'o>(objects: &'o [ApiObject], key: &BackendKey) -> Option<&'o str> {
    objects.iter().find_map(|object| {
        let ApiObject::Service(service) = object else { return None };
        let metadata = &service.metadata;
        let named = *metadata.namespace == *key.namespace && *metadata.name == *key.service;
        let port = service.spec.ports.iter().find(|port| port.port == key.port);
        port.filter(|_| named).map(|port| port.name.as_str())
    })
}

fn accepts(status: &ResourceStatus, service: &str, section: Option<&str>) -> bool {
    let StatusDetail::Policy(targets) = &status.detail else { return false };
    let accepted = |target: &TargetStatus| {
        target.conditions.iter().any(|it| it.kind == ConditionType::Accepted && it.holds)
    };
    targets.iter().any(|target| {
        target.name == service && target.section_name.as_deref() == section && accepted(target)
    })
}

/// Returns a line per field, as the policy names it, with its value and its source.
pub(super) fn lines(
    settings: &BackendSettings,
    policy: Option<&str>,
    affinity_source: &str,
) -> Vec<String> {
    let defaults = values(&BackendSettings::default());
    let line = |((field, value), (_, default)): ((&str, String), (&str, String))| {
        let by = match policy {
            _ if field == "affinity" && value != default => affinity_source.to_owned(),
            Some(policy) if value != default => format!("BackendPolicy {policy}"),
            Some(_) | None => "default".to_owned(),
        };
        format!("{field:<26} {value:<18} {by}")
    };
    values(settings).into_iter().zip(defaults).map(line).collect()
}

fn values(settings: &BackendSettings) -> Vec<(&'static str, String)> {
    // The struct is destructured, so that a new field is not forgotten.
    let BackendSettings {
        algorithm,
        hash_key,
        affinity,
        has_rule_affinity: _,
        service_uid: _,
        prefers_same_zone,
        preferred_location: _,
        max_in_flight_per_endpoint: _,
        auto_limit: _,
        heed_refusals,
        queue_max_requests,
        queue_timeout,
        queue_target,
        queue_fair,
        queue_priority,
        max_incomplete_per_connection,
        max_requests_per_address,
        overload_status,
        overload_retry_after,
        connect_timeout,
        request_timeout,
        per_attempt_timeout,
        idle_timeout,
        unacknowledged_timeout,
        abandoned_timeout,
        connection_max_age,
        connection_max_requests,
        connection_idle_timeout,
        connection_max,
        retry,
        retry_statuses,
        health,
        probe,
        proxy_protocol,
        protocol,
        protocol_is_assumed: _,
        tls,
        retry_grpc_statuses,
    } = settings;
    let duration = |duration: &Duration| format!("{duration:?}");
    vec![
        ("algorithm", format!("{algorithm:?}")),
        ("hashOn", format!("{hash_key:?}")),
        ("affinity", or_none(affinity.as_ref())),
        ("preferSameZone", prefers_same_zone.to_string()),
        ("maxInFlightPerEndpoint", limit(settings)),
        ("heedRefusals", format!("{heed_refusals:?}")),
        ("queue.maxRequests", queue_max_requests.to_string()),
        ("queue.timeout", duration(queue_timeout)),
        ("queue.target", or_none(queue_target.as_ref())),
        ("queue.fairness", if *queue_fair { "PerRoute" } else { "None" }.to_owned()),
        ("queue.priority", queue_priority.as_deref().map_or_else(none, priorities)),
        ("clients.maxIncomplete", or_none(max_incomplete_per_connection.as_ref())),
        ("clients.maxPerAddress", or_none(max_requests_per_address.as_ref())),
        ("overload.status", overload_status.to_string()),
        ("overload.retryAfter", duration(overload_retry_after)),
        ("timeouts.connect", duration(connect_timeout)),
        ("timeouts.request", or_none(request_timeout.as_ref())),
        ("timeouts.perAttempt", or_none(per_attempt_timeout.as_ref())),
        ("timeouts.idle", duration(idle_timeout)),
        ("timeouts.unacknowledged", duration(unacknowledged_timeout)),
        ("timeouts.abandoned", duration(abandoned_timeout)),
        ("connections.maxAge", or_none(connection_max_age.as_ref())),
        ("connections.maxRequests", or_none(connection_max_requests.as_ref())),
        ("connections.idleTimeout", duration(connection_idle_timeout)),
        ("connections.max", or_none(connection_max.as_ref())),
        ("retry.attempts", retry.attempts.to_string()),
        ("retry.statuses", format!("{retry_statuses:?}")),
        ("retry.grpcStatuses", format!("{retry_grpc_statuses:?}")),
        ("health.active", or_none(health.active.as_ref().zip(probe.as_ref()))),
        ("health.passive", or_none(health.passive.as_ref())),
        ("health.slowStart", or_none(health.slow_start.as_ref())),
        ("health.panicPercent", health.panic_percent.to_string()),
        ("protocol", format!("{protocol:?}")),
        ("tls", or_none(tls.as_ref().map(|tls| &tls.server_name))),
        ("proxyProtocol", or_none(proxy_protocol.as_ref())),
    ]
}

/// Describes the priority rules in a few words.
fn priorities(priorities: &PriorityRules) -> String {
    let PriorityRules { header, routes, default } = priorities;
    let header = header.iter().map(|header| format!("{}, else ", header.name));
    let routes = routes.iter().map(|(name, priority)| format!("{name}: {priority:?}, "));
    let parts: String = header.chain(routes).collect();
    format!("{parts}{default:?}")
}

fn limit(settings: &BackendSettings) -> String {
    match &settings.auto_limit {
        Some(auto) => format!("auto, {} to {} from {}", auto.min, auto.max, auto.start),
        None => or_none(settings.max_in_flight_per_endpoint.as_ref()),
    }
}

fn none() -> String {
    "none".to_owned()
}

fn or_none<T: Debug>(value: Option<T>) -> String {
    value.map_or_else(none, |value| format!("{value:?}"))
}
