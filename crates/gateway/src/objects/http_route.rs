//! `HTTPRoute` (gateway.networking.k8s.io/v1): which requests go to which Services.

use schemars::JsonSchema;
use serde::Deserialize;

use super::scalar::{Hostname, Unserved};

/// Which requests go to which Services.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteSpec {
    /// The Gateways and listeners it wants to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attach to default Gateways.
    pub use_default_gateways: Option<Unserved>,
    /// Only requests for these hosts; none: every host of the listener.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub hostnames: Vec<Hostname>,
    /// What requests match, and where they go.
    #[serde(default = "HttpRouteRule::default_rules")]
    #[schemars(length(max = 16))]
    pub rules: Vec<HttpRouteRule>,
}

/// Something that a route attaches to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParentRef {
    /// Its API group; Gateway API's when not given.
    pub group: Option<String>,
    /// Its kind; Gateway when not given.
    pub kind: Option<String>,
    /// Its namespace; the route's when not given.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// Only the listener of this name.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
    /// Only listeners on this port.
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<u16>,
}

/// Requests, and where they go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteRule {
    /// For metrics and logs; the rule's number when not given.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
    /// A request that one of these matches is meant; none: every request.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub matches: Vec<HttpRouteMatch>,
    /// What is changed on the way.
    #[serde(default)]
    pub filters: Vec<Unserved>,
    /// Where requests go, shared out by weight.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub backend_refs: Vec<BackendRef>,
    /// How long a request may take.
    pub timeouts: Option<Unserved>,
    /// Whether a request is tried again.
    pub retry: Option<Unserved>,
    /// Whether a client stays with its endpoint.
    pub session_persistence: Option<Unserved>,
}

/// What a request must have, all of it.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpRouteMatch {
    /// This path; every one when not given.
    #[serde(default)]
    pub path: PathMatch,
    /// These header fields.
    #[serde(default)]
    pub headers: Vec<Unserved>,
    /// These parameters of the query.
    #[serde(default)]
    pub query_params: Vec<Unserved>,
    /// This method.
    pub method: Option<Unserved>,
}

/// A path.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct PathMatch {
    /// How it is compared.
    #[serde(rename = "type")]
    pub kind: PathMatchType,
    /// What it is compared with.
    #[schemars(length(max = 1024))]
    pub value: String,
}

/// How a path is compared.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum PathMatchType {
    /// Byte for byte.
    Exact,
    /// Segment by segment from the start.
    #[default]
    PathPrefix,
    /// By a regular expression, which we do not serve.
    RegularExpression,
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
    /// What is changed on the way.
    #[serde(default)]
    pub filters: Vec<Unserved>,
}

impl HttpRouteRule {
    /// Gateway API's default: one rule for every request, which leads nowhere.
    fn default_rules() -> Vec<Self> {
        vec![Self::default()]
    }
}

impl Default for PathMatch {
    fn default() -> Self {
        Self { kind: PathMatchType::PathPrefix, value: "/".to_owned() }
    }
}

const fn one() -> u32 {
    1
}
