//! Actions of routes: the clusters with their weights, retries, the timeout, and what is hashed.

use std::time::Duration;

use balance::Algorithm;
use gateway::snapshot::{
    Backend, BackendSettings, HashKey, HeaderEdits, RouteFilters, Rule, RuleTarget, WeightedTarget,
};

use super::route::{HeaderChanges, header_changes};
use crate::message::{
    ClusterWeight, FilterState, HashPolicy, HeaderValueSource, MaxStreamDuration, RetryBackOff,
    RetryPolicy, RouteAction, WeightedClusters,
};
use crate::name::{self, UNRESOLVED};

/// The property of a gRPC client that stands for the client when a request is hashed (gRFC A42).
const CHANNEL_ID: &str = "io.grpc.channel_id";

/// Statuses of gRPC that clients retry (gRFC A44), by their codes.
pub(super) const RETRIED_STATUSES: [(u8, &str); 5] = [
    (1, "cancelled"),
    (4, "deadline-exceeded"),
    (8, "resource-exhausted"),
    (13, "internal"),
    (14, "unavailable"),
];

/// Returns the action of a rule that has targets.
pub(super) fn action(
    rule: &Rule,
    backends: &[Backend],
    find: &mut impl FnMut(String),
) -> RouteAction {
    let settings: Vec<&BackendSettings> =
        rule.targets.iter().filter_map(|it| Some(&backend(it, backends)?.settings)).collect();
    if rule.attempt_timeout.is_some_and(|timeout| timeout != Duration::MAX) {
        find("a timeout of each attempt: gRPC clients have none".to_owned());
    }
    let timeout = rule.request_timeout.or_else(|| longest_timeout(&settings));
    let timeout = timeout.filter(|timeout| *timeout != Duration::MAX);
    let mut action = RouteAction {
        retry_policy: retry_policy(rule, &settings, find),
        hash_policy: settings.first().and_then(|it| hash_policy(it, find)).into_iter().collect(),
        max_stream_duration: timeout
            .map(|timeout| MaxStreamDuration { max_stream_duration: Some(timeout.into()) }),
        ..RouteAction::default()
    };
    add_clusters(&mut action, rule, backends, header_changes);
    action
}

pub(super) fn backend<'b>(target: &WeightedTarget, backends: &'b [Backend]) -> Option<&'b Backend> {
    match target.target {
        RuleTarget::Backend(index) => backends.get(index),
        RuleTarget::Unresolved => None,
    }
}

fn cluster_name(target: &WeightedTarget, backends: &[Backend]) -> String {
    backend(target, backends)
        .map_or_else(|| UNRESOLVED.to_owned(), |backend| name::cluster(&backend.key).to_string())
}

/// Adds the clusters of a rule with their weights. `changes` makes the changes to header fields of each.
pub(super) fn add_clusters(
    action: &mut RouteAction,
    rule: &Rule,
    backends: &[Backend],
    changes: fn(&HeaderEdits) -> HeaderChanges,
) {
    match &*rule.targets {
        [only] if only.filters.is_none() => action.cluster = Some(cluster_name(only, backends)),
        targets => {
            let weight = |target| cluster_weight(target, backends, changes);
            let clusters = targets.iter().map(weight).collect();
            action.weighted_clusters = Some(WeightedClusters { clusters });
        }
    }
}

fn cluster_weight(
    target: &WeightedTarget,
    backends: &[Backend],
    changes: fn(&HeaderEdits) -> HeaderChanges,
) -> ClusterWeight {
    let none = RouteFilters::default();
    let filters = target.filters.as_deref().unwrap_or(&none);
    let (request, response) =
        (changes(&filters.request_headers), changes(&filters.response_headers));
    ClusterWeight {
        name: cluster_name(target, backends),
        weight: Some(target.weight.into()),
        request_headers_to_add: request.added,
        request_headers_to_remove: request.removed,
        response_headers_to_add: response.added,
        response_headers_to_remove: response.removed,
    }
}

/// Returns the longest of the timeouts of the backends: a route has one for all of them. `None` if one has none.
pub(super) fn longest_timeout(settings: &[&BackendSettings]) -> Option<Duration> {
    let longest = settings.iter().map(|it| it.request_timeout.unwrap_or(Duration::MAX)).max();
    longest.filter(|timeout| *timeout != Duration::MAX)
}

/// Returns the retries of a rule: those of its own, else those of the policy of its first backend.
fn retry_policy(
    rule: &Rule,
    settings: &[&BackendSettings],
    find: &mut impl FnMut(String),
) -> Option<RetryPolicy> {
    let first = settings.first()?;
    let statuses = rule.retry.as_ref().map_or(&first.retry_statuses, |retry| &retry.statuses);
    if !statuses.is_empty() {
        find("retries of HTTP statuses: gRPC clients retry statuses of gRPC alone".to_owned());
    }
    let attempts = rule.retry.as_ref().map_or(first.retry.attempts, |retry| retry.attempts);
    let is_meant = |(code, _): &(u8, &str)| first.retry_grpc_statuses.contains(code);
    let retry_on: Vec<&str> =
        RETRIED_STATUSES.into_iter().filter(is_meant).map(|(_, name)| name).collect();
    if retry_on.len() < first.retry_grpc_statuses.len() {
        let known: Vec<&str> = RETRIED_STATUSES.into_iter().map(|(_, name)| name).collect();
        find(format!("retries of statuses other than {}", known.join(", ")));
    }
    if retry_on.is_empty() || attempts.get() == 1 {
        return None;
    }
    Some(RetryPolicy {
        retry_on: retry_on.join(","),
        num_retries: Some((attempts.get() - 1).into()),
        retry_back_off: Some(back_off(rule, first)),
        ..RetryPolicy::default()
    })
}

pub(super) fn back_off(rule: &Rule, settings: &BackendSettings) -> RetryBackOff {
    let own = rule.retry.as_ref().and_then(|it| it.backoff);
    // Clients reject a policy whose first interval is not above 0, or above the largest.
    let base = own.unwrap_or(settings.retry.backoff_base).max(Duration::from_millis(1));
    RetryBackOff {
        base_interval: Some(base.into()),
        max_interval: Some(settings.retry.backoff_max.max(base).into()),
    }
}

/// Returns what is hashed, if the algorithm of the backend hashes.
fn hash_policy(settings: &BackendSettings, find: &mut impl FnMut(String)) -> Option<HashPolicy> {
    match settings.algorithm {
        Algorithm::ConsistentHash | Algorithm::Maglev => {}
        Algorithm::LeastLoad | Algorithm::RoundRobin | Algorithm::Random | Algorithm::PeakEwma => {
            return None;
        }
    }
    let client = HashPolicy {
        filter_state: Some(FilterState { key: CHANNEL_ID.to_owned() }),
        ..HashPolicy::default()
    };
    match &settings.hash_key {
        HashKey::Source => Some(client),
        HashKey::Header(name) => Some(HashPolicy {
            header: Some(HeaderValueSource { header_name: name.to_string() }),
            ..HashPolicy::default()
        }),
        HashKey::Cookie(_) | HashKey::QueryParam(_) | HashKey::Path | HashKey::Host => {
            find("a hash of another part than a header field: clients hash themselves".to_owned());
            Some(client)
        }
    }
}
