//! Targets of policies of requests: Gateways and routes, or parts of them.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A reference to a Gateway or a route, or to a listener or rule of it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RouteTarget {
    /// The API group of Gateways and routes.
    #[serde(default = "gateway_group")]
    #[schemars(extend("enum" = ["gateway.networking.k8s.io"]))]
    pub group: String,
    /// The kind of the target.
    pub kind: RouteTargetKind,
    /// The name of the Gateway or route.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of a listener of the Gateway, or of a rule of the route. Default: all.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
}

/// A kind that a policy of requests attaches to.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
pub enum RouteTargetKind {
    /// A Gateway.
    Gateway,
    /// An HTTPRoute.
    #[serde(rename = "HTTPRoute")]
    HttpRoute,
    /// A GRPCRoute.
    #[serde(rename = "GRPCRoute")]
    GrpcRoute,
}

impl RouteTargetKind {
    /// Returns the kind as it is written.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Gateway => "Gateway",
            Self::HttpRoute => "HTTPRoute",
            Self::GrpcRoute => "GRPCRoute",
        }
    }

    /// Returns the kind with this name.
    pub fn find(name: &str) -> Option<Self> {
        [Self::Gateway, Self::HttpRoute, Self::GrpcRoute].into_iter().find(|it| it.name() == name)
    }
}

fn gateway_group() -> String {
    "gateway.networking.k8s.io".to_owned()
}
