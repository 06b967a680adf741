//! `ReferenceGrant` (gateway.networking.k8s.io/v1): permission for other namespaces to refer to objects of its
//! namespace.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Permission to refer to objects of another namespace.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReferenceGrantSpec {
    /// The objects that may refer.
    #[schemars(length(min = 1, max = 16))]
    pub from: Vec<GrantFrom>,
    /// The objects in the grant's namespace that may be referred to.
    #[schemars(length(min = 1, max = 16))]
    pub to: Vec<GrantTo>,
}

/// Objects of a kind and namespace that may refer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrantFrom {
    /// The API group.
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The namespace.
    #[schemars(extend("format" = "label"))]
    pub namespace: String,
}

/// Objects that may be referred to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrantTo {
    /// The API group. Empty for the core group.
    #[serde(default)]
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name of the object. Default: all objects of the kind.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
}
