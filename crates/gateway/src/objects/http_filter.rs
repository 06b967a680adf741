//! Filters of an HTTPRoute: changes to requests and responses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::external_auth::HttpExternalAuth;
use super::route::BackendObjectRef;
use super::scalar::{CorsOrigin, FieldName, UnsupportedField};

/// A filter. The field that belongs to its type configures it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpFilter {
    /// The type.
    #[serde(rename = "type")]
    pub kind: HttpFilterType,
    /// Changes to header fields of the request.
    pub request_header_modifier: Option<HeaderModifier>,
    /// Changes to header fields of the response.
    pub response_header_modifier: Option<HeaderModifier>,
    /// The backend that gets a copy of the request.
    pub request_mirror: Option<RequestMirror>,
    /// The redirect that the client gets.
    pub request_redirect: Option<RequestRedirect>,
    /// Changes to the host and path of the request to the endpoint.
    pub url_rewrite: Option<UrlRewrite>,
    /// Cross-origin requests that are allowed (CORS).
    pub cors: Option<CorsFilter>,
    /// A filter of another API.
    pub extension_ref: Option<UnsupportedField>,
    /// Authorization of requests by another server.
    pub external_auth: Option<HttpExternalAuth>,
}

/// The type of a filter.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum HttpFilterType {
    /// Changes header fields of the request.
    RequestHeaderModifier,
    /// Changes header fields of the response.
    ResponseHeaderModifier,
    /// Sends a copy of the request to another backend.
    RequestMirror,
    /// Redirects the client.
    RequestRedirect,
    /// Changes the host and path of the request to the endpoint.
    #[serde(rename = "URLRewrite")]
    UrlRewrite,
    /// Answers CORS preflight requests, and adds CORS header fields to responses.
    #[serde(rename = "CORS")]
    Cors,
    /// A filter of another API, which is not supported.
    ExtensionRef,
    /// Asks another server whether a request may be served.
    ExternalAuth,
}

/// Changes to header fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeaderModifier {
    /// Fields to set: the value replaces all existing ones.
    #[schemars(length(max = 16))]
    pub set: Vec<HttpHeader>,
    /// Fields to add: the value is added to the existing ones.
    #[schemars(length(max = 16))]
    pub add: Vec<HttpHeader>,
    /// Names of fields to remove.
    #[schemars(length(max = 16))]
    pub remove: Vec<FieldName>,
}

/// A header field.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpHeader {
    /// The name.
    #[schemars(extend("format" = "field-name"))]
    pub name: String,
    /// The value.
    #[schemars(length(min = 1, max = 4096), extend("format" = "field-value"))]
    pub value: String,
}

/// A backend that gets copies of requests. Its responses are discarded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestMirror {
    /// The backend.
    pub backend_ref: BackendObjectRef,
    /// The percentage of requests to mirror. Default: 100.
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<u32>,
    /// The fraction of requests to mirror, for shares finer than a percent.
    pub fraction: Option<Fraction>,
}

/// A fraction.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fraction {
    /// The numerator, at most the denominator.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub numerator: u32,
    /// The denominator.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub denominator: u32,
}

/// The redirect that a client gets. Parts that are not given stay as in the request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RequestRedirect {
    /// The scheme.
    pub scheme: Option<RedirectScheme>,
    /// The host.
    #[schemars(extend("format" = "host"))]
    pub hostname: Option<String>,
    /// The path.
    pub path: Option<PathModifier>,
    /// The port. Default: the default port of `scheme` if that is given, else the port of the listener.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The status code of the redirect.
    #[schemars(extend("enum" = [301, 302, 303, 307, 308]))]
    pub status_code: u16,
}

/// The scheme of a redirect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RedirectScheme {
    /// HTTP without TLS.
    Http,
    /// HTTP with TLS.
    Https,
}

/// Changes to the host and path of the request to the endpoint. Parts that are not given stay as in the request.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UrlRewrite {
    /// The host.
    #[schemars(extend("format" = "host"))]
    pub hostname: Option<String>,
    /// The path.
    pub path: Option<PathModifier>,
}

/// A change to a path.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathModifier {
    /// The part of the path that is replaced.
    #[serde(rename = "type")]
    pub kind: PathModifierType,
    /// The new path.
    #[schemars(length(max = 1024))]
    pub replace_full_path: Option<String>,
    /// The replacement of the prefix that the rule matches.
    #[schemars(length(max = 1024))]
    pub replace_prefix_match: Option<String>,
}

/// The part of a path that is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum PathModifierType {
    /// The whole path.
    ReplaceFullPath,
    /// The prefix that the rule matches.
    ReplacePrefixMatch,
}

/// Cross-origin requests that are allowed (CORS).
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CorsFilter {
    /// Allowed origins. A `*` can replace the first labels of a host; `*` alone means all origins.
    #[schemars(length(max = 64))]
    pub allow_origins: Vec<CorsOrigin>,
    /// If true, cross-origin requests may carry cookies and credentials.
    pub allow_credentials: bool,
    /// Allowed methods. `*` means all methods.
    #[schemars(length(max = 9))]
    pub allow_methods: Vec<FieldName>,
    /// Allowed request header fields. `*` means all fields.
    #[schemars(length(max = 64))]
    pub allow_headers: Vec<FieldName>,
    /// Response header fields that scripts may read. `*` means all fields.
    #[schemars(length(max = 64))]
    pub expose_headers: Vec<FieldName>,
    /// The number of seconds for which a browser may cache the response to a preflight request.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub max_age: u32,
}

impl Default for RequestRedirect {
    fn default() -> Self {
        Self { scheme: None, hostname: None, path: None, port: None, status_code: 302 }
    }
}

impl Default for CorsFilter {
    fn default() -> Self {
        Self {
            allow_origins: Vec::new(),
            allow_credentials: false,
            allow_methods: Vec::new(),
            allow_headers: Vec::new(),
            expose_headers: Vec::new(),
            max_age: 5,
        }
    }
}

const fn hundred() -> u32 {
    100
}
