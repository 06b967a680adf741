//! `HTTPRoute` (gateway.networking.k8s.io/v1): routing of HTTP requests to Services.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;
use super::http_filter::HttpFilter;
use super::http_match::HttpRouteMatch;
use super::route::{ParentRef, ServiceRef, one};
use super::scalar::{Hostname, UnsupportedField};
use super::session_persistence::SessionPersistence;

/// Routing of HTTP requests to Services.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteSpec {
    /// The Gateways and listeners to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attachment to default Gateways.
    pub use_default_gateways: Option<UnsupportedField>,
    /// The hosts of the requests. Empty: all hosts of the listener.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub hostnames: Vec<Hostname>,
    /// The rules: matches and backends.
    #[serde(default = "HttpRouteRule::default_rules")]
    #[schemars(length(max = 16))]
    pub rules: Vec<HttpRouteRule>,
}

/// Requests that match, and their backends.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteRule {
    /// The name for metrics and logs, unique within the route. Default: the index of the rule.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
    /// The matches. A request matches the rule if it matches one of them. Empty: every request.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub matches: Vec<HttpRouteMatch>,
    /// Changes to requests and responses.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub filters: Vec<HttpFilter>,
    /// The backends, chosen by weight.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub backend_refs: Vec<BackendRef>,
    /// Timeouts of a request.
    pub timeouts: Option<HttpRouteTimeouts>,
    /// Retries.
    pub retry: Option<HttpRouteRetry>,
    /// Session persistence.
    pub session_persistence: Option<SessionPersistence>,
}

/// Timeouts of a request. 0s means no limit.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpRouteTimeouts {
    /// Maximum time from the head of the request to the last byte of the response.
    #[schemars(extend("format" = "duration"))]
    pub request: Option<Duration>,
    /// Maximum time from the start of an attempt to the last byte of its response.
    #[schemars(extend("format" = "duration"))]
    pub backend_request: Option<Duration>,
}

/// Retries.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpRouteRetry {
    /// Response statuses that are retried.
    #[schemars(length(max = 200), inner(range(min = 400, max = 599)))]
    pub codes: Vec<u16>,
    /// Maximum number of retries.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub attempts: u32,
    /// The wait before a retry.
    pub backoff: Option<Duration>,
}

/// A backend, and its share of a rule's requests.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendRef {
    /// The API group. Default: the core group.
    pub group: Option<String>,
    /// The kind. Default: Service.
    pub kind: Option<String>,
    /// The namespace. Default: the namespace of the route.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The port of the Service.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The weight relative to the other backends. 0 means no requests.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: u32,
    /// Changes to requests to this backend and to its responses.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub filters: Vec<HttpFilter>,
}

impl BackendRef {
    /// Returns the reference to the Service.
    pub fn service(&self) -> ServiceRef<'_> {
        ServiceRef {
            group: self.group.as_deref(),
            kind: self.kind.as_deref(),
            namespace: self.namespace.as_deref(),
            name: &self.name,
            port: self.port,
        }
    }
}

impl HttpRouteRule {
    /// Returns the default of Gateway API: one rule for every request, without a backend.
    fn default_rules() -> Vec<Self> {
        vec![Self::default()]
    }
}

impl Default for HttpRouteRetry {
    fn default() -> Self {
        Self { codes: Vec::new(), attempts: 1, backoff: None }
    }
}
