//! The parts of a Gateway that speak of TLS: with clients, and with endpoints.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

/// How the connections of a listener are decrypted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ListenerTlsConfig {
    /// Whether they are decrypted at all.
    pub mode: TlsModeType,
    /// Secrets with a certificate and its key. Of several, clients get the first that suits them.
    #[schemars(length(max = 64))]
    pub certificate_refs: Vec<ObjectRef>,
    /// Settings of other implementations.
    pub options: BTreeMap<String, String>,
}

/// What becomes of TLS connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum TlsModeType {
    /// They are decrypted.
    #[default]
    Terminate,
    /// They are carried as they are.
    Passthrough,
}

/// TLS of a whole Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct GatewayTls {
    /// With endpoints.
    pub backend: Option<BackendTls>,
    /// With clients.
    pub frontend: Option<FrontendTls>,
}

/// TLS with endpoints.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct BackendTls {
    /// A Secret with the certificate that endpoints are shown, and its key.
    pub client_certificate_ref: Option<ObjectRef>,
}

/// TLS with clients: which certificates of theirs are asked for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FrontendTls {
    /// At all listeners that speak HTTPS, but for those on the ports below.
    pub default: FrontendTlsConfig,
    /// At the listeners on one port.
    #[serde(default)]
    #[schemars(length(max = 64))]
    pub per_port: Vec<FrontendTlsPort>,
}

/// What is asked of clients at one port.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FrontendTlsPort {
    /// The port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// What is asked for there.
    pub tls: FrontendTlsConfig,
}

/// What is asked of clients.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct FrontendTlsConfig {
    /// A certificate; not given: none.
    pub validation: Option<FrontendValidation>,
}

/// Which certificates of clients are believed.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FrontendValidation {
    /// ConfigMaps or Secrets with certificates of authorities.
    #[schemars(length(min = 1, max = 16))]
    pub ca_certificate_refs: Vec<ObjectRef>,
    /// What becomes of clients without a certificate that is believed.
    #[serde(default)]
    pub mode: FrontendValidationMode,
}

/// What becomes of clients without a certificate that is believed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum FrontendValidationMode {
    /// They are refused.
    #[default]
    AllowValidOnly,
    /// They are let in.
    AllowInsecureFallback,
}

/// Another object, by its name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ObjectRef {
    /// Its API group; the core group when not given.
    #[serde(default)]
    pub group: String,
    /// Its kind; Secret when not given.
    pub kind: Option<String>,
    /// Its namespace; that of the object that refers when not given.
    #[schemars(extend("format" = "label"))]
    pub namespace: Option<String>,
    /// Its name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}
