//! `Ingress` and `IngressClass` (networking.k8s.io/v1): routing of HTTP requests to Services, the predecessor of
//! Gateway API.

use schemars::JsonSchema;
use serde::Deserialize;

use super::scalar::{Hostname, UnsupportedField};

/// The controller name of our IngressClasses.
pub const INGRESS_CONTROLLER: &str = "sheave.dev/ingress";

/// The controller of the Ingresses of this class.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressClassSpec {
    /// The controller. Sheave's is [`INGRESS_CONTROLLER`].
    #[schemars(length(min = 1, max = 250))]
    pub controller: String,
    /// Settings of the class.
    pub parameters: Option<UnsupportedField>,
}

/// Routing of HTTP requests to Services.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressSpec {
    /// The name of an IngressClass. Default: the default class.
    #[schemars(extend("format" = "name"))]
    pub ingress_class_name: Option<String>,
    /// The backend of requests that match no rule.
    pub default_backend: Option<IngressBackend>,
    /// Certificates.
    pub tls: Vec<IngressTls>,
    /// The rules, by host.
    pub rules: Vec<IngressRule>,
}

/// The certificate of some hosts.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressTls {
    /// The hosts. Empty: every host that has no certificate of its own.
    pub hosts: Vec<Hostname>,
    /// The Secret with the certificate and its key.
    #[schemars(extend("format" = "name"))]
    pub secret_name: Option<String>,
}

/// The paths of a host.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressRule {
    /// The host. Default: every host.
    pub host: Option<Hostname>,
    /// The paths. Default: all requests go to the default backend.
    pub http: Option<IngressPaths>,
}

/// Paths and their backends.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressPaths {
    /// The paths.
    #[schemars(length(min = 1))]
    pub paths: Vec<IngressPath>,
}

/// A path and its backend.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressPath {
    /// The path. Default: `/`.
    #[schemars(length(max = 1024))]
    pub path: Option<String>,
    /// The comparison of the path.
    pub path_type: IngressPathType,
    /// The backend.
    pub backend: IngressBackend,
}

/// The comparison of the path of an Ingress.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum IngressPathType {
    /// The whole path, byte for byte.
    Exact,
    /// By path prefix, segment by segment.
    Prefix,
    /// Decided by the implementation: like `Prefix`, or as a regular expression if an annotation says so.
    ImplementationSpecific,
}

/// A backend.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressBackend {
    /// A port of a Service.
    pub service: Option<IngressService>,
    /// A backend of another API.
    pub resource: Option<UnsupportedField>,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct IngressService {
    /// The name of the Service.
    #[schemars(extend("format" = "name"))]
    pub name: String,
    /// The port.
    #[serde(default)]
    pub port: IngressPort,
}

/// A port of a Service, by name or by number.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct IngressPort {
    /// The name of the port.
    pub name: Option<String>,
    /// The number of the port.
    #[schemars(range(min = 1, max = 65535))]
    pub number: Option<u16>,
}
