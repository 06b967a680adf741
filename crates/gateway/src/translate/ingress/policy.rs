//! How Services are used: what annotations say of them, as BackendPolicies.

use std::collections::{BTreeMap, BTreeSet};

use super::super::Report;
use super::super::index::{BACKEND_POLICY, BACKEND_TLS_POLICY, Index};
use super::annotation::{FIELD, Wishes};
use super::class::OurClass;
use super::source::Place;
use super::{Expansion, derived};
use crate::objects::{
    BackendPolicySpec, IngressBackend, IngressSpec, Object, Resource, ServiceKind, ServiceTarget,
};

/// Adds a policy for each Service of which annotations say something. Of two Ingresses that say different things the
/// older one is heeded; a BackendPolicy that somebody wrote goes before both.
pub(super) fn add(
    index: &Index<'_>,
    class: &OurClass<'_>,
    wishes: &[Wishes],
    made: &mut Expansion,
    report: &mut Report,
) {
    let mut taken: BTreeMap<(&str, &str), (&Resource<IngressSpec>, BackendPolicySpec)> =
        BTreeMap::new();
    for (ingress, wishes) in
        class.ingresses.iter().copied().zip(wishes).filter(|(_, it)| it.has_policy())
    {
        let namespace = &*ingress.metadata.namespace;
        for service in services(&ingress.spec).collect::<BTreeSet<_>>() {
            if let Some(policy) = written(index, namespace, service) {
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
        made.sources.add("BackendPolicy", &resource, vec![Place::of(ingress, FIELD)]);
        made.objects.push(Object::BackendPolicy(resource.into()));
    }
}

/// The Services of an Ingress.
fn services(spec: &IngressSpec) -> impl Iterator<Item = &str> {
    let paths = spec.rules.iter().filter_map(|rule| rule.http.as_ref()).flat_map(|it| &it.paths);
    let backends = paths.map(|path| &path.backend).chain(&spec.default_backend);
    backends.filter_map(|IngressBackend { service, .. }| Some(&*service.as_ref()?.name))
}

/// The name of the policy that somebody wrote for all of a Service.
fn written<'a>(index: &Index<'a>, namespace: &str, service: &str) -> Option<&'a str> {
    let aims = index.aims_at((namespace, service)).iter();
    let whole = aims.filter(|it| it.kind == BACKEND_POLICY && it.section.is_none());
    whole.map(|aim| aim.policy).min()
}

/// Whom to believe, a BackendTLSPolicy says better.
fn spec(index: &Index<'_>, namespace: &str, service: &str, wishes: &Wishes) -> BackendPolicySpec {
    let target = ServiceTarget {
        group: String::new(),
        kind: ServiceKind::Service,
        name: service.to_owned(),
        section_name: None,
    };
    let mut spec = BackendPolicySpec { target_refs: vec![target], ..wishes.policy.clone() };
    if index.aims_at((namespace, service)).iter().any(|it| it.kind == BACKEND_TLS_POLICY) {
        spec.tls.insecure_skip_verify = false;
    }
    spec
}
