//! `GRPCRoute` (gateway.networking.k8s.io/v1): which calls go to which Services, and how.

use schemars::JsonSchema;
use serde::Deserialize;

use super::http_filter::HttpFilter;
use super::http_match::{HeaderMatch, ValueMatchType};
use super::http_route::BackendRef;
use super::route::ParentRef;
use super::scalar::{Hostname, UnsupportedField};

/// Which calls go to which Services.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcRouteSpec {
    /// The Gateways and listeners it wants to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attach to default Gateways.
    pub use_default_gateways: Option<UnsupportedField>,
    /// Only calls to these hosts; none: every host of the listener.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub hostnames: Vec<Hostname>,
    /// What calls match, and where they go.
    #[serde(default = "GrpcRouteRule::default_rules")]
    #[schemars(length(max = 16))]
    pub rules: Vec<GrpcRouteRule>,
}

/// Calls, and where they go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcRouteRule {
    /// For metrics and logs, unique within the route; the rule's number when not given.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
    /// A call that one of these matches is meant; none: every call.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub matches: Vec<GrpcRouteMatch>,
    /// What is changed on the way.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub filters: Vec<HttpFilter>,
    /// Where calls go, shared out by weight.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub backend_refs: Vec<BackendRef>,
    /// Whether a client stays with its endpoint; BackendPolicy's `affinity` says that here.
    pub session_persistence: Option<UnsupportedField>,
}

/// What a call must have, all of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcRouteMatch {
    /// This method; every one when not given.
    pub method: Option<GrpcMethodMatch>,
    /// This metadata; of two for one name the first counts.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
}

/// Methods of services. Of several that match a call, one that names service and method goes first, then what is for
/// one method of any service or a regular expression, then what is for a whole service.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrpcMethodMatch {
    /// How both are compared.
    #[serde(rename = "type", default)]
    pub kind: ValueMatchType,
    /// The service with its package; every one when not given.
    #[schemars(length(max = 1024))]
    pub service: Option<String>,
    /// The method; every one when not given.
    #[schemars(length(max = 1024))]
    pub method: Option<String>,
}

impl GrpcRouteRule {
    /// As HTTPRoutes have it: one rule for every call, which leads nowhere.
    fn default_rules() -> Vec<Self> {
        vec![Self::default()]
    }
}
