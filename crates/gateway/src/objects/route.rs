//! What routes of every kind have: what they attach to, and what they lead to.

use schemars::JsonSchema;
use serde::Deserialize;

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

/// A port of a Service as some reference names it, which may name something else.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRef<'a> {
    /// The API group; the core group when not given.
    pub group: Option<&'a str>,
    /// The kind; Service when not given.
    pub kind: Option<&'a str>,
    /// The namespace; that of the object that refers when not given.
    pub namespace: Option<&'a str>,
    /// The name.
    pub name: &'a str,
    /// The port.
    pub port: Option<u16>,
}

pub(super) const fn one() -> u32 {
    1
}
