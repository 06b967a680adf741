//! `XBackendTrafficPolicy` (gateway.networking.x-k8s.io/v1alpha1): the retry budget and the session persistence of a
//! Service.

use schemars::JsonSchema;
use serde::Deserialize;

use super::duration::Duration;
use super::session_persistence::SessionPersistence;

/// Retries and session persistence of Services.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendTrafficPolicySpec {
    /// The Services, in the policy's namespace.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<BackendTrafficTarget>,
    /// The retry budget.
    pub retry_constraint: Option<RetryConstraint>,
    /// Session persistence.
    pub session_persistence: Option<SessionPersistence>,
}

/// A reference to a Service.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendTrafficTarget {
    /// The API group, which is empty for Services.
    #[serde(default)]
    pub group: String,
    /// The kind. Only Service is supported.
    pub kind: String,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}

/// The retry budget of a Service. Its bounds are checked in the translation, so that a fault leaves all else as it is.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetryConstraint {
    /// Retries as a share of requests.
    pub budget: RetryBudgetDetails,
    /// Retries that are allowed in any case.
    pub min_retry_rate: MinRetryRate,
}

/// Retries as a share of requests.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RetryBudgetDetails {
    /// Maximum number of retries, in percent of the requests.
    pub percent: i64,
    /// The time in which requests and retries count.
    #[schemars(extend("format" = "any-duration"))]
    pub interval: Duration,
}

/// Retries that are allowed in any case.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct MinRetryRate {
    /// The number of retries.
    pub count: i64,
    /// The time for which they are.
    #[schemars(extend("format" = "any-duration"))]
    pub interval: Duration,
}

impl Default for RetryBudgetDetails {
    fn default() -> Self {
        Self { percent: 20, interval: Duration::from_secs(10) }
    }
}

impl Default for MinRetryRate {
    fn default() -> Self {
        Self { count: 10, interval: Duration::from_secs(1) }
    }
}
