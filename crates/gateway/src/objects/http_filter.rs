//! What an HTTPRoute changes in requests and responses on their way.

use schemars::JsonSchema;
use serde::Deserialize;

use super::route::ServiceRef;
use super::scalar::{CorsOrigin, FieldName, UnsupportedField};

/// One change; the field that its type names says which.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpFilter {
    /// What it does.
    #[serde(rename = "type")]
    pub kind: HttpFilterType,
    /// Fields of the request.
    pub request_header_modifier: Option<HeaderModifier>,
    /// Fields of the response.
    pub response_header_modifier: Option<HeaderModifier>,
    /// Who else gets the request.
    pub request_mirror: Option<RequestMirror>,
    /// Where the client is sent.
    pub request_redirect: Option<RequestRedirect>,
    /// What the endpoint is asked for.
    pub url_rewrite: Option<UrlRewrite>,
    /// Which requests of browsers from elsewhere are allowed.
    pub cors: Option<CorsFilter>,
    /// Something of another API.
    pub extension_ref: Option<UnsupportedField>,
    /// Somebody who is asked for leave.
    pub external_auth: Option<UnsupportedField>,
}

/// What a filter does.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum HttpFilterType {
    /// It changes fields of the request.
    RequestHeaderModifier,
    /// It changes fields of the response.
    ResponseHeaderModifier,
    /// It sends a copy of the request elsewhere.
    RequestMirror,
    /// It sends the client elsewhere.
    RequestRedirect,
    /// It changes what the endpoint is asked for.
    #[serde(rename = "URLRewrite")]
    UrlRewrite,
    /// It answers browsers that ask for leave.
    #[serde(rename = "CORS")]
    Cors,
    /// Something of another API, which we do not serve.
    ExtensionRef,
    /// It asks somebody for leave, which we do not serve.
    ExternalAuth,
}

/// Changes in header fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HeaderModifier {
    /// One value in place of all.
    #[schemars(length(max = 16))]
    pub set: Vec<HttpHeader>,
    /// One value more.
    #[schemars(length(max = 16))]
    pub add: Vec<HttpHeader>,
    /// Names of fields that are taken out.
    #[schemars(length(max = 16))]
    pub remove: Vec<FieldName>,
}

/// A header field.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpHeader {
    /// Its name.
    #[schemars(extend("format" = "field-name"))]
    pub name: String,
    /// Its value.
    #[schemars(length(min = 1, max = 4096), extend("format" = "field-value"))]
    pub value: String,
}

/// Who else gets requests. Its answers are dropped.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct RequestMirror {
    /// Who it is.
    pub backend_ref: MirrorRef,
    /// How many requests of a hundred; all when not given.
    #[schemars(range(min = 0, max = 100))]
    pub percent: Option<u32>,
    /// How many requests, finer than in percent.
    pub fraction: Option<Fraction>,
}

/// Who gets copies of requests.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct MirrorRef {
    /// Its API group; the core group when not given.
    pub group: Option<String>,
    /// Its kind; Service when not given.
    pub kind: Option<String>,
    /// Its namespace; the route's when not given.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The Service's port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
}

/// So many of so many.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Fraction {
    /// At most the denominator.
    #[schemars(range(min = 0, max = 2_147_483_647))]
    pub numerator: u32,
    /// Of how many.
    #[serde(default = "hundred")]
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub denominator: u32,
}

/// Where a client is sent; what is not given stays.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct RequestRedirect {
    /// The scheme.
    pub scheme: Option<RedirectScheme>,
    /// The host.
    #[schemars(extend("format" = "host"))]
    pub hostname: Option<String>,
    /// The path.
    pub path: Option<PathModifier>,
    /// The port; that of the scheme when only the scheme is given, else the listener's.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The status of the answer.
    #[schemars(extend("enum" = [301, 302, 303, 307, 308]))]
    pub status_code: u16,
}

/// The scheme that a client is sent to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum RedirectScheme {
    /// Without TLS.
    Http,
    /// With TLS.
    Https,
}

/// What an endpoint is asked for; what is not given stays.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct UrlRewrite {
    /// The host.
    #[schemars(extend("format" = "host"))]
    pub hostname: Option<String>,
    /// The path.
    pub path: Option<PathModifier>,
}

/// Another path.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathModifier {
    /// Whether all of it is replaced.
    #[serde(rename = "type")]
    pub kind: PathModifierType,
    /// The new path.
    #[schemars(length(max = 1024))]
    pub replace_full_path: Option<String>,
    /// The new beginning, in place of the prefix that the rule matches.
    #[schemars(length(max = 1024))]
    pub replace_prefix_match: Option<String>,
}

/// What of a path is replaced.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum PathModifierType {
    /// All of it.
    ReplaceFullPath,
    /// The prefix that the rule matches.
    ReplacePrefixMatch,
}

/// Which requests of browsers from elsewhere are allowed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CorsFilter {
    /// From where: origins, with `*` in place of the first labels, or `*` for all.
    #[schemars(length(max = 64))]
    pub allow_origins: Vec<CorsOrigin>,
    /// Whether cookies and credentials may come with them.
    pub allow_credentials: bool,
    /// By which methods; `*` for all.
    #[schemars(length(max = 9))]
    pub allow_methods: Vec<FieldName>,
    /// With which header fields; `*` for all.
    #[schemars(length(max = 64))]
    pub allow_headers: Vec<FieldName>,
    /// Which fields of a response scripts may see; `*` for all.
    #[schemars(length(max = 64))]
    pub expose_headers: Vec<FieldName>,
    /// How many seconds the answer to a preflight holds.
    #[schemars(range(min = 1, max = 2_147_483_647))]
    pub max_age: u32,
}

impl MirrorRef {
    /// What it names.
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
