//! Access of users to metrics: the API server decides, and its decisions are kept for a short time.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use kube::{AccessedResource, ApiExtensionError, ApiUser, ClusterClient};
use tokio::time::Instant;

use super::api_group::ApiGroup;

/// Time for which a decision is kept: a role that is taken away has effect after it.
const ALLOWED_FOR: Duration = Duration::from_secs(60);
const DENIED_FOR: Duration = Duration::from_secs(10);

/// Most decisions that are kept.
const MAX_DECISIONS: usize = 1024;

/// Decisions about users, with the API server behind them.
pub(super) struct MetricAccess {
    client: ClusterClient,
    decisions: Mutex<AccessDecisions>,
}

/// Access of a user: to one metric in a namespace, or to all metrics of a group everywhere.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AccessQuestion {
    user: ApiUser,
    group: ApiGroup,
    scope: Option<MetricScope>,
}

/// A metric in a namespace, as the API server sees it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct MetricScope {
    pub(super) namespace: String,
    /// The metric, or the resource whose objects have it.
    pub(super) resource: String,
    /// The metric of an object.
    pub(super) subresource: Option<String>,
}

/// Decisions, each until its end.
#[derive(Debug, Default)]
struct AccessDecisions(BTreeMap<AccessQuestion, (bool, Instant)>);

impl MetricAccess {
    pub(super) fn new(client: ClusterClient) -> Self {
        Self { client, decisions: Mutex::default() }
    }

    /// True if the user may read a metric of a namespace.
    ///
    /// Whether the user may read all metrics is asked first: the HorizontalPodAutoscaler may, so its queries for many
    /// namespaces need one answer.
    pub(super) async fn permits(
        &self,
        user: &ApiUser,
        group: ApiGroup,
        scope: MetricScope,
    ) -> Result<bool, ApiExtensionError> {
        let everything = AccessQuestion { user: user.clone(), group, scope: None };
        if self.decide(everything).await? {
            return Ok(true);
        }
        self.decide(AccessQuestion { user: user.clone(), group, scope: Some(scope) }).await
    }

    async fn decide(&self, question: AccessQuestion) -> Result<bool, ApiExtensionError> {
        let lock = || self.decisions.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(allowed) = lock().find(&question, Instant::now()) {
            return Ok(allowed);
        }
        let scope = question.scope.as_ref();
        let resource = AccessedResource {
            group: question.group.name(),
            resource: scope.map_or("*", |scope| &scope.resource),
            subresource: scope.and_then(|scope| scope.subresource.as_deref()),
            namespace: scope.map(|scope| scope.namespace.as_str()),
            verb: question.group.verb(),
        };
        let allowed = self.client.may_access(&question.user, resource).await?;
        lock().insert(question, allowed, Instant::now());
        Ok(allowed)
    }
}

impl AccessDecisions {
    fn find(&self, question: &AccessQuestion, now: Instant) -> Option<bool> {
        self.0.get(question).filter(|(_, until)| now < *until).map(|(allowed, _)| *allowed)
    }

    fn insert(&mut self, question: AccessQuestion, allowed: bool, now: Instant) {
        if self.0.len() >= MAX_DECISIONS {
            self.0.retain(|_, (_, until)| now < *until);
        }
        if self.0.len() >= MAX_DECISIONS {
            self.0.clear();
        }
        let kept = if allowed { ALLOWED_FOR } else { DENIED_FOR };
        self.0.insert(question, (allowed, now + kept));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn question(name: &str) -> AccessQuestion {
        let user = ApiUser { name: name.to_owned(), ..ApiUser::default() };
        AccessQuestion { user, group: ApiGroup::External, scope: None }
    }

    #[test]
    fn decisions_end_and_denials_end_earlier() {
        let (mut decisions, start) = (AccessDecisions::default(), Instant::now());
        decisions.insert(question("a"), true, start);
        decisions.insert(question("b"), false, start);
        let find = |name: &str, after| decisions.find(&question(name), start + after);
        assert_eq!(find("a", DENIED_FOR), Some(true));
        assert_eq!(find("a", ALLOWED_FOR), None);
        assert_eq!(find("b", DENIED_FOR / 2), Some(false));
        assert_eq!(find("b", DENIED_FOR), None);
        assert_eq!(find("c", Duration::ZERO), None);
    }

    #[test]
    fn decisions_are_bounded() {
        let (mut decisions, start) = (AccessDecisions::default(), Instant::now());
        for number in 0..10 * MAX_DECISIONS {
            decisions.insert(question(&number.to_string()), true, start);
            assert!(decisions.0.len() <= MAX_DECISIONS);
        }
    }
}
