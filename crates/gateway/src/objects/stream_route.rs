//! `TCPRoute` and `UDPRoute` (gateway.networking.k8s.io/v1): where connections and flows go.

use schemars::JsonSchema;
use serde::Deserialize;

use super::route::{ParentRef, ServiceRef, one};
use super::scalar::UnsupportedField;

/// Where the connections or flows of listeners go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamRouteSpec {
    /// The Gateways and listeners it wants to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attach to default Gateways.
    pub use_default_gateways: Option<UnsupportedField>,
    /// Where they go. There is nothing to tell connections apart by, so there can be one rule only.
    #[schemars(length(min = 1, max = 16))]
    pub rules: Vec<StreamRouteRule>,
}

/// Where connections go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamRouteRule {
    /// For metrics and logs; the rule's number when not given.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
    /// Where they go, shared out by weight.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub backend_refs: Vec<StreamBackendRef>,
}

/// A share of a rule's connections.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamBackendRef {
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
}

impl StreamBackendRef {
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
