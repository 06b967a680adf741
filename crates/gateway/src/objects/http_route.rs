//! `HTTPRoute` (gateway.networking.k8s.io/v1): which requests go to which Services, and how.

use schemars::JsonSchema;
use serde::Deserialize;

use super::duration::Duration;
use super::http_filter::HttpFilter;
use super::http_match::HttpRouteMatch;
use super::route::{ParentRef, ServiceRef, one};
use super::scalar::{Hostname, UnsupportedField};

/// Which requests go to which Services.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteSpec {
    /// The Gateways and listeners it wants to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attach to default Gateways.
    pub use_default_gateways: Option<UnsupportedField>,
    /// Only requests for these hosts; none: every host of the listener.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub hostnames: Vec<Hostname>,
    /// What requests match, and where they go.
    #[serde(default = "HttpRouteRule::default_rules")]
    #[schemars(length(max = 16))]
    pub rules: Vec<HttpRouteRule>,
}

/// Requests, and where they go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteRule {
    /// For metrics and logs, unique within the route; the rule's number when not given.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
    /// A request that one of these matches is meant; none: every request.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub matches: Vec<HttpRouteMatch>,
    /// What is changed on the way.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub filters: Vec<HttpFilter>,
    /// Where requests go, shared out by weight.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub backend_refs: Vec<BackendRef>,
    /// How long a request may take.
    pub timeouts: Option<HttpRouteTimeouts>,
    /// When a request is tried again.
    pub retry: Option<HttpRouteRetry>,
    /// Whether a client stays with its endpoint; BackendPolicy's `affinity` says that here.
    pub session_persistence: Option<UnsupportedField>,
}

/// How long a request may take; 0s is without limit.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpRouteTimeouts {
    /// From its head to the last byte of the response.
    #[schemars(extend("format" = "duration"))]
    pub request: Option<Duration>,
    /// From the start of an attempt to the last byte of its response.
    #[schemars(extend("format" = "duration"))]
    pub backend_request: Option<Duration>,
}

/// When a request is tried again.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpRouteRetry {
    /// Statuses of responses that are tried again.
    #[schemars(length(max = 200), inner(range(min = 400, max = 599)))]
    pub codes: Vec<u16>,
    /// How often it is tried again.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub attempts: u32,
    /// The wait before it is tried again.
    pub backoff: Option<Duration>,
}

/// A share of a rule's requests.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendRef {
    /// Its API group; the core group when not given.
    pub group: Option<String>,
    /// Its kind; Service when not given.
    pub kind: Option<String>,
    /// Its namespace; the route's when not given.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The Service's port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// Its share relative to the others; 0 is none.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: u32,
    /// What is changed on the way to it alone.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub filters: Vec<HttpFilter>,
}

impl BackendRef {
    /// What it names.
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
    /// Gateway API's default: one rule for every request, which leads nowhere.
    fn default_rules() -> Vec<Self> {
        vec![Self::default()]
    }
}

impl Default for HttpRouteRetry {
    fn default() -> Self {
        Self { codes: Vec::new(), attempts: 1, backoff: None }
    }
}
