//! `ListenerSet` (gateway.networking.k8s.io/v1): listeners that are added to a Gateway from beside it.

use schemars::JsonSchema;
use serde::Deserialize;

use super::gateway::{AllowedNamespaces, ListenerSpec};

/// Listeners, and the Gateway that they are added to.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ListenerSetSpec {
    /// The Gateway, which must allow it by its `allowedListeners`.
    pub parent_ref: ParentGatewayRef,
    /// What is accepted, and on which ports of the Gateway's addresses.
    #[schemars(length(min = 1, max = 64))]
    pub listeners: Vec<ListenerSpec>,
}

/// A Gateway, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParentGatewayRef {
    /// Its API group; Gateway API's when not given.
    pub group: Option<String>,
    /// Its kind; Gateway when not given.
    pub kind: Option<String>,
    /// Its namespace; that of the ListenerSet when not given.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}

/// Which ListenerSets may attach to a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct AllowedListeners {
    /// From which namespaces.
    pub namespaces: AllowedNamespaces,
}
