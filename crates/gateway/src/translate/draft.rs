//! Routes that have attached, before their rules and backends have indices in a Snapshot.

use std::sync::Arc;
use std::time::Duration;

use super::attach::RouteAttachment;
use super::rule_policies::RulePolicies;
use super::transparent::PortAttachment;
use crate::matching::RouteMatch;
use crate::snapshot::{
    AffinitySettings, BackendKey, MirrorFraction, MirrorPolicy, RouteFilters, Rule, RuleRetry,
    RuleTarget, WeightedTarget,
};

/// A route that has attached somewhere.
pub(super) struct RouteDraft {
    pub(super) rules: Vec<RuleDraft>,
    pub(super) attachments: Vec<RouteAttachment>,
    /// Ports of Services that it has attached to, in transparent mode.
    pub(super) service_ports: Vec<PortAttachment>,
    /// The port of a Service of type LoadBalancer that it belongs to, by its index.
    pub(super) load_balancer_port: Option<usize>,
    /// True if the requests are gRPC calls.
    pub(super) is_grpc: bool,
}

/// A rule that refers to its backends by name.
#[derive(Default)]
pub(super) struct RuleDraft {
    /// `namespace/route/rule`.
    pub(super) name: Arc<str>,
    /// Matches of requests; empty for connections and UDP flows.
    pub(super) matches: Vec<Arc<RouteMatch>>,
    pub(super) targets: Vec<TargetDraft>,
    pub(super) filters: FiltersDraft,
    pub(super) request_timeout: Option<Duration>,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) retry: Option<RuleRetry>,
    pub(super) affinity: Option<AffinitySettings>,
    /// The origin, if policies can target it.
    pub(super) origin: Option<RuleOrigin>,
}

/// The route of a rule, and its name there.
pub(super) struct RuleOrigin {
    pub(super) kind: &'static str,
    pub(super) namespace: Arc<str>,
    pub(super) route: Arc<str>,
    /// The name of the rule; `None` if it has none.
    pub(super) section: Option<Arc<str>>,
}

/// A weighted target of a rule.
pub(super) struct TargetDraft {
    /// The backend; `None` if the reference cannot be resolved.
    pub(super) key: Option<BackendKey>,
    /// The weight, greater than zero.
    pub(super) weight: u32,
    pub(super) filters: FiltersDraft,
}

/// Filters that refer to their mirrors by name.
#[derive(Default)]
pub(super) struct FiltersDraft {
    /// Filters other than mirrors.
    pub(super) filters: RouteFilters,
    pub(super) mirrors: Vec<(BackendKey, MirrorFraction)>,
}

impl RuleDraft {
    /// Returns every backend that the rule names.
    pub(super) fn keys(&self) -> impl Iterator<Item = &BackendKey> {
        let targets = self.targets.iter();
        let mirrors = targets.clone().flat_map(|target| &target.filters.mirrors);
        let mirrors = mirrors.chain(&self.filters.mirrors).map(|(key, _)| key);
        let authorizer = self.filters.filters.external_auth.as_ref();
        let authorizer = authorizer.and_then(|it| it.backend.as_ref());
        targets.filter_map(|target| target.key.as_ref()).chain(mirrors).chain(authorizer)
    }

    /// Returns the rule, with backends as indices into the sorted keys of all backends, and with its policies.
    pub(super) fn rule(&self, index: usize, keys: &[BackendKey], policies: RulePolicies) -> Rule {
        let target = |draft: &TargetDraft| WeightedTarget {
            target: draft
                .key
                .as_ref()
                .map_or(RuleTarget::Unresolved, |key| RuleTarget::Backend(place(key, keys))),
            weight: draft.weight,
            filters: draft.filters.filters(keys, RulePolicies::default()),
        };
        Rule {
            index,
            name: Arc::clone(&self.name),
            targets: self.targets.iter().map(target).collect(),
            filters: self.filters.filters(keys, policies),
            request_timeout: self.request_timeout,
            attempt_timeout: self.attempt_timeout,
            retry: self.retry.clone(),
            affinity: self.affinity.clone(),
        }
    }
}

impl TargetDraft {
    /// Returns a target that answers 500.
    pub(super) fn unresolved() -> Self {
        Self { key: None, weight: 1, filters: FiltersDraft::default() }
    }
}

impl FiltersDraft {
    fn filters(&self, keys: &[BackendKey], policies: RulePolicies) -> Option<Box<RouteFilters>> {
        let mirror = |(key, share): &(BackendKey, MirrorFraction)| MirrorPolicy {
            backend: place(key, keys),
            share: *share,
        };
        let mirrors = self.mirrors.iter().map(mirror).collect();
        let RulePolicies { rate_limit, security, traffic } = policies;
        let filters =
            RouteFilters { mirrors, rate_limit, security, traffic, ..self.filters.clone() };
        (filters != RouteFilters::default()).then(|| Box::new(filters))
    }
}

fn place(key: &BackendKey, keys: &[BackendKey]) -> usize {
    keys.binary_search(key).expect("every key of every rule is among the keys")
}
