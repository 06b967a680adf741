//! BackendPolicies from the annotations of Ingresses.

use std::collections::{BTreeMap, BTreeSet};

use super::super::index::{BACKEND_POLICY, BACKEND_TLS_POLICY, ObjectIndex};
use super::super::report::TranslationReport;
use super::annotation::{AnnotationSettings, EndpointVerification, FIELD};
use super::route::ClassContext;
use super::source::IngressField;
use super::{IngressExpansion, derived};
use crate::objects::{
    ApiObject, BackendPolicySpec, BackendTlsPolicySpec, BackendTlsTarget, BackendValidation,
    IngressBackend, IngressSpec, LocalRef, ServiceKind, ServiceTarget, TypedObject,
};

/// Adds a policy for each Service with settings from annotations. If two Ingresses have different settings, the older
/// one applies; a user's BackendPolicy has precedence over both.
pub(super) fn add(
    context: &ClassContext<'_>,
    settings: &[&AnnotationSettings],
    expansion: &mut IngressExpansion,
    report: &mut TranslationReport,
) {
    let index = context.index;
    let mains = context.class.ingresses.iter().copied().zip(settings);
    let of_mains = mains.flat_map(|(ingress, settings)| {
        let services = services(&ingress.spec).collect::<BTreeSet<_>>().into_iter();
        services.map(move |service| (ingress, service, settings.policy.clone()))
    });
    let without_settings = BackendPolicySpec::for_targets(Vec::new());
    let all = of_mains.chain(context.canaries.policies());
    let mut taken: BTreeMap<(&str, &str), (&TypedObject<IngressSpec>, BackendPolicySpec)> =
        BTreeMap::new();
    for (ingress, service, policy) in all.filter(|(_, _, policy)| *policy != without_settings) {
        let namespace = &*ingress.metadata.namespace;
        if let Some(policy) = existing_policy(index, namespace, service) {
            let message =
                format!("are ignored for Service {service}: BackendPolicy {policy} applies");
            report.problem("Ingress", ingress, FIELD, message);
            continue;
        }
        let spec = spec(index, namespace, service, policy);
        match taken.get(&(namespace, service)) {
            None => _ = taken.insert((namespace, service), (ingress, spec)),
            Some((older, older_spec)) if *older_spec != spec => {
                let message = format!(
                    "are ignored for Service {service}: those of the older Ingress {} differ",
                    older.metadata.name
                );
                report.problem("Ingress", ingress, FIELD, message);
            }
            Some(_) => {}
        }
    }
    add_verification(context, settings, expansion, report);
    for ((namespace, service), (ingress, spec)) in taken {
        // No user's policy can have this name.
        let resource = derived(ingress, namespace, &format!("ingress:{service}"), spec);
        expansion.sources.add("BackendPolicy", &resource, vec![IngressField::of(ingress, FIELD)]);
        expansion.objects.push(ApiObject::BackendPolicy(resource.into()));
    }
}

/// Adds a BackendTLSPolicy for each Service whose certificates annotations verify. A user's policy has precedence.
fn add_verification(
    context: &ClassContext<'_>,
    settings: &[&AnnotationSettings],
    expansion: &mut IngressExpansion,
    report: &mut TranslationReport,
) {
    let mut taken: BTreeMap<(&str, &str), (&str, BackendValidation)> = BTreeMap::new();
    let mains = context.class.ingresses.iter().copied().zip(settings);
    let of_mains = mains.flat_map(|(ingress, settings)| {
        let services = services(&ingress.spec).collect::<BTreeSet<_>>().into_iter();
        let verification = settings.verification.as_ref();
        services.filter_map(move |service| Some((ingress, service, verification?)))
    });
    for (ingress, service, verification) in of_mains.chain(context.canaries.verifications()) {
        let namespace = &*ingress.metadata.namespace;
        let policies = context.index.policies_of((namespace, service));
        if policies.iter().any(|it| it.kind == BACKEND_TLS_POLICY) {
            continue;
        }
        let validation = validation(verification, namespace, service);
        if let Some((older, other)) = taken.get(&(namespace, service)) {
            if *other != validation {
                let message = format!(
                    "proxy-ssl-* are ignored for Service {service}: those of the older Ingress {older} \
                     differ"
                );
                report.problem("Ingress", ingress, FIELD, message);
            }
            continue;
        }
        taken.insert((namespace, service), (&ingress.metadata.name, validation.clone()));
        let target = BackendTlsTarget {
            group: String::new(),
            kind: "Service".to_owned(),
            name: service.to_owned(),
            section_name: None,
        };
        let target_refs = vec![target];
        let spec = BackendTlsPolicySpec { target_refs, validation, options: BTreeMap::new() };
        let resource = derived(ingress, namespace, &format!("ingress:{service}"), spec);
        let places = vec![IngressField::of(ingress, FIELD)];
        expansion.sources.add(BACKEND_TLS_POLICY, &resource, places);
        expansion.objects.push(ApiObject::BackendTlsPolicy(resource.into()));
    }
}

fn validation(
    EndpointVerification { secret, hostname }: &EndpointVerification,
    namespace: &str,
    service: &str,
) -> BackendValidation {
    let (group, kind) = (String::new(), "Secret".to_owned());
    let name_of_service = || format!("{service}.{namespace}.svc");
    BackendValidation {
        ca_certificate_refs: vec![LocalRef { group, kind, name: secret.clone() }],
        well_known_ca_certificates: None,
        hostname: hostname.clone().unwrap_or_else(name_of_service),
        subject_alt_names: Vec::new(),
    }
}

/// Returns the Services of an Ingress.
fn services(spec: &IngressSpec) -> impl Iterator<Item = &str> {
    let paths = spec.rules.iter().filter_map(|rule| rule.http.as_ref()).flat_map(|it| &it.paths);
    let backends = paths.map(|path| &path.backend).chain(&spec.default_backend);
    backends.filter_map(|IngressBackend { service, .. }| Some(&*service.as_ref()?.name))
}

/// Returns the name of a user's policy for the whole Service.
fn existing_policy<'a>(index: &ObjectIndex<'a>, namespace: &str, service: &str) -> Option<&'a str> {
    let targets = index.policies_of((namespace, service)).iter();
    let whole = targets.filter(|it| it.kind == BACKEND_POLICY && it.section.is_none());
    whole.map(|target| target.policy).min()
}

/// Returns the spec of the policy. A BackendTLSPolicy for the Service has precedence in certificate verification.
fn spec(
    index: &ObjectIndex<'_>,
    namespace: &str,
    service: &str,
    policy: BackendPolicySpec,
) -> BackendPolicySpec {
    let target = ServiceTarget {
        group: String::new(),
        kind: ServiceKind::Service,
        name: service.to_owned(),
        section_name: None,
    };
    let mut spec = BackendPolicySpec { target_refs: vec![target], ..policy };
    if index.policies_of((namespace, service)).iter().any(|it| it.kind == BACKEND_TLS_POLICY) {
        spec.tls.insecure_skip_verify = false;
    }
    spec
}
