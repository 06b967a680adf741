//! `BackendTLSPolicy` (gateway.networking.k8s.io/v1): how connections to the endpoints of a Service are encrypted.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::Deserialize;

use super::scalar::Hostname;

/// How connections to the endpoints of Services are encrypted.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendTlsPolicySpec {
    /// The Services, in the policy's namespace.
    #[schemars(length(min = 1, max = 16))]
    pub target_refs: Vec<BackendTlsTarget>,
    /// Which certificates of endpoints are believed.
    pub validation: BackendValidation,
    /// Settings of other implementations.
    #[serde(default)]
    pub options: BTreeMap<String, String>,
}

/// A Service, or one port of it.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendTlsTarget {
    /// Its API group; Services have none.
    #[serde(default)]
    pub group: String,
    /// Its kind; no other than Service is served.
    pub kind: String,
    /// Its name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The name of one of its ports; all when not given.
    #[schemars(extend("format" = "name"))]
    pub section_name: Option<String>,
}

/// Which certificates of endpoints are believed.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct BackendValidation {
    /// ConfigMaps or Secrets with certificates of authorities, in the policy's namespace.
    #[serde(default)]
    #[schemars(length(max = 8))]
    pub ca_certificate_refs: Vec<LocalRef>,
    /// A set of authorities by its name: `System` is what the machine trusts.
    #[serde(rename = "wellKnownCACertificates")]
    #[schemars(length(max = 253))]
    pub well_known_ca_certificates: Option<String>,
    /// What endpoints are asked for (SNI), and the name that their certificates must have unless others are given.
    #[schemars(extend("format" = "host"))]
    pub hostname: String,
    /// Names of which the certificate must have one.
    #[serde(default)]
    #[schemars(length(max = 5))]
    pub subject_alt_names: Vec<SubjectAltName>,
}

/// A name in a certificate.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SubjectAltName {
    /// What kind of name it is.
    #[serde(rename = "type")]
    pub kind: SubjectAltNameType,
    /// A name in DNS.
    pub hostname: Option<Hostname>,
    /// A URI.
    #[schemars(length(min = 1, max = 253), extend("format" = "absolute-uri"))]
    pub uri: Option<String>,
}

/// What kind of name a name in a certificate is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum SubjectAltNameType {
    /// A name in DNS.
    Hostname,
    /// A URI.
    #[serde(rename = "URI")]
    Uri,
}

/// Another object of the same namespace, by its name.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct LocalRef {
    /// Its API group; the core group when not given.
    #[serde(default)]
    pub group: String,
    /// Its kind.
    pub kind: String,
    /// Its name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
}
