//! Actions of routes: the clusters with their weights, rewrites, copies, retries, the timeout, and what is hashed.

use std::time::Duration;

use balance::Algorithm;
use gateway::snapshot::{
    Backend, BackendSettings, HashKey, MirrorPolicy, PathRewrite, RewriteAction, RouteFilters, Rule,
};

use super::escaped_changes;
use crate::message::{
    AnyMessage, ConnectionProperties, CookieSource, FractionalPercent, HashPolicy,
    HeaderValueSource, PreviousHosts, QueryParameterSource, RegexMatcher, RegexSubstitution,
    RequestMirror, RetryHostPredicate, RetryPolicy, RouteAction, RouteMatcher, RuntimeFraction,
};
use crate::name;
use crate::translate::action::{
    RETRIED_STATUSES, add_clusters, back_off, backend, longest_timeout,
};

/// Failures after which every request can be sent again: no endpoint has begun with it.
const SAFE_RETRIES: [&str; 3] = ["connect-failure", "refused-stream", "reset-before-request"];
/// The name of the extension by which a retry avoids the endpoints of the attempts before.
const PREVIOUS_HOSTS: &str = "envoy.retry_host_predicates.previous_hosts";
/// The number of choices of an endpoint until one of them is taken again.
const MAX_HOST_CHOICES: i64 = 5;

/// Returns the action of a rule that has targets.
pub(super) fn action(
    rule: &Rule,
    filters: &RouteFilters,
    matcher: &RouteMatcher,
    backends: &[Backend],
) -> RouteAction {
    let settings: Vec<&BackendSettings> =
        rule.targets.iter().filter_map(|it| Some(&backend(it, backends)?.settings)).collect();
    let timeout = rule.request_timeout.or_else(|| longest_timeout(&settings));
    let timeout = timeout.filter(|timeout| *timeout != Duration::MAX);
    let mut action = RouteAction {
        // Without one, an Envoy ends requests after 15 seconds.
        timeout: Some(timeout.unwrap_or_default().into()),
        retry_policy: settings.first().and_then(|first| retry_policy(rule, first)),
        hash_policy: settings.first().and_then(|first| hash_policy(first)).into_iter().collect(),
        request_mirror_policies: filters.mirrors.iter().map(|it| mirror(it, backends)).collect(),
        ..RouteAction::default()
    };
    add_clusters(&mut action, rule, backends, escaped_changes);
    if let Some(rewrite) = &filters.rewrite {
        add_rewrite(&mut action, rewrite, matcher);
    }
    action
}

fn add_rewrite(action: &mut RouteAction, rewrite: &RewriteAction, matcher: &RouteMatcher) {
    action.host_rewrite_literal = rewrite.hostname.as_deref().map(str::to_owned);
    match &rewrite.path {
        Some(PathRewrite::Full(path)) => {
            action.regex_rewrite = Some(RegexSubstitution {
                pattern: Some(RegexMatcher { regex: "^/.*$".to_owned() }),
                // A backslash would begin a reference to a group.
                substitution: path.replace('\\', "\\\\"),
            });
        }
        Some(PathRewrite::Prefix { replacement, .. }) => {
            action.prefix_rewrite = replaced_prefix(replacement, matcher);
        }
        None => {}
    }
}

/// Returns the replacement of the part of the path that the matcher compares: all of it, or up to a `/`.
pub(super) fn replaced_prefix(replacement: &str, matcher: &RouteMatcher) -> String {
    match (matcher.prefix.is_some(), replacement.is_empty()) {
        (true, _) | (false, true) => format!("{replacement}/"),
        (false, false) => replacement.to_owned(),
    }
}

fn mirror(mirror: &MirrorPolicy, backends: &[Backend]) -> RequestMirror {
    const PARTS: u64 = 1_000_000;
    let share = mirror.share;
    let parts = u64::from(share.numerator) * PARTS / u64::from(share.denominator.get());
    let share = FractionalPercent {
        numerator: u32::try_from(parts.min(PARTS)).expect("at most a million"),
        denominator: FractionalPercent::MILLION,
    };
    RequestMirror {
        cluster: name::cluster(&backends[mirror.backend].key).to_string(),
        runtime_fraction: Some(RuntimeFraction { default_value: Some(share) }),
    }
}

/// Returns the retries of a rule: those of its own, else those of the policy of its first backend.
fn retry_policy(rule: &Rule, first: &BackendSettings) -> Option<RetryPolicy> {
    let attempts = rule.retry.as_ref().map_or(first.retry.attempts, |retry| retry.attempts);
    let attempt_timeout = rule.attempt_timeout.or(first.per_attempt_timeout);
    let attempt_timeout = attempt_timeout.filter(|timeout| *timeout != Duration::MAX);
    if attempts.get() == 1 && attempt_timeout.is_none() {
        return None;
    }
    let statuses = rule.retry.as_ref().map_or(&first.retry_statuses, |retry| &retry.statuses);
    let by_status = (!statuses.is_empty()).then_some("retriable-status-codes");
    let is_meant = |(code, _): &&(u8, &str)| first.retry_grpc_statuses.contains(code);
    let by_grpc_status = RETRIED_STATUSES.iter().filter(is_meant).map(|(_, name)| *name);
    let retry_on: Vec<&str> =
        SAFE_RETRIES.into_iter().chain(by_status).chain(by_grpc_status).collect();
    let previous_hosts = RetryHostPredicate {
        name: PREVIOUS_HOSTS.to_owned(),
        typed_config: Some(AnyMessage::of(PreviousHosts::NAME, &PreviousHosts {})),
    };
    Some(RetryPolicy {
        retry_on: retry_on.join(","),
        num_retries: Some((attempts.get() - 1).into()),
        per_try_timeout: attempt_timeout.map(Into::into),
        retry_host_predicate: vec![previous_hosts],
        host_selection_retry_max_attempts: MAX_HOST_CHOICES,
        retriable_status_codes: statuses.iter().copied().map(u32::from).collect(),
        retry_back_off: Some(back_off(rule, first)),
    })
}

/// Returns what is hashed, if the algorithm of the backend hashes.
fn hash_policy(settings: &BackendSettings) -> Option<HashPolicy> {
    match settings.algorithm {
        Algorithm::ConsistentHash | Algorithm::Maglev => {}
        Algorithm::LeastLoad | Algorithm::RoundRobin | Algorithm::Random | Algorithm::PeakEwma => {
            return None;
        }
    }
    let header = |name: &str| HashPolicy {
        header: Some(HeaderValueSource { header_name: name.to_owned() }),
        ..HashPolicy::default()
    };
    Some(match &settings.hash_key {
        HashKey::Source => HashPolicy {
            connection_properties: Some(ConnectionProperties { source_ip: true }),
            ..HashPolicy::default()
        },
        HashKey::Header(name) => header(name),
        HashKey::Path => header(":path"),
        HashKey::Host => header(":authority"),
        HashKey::Cookie(name) => HashPolicy {
            cookie: Some(CookieSource { name: name.to_string() }),
            ..HashPolicy::default()
        },
        HashKey::QueryParam(name) => HashPolicy {
            query_parameter: Some(QueryParameterSource { name: name.to_string() }),
            ..HashPolicy::default()
        },
    })
}
