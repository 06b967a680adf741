//! `BackendTLSPolicy` (gateway.networking.k8s.io/v1): TLS of connections to the endpoints of a Service.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::scalar::Hostname;

/// TLS of connections to the endpoints of Services.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendTlsPolicySpec {
    /// The Services, in the policy's namespace.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<BackendTlsTarget>,
    /// Verification of the endpoints' certificates.
    pub validation: BackendValidation,
    /// Settings of other implementations.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

/// A reference to a Service, or to one of its ports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendTlsTarget {
    /// The API group, which is empty for Services.
    #[serde(default)]
    pub group: String,
    /// The kind. Only Service is supported.
    pub kind: String,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of a port of the Service. Default: all ports.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
}

/// Verification of the endpoints' certificates.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendValidation {
    /// ConfigMaps or Secrets with CA certificates, in the policy's namespace.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub ca_certificate_refs: Vec<LocalRef>,
    /// A well-known set of CA certificates. `System`: the CA certificates of the machine.
    #[serde(rename = "wellKnownCACertificates")]
    #[schemars(length(max = 253))]
    pub well_known_ca_certificates: Option<String>,
    /// The server name (SNI) of the connection. The certificate must have this name, unless `subjectAltNames` are
    /// given.
    #[schemars(extend("format" = "host"))]
    pub hostname: String,
    /// Accepted subject alternative names. The certificate must have one of them.
    #[serde(default)]
    #[schemars(length(max = 5))]
    pub subject_alt_names: Vec<SubjectAltName>,
}

/// A subject alternative name of a certificate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubjectAltName {
    /// The type of the name.
    #[serde(rename = "type")]
    pub kind: SubjectAltNameType,
    /// A DNS name.
    pub hostname: Option<Hostname>,
    /// A URI.
    #[schemars(length(min = 1, max = 253), extend("format" = "absolute-uri"))]
    pub uri: Option<String>,
}

/// The type of a subject alternative name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum SubjectAltNameType {
    /// A DNS name.
    Hostname,
    /// A URI.
    #[serde(rename = "URI")]
    Uri,
}

/// A reference to an object of the same namespace.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalRef {
    /// The API group. Default: the core group.
    #[serde(default)]
    pub group: String,
    /// The kind.
    pub kind: String,
    /// The name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}
