//! `TLSRoute` (gateway.networking.k8s.io/v1): routing of TLS connections by server name (SNI).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::route::ParentRef;
use super::scalar::{Hostname, UnsupportedField};
use super::stream_route::StreamRouteRule;

/// Routing of TLS connections.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TlsRouteSpec {
    /// The Gateways and listeners to attach to.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub parent_refs: Vec<ParentRef>,
    /// Attachment to default Gateways.
    pub use_default_gateways: Option<UnsupportedField>,
    /// The server names (SNI) of the connections.
    #[schemars(length(min = 1, max = 1024))]
    pub hostnames: Vec<Hostname>,
    /// The backends of the connections.
    #[schemars(length(min = 1, max = 1))]
    pub rules: Vec<StreamRouteRule>,
}
