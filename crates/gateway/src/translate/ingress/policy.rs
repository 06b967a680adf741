//! How Services are used: what annotations say of them, as BackendPolicies.

use std::collections::{BTreeMap, BTreeSet};

use super::super::TranslationReport;
use super::super::index::{BACKEND_POLICY, BACKEND_TLS_POLICY, ObjectIndex};
use super::annotation::{AnnotationSettings, FIELD};
use super::class::AcceptedIngressClass;
use super::source::IngressField;
use super::{IngressExpansion, derived};
use crate::objects::{
    ApiObject, BackendPolicySpec, IngressBackend, IngressSpec, ServiceKind, ServiceTarget,
    TypedObject,
};

/// Adds a policy for each Service of which annotations say something. Of two Ingresses that say different things the
/// older one is heeded; a BackendPolicy that somebody wrote goes before both.
pub(super) fn add(
    index: &ObjectIndex<'_>,
    class: &AcceptedIngressClass<'_>,
    wishes: &[AnnotationSettings],
    made: &mut IngressExpansion,
    report: &mut TranslationReport,
) {
    let mut taken: BTreeMap<(&str, &str), (&TypedObject<IngressSpec>, BackendPolicySpec)> =
        BTreeMap::new();
    for (ingress, wishes) in
        class.ingresses.iter().copied().zip(wishes).filter(|(_, it)| it.has_policy())
    {
        let namespace = &*ingress.metadata.namespace;
        for service in services(&ingress.spec).collect::<BTreeSet<_>>() {
            if let Some(policy) = existing_policy(index, namespace, service) {
                let message = format!("BackendPolicy {policy} says how Service {service} is used");
                report.problem("Ingress", ingress, FIELD, message);
                continue;
            }
            let spec = spec(index, namespace, service, wishes);
            match taken.get(&(namespace, service)) {
                None => _ = taken.insert((namespace, service), (ingress, spec)),
                Some((older, said)) if *said != spec => {
                    let message = format!(
                        "Ingress {} says otherwise of Service {service}, and is older",
                        older.metadata.name
                    );
                    report.problem("Ingress", ingress, FIELD, message);
                }
                Some(_) => {}
            }
        }
    }
    for ((namespace, service), (ingress, spec)) in taken {
        // As nobody else can call a policy.
        let resource = derived(ingress, namespace, &format!("ingress:{service}"), spec);
        made.sources.add("BackendPolicy", &resource, vec![IngressField::of(ingress, FIELD)]);
        made.objects.push(ApiObject::BackendPolicy(resource.into()));
    }
}

/// The Services of an Ingress.
fn services(spec: &IngressSpec) -> impl Iterator<Item = &str> {
    let paths = spec.rules.iter().filter_map(|rule| rule.http.as_ref()).flat_map(|it| &it.paths);
    let backends = paths.map(|path| &path.backend).chain(&spec.default_backend);
    backends.filter_map(|IngressBackend { service, .. }| Some(&*service.as_ref()?.name))
}

/// The name of the policy that somebody wrote for all of a Service.
fn existing_policy<'a>(index: &ObjectIndex<'a>, namespace: &str, service: &str) -> Option<&'a str> {
    let aims = index.policies_of((namespace, service)).iter();
    let whole = aims.filter(|it| it.kind == BACKEND_POLICY && it.section.is_none());
    whole.map(|aim| aim.policy).min()
}

/// Whom to believe, a BackendTLSPolicy says better.
fn spec(
    index: &ObjectIndex<'_>,
    namespace: &str,
    service: &str,
    wishes: &AnnotationSettings,
) -> BackendPolicySpec {
    let target = ServiceTarget {
        group: String::new(),
        kind: ServiceKind::Service,
        name: service.to_owned(),
        section_name: None,
    };
    let mut spec = BackendPolicySpec { target_refs: vec![target], ..wishes.policy.clone() };
    if index.policies_of((namespace, service)).iter().any(|it| it.kind == BACKEND_TLS_POLICY) {
        spec.tls.insecure_skip_verify = false;
    }
    spec
}
