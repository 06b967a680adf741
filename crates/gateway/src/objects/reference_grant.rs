//! `ReferenceGrant` (gateway.networking.k8s.io/v1): who may refer to objects of its namespace from others.

use schemars::JsonSchema;
use serde::Deserialize;

/// Who may refer to what.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ReferenceGrantSpec {
    /// Who may refer.
    #[schemars(length(min = 1, max = 16))]
    pub from: Vec<GrantFrom>,
    /// To what, in the grant's namespace.
    #[schemars(length(min = 1, max = 16))]
    pub to: Vec<GrantTo>,
}

/// Objects of a kind and namespace, which may refer.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrantFrom {
    /// Their API group.
    pub group: String,
    /// Their kind.
    pub kind: String,
    /// Their namespace.
    #[schemars(extend("format" = "label"))]
    pub namespace: String,
}

/// Objects that may be referred to.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct GrantTo {
    /// Their API group; empty for the core group.
    #[serde(default)]
    pub group: String,
    /// Their kind.
    pub kind: String,
    /// Only the one of this name.
    #[schemars(extend("format" = "name"))]
    pub name: Option<String>,
}
