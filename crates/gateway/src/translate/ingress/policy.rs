//! BackendPolicies from the annotations of Ingresses.

use std::collections::{BTreeMap, BTreeSet};

use super::super::index::{BACKEND_POLICY, BACKEND_TLS_POLICY, ObjectIndex};
use super::super::report::TranslationReport;
use super::annotation::{AnnotationSettings, FIELD};
use super::class::AcceptedIngressClass;
use super::source::IngressField;
use super::{IngressExpansion, derived};
use crate::objects::{
    ApiObject, BackendPolicySpec, IngressBackend, IngressSpec, ServiceKind, ServiceTarget,
    TypedObject,
};

/// Adds a policy for each Service with settings from annotations. If two Ingresses have different settings, the older
/// one applies; a user's BackendPolicy has precedence over both.
pub(super) fn add(
    index: &ObjectIndex<'_>,
    class: &AcceptedIngressClass<'_>,
    settings: &[AnnotationSettings],
    expansion: &mut IngressExpansion,
    report: &mut TranslationReport,
) {
    let mut taken: BTreeMap<(&str, &str), (&TypedObject<IngressSpec>, BackendPolicySpec)> =
        BTreeMap::new();
    for (ingress, settings) in
        class.ingresses.iter().copied().zip(settings).filter(|(_, it)| it.has_policy())
    {
        let namespace = &*ingress.metadata.namespace;
        for service in services(&ingress.spec).collect::<BTreeSet<_>>() {
            if let Some(policy) = existing_policy(index, namespace, service) {
                let message =
                    format!("are ignored for Service {service}: BackendPolicy {policy} applies");
                report.problem("Ingress", ingress, FIELD, message);
                continue;
            }
            let spec = spec(index, namespace, service, settings);
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
    }
    for ((namespace, service), (ingress, spec)) in taken {
        // No user's policy can have this name.
        let resource = derived(ingress, namespace, &format!("ingress:{service}"), spec);
        expansion.sources.add("BackendPolicy", &resource, vec![IngressField::of(ingress, FIELD)]);
        expansion.objects.push(ApiObject::BackendPolicy(resource.into()));
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
    settings: &AnnotationSettings,
) -> BackendPolicySpec {
    let target = ServiceTarget {
        group: String::new(),
        kind: ServiceKind::Service,
        name: service.to_owned(),
        section_name: None,
    };
    let mut spec = BackendPolicySpec { target_refs: vec![target], ..settings.policy.clone() };
    if index.policies_of((namespace, service)).iter().any(|it| it.kind == BACKEND_TLS_POLICY) {
        spec.tls.insecure_skip_verify = false;
    }
    spec
}
