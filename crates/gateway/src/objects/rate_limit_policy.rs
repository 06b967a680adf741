//! `RateLimitPolicy` (sheave.dev/v1alpha1): request rates of Gateways and routes.
//!
//! The doc comments become the reference page and the descriptions of the CRD. Each one states the unit, default and
//! limit if the schema does not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;
use super::route_target::RouteTarget;

/// Limits of the rate of requests to a Gateway, a listener, a route or a rule, for all replicas together. A request
/// over a limit is rejected at once; it does not wait.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimitPolicySpec {
    /// The Gateways and routes to which the policy applies, in the policy's namespace. Each target has limits of its
    /// own. The most specific policy applies to a request: that of its rule, else of its route, else of its listener,
    /// else of its Gateway. If two policies have the same target, the older one applies.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<RouteTarget>,
    /// The limits. A request must be within each of them; one that is rejected counts in none of them.
    #[schemars(length(min = 1, max = 8))]
    pub limits: Vec<RequestRateLimit>,
    /// The status code of a rejected request: 429 asks the client to slow down, 503 reports that the service is at
    /// fault. A gRPC call is rejected with RESOURCE_EXHAUSTED.
    #[serde(default = "too_many_requests")]
    #[schemars(extend("enum" = [429, 503]))]
    pub status: u16,
    /// The Ingress whose annotations set the limits; all targets share them. No field of the object.
    #[serde(skip)]
    #[schemars(skip)]
    pub ingress: Option<String>,
}

/// A limit of the rate of requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestRateLimit {
    /// Number of requests in each period.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub requests: u32,
    /// The period.
    pub period: Duration,
    /// Number of requests that are admitted at once after a pause; further ones follow at the rate of the limit. Behind
    /// several replicas it is at least one for each of them. Default: `requests`.
    #[schemars(range(min = 1, max = 1_000_000))]
    pub burst: Option<u32>,
    /// The part of a request by which requests are counted separately. Default: all requests are counted together.
    pub key: Option<RateLimitKeySpec>,
}

/// The part of a request by which requests are counted separately.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RateLimitKeySpec {
    /// The type of the key.
    #[serde(rename = "type")]
    pub kind: RateLimitKeyType,
    /// The name of the header field. Requests without it are counted together.
    #[schemars(extend("format" = "field-name"))]
    pub name: Option<String>,
    /// Number of bits of an IPv6 address that identify a client: a subscriber has a whole network. Default: 64.
    #[serde(rename = "ipv6PrefixLength")]
    #[schemars(range(min = 32, max = 128))]
    pub ipv6_prefix_length: Option<u8>,
}

/// The type of a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum RateLimitKeyType {
    /// The client's IP address. Trusted proxies of the ClientPolicy report it.
    ClientAddress,
    /// The first value of a header field.
    Header,
}

const fn too_many_requests() -> u16 {
    429
}
