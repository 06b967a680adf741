//! Routes that have attached somewhere, before their rules and backends have places in a Snapshot.

use std::sync::Arc;
use std::time::Duration;

use super::attach::RouteAttachment;
use crate::matching::RouteMatch;
use crate::snapshot::{
    BackendKey, MirrorFraction, MirrorPolicy, RouteFilters, Rule, RuleRetry, RuleTarget,
    WeightedTarget,
};

/// A route that has attached somewhere.
pub(super) struct RouteDraft {
    pub(super) rules: Vec<RuleDraft>,
    pub(super) attachments: Vec<RouteAttachment>,
    /// Its requests are calls of gRPC.
    pub(super) is_grpc: bool,
}

/// A rule whose backends are known by name.
#[derive(Default)]
pub(super) struct RuleDraft {
    /// `namespace/route/rule`.
    pub(super) name: Arc<str>,
    /// None for connections and flows.
    pub(super) matches: Vec<Arc<RouteMatch>>,
    pub(super) targets: Vec<TargetDraft>,
    pub(super) filters: FiltersDraft,
    pub(super) request_timeout: Option<Duration>,
    pub(super) attempt_timeout: Option<Duration>,
    pub(super) retry: Option<RuleRetry>,
}

/// A share of a rule's requests.
pub(super) struct TargetDraft {
    /// `None` cannot be resolved.
    pub(super) key: Option<BackendKey>,
    /// Positive.
    pub(super) weight: u32,
    pub(super) filters: FiltersDraft,
}

/// Filters whose mirrors are known by name.
#[derive(Default)]
pub(super) struct FiltersDraft {
    /// Without mirrors.
    pub(super) filters: RouteFilters,
    pub(super) mirrors: Vec<(BackendKey, MirrorFraction)>,
}

impl RuleDraft {
    /// Every backend that it names.
    pub(super) fn keys(&self) -> impl Iterator<Item = &BackendKey> {
        let targets = self.targets.iter();
        let mirrors = targets.clone().flat_map(|target| &target.filters.mirrors);
        let mirrors = mirrors.chain(&self.filters.mirrors).map(|(key, _)| key);
        targets.filter_map(|target| target.key.as_ref()).chain(mirrors)
    }

    /// The rule, for the sorted keys of all backends.
    pub(super) fn rule(&self, index: usize, keys: &[BackendKey]) -> Rule {
        let target = |draft: &TargetDraft| WeightedTarget {
            target: draft
                .key
                .as_ref()
                .map_or(RuleTarget::Unresolved, |key| RuleTarget::Backend(place(key, keys))),
            weight: draft.weight,
            filters: draft.filters.filters(keys),
        };
        Rule {
            index,
            name: Arc::clone(&self.name),
            targets: self.targets.iter().map(target).collect(),
            filters: self.filters.filters(keys),
            request_timeout: self.request_timeout,
            attempt_timeout: self.attempt_timeout,
            retry: self.retry.clone(),
        }
    }
}

impl TargetDraft {
    /// Who answers 500.
    pub(super) fn unresolved() -> Self {
        Self { key: None, weight: 1, filters: FiltersDraft::default() }
    }
}

impl FiltersDraft {
    fn filters(&self, keys: &[BackendKey]) -> Option<Box<RouteFilters>> {
        let mirror = |(key, share): &(BackendKey, MirrorFraction)| MirrorPolicy {
            backend: place(key, keys),
            share: *share,
        };
        let mirrors = self.mirrors.iter().map(mirror).collect();
        let filters = RouteFilters { mirrors, ..self.filters.clone() };
        (filters != RouteFilters::default()).then(|| Box::new(filters))
    }
}

fn place(key: &BackendKey, keys: &[BackendKey]) -> usize {
    keys.binary_search(key).expect("every key of every rule is among the keys")
}
