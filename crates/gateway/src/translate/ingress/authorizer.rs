//! Authorizers of Ingresses: the Service that answers at the URL of an annotation.

use std::collections::BTreeSet;

use super::super::index::ObjectIndex;
use super::super::report::TranslationReport;
use super::annotation::{AnnotationSettings, AuthorizerUrl, FIELD, IngressAuth};
use super::backend::backend_ref;
use super::class_hosts::pattern;
use crate::matching::{HostPattern, PathPattern};
use crate::objects::{
    BackendObjectRef, BackendRef, ExternalAuth, IngressPath, IngressPathType, IngressSpec,
    TypedObject,
};

/// An Ingress with its settings.
type IngressWithSettings<'s, 'a> = (&'a TypedObject<IngressSpec>, &'s AnnotationSettings);

/// Namespace and name of a Service, and the number of a port.
type ServicePortName = (String, String, u16);

/// Finds the authorizers of all Ingresses of a class. Without its authorizer an Ingress denies all requests.
pub(super) fn find_all(
    index: &ObjectIndex<'_>,
    ingresses: &[&TypedObject<IngressSpec>],
    settings: &mut [AnnotationSettings],
    report: &mut TranslationReport,
) {
    let all: Vec<_> = ingresses.iter().copied().zip(&*settings).collect();
    let found: Vec<_> = all
        .iter()
        .map(|(ingress, settings)| {
            let auth = settings.auth.as_ref()?;
            Some(find(index, ingress, auth, &all))
        })
        .collect();
    for ((ingress, settings), found) in ingresses.iter().zip(settings).zip(found) {
        match found {
            None => {}
            Some(Ok(auth)) => settings.external_auth = Some(auth),
            Some(Err(message)) => {
                settings.denies_all = true;
                let message = format!(
                    "nginx.ingress.kubernetes.io/auth-url {message}: all requests are answered with 500"
                );
                report.problem("Ingress", ingress, FIELD, message);
            }
        }
    }
}

fn find(
    index: &ObjectIndex<'_>,
    ingress: &TypedObject<IngressSpec>,
    IngressAuth { url, auth }: &IngressAuth,
    all: &[IngressWithSettings<'_, '_>],
) -> Result<ExternalAuth, String> {
    if let Some((namespace, name)) = service_name(index, &url.host) {
        if url.is_encrypted && !index.policies_of((namespace, name)).iter().any(|it| it.encrypts) {
            return Err(format!(
                "has https, which needs a BackendTLSPolicy for Service {namespace}/{name}"
            ));
        }
        let service = (namespace.to_owned(), name.to_owned(), url.port());
        let host = authority(url);
        return Ok(ExternalAuth {
            backend_ref: reference(service),
            host: Some(host),
            ..auth.clone()
        });
    }
    let hosts: BTreeSet<HostPattern> = match HostPattern::parse(&url.host) {
        _ if url.is_of_request() => {
            ingress.spec.rules.iter().map(|it| pattern(it.host.as_ref())).collect()
        }
        Ok(host @ HostPattern::Exact(_)) => [host].into(),
        Ok(_) | Err(_) => return Err("has a host with variables".to_owned()),
    };
    let services: BTreeSet<_> =
        hosts.iter().map(|host| route(index, all, host, &url.path)).collect();
    let mut services = services.into_iter();
    let (Some(Some(service)), None) = (services.next(), services.next()) else {
        return Err(format!(
            "must lead to a Service: use http://SERVICE.NAMESPACE.svc.{}:PORT/path, or a host and path that an \
             Ingress without restrictions leads to one Service",
            index.settings.cluster_domain.name()
        ));
    };
    let host = (!url.is_of_request()).then(|| authority(url));
    let backend_ref = reference(service);
    // A client could send the same request to the Service.
    Ok(ExternalAuth { backend_ref, host, is_permitted: true, ..auth.clone() })
}

fn authority(url: &AuthorizerUrl) -> String {
    let port = url.port.map(|port| format!(":{port}")).unwrap_or_default();
    format!("{}{port}", url.host)
}

fn reference((namespace, name, port): ServicePortName) -> BackendObjectRef {
    let (namespace, port) = (Some(namespace), Some(port));
    BackendObjectRef { group: None, kind: None, namespace, name, port }
}

/// Returns namespace and name of the Service that a name in DNS stands for.
fn service_name<'h>(index: &ObjectIndex<'_>, host: &'h str) -> Option<(&'h str, &'h str)> {
    let host = host.trim_end_matches('.');
    let domain = index.settings.cluster_domain.name();
    let short = host.strip_suffix(domain).and_then(|it| it.strip_suffix('.')).unwrap_or(host);
    let (name, namespace) = short.strip_suffix(".svc")?.split_once('.')?;
    (!namespace.contains('.')).then_some((namespace, name))
}

/// Returns namespace, name and port of the Service that the Ingresses of a class lead requests of this host and path
/// to, if nothing restricts or changes them.
fn route(
    index: &ObjectIndex<'_>,
    all: &[IngressWithSettings<'_, '_>],
    host: &HostPattern,
    target: &str,
) -> Option<ServicePortName> {
    let path = target.split(['?', '$']).next().unwrap_or_default();
    let mut best: Option<(usize, Option<ServicePortName>)> = None;
    for (ingress, settings) in all {
        let rules = ingress.spec.rules.iter().filter(|it| pattern(it.host.as_ref()) == *host);
        for candidate in rules.filter_map(|it| it.http.as_ref()).flat_map(|it| &it.paths) {
            let Some(length) = matched_length(candidate, path) else { continue };
            if best.as_ref().is_some_and(|(longest, _)| *longest >= length) {
                continue;
            }
            let backend = backend_ref(index, ingress, &candidate.backend, "").ok();
            let backend = backend.filter(|_| is_open(settings));
            let service = |BackendRef { name, port, .. }| {
                Some((ingress.metadata.namespace.clone(), name, port?))
            };
            best = Some((length, backend.and_then(service)));
        }
    }
    best?.1
}

fn matched_length(candidate: &IngressPath, path: &str) -> Option<usize> {
    let text = candidate.path.as_deref().unwrap_or("/");
    let pattern = match candidate.path_type {
        IngressPathType::Exact => PathPattern::exact(text),
        IngressPathType::Prefix | IngressPathType::ImplementationSpecific => {
            PathPattern::prefix(text)
        }
    };
    pattern.ok().filter(|it| it.matches(path.as_bytes())).map(|_| text.len())
}

/// True if requests of an Ingress reach its Services unchecked and unchanged.
fn is_open(settings: &AnnotationSettings) -> bool {
    let access = &settings.client_addresses;
    !settings.denies_all
        && settings.auth.is_none()
        && settings.canary.is_none()
        && settings.rates.is_empty()
        && access.allow.is_empty()
        && access.deny.is_empty()
        && settings.redirects.all.is_none()
        && settings.direct_response.is_none()
        && settings.request_rules.is_empty()
        && settings.rewrite.target.is_none()
        && settings.rewrite.host.is_none()
        && !settings.rewrite.uses_patterns
}
