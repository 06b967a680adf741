//! Annotations of Ingresses, as equivalent settings.

/// Values of annotations.
mod value;
/// Load balancing, affinity, limits and timeouts.
mod backend;
/// Names and passwords of users.
mod basic_auth;
/// Canaries.
mod canary;
/// Addresses of clients.
mod client;
/// Certificates of clients.
mod client_certificate;
/// Cross-origin requests.
mod cors;
/// Header fields of responses.
mod custom_headers;
/// TLS to endpoints.
mod endpoint_tls;
/// Error pages.
mod error_page;
/// Authorization by another server.
mod external_auth;
/// Hosts besides those of rules.
mod host;
/// Rates of requests.
mod rate;
/// Redirects.
mod redirect;
/// Changes to the request that an endpoint gets.
mod rewrite;
/// Directives of nginx.
mod snippet;
/// Limits of the size of requests.
mod traffic;

use super::super::index::ObjectIndex;
use super::super::report::TranslationReport;
use super::dialect::{AnnotationDialect, AnnotationKey};
use crate::objects::{
    BackendPolicySpec, BasicAuthentication, ClientAddressAccess, CorsFilter, DirectResponse,
    ErrorPage, ExternalAuth, IngressSpec, RequestRateLimit, RequestRule, TrafficLimits,
    TypedObject,
};

pub(super) use backend::BackendAnnotation;
use backend::BackendAnnotations;
pub(super) use basic_auth::BasicAuthAnnotation;
use basic_auth::BasicAuthAnnotations;
pub(super) use canary::{CanaryAnnotation, CanaryCondition, CanarySettings};
pub(super) use client::ClientAnnotation;
use client_certificate::ClientCertificateAnnotations;
pub(super) use client_certificate::{ClientCertificateAnnotation, HostClientCertificates};
pub(super) use cors::CorsAnnotation;
use cors::CorsAnnotations;
pub(super) use endpoint_tls::{EndpointTlsAnnotation, EndpointVerification};
use endpoint_tls::{EndpointTlsAnnotations, own_secret};
pub(super) use error_page::ErrorPageAnnotation;
use error_page::ErrorPageAnnotations;
use external_auth::ExternalAuthAnnotations;
pub(super) use external_auth::{AuthorizerUrl, ExternalAuthAnnotation, IngressAuth};
pub(super) use host::{HostAnnotation, IngressHosts};
pub(super) use rate::RateAnnotation;
use rate::RateAnnotations;
pub(super) use redirect::{IngressRedirects, RedirectAnnotation};
pub(super) use rewrite::{IngressRewrite, MirrorService, RewriteAnnotation, RewriteTarget};
pub(super) use snippet::SnippetHeaders;
pub(super) use traffic::TrafficAnnotation;

/// The field path of every problem in annotations.
pub(super) const FIELD: &str = "metadata.annotations";

/// Settings from the annotations of an Ingress.
pub(super) struct AnnotationSettings {
    /// The BackendPolicy of its Services, as far as annotations set it; its targets are not known yet.
    pub(super) policy: BackendPolicySpec,
    /// Verification of the certificates of endpoints.
    pub(super) verification: Option<EndpointVerification>,
    /// Hosts besides those of the rules.
    pub(super) hosts: IngressHosts,
    /// Changes to requests.
    pub(super) rewrite: IngressRewrite,
    /// The redirects.
    pub(super) redirects: IngressRedirects,
    /// Changes to header fields.
    pub(super) headers: SnippetHeaders,
    /// The share of requests, if the Ingress is a canary.
    pub(super) canary: Option<CanarySettings>,
    /// Addresses of clients that may send requests.
    pub(super) client_addresses: ClientAddressAccess,
    /// Verification of the certificates of clients of its hosts.
    pub(super) client_certificates: Option<HostClientCertificates>,
    /// Names and passwords of users.
    pub(super) basic_auth: Option<BasicAuthentication>,
    /// Authorization by the server of a URL.
    pub(super) auth: Option<IngressAuth>,
    /// The same, once its Service has been found.
    pub(super) external_auth: Option<ExternalAuth>,
    /// Allowed cross-origin requests.
    pub(super) cors: Option<CorsFilter>,
    /// The limits of the rate of requests.
    pub(super) rates: Vec<RequestRateLimit>,
    /// The limits of the size of requests.
    pub(super) traffic: TrafficLimits,
    /// Rewrites, redirects and responses on conditions.
    pub(super) request_rules: Vec<RequestRule>,
    /// The response to every request.
    pub(super) direct_response: Option<DirectResponse>,
    /// The page for errors, and for Services without endpoints.
    pub(super) error_page: Option<ErrorPage>,
    /// True if an annotation that restricts access is not supported or invalid, so that all requests are denied.
    pub(super) denies_all: bool,
}

/// Settings while annotations are read.
#[derive(Default)]
struct AnnotationReader {
    backend: BackendAnnotations,
    basic_auth: BasicAuthAnnotations,
    canary: CanarySettings,
    client_addresses: ClientAddressAccess,
    client_certificates: ClientCertificateAnnotations,
    cors: CorsAnnotations,
    custom_headers: Option<String>,
    endpoint_tls: EndpointTlsAnnotations,
    error_pages: ErrorPageAnnotations,
    external_auth: ExternalAuthAnnotations,
    hosts: IngressHosts,
    rates: RateAnnotations,
    rewrite: IngressRewrite,
    redirects: IngressRedirects,
    snippet_headers: SnippetHeaders,
    request_rules: Vec<RequestRule>,
    direct_response: Option<DirectResponse>,
    traffic: TrafficLimits,
    denies_all: bool,
}

/// Returns all settings of an Ingress. Annotations that are not understood are reported by name.
pub(super) fn annotation_settings(
    index: &ObjectIndex<'_>,
    ingress: &TypedObject<IngressSpec>,
    report: &mut TranslationReport,
) -> AnnotationSettings {
    let is_canary = canary::is_canary(&ingress.metadata.annotations);
    let mut reader = AnnotationReader::default();
    for (annotation, value) in &ingress.metadata.annotations {
        let Some((dialect, name)) = AnnotationDialect::find(annotation) else { continue };
        let result = match dialect.setting(name) {
            // All else is as the main Ingress says.
            setting if is_canary && !setting.is_some_and(AnnotationKey::applies_to_canaries) => {
                continue;
            }
            Some(AnnotationKey::Canary(_)) if !is_canary => continue,
            Some(setting) => reader.add(dialect, setting, value.trim()),
            None => Err("is not supported and is ignored".to_owned()),
        };
        if let Err(message) = result {
            report.problem("Ingress", ingress, FIELD, format!("{annotation} {message}"));
        }
    }
    let mut faults = reader.rewrite.remove_ineffective(index, &ingress.metadata.namespace);
    let contradiction = snippet::contradiction(&reader.request_rules, &reader.rewrite);
    let mut policy = reader.backend.into_policy();
    faults.extend(reader.endpoint_tls.ineffective(&policy).into_iter().map(str::to_owned));
    let verification = reader.endpoint_tls.verification(&ingress.metadata.namespace, &policy);
    policy.tls.insecure_skip_verify &= verification == Ok(None);
    let basic_auth = reader.basic_auth.into_check(&ingress.metadata.namespace);
    if let Err((dialect, fault)) = &basic_auth {
        let message = format!("{}{fault}: all requests are answered with 500", dialect.prefix());
        report.problem("Ingress", ingress, FIELD, message);
    }
    let namespace = &*ingress.metadata.namespace;
    let clients = reader.client_certificates.into_verification(namespace);
    let denies_all = reader.denies_all
        || contradiction.is_some()
        || verification.is_err()
        || basic_auth.is_err()
        || clients.is_err();
    let error_page = reader.error_pages.into_page(index, namespace);
    faults.extend(error_page.as_ref().err().cloned());
    if let Some(map) = &reader.custom_headers {
        let edits = &mut reader.snippet_headers.response;
        faults.extend(custom_headers::add(index, namespace, map, edits).err());
    }
    let denied = |fault: &String| format!("{fault}: all requests are answered with 500");
    faults.extend(verification.as_ref().err().map(denied));
    faults.extend(clients.as_ref().err().map(denied));
    faults.extend(contradiction.as_ref().map(denied));
    for fault in faults {
        let message = format!("nginx.ingress.kubernetes.io/{fault}");
        report.problem("Ingress", ingress, FIELD, message);
    }
    AnnotationSettings {
        policy,
        verification: verification.unwrap_or_default(),
        hosts: reader.hosts,
        rewrite: reader.rewrite,
        redirects: reader.redirects,
        headers: reader.snippet_headers,
        canary: is_canary.then_some(reader.canary),
        client_addresses: reader.client_addresses,
        client_certificates: clients.unwrap_or_default(),
        basic_auth: basic_auth.unwrap_or_default(),
        auth: reader.external_auth.into_auth(),
        external_auth: None,
        cors: reader.cors.into_filter(),
        rates: reader.rates.into_limits(),
        traffic: reader.traffic,
        request_rules: reader.request_rules,
        direct_response: reader.direct_response,
        error_page: error_page.unwrap_or_default(),
        denies_all,
    }
}

/// Returns the name of the Secret with the certificates of endpoints, if annotations name one of the namespace.
pub(super) fn endpoint_secret(ingress: &TypedObject<IngressSpec>) -> Option<&str> {
    let annotation = "nginx.ingress.kubernetes.io/proxy-ssl-secret";
    let reference = ingress.metadata.annotations.get(annotation)?;
    own_secret(reference.trim(), &ingress.metadata.namespace)
}

/// Returns the name of the Secret with the authorities of clients, if annotations name one of the namespace.
pub(super) fn client_authority(ingress: &TypedObject<IngressSpec>) -> Option<&str> {
    let annotation = "nginx.ingress.kubernetes.io/auth-tls-secret";
    let reference = ingress.metadata.annotations.get(annotation)?;
    own_secret(reference.trim(), &ingress.metadata.namespace)
}

/// Returns the name of the ConfigMap with header fields that an annotation names, if it is of the namespace.
pub(super) fn header_map(ingress: &TypedObject<IngressSpec>) -> Option<&str> {
    let annotation = "nginx.ingress.kubernetes.io/custom-headers";
    let value = ingress.metadata.annotations.get(annotation)?.trim();
    let namespace = &*ingress.metadata.namespace;
    let (of, name) = custom_headers::reference(value, namespace);
    (of == namespace).then_some(name)
}

/// Returns the names of the Secrets with users that annotations name, if they are of the namespace.
pub(super) fn user_secrets(ingress: &TypedObject<IngressSpec>) -> impl Iterator<Item = &str> {
    let annotations = ingress.metadata.annotations.iter();
    annotations.filter_map(|(annotation, value)| {
        let (dialect, name) = AnnotationDialect::find(annotation)?;
        let setting = dialect.setting(name)?;
        let is_secret = setting == AnnotationKey::BasicAuth(BasicAuthAnnotation::Secret);
        is_secret.then(|| own_secret(value.trim(), &ingress.metadata.namespace))?
    })
}

impl AnnotationReader {
    fn add(
        &mut self,
        dialect: AnnotationDialect,
        setting: AnnotationKey,
        value: &str,
    ) -> Result<(), String> {
        match setting {
            AnnotationKey::Backend(setting) => {
                let result = self.backend.add(dialect, setting, value);
                if setting == BackendAnnotation::MaxPerClient { self.guard(result) } else { result }
            }
            AnnotationKey::BasicAuth(setting) => {
                let result = self.basic_auth.add(dialect, setting, value);
                self.guard(result)
            }
            AnnotationKey::Canary(setting) => self.canary.add(setting, value),
            AnnotationKey::Client(setting) => {
                let result = client::add(&mut self.client_addresses, setting, value);
                self.guard(result)
            }
            AnnotationKey::ClientCertificate(setting) => {
                let result = self.client_certificates.add(setting, value);
                self.guard(result)
            }
            AnnotationKey::Cors(setting) => self.cors.add(setting, value),
            AnnotationKey::CustomHeaders => {
                self.custom_headers = Some(value.to_owned()).filter(|it| !it.is_empty());
                Ok(())
            }
            AnnotationKey::ErrorPage(setting) => self.error_pages.add(setting, value),
            AnnotationKey::EndpointTls(setting) => {
                let result = self.endpoint_tls.add(setting, value);
                self.guard(result)
            }
            AnnotationKey::ExternalAuth(setting) => {
                let result = self.external_auth.add(setting, value);
                self.guard(result)
            }
            AnnotationKey::Host(setting) => self.hosts.add(setting, value),
            AnnotationKey::RateLimit(setting) => {
                let result = self.rates.add(setting, value);
                self.guard(result)
            }
            AnnotationKey::Redirect(setting) => self.redirects.add(setting, value),
            AnnotationKey::Rewrite(setting) => self.rewrite.add(dialect, setting, value),
            AnnotationKey::Snippet => {
                let result = snippet::add(self, value);
                self.guard(result)
            }
            AnnotationKey::Traffic(setting) => traffic::add(&mut self.traffic, setting, value),
            AnnotationKey::NoEffect => Ok(()),
            AnnotationKey::Only(values, _) if values.contains(&value) => Ok(()),
            AnnotationKey::Only(_, message) => Err(message.to_owned()),
            AnnotationKey::AccessControl => {
                self.guard(Err("is not supported and restricts access".to_owned()))
            }
        }
    }

    /// Denies all requests if an annotation that restricts them is in error.
    fn guard(&mut self, result: Result<(), String>) -> Result<(), String> {
        self.denies_all |= result.is_err();
        result.map_err(|message| format!("{message}: all requests are answered with 500"))
    }
}
