//! `GRPCRoute` (gateway.networking.k8s.io/v1): routing of gRPC calls to Services.

use schemars::JsonSchema;
use serde::Deserialize;

use super::http_filter::HttpFilter;
use super::http_match::{HeaderMatch, ValueMatchType};
use super::http_route::BackendRef;
use super::route::ParentRef;
use super::scalar::{Hostname, UnsupportedField};
use super::session_persistence::SessionPersistence;

/// Routing of gRPC calls to Services.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcRouteSpec {
    /// The Gateways and listeners to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attachment to default Gateways.
    pub use_default_gateways: Option<UnsupportedField>,
    /// The hosts of the calls. Empty: all hosts of the listener.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub hostnames: Vec<Hostname>,
    /// The rules: matches and backends.
    #[serde(default = "GrpcRouteRule::default_rules")]
    #[schemars(length(max = 16))]
    pub rules: Vec<GrpcRouteRule>,
}

/// Calls that match, and their backends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcRouteRule {
    /// The name for metrics and logs, unique within the route. Default: the index of the rule.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
    /// The matches. A call matches the rule if it matches one of them. Empty: every call.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub matches: Vec<GrpcRouteMatch>,
    /// Changes to requests and responses.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub filters: Vec<HttpFilter>,
    /// The backends, chosen by weight.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub backend_refs: Vec<BackendRef>,
    /// Session persistence.
    pub session_persistence: Option<SessionPersistence>,
}

/// Conditions of a call, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcRouteMatch {
    /// The method. Default: every method.
    pub method: Option<GrpcMethodMatch>,
    /// Metadata. If a name occurs twice, the first entry counts.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
}

/// Methods of services. If several match a call, the order is: a match of service and method, then a match of one
/// method of any service or a regular expression, then a match of a whole service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcMethodMatch {
    /// The comparison of service and method.
    #[serde(rename = "type", default)]
    pub kind: ValueMatchType,
    /// The service with its package. Default: every service.
    #[schemars(length(max = 1024))]
    pub service: Option<String>,
    /// The method. Default: every method.
    #[schemars(length(max = 1024))]
    pub method: Option<String>,
}

impl GrpcRouteRule {
    /// Returns one rule for every call without a backend, as HTTPRoute does.
    fn default_rules() -> Vec<Self> {
        vec![Self::default()]
    }
}
