//! `TrafficPolicy` (sheave.dev/v1alpha1): handling of requests to Gateways and routes.
//!
//! The doc comments become the reference page and the descriptions of the CRD. Each one states the unit, default and
//! limit if the schema does not.

use std::borrow::Cow;
use std::ops::RangeInclusive;

use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::de::{Deserializer, Error};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;

use super::request_rule::RequestRule;
use super::route::BackendObjectRef;
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
    /// Rules that rewrite, redirect or answer requests on conditions, in their order, before all else: the addresses, rates
    /// and credentials of clients are checked after them. Requests that no rule redirects or answers are forwarded. If a
    /// rule is invalid, all requests are answered with 500.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub request_rules: Vec<RequestRule>,
    /// The response to every request, in place of that of an endpoint.
    pub direct_response: Option<DirectResponse>,
    /// Pages in place of the bodies of error responses, those of endpoints and those of the gateway itself. The first
    /// page that is for a response replaces it. gRPC calls, and responses of an authorizer, have no page.
    #[serde(default)]
    #[schemars(length(max = 16))]
    pub error_pages: Vec<ErrorPage>,
    /// Compression of responses of endpoints, for clients that accept it (`Accept-Encoding`). Default: none. `{}`
    /// compresses with all defaults. Left as they are: responses that are encoded already, partial ones (206), gRPC, those
    /// with `Cache-Control: no-transform` or a digest, and responses to clients of HTTP/1.0. Do not compress pages that
    /// hold a secret beside text of the request: their length would tell the secret (BREACH).
    pub compression: Option<CompressionSpec>,
}

/// Compression of responses.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CompressionSpec {
    /// The algorithms. Of those that a client accepts with the same weight, the first is used.
    #[schemars(length(min = 1, max = 3))]
    pub algorithms: Vec<CompressionAlgorithm>,
    /// The media types of responses that are compressed, without parameters: `text/html`, or `text/*` for all of a type.
    /// `text/event-stream` may be among them: events are sent at once.
    #[schemars(length(min = 1, max = 64))]
    pub content_types: Vec<MediaRange>,
    /// Minimum size of the body, in bytes. A body of unknown size is compressed.
    #[schemars(range(min = 1, max = 1_073_741_824))]
    pub min_bytes: u64,
}

impl Default for CompressionSpec {
    fn default() -> Self {
        let types = DEFAULT_CONTENT_TYPES.map(|it| MediaRange(it.to_owned()));
        Self {
            algorithms: CompressionAlgorithm::DEFAULT.to_vec(),
            content_types: types.to_vec(),
            min_bytes: 1024,
        }
    }
}

/// Media types that are text, and long enough to be worth it.
const DEFAULT_CONTENT_TYPES: [&str; 11] = [
    "text/html",
    "text/css",
    "text/plain",
    "text/xml",
    "text/javascript",
    "application/javascript",
    "application/json",
    "application/xml",
    "application/xhtml+xml",
    "application/wasm",
    "image/svg+xml",
];

/// An algorithm of compression.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum CompressionAlgorithm {
    /// gzip (RFC 1952), which every client has.
    Gzip,
    /// Brotli (RFC 7932), with a window of 128 KiB.
    Brotli,
    /// Zstandard (RFC 8878), with a window of 128 KiB: the least CPU.
    Zstd,
}

impl CompressionAlgorithm {
    const DEFAULT: [Self; 3] = [Self::Zstd, Self::Brotli, Self::Gzip];
}

/// A media type without parameters, or `type/*`.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(transparent)]
#[schemars(extend("format" = "media-range"))]
pub struct MediaRange(pub String);

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
    /// The value of a ConfigMap that is the body, up to 65536 bytes. It excludes `body`.
    pub body_ref: Option<ConfigMapValueRef>,
    /// The value of `Content-Type`, if there is a body.
    #[serde(default = "default_content_type")]
    #[schemars(length(min = 1, max = 256), extend("format" = "field-value"))]
    pub content_type: String,
}

/// A page in place of the body of an error response. Exactly one of `body`, `bodyRef` and `backendRef` is given.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ErrorPage {
    /// The statuses of responses that get the page, from 400 to 599: numbers, and ranges as in `"500-599"`.
    #[serde(default)]
    #[schemars(length(max = 32))]
    pub statuses: Vec<StatusRange>,
    /// True if requests for a Service that has no ready endpoint get the page.
    #[serde(default)]
    pub no_endpoint: bool,
    /// The body, up to 4096 bytes.
    #[schemars(length(max = 4096))]
    pub body: Option<String>,
    /// The value of a ConfigMap that is the body, up to 65536 bytes.
    pub body_ref: Option<ConfigMapValueRef>,
    /// The value of `Content-Type` of `body` and `bodyRef`.
    #[serde(default = "default_content_type")]
    #[schemars(length(min = 1, max = 256), extend("format" = "field-value"))]
    pub content_type: String,
    /// A Service whose answer is the response, with a body of up to 61440 bytes. It gets a GET request for `/` with the
    /// header fields of the client's request, and `X-Code`, `X-Format`, `X-Original-URI`, `X-Namespace`,
    /// `X-Ingress-Name`, `X-Service-Name`, `X-Service-Port` and `X-Request-ID`, as from ingress-nginx. If it does not
    /// answer within 5s, the client gets the status of the error. A Service of another namespace needs a ReferenceGrant
    /// for TrafficPolicies.
    pub backend_ref: Option<BackendObjectRef>,
    /// The status of the response. Default: that of the error; with `backendRef` that of the Service's answer.
    #[schemars(range(min = 200, max = 599))]
    pub response_status: Option<u16>,
    /// True if it comes from annotations of an Ingress.
    #[serde(skip)]
    pub is_of_ingress: bool,
}

/// A value of a ConfigMap in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ConfigMapValueRef {
    /// The name of the ConfigMap.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The key of the value.
    #[schemars(length(min = 1, max = 253))]
    pub key: String,
}

/// A status of error responses, or a range of them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusRange(pub RangeInclusive<u16>);

impl StatusRange {
    /// Parses a status, or the first and the last one of a range.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let is_status = |it: &u16| (400..600).contains(it);
        let status = |text: &str| text.parse().ok().filter(is_status).filter(|_| text.len() == 3);
        let (first, last) = (status(first)?, status(last)?);
        (first <= last).then_some(Self(first..=last))
    }
}

impl<'de> Deserialize<'de> for StatusRange {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let value = Value::deserialize(deserializer)?;
        let text = value.as_str().map_or_else(|| value.to_string(), str::to_owned);
        Self::parse(&text).ok_or_else(|| D::Error::custom("must be a status or a range of them"))
    }
}

impl Serialize for StatusRange {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let (first, last) = (self.0.start(), self.0.end());
        match first == last {
            true => serializer.serialize_u16(*first),
            false => serializer.collect_str(&format_args!("{first}-{last}")),
        }
    }
}

impl JsonSchema for StatusRange {
    fn schema_name() -> Cow<'static, str> {
        "StatusRange".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        json_schema!({
            "x-kubernetes-int-or-string": true,
            "minimum": 400,
            "maximum": 599,
            "format": "status-range",
            "pattern": "^[45][0-9][0-9](-[45][0-9][0-9])?$",
        })
    }
}

fn default_content_type() -> String {
    "text/plain; charset=utf-8".to_owned()
}
