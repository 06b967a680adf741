//! `jwt` of a SecurityPolicy: signed tokens of issuers (RFC 7519).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;
use super::scalar::FieldName;

/// Signed tokens of issuers (JWT, RFC 7519), as OAuth 2 and OpenID Connect use them. A request without a valid one is
/// answered with 401, a gRPC call with UNAUTHENTICATED. Redirects and CORS preflight requests are answered before it.
/// A token needs an expiry (`exp`) and an asymmetric signature: RS256, RS384, RS512, PS256, PS384, PS512, ES256, ES384
/// or EdDSA (Ed25519).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtAuthentication {
    /// The issuers whose tokens are accepted. No two of them have the same name.
    #[schemars(length(min = 1, max = 16))]
    pub providers: Vec<JwtProvider>,
    /// The places of a request where its token may be. Default: Authorization, after `Bearer`.
    pub extract_from: Option<JwtSources>,
    /// True if endpoints get the token too.
    #[serde(default = "yes")]
    pub forward: bool,
}

/// An issuer of tokens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtProvider {
    /// The name of the issuer, as its tokens have it in `iss`, such as `https://accounts.example.com`.
    #[schemars(length(min = 1, max = 2048), extend("format" = "field-value"))]
    pub issuer: String,
    /// The audiences of accepted tokens: one of them is in `aud`. Default: any, also tokens for other services of the
    /// issuer.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub audiences: Vec<String>,
    /// The keys of the issuer.
    pub jwks: JwksSource,
    /// Difference between the clocks of the issuer and of Sheave that is tolerated in `exp` and `nbf`. Default: 60s,
    /// maximum: 10m.
    #[serde(default = "default_clock_skew")]
    #[schemars(extend("format" = "duration"))]
    pub clock_skew: Duration,
    /// Claims that endpoints get in header fields. The client's own fields of these names are removed, whichever issuer
    /// its token is of.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub claims_to_headers: Vec<ClaimToHeader>,
}

/// The place of the keys of an issuer: a JSON Web Key Set (RFC 7517) of at most 256 KiB and 64 keys. Exactly one of the
/// first three fields is set.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwksSource {
    /// The key set itself, as JSON.
    #[schemars(length(min = 1, max = 65536))]
    pub inline: Option<String>,
    /// A ConfigMap whose value `jwks` is the key set. If it does not exist or has an error, all requests are answered
    /// with 500.
    pub config_map: Option<JwksConfigMap>,
    /// The URL of the key set, `https` or `http`. Sheave fetches it when the policy appears and again after each
    /// interval. While there is no key set, tokens of the issuer are refused with 401.
    #[schemars(length(min = 1, max = 2048))]
    pub url: Option<String>,
    /// Interval between two fetches of the URL. Default: 5m, minimum: 10s, maximum: 24h.
    #[schemars(extend("format" = "positive-duration"))]
    pub refresh_interval: Option<Duration>,
    /// Time that a fetched key set stays in use while the URL cannot be fetched. Default: 24h, minimum: the refresh
    /// interval, maximum: 720h.
    #[schemars(extend("format" = "positive-duration"))]
    pub max_age: Option<Duration>,
}

/// A ConfigMap with a key set.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwksConfigMap {
    /// The namespace. One of another namespace needs a ReferenceGrant for SecurityPolicies. Default: the namespace of
    /// the policy.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}

/// A claim that endpoints get in a header field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClaimToHeader {
    /// The name of the claim. If the token has no claim of this name, a name with dots leads into objects:
    /// `realm_access.roles`. A text, a number or a truth value is written as it is, a list of such values with commas.
    /// Any other value is not written, nor one of more than 1024 bytes, nor a list with a comma in an element.
    #[schemars(length(min = 1, max = 256))]
    pub claim: String,
    /// The name of the header field.
    pub header: FieldName,
}

/// The places of a request where its token may be, of which there is at least one. They are searched in the order of
/// these fields, and the first one that a request has counts.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct JwtSources {
    /// Names of header fields. In Authorization the token comes after `Bearer`, in others it is alone.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub headers: Vec<FieldName>,
    /// Names of parameters of the query. Tokens in URLs get into logs of clients and proxies: prefer a header.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub params: Vec<FieldName>,
    /// Names of cookies.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub cookies: Vec<FieldName>,
}

const fn yes() -> bool {
    true
}

const fn default_clock_skew() -> Duration {
    Duration::from_secs(60)
}
