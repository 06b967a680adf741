//! TLS settings of a Gateway: with clients and with endpoints.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// TLS settings of a listener.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ListenerTlsConfig {
    /// TLS termination or passthrough.
    pub mode: TlsModeType,
    /// Secrets with a certificate and its key. If there are several, a client gets the first that it supports.
    #[schemars(length(max = 64))]
    pub certificate_refs: Vec<ObjectRef>,
    /// Settings of other implementations.
    pub options: BTreeMap<String, String>,
}

/// Handling of TLS connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum TlsModeType {
    /// TLS is terminated: connections are decrypted.
    #[default]
    Terminate,
    /// Connections are forwarded without decryption.
    Passthrough,
}

/// TLS settings of a whole Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GatewayTls {
    /// TLS with endpoints.
    pub backend: Option<BackendTls>,
    /// TLS with clients.
    pub frontend: Option<FrontendTlsConfig>,
}

/// TLS with endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendTls {
    /// The Secret with the client certificate and key that Sheave presents to endpoints.
    pub client_certificate_ref: Option<ObjectRef>,
}

/// TLS with clients: verification of client certificates (mTLS).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FrontendTlsConfig {
    /// Settings of all HTTPS listeners, except those on the ports in `perPort`.
    pub default: TlsValidationConfig,
    /// Settings of the listeners on one port.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub per_port: Vec<FrontendTlsPort>,
}

/// Client certificate settings of one port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FrontendTlsPort {
    /// The port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The settings.
    pub tls: TlsValidationConfig,
}

/// Client certificate settings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct TlsValidationConfig {
    /// Verification of client certificates. Default: no certificate is requested.
    pub validation: Option<FrontendValidation>,
}

/// Verification of client certificates.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FrontendValidation {
    /// ConfigMaps or Secrets with CA certificates.
    #[schemars(length(min = 1, max = 16))]
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// Handling of clients without a valid certificate.
    #[serde(default)]
    pub mode: FrontendValidationMode,
}

/// Handling of clients without a valid certificate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum FrontendValidationMode {
    /// They are rejected.
    #[default]
    AllowValidOnly,
    /// They are accepted.
    AllowInsecureFallback,
}

/// A reference to another object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectRef {
    /// The API group. Default: the core group.
    #[serde(default)]
    pub group: String,
    /// The kind. Default: Secret.
    pub kind: Option<String>,
    /// The namespace. Default: the namespace of the referring object.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}
