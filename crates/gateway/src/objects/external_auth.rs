//! External authorization: a server that decides on each request, for SecurityPolicies and for the filter `ExternalAuth`
//! of an HTTPRoute (GEP-1494).

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::duration::Duration;
use super::route::BackendObjectRef;
use super::scalar::FieldName;

/// Authorization of requests by another server, the authorizer. It is asked before the endpoint gets the client's
/// request, and a negative answer (over HTTP any but 2xx) goes to the client in place of the endpoint's. If there is no
/// usable answer in time, the client gets 500.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ExternalAuth {
    /// The protocol of the authorizer. GRPC is Envoy's `envoy.service.auth.v3.Authorization` over HTTP/2; `path`,
    /// `pathPrefix`, `method` and `cookies` are for HTTP alone. Default: HTTP.
    #[serde(default)]
    pub protocol: ExternalAuthProtocol,
    /// The Service of the authorizer. One of another namespace needs a ReferenceGrant for SecurityPolicies.
    pub backend_ref: BackendObjectRef,
    /// The path, and perhaps query, of authorization requests, which are then GET requests. `$host`, `$http_host`,
    /// `$scheme`, `$request_uri` and `$escaped_request_uri` stand for parts of the client's request. Default: the path
    /// and method of the client's request.
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// A prefix of the path of the client's request, if there is no `path`.
    #[schemars(length(max = 1024), extend("format" = "target"))]
    pub path_prefix: Option<String>,
    /// The method of authorization requests, instead of GET (POST with `forwardBody`) or that of the client's request.
    pub method: Option<AuthorizerMethod>,
    /// The host of authorization requests. Default: that of the client's request, for GRPC the name of the Service.
    #[schemars(length(min = 1, max = 253), extend("format" = "field-value"))]
    pub host: Option<String>,
    /// Names of header fields of the client's request that the authorizer gets, besides `Authorization`, `Cookie` and
    /// those that describe the request (`X-Forwarded-*`, `X-Original-*`, `X-Real-IP`, `X-Request-Id`). `*`: all fields,
    /// which is the default for GRPC.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub request_headers: Vec<FieldName>,
    /// Names of header fields of a positive answer that the endpoint gets. A client's own fields of these names are
    /// removed. Default for GRPC: all that the authorizer sets.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub response_headers: Vec<FieldName>,
    /// The responses to the client that get the cookies (`Set-Cookie`) of a positive answer.
    #[serde(default)]
    pub cookies: AuthorizerCookies,
    /// A page to which a client is redirected (302) if the answer is 401. Default: the client gets the 401.
    pub sign_in: Option<SignInPage>,
    /// The body that the authorizer gets with the request. Default: none.
    pub forward_body: Option<ForwardedBody>,
    /// Time limit of an authorization request. Default: 5s, maximum: 1m.
    #[serde(default = "default_timeout")]
    #[schemars(extend("format" = "positive-duration"))]
    pub timeout: Duration,
    /// True if it comes from annotations of an Ingress.
    #[serde(skip)]
    pub is_of_ingress: bool,
    /// True if the Service may be referred to without a ReferenceGrant, because clients can reach it too.
    #[serde(skip)]
    pub is_permitted: bool,
}

/// The responses that get the cookies of a positive answer of the authorizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum AuthorizerCookies {
    /// Responses with status 200, 201, 204, 206, 301, 302, 303, 304, 307 or 308.
    #[default]
    OnSuccess,
    /// All responses.
    Always,
    /// None.
    Never,
}

/// The method of authorization requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum AuthorizerMethod {
    /// GET.
    Get,
    /// HEAD.
    Head,
    /// POST.
    Post,
    /// PUT.
    Put,
    /// PATCH.
    Patch,
    /// DELETE.
    Delete,
    /// OPTIONS.
    Options,
}

impl AuthorizerMethod {
    const ALL: [Self; 7] =
        [Self::Get, Self::Head, Self::Post, Self::Put, Self::Patch, Self::Delete, Self::Options];

    /// Returns the method as requests have it.
    pub const fn text(self) -> &'static str {
        match self {
            Self::Get => "GET",
            Self::Head => "HEAD",
            Self::Post => "POST",
            Self::Put => "PUT",
            Self::Patch => "PATCH",
            Self::Delete => "DELETE",
            Self::Options => "OPTIONS",
        }
    }

    /// Parses a method.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|it| it.text() == text)
    }
}

/// A page where clients sign in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SignInPage {
    /// The URL, absolute or a path. It may have the variables that `path` may have.
    #[schemars(length(min = 1, max = 2048))]
    pub url: String,
    /// The query parameter that is added with the URL of the client's request. Empty: none.
    #[serde(default = "default_redirect_parameter")]
    #[schemars(length(max = 64))]
    pub redirect_parameter: String,
}

/// External authorization, as a filter of an HTTPRoute.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HttpExternalAuth {
    /// The protocol of the authorizer.
    pub protocol: ExternalAuthProtocol,
    /// The Service of the authorizer.
    pub backend_ref: BackendObjectRef,
    /// Settings for an authorizer that speaks gRPC.
    pub grpc: Option<GrpcAuthorizer>,
    /// Settings for an authorizer that speaks HTTP.
    pub http: Option<HttpAuthorizer>,
    /// The body that the authorizer gets with the request.
    pub forward_body: Option<ForwardedBody>,
}

/// The protocol of an authorizer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "UPPERCASE")]
pub enum ExternalAuthProtocol {
    /// HTTP: a request whose status is the answer.
    #[default]
    Http,
    /// Envoy's `ext_authz`, version 3.
    Grpc,
}

/// Settings for an authorizer that speaks gRPC.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GrpcAuthorizer {
    /// Names of header fields that the authorizer gets. Default: all.
    #[schemars(length(max = 64))]
    pub allowed_headers: Vec<FieldName>,
}

/// Settings for an authorizer that speaks HTTP.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct HttpAuthorizer {
    /// A prefix of the path of the client's request.
    #[schemars(length(max = 1024))]
    pub path: String,
    /// Names of header fields that the authorizer gets, besides `Authorization`.
    #[schemars(length(max = 64))]
    pub allowed_headers: Vec<FieldName>,
    /// Names of header fields of a positive answer that the endpoint gets. Default: all that do not belong to the answer
    /// itself.
    #[schemars(length(max = 64))]
    pub allowed_response_headers: Vec<FieldName>,
}

/// The body that an authorizer gets. It is read before the authorizer is asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ForwardedBody {
    /// The maximum size of a body, in bytes; a request with a larger one is rejected with 413. 0: the authorizer gets no
    /// body.
    #[schemars(range(min = 0, max = 65535))]
    pub max_size: u16,
}

/// The time limit if none is given.
pub(crate) const DEFAULT_TIMEOUT: Duration = Duration::from_secs(5);
/// The name of the query parameter for the URL of the client's request, if none is given.
pub(crate) const REDIRECT_PARAMETER: &str = "rd";

const fn default_timeout() -> Duration {
    DEFAULT_TIMEOUT
}

fn default_redirect_parameter() -> String {
    REDIRECT_PARAMETER.to_owned()
}
