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
    /// Certificates of clients (mTLS). The listener must request them. Default: none is needed.
    pub client_certificate: Option<ClientCertificateAccess>,
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

/// Certificates of clients. The authorities are those of the listener: `tls.frontend` of the Gateway, or the option
/// `sheave.dev/client-ca` of the listener. Only if the listener accepts clients without a valid certificate
/// (`AllowInsecureFallback`, `Requested`), requests are rejected here; else the handshake fails. A request without TLS
/// has no certificate.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ClientCertificateAccess {
    /// The clients that may send requests. A request of another client is answered with 400, a gRPC call with
    /// UNAUTHENTICATED.
    #[serde(default)]
    pub mode: ClientCertificateMode,
    /// The URL to which a request of another client is redirected (302), in place of 400.
    #[schemars(length(max = 2048), extend("format" = "absolute-uri"))]
    pub error_page: Option<String>,
    /// The field `X-Forwarded-Client-Cert` of requests, in the format of Envoy. Default: that of the client is removed,
    /// unless it is a trusted proxy.
    pub forward: Option<ForwardedCertificate>,
    /// The fields of ingress-nginx: `ssl-client-verify` (`SUCCESS`, `FAILED:` and a reason, or `NONE`),
    /// `ssl-client-subject-dn`, `ssl-client-issuer-dn` and `ssl-client-cert`. Default: none of them is written.
    pub ssl_client_fields: Option<SslClientFields>,
}

/// The clients that may send requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientCertificateMode {
    /// Clients with a valid certificate.
    #[default]
    Required,
    /// Clients with a valid certificate, or without one.
    ValidIfPresent,
    /// All clients. Endpoints judge by the fields.
    Any,
}

/// The field `X-Forwarded-Client-Cert`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ForwardedCertificate {
    /// The treatment of a field that the request has.
    #[serde(default)]
    pub mode: ForwardedCertificateMode,
    /// The details of a valid certificate, in the order in which they are written.
    #[serde(default = "default_details")]
    #[schemars(length(min = 1, max = 5))]
    pub details: Vec<ClientCertificateDetail>,
}

/// The treatment of `X-Forwarded-Client-Cert` that a request has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ForwardedCertificateMode {
    /// It is replaced by the client's certificate.
    #[default]
    SanitizeSet,
    /// The client's certificate is appended to what a trusted proxy has written; that of another client is replaced.
    AppendForward,
    /// It is removed.
    Sanitize,
}

/// A detail of a certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum ClientCertificateDetail {
    /// The SHA-256 digest of the certificate.
    Hash,
    /// The certificate in PEM, percent-encoded.
    Cert,
    /// The distinguished name of the subject.
    Subject,
    /// The alternative names that are URIs, as of SPIFFE.
    #[serde(rename = "URI")]
    Uri,
    /// The alternative names that are DNS names.
    #[serde(rename = "DNS")]
    Dns,
}

/// The extent of the fields of ingress-nginx.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SslClientFields {
    /// All but `ssl-client-cert`.
    Names,
    /// With `ssl-client-cert`, the certificate in PEM, percent-encoded.
    NamesAndCertificate,
}

fn default_details() -> Vec<ClientCertificateDetail> {
    use ClientCertificateDetail::{Dns, Hash, Subject, Uri};
    vec![Hash, Subject, Uri, Dns]
}
