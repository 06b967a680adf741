//! `SecurityPolicy` (sheave.dev/v1alpha1): which requests may be sent to Gateways and routes.
//!
//! The doc comments become the reference page and the descriptions of the CRD. Each one states the unit, default and
//! limit if the schema does not.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::api_keys::ApiKeyAuthentication;
use super::basic_auth::BasicAuthentication;
use super::external_auth::ExternalAuth;
use super::jwt::JwtAuthentication;
use super::route_target::RouteTarget;
use super::scalar::CidrBlock;

/// The clients that may send requests to a Gateway, a listener, a route or a rule. A request must pass all checks of the
/// policy, of which there is at least one. If the policy is invalid, all requests to its targets are answered with 500.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SecurityPolicySpec {
    /// The Gateways and routes to which the policy applies, in the policy's namespace. The most specific policy applies
    /// to a request: that of its rule, else of its route, else of its listener, else of its Gateway. If two policies
    /// have the same target, the older one applies.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<RouteTarget>,
    /// The addresses of clients that may send requests. A request of another client is answered with 403, a gRPC call
    /// with PERMISSION_DENIED. Default: all.
    pub client_addresses: Option<ClientAddressAccess>,
    /// Names and passwords of users. Default: none is needed.
    pub basic_auth: Option<BasicAuthentication>,
    /// Keys of clients. Default: none is needed.
    pub api_keys: Option<ApiKeyAuthentication>,
    /// Signed tokens of issuers (JWT). Default: none is needed.
    pub jwt: Option<JwtAuthentication>,
    /// Authorization of requests by another server, after all other checks.
    pub external_auth: Option<ExternalAuth>,
}

/// The addresses of clients that may send requests. The address is that of the connection, or the one that trusted
/// proxies of the ClientPolicy report.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientAddressAccess {
    /// Networks of clients that may send requests, such as 192.0.2.0/24. Default: all.
    #[serde(default)]
    #[schemars(length(max = 500))]
    pub allow: Vec<CidrBlock>,
    /// Networks of clients that may not, even if `allow` has them.
    #[serde(default)]
    #[schemars(length(max = 500))]
    pub deny: Vec<CidrBlock>,
}
