//! Canary Ingresses: each joins the Ingress that has the same host and path, and serves nothing of its own.
//!
//! ingress-nginx merges a canary into the location of its host, path and path type, whose settings then apply to it
//! too: of its own annotations those about load balancing and affinity count, and no other. Here both Ingresses must be
//! of one namespace, so that no namespace can divert the requests of another.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

use super::super::index::ObjectIndex;
use super::super::report::TranslationReport;
use super::annotation::{AnnotationSettings, CanarySettings, EndpointVerification};
use super::backend::backend_ref;
use super::class_hosts::pattern;
use crate::matching::HostPattern;
use crate::objects::{BackendPolicySpec, BackendRef, IngressPath, IngressSpec, TypedObject};

/// An Ingress with its settings.
pub(super) type AnnotatedIngress<'a> = (&'a TypedObject<IngressSpec>, &'a AnnotationSettings);

/// A path of an Ingress: namespace, host, path, and path type.
type CanaryPathKey<'a> = (&'a str, HostPattern, &'a str, u8);

/// The canaries of a class, by the path that they join.
pub(super) struct ClassCanaries<'a>(BTreeMap<CanaryPathKey<'a>, IngressCanary<'a>>);

/// A canary at one path.
pub(super) struct IngressCanary<'a> {
    pub(super) ingress: &'a TypedObject<IngressSpec>,
    annotations: &'a AnnotationSettings,
    /// The choice between main Ingress and canary.
    pub(super) settings: &'a CanarySettings,
    pub(super) backend: BackendRef,
    /// The field path of the path.
    pub(super) field: String,
    /// Annotations of the main Ingress.
    main: &'a AnnotationSettings,
}

impl<'a> ClassCanaries<'a> {
    /// Returns the canaries, the oldest of each path. Those that get no requests are reported.
    pub(super) fn new(
        index: &ObjectIndex<'_>,
        mains: &[AnnotatedIngress<'a>],
        canaries: &[AnnotatedIngress<'a>],
        report: &mut TranslationReport,
    ) -> Self {
        let mut main_paths = BTreeMap::new();
        for &(ingress, annotations) in mains {
            for (key, _, _) in paths(ingress) {
                main_paths.entry(key).or_insert(annotations);
            }
        }
        let mut class_canaries = Self(BTreeMap::new());
        for &(ingress, annotations) in canaries {
            let Some(settings) = &annotations.canary else { continue };
            if ingress.spec.default_backend.is_some() {
                let message = "gets no requests: of a canary only paths join another Ingress";
                report.problem("Ingress", ingress, "spec.defaultBackend", message);
            }
            for (key, path, field) in paths(ingress) {
                let result = match main_paths.get(&key) {
                    None => Err((field.clone(), NO_MAIN.to_owned())),
                    Some(main) => existing_backend(index, ingress, path, &field)
                        .map(|backend| (*main, backend))
                        .map_err(|(part, message)| (part, format!("{message}: {NO_REQUESTS}"))),
                };
                let result = result.and_then(|(main, backend)| {
                    let canary =
                        IngressCanary { ingress, annotations, settings, backend, field, main };
                    class_canaries.add(key, canary)
                });
                if let Err((field, message)) = result {
                    report.problem("Ingress", ingress, &field, message);
                }
            }
        }
        class_canaries.0.retain(|_, canary| !canary.settings.is_faulty);
        class_canaries
    }

    fn add(
        &mut self,
        key: CanaryPathKey<'a>,
        canary: IngressCanary<'a>,
    ) -> Result<(), (String, String)> {
        match self.0.entry(key) {
            Entry::Vacant(free) => _ = free.insert(canary),
            Entry::Occupied(taken) => {
                let older = &taken.get().ingress.metadata.name;
                let message = format!("Ingress {older} is the canary of this path: {NO_REQUESTS}");
                return Err((canary.field, message));
            }
        }
        Ok(())
    }

    /// Returns the canary of a path of an Ingress.
    pub(super) fn find<'k>(
        &'k self,
        ingress: &'k TypedObject<IngressSpec>,
        host: HostPattern,
        path: &'k IngressPath,
    ) -> Option<&'k IngressCanary<'k>> {
        let canaries: &BTreeMap<CanaryPathKey<'k>, IngressCanary<'k>> = &self.0;
        canaries.get(&key(ingress, host, path))
    }

    /// Returns the Service of each canary with its policy.
    pub(super) fn policies(
        &self,
    ) -> impl Iterator<Item = (&'a TypedObject<IngressSpec>, &str, BackendPolicySpec)> {
        self.0.values().map(|canary| (canary.ingress, &*canary.backend.name, canary.policy()))
    }

    /// Returns the Service of each canary whose main Ingress verifies the certificates of endpoints.
    pub(super) fn verifications(
        &self,
    ) -> impl Iterator<Item = (&'a TypedObject<IngressSpec>, &str, &EndpointVerification)> {
        self.0.values().filter_map(|canary| {
            let verification = canary.main.verification.as_ref()?;
            Some((canary.ingress, &*canary.backend.name, verification))
        })
    }
}

const NO_MAIN: &str = "is the host and path of no other Ingress of the namespace: the canary gets \
                       no requests";
const NO_REQUESTS: &str = "the canary gets no requests";

impl IngressCanary<'_> {
    /// Returns the policy of the main Ingress, with the load balancing and affinity of the canary where it has its own.
    fn policy(&self) -> BackendPolicySpec {
        let (mut policy, own) = (self.main.policy.clone(), &self.annotations.policy);
        let default = BackendPolicySpec::for_targets(Vec::new());
        if (own.algorithm, &own.hash_on) != (default.algorithm, &default.hash_on) {
            (policy.algorithm, policy.hash_on) = (own.algorithm, own.hash_on.clone());
        }
        if own.affinity.is_some() {
            policy.affinity.clone_from(&own.affinity);
        }
        policy
    }
}

/// Returns the paths of an Ingress with their keys and field paths.
fn paths<'a>(
    ingress: &'a TypedObject<IngressSpec>,
) -> impl Iterator<Item = (CanaryPathKey<'a>, &'a IngressPath, String)> {
    ingress.spec.rules.iter().enumerate().flat_map(move |(n, rule)| {
        let of_rule = rule.http.iter().flat_map(|http| &http.paths).enumerate();
        of_rule.map(move |(m, path)| {
            let key = key(ingress, pattern(rule.host.as_ref()), path);
            (key, path, format!("spec.rules[{n}].http.paths[{m}]"))
        })
    })
}

fn key<'a>(
    ingress: &'a TypedObject<IngressSpec>,
    host: HostPattern,
    path: &'a IngressPath,
) -> CanaryPathKey<'a> {
    let text = path.path.as_deref().filter(|path| !path.is_empty()).unwrap_or("/");
    (&ingress.metadata.namespace, host, text, path.path_type as u8)
}

/// Returns the backend of a canary, if its Service and port exist: the error of a backend of the main Ingress's rule
/// would be reported there.
fn existing_backend(
    index: &ObjectIndex<'_>,
    ingress: &TypedObject<IngressSpec>,
    path: &IngressPath,
    field: &str,
) -> Result<BackendRef, (String, String)> {
    let field = format!("{field}.backend");
    let reference = backend_ref(index, ingress, &path.backend, &field)?;
    let namespace = &*ingress.metadata.namespace;
    let Some(service) = index.services.get(&(namespace, &*reference.name)) else {
        let message = format!("there is no Service {namespace}/{}", reference.name);
        return Err((format!("{field}.service.name"), message));
    };
    let ports = &service.spec.ports;
    if !ports.is_empty() && ports.iter().all(|port| Some(port.port) != reference.port) {
        let message = format!("Service {namespace}/{} has no such port", reference.name);
        return Err((format!("{field}.service.port"), message));
    }
    Ok(reference)
}
