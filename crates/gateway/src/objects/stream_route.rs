//! `TCPRoute` and `UDPRoute` (gateway.networking.k8s.io/v1): routing of TCP connections and UDP flows.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::route::{ParentRef, ServiceRef, one};
use super::scalar::UnsupportedField;

/// Routing of the connections or flows of listeners.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamRouteSpec {
    /// The Gateways and listeners to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attachment to default Gateways.
    pub use_default_gateways: Option<UnsupportedField>,
    /// The rule. There can be only one, because connections have nothing to match on.
    #[schemars(length(min = 1, max = 16))]
    pub rules: Vec<StreamRouteRule>,
}

/// The backends of connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamRouteRule {
    /// The name for metrics and logs. Default: the index of the rule.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
    /// The backends, chosen by weight.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub backend_refs: Vec<StreamBackendRef>,
}

/// A backend, and its share of a rule's connections.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct StreamBackendRef {
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
    /// The weight relative to the other backends. 0 means no connections.
    #[serde(default = "one")]
    #[schemars(range(min = 0, max = 1_000_000))]
    pub weight: u32,
}

impl StreamBackendRef {
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
