//! `TLSRoute` (gateway.networking.k8s.io/v1): where TLS connections go, by the name that the client asks for.

use schemars::JsonSchema;
use serde::Deserialize;

use super::route::ParentRef;
use super::scalar::{Hostname, UnsupportedField};
use super::stream_route::StreamRouteRule;

/// Where TLS connections go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsRouteSpec {
    /// The Gateways and listeners it wants to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attach to default Gateways.
    pub use_default_gateways: Option<UnsupportedField>,
    /// The names that clients ask for (SNI).
    #[schemars(length(min = 1, max = 1024))]
    pub hostnames: Vec<Hostname>,
    /// Where the connections go.
    #[schemars(length(min = 1, max = 1))]
    pub rules: Vec<StreamRouteRule>,
}
