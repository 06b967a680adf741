//! `ListenerSet` (gateway.networking.k8s.io/v1): additional listeners of a Gateway, in an object of their own.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::gateway::{AllowedNamespaces, ListenerSpec};

/// Additional listeners of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerSetSpec {
    /// The Gateway, which must allow it by `allowedListeners`.
    pub parent_ref: ParentGatewayRef,
    /// The listeners: ports, protocols and hosts on the Gateway's addresses.
    #[schemars(length(min = 1, max = 64))]
    pub listeners: Vec<ListenerSpec>,
}

/// A reference to a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParentGatewayRef {
    /// The API group. Default: the group of Gateway API.
    pub group: Option<String>,
    /// The kind. Default: Gateway.
    pub kind: Option<String>,
    /// The namespace. Default: the namespace of the ListenerSet.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}

/// ListenerSets that may attach to a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AllowedListeners {
    /// The namespaces of these ListenerSets.
    pub namespaces: AllowedNamespaces,
}
