//! Types that all kinds of route share: references to parents and to Services.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A parent of a route: a Gateway or a ListenerSet.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ParentRef {
    /// The API group. Default: the group of Gateway API.
    pub group: Option<String>,
    /// The kind. Default: Gateway.
    pub kind: Option<String>,
    /// The namespace. Default: the namespace of the route.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of a listener. Default: all listeners.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
    /// The port of listeners. Default: all ports.
    #[schemars(range(min = 0, max = 65535))]
    pub port: Option<u16>,
}

/// A backend reference. It usually names a port of a Service, but may name another kind.
#[derive(Clone, Copy, Debug)]
pub struct ServiceRef<'a> {
    /// The API group. Default: the core group.
    pub group: Option<&'a str>,
    /// The kind. Default: Service.
    pub kind: Option<&'a str>,
    /// The namespace. Default: the namespace of the referring object.
    pub namespace: Option<&'a str>,
    /// The name.
    pub name: &'a str,
    /// The port.
    pub port: Option<u16>,
}

/// A reference to a port of a Service, without the weight and the filters of a route's.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendObjectRef {
    /// The API group. Default: the core group.
    pub group: Option<String>,
    /// The kind. Default: Service.
    pub kind: Option<String>,
    /// The namespace. Default: the namespace of the object.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The port of the Service.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
}

impl BackendObjectRef {
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

pub(super) const fn one() -> u32 {
    1
}
