//! `apiKeys` of a SecurityPolicy: keys of clients.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::FieldName;

/// Keys of clients. A request without one of them is answered with 401, a gRPC call with UNAUTHENTICATED. Redirects and
/// CORS preflight requests are answered before it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeyAuthentication {
    /// Secrets whose values are the keys; the name of a value is the ID of the client. If one of them does not exist or
    /// has an error, all requests are answered with 500.
    #[schemars(length(min = 1, max = 16))]
    pub credential_refs: Vec<ApiKeySecret>,
    /// The places of a request where its key may be. The first one that a request has counts.
    pub extract_from: ApiKeySources,
    /// The name of a header field in which endpoints get the ID of the client. The client's own field of this name is
    /// removed. Default: none.
    #[schemars(length(min = 1, max = 256), extend("format" = "field-name"))]
    #[serde(rename = "forwardClientIDHeader")]
    pub forward_client_id_header: Option<String>,
    /// True if the key is removed from the request that endpoints get.
    #[serde(default)]
    pub sanitize: bool,
}

/// A Secret with keys of clients, in the policy's namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeySecret {
    /// The name of the Secret.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}

/// The places of a request where its key may be, of which there is at least one. They are searched in the order of these
/// fields.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ApiKeySources {
    /// Names of header fields, such as X-API-Key. In Authorization the key comes after `Bearer`.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub headers: Vec<FieldName>,
    /// Names of parameters of the query. Keys in URLs get into logs of clients and proxies: prefer a header.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub params: Vec<FieldName>,
    /// Names of cookies.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub cookies: Vec<FieldName>,
}
