//! `TrafficPolicy` (sheave.dev/v1alpha1): handling of requests to Gateways and routes.
//!
//! The doc comments become the reference page and the descriptions of the CRD. Each one states the unit, default and
//! limit if the schema does not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::route_target::RouteTarget;

/// Handling of the requests to a Gateway, a listener, a route or a rule, for which Gateway API has no filter.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct TrafficPolicySpec {
    /// The Gateways and routes to which the policy applies, in the policy's namespace. The most specific policy applies
    /// to a request: that of its rule, else of its route, else of its listener, else of its Gateway. If two policies
    /// have the same target, the older one applies.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<RouteTarget>,
    /// Limits of the size of requests.
    #[serde(default)]
    pub limits: TrafficLimits,
    /// The response to every request, in place of that of an endpoint.
    pub direct_response: Option<DirectResponse>,
}

/// Limits of the size of requests.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TrafficLimits {
    /// Maximum size of the body of a request, in bytes. A larger body is rejected with 413. It applies in place of
    /// `limits.bodyBytes` of the ClientPolicy, and may be larger. Default: that of the ClientPolicy.
    #[schemars(range(min = 0, max = 1_125_899_906_842_624_u64))]
    pub body_bytes: Option<u64>,
}

/// The response to every request, which no endpoint gets. It also replaces redirects of the route. Addresses, rates and
/// credentials of clients are checked before. A gRPC call gets the gRPC status that stands for the HTTP status. If the
/// settings are invalid, the response is 500.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct DirectResponse {
    /// The status.
    #[schemars(range(min = 200, max = 599))]
    pub status: u16,
    /// The body, up to 4096 bytes. Default: none.
    #[schemars(length(max = 4096))]
    pub body: Option<String>,
    /// The value of `Content-Type`, if there is a body.
    #[serde(default = "default_content_type")]
    #[schemars(length(min = 1, max = 256), extend("format" = "field-value"))]
    pub content_type: String,
}

/// The type of a body if none is given.
pub(crate) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

fn default_content_type() -> String {
    PLAIN_TEXT.to_owned()
}
