//! `Ingress` and `IngressClass` (networking.k8s.io/v1): which requests go to which Services, as it was said before
//! Gateway API.

use schemars::JsonSchema;
use serde::Deserialize;

use super::scalar::{Hostname, UnsupportedField};

/// Who serves the Ingresses of this class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressClassSpec {
    /// The controller; ours is [`crate::ingress::CONTROLLER`].
    #[schemars(length(min = 1, max = 250))]
    pub controller: String,
    /// Settings of the class.
    pub parameters: Option<UnsupportedField>,
}

/// Which requests go to which Services.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressSpec {
    /// The name of an IngressClass; the default one when not given.
    #[schemars(extend("format" = "name"))]
    pub ingress_class_name: Option<String>,
    /// Where requests go that no rule means.
    pub default_backend: Option<IngressBackend>,
    /// Certificates.
    pub tls: Vec<IngressTls>,
    /// What requests are meant, by host.
    pub rules: Vec<IngressRule>,
}

/// The certificate of some hosts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressTls {
    /// The hosts; none: every host that has no other.
    pub hosts: Vec<Hostname>,
    /// The Secret with the certificate and its key.
    #[schemars(extend("format" = "name"))]
    pub secret_name: Option<String>,
}

/// The paths of a host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressRule {
    /// The host; every one when not given.
    pub host: Option<Hostname>,
    /// Its paths; not given: the default backend has them all.
    pub http: Option<IngressPaths>,
}

/// Paths, and where they lead.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressPaths {
    /// The paths.
    #[schemars(length(min = 1))]
    pub paths: Vec<IngressPath>,
}

/// A path, and where it leads.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressPath {
    /// The path; `/` when not given.
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// How it is compared.
    pub path_type: IngressPathType,
    /// Where it leads.
    pub backend: IngressBackend,
}

/// How the path of an Ingress is compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum IngressPathType {
    /// The whole path, byte for byte.
    Exact,
    /// The path and all below it, segment by segment.
    Prefix,
    /// As we like: the same as `Prefix`, or a regular expression where an annotation says so.
    ImplementationSpecific,
}

/// Where requests go.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressBackend {
    /// A port of a Service.
    pub service: Option<IngressService>,
    /// Something else, of another API.
    pub resource: Option<UnsupportedField>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressService {
    /// Its name.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The port.
    #[serde(default)]
    pub port: IngressPort,
}

/// A port by its name or by its number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressPort {
    /// Its name.
    pub name: Option<String>,
    /// Its number.
    #[schemars(range(min = 1, max = 65535))]
    pub number: Option<u16>,
}
