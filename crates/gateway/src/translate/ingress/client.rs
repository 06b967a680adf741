//! What clients of a class may do: the ClientPolicy that the class names as its parameters.

use super::super::Report;
use super::super::index::Index;
use super::class::OurClass;
use super::source::Place;
use super::{Expansion, NAMESPACE, derived};
use crate::objects::{
    ClientPolicySpec, GatewayKind, GatewayTarget, IngressParameters, Object, Resource,
};

/// Adds the policy of a class to its Gateway. The class belongs to who runs the cluster, and so it names the policy: one
/// that named the class could be anybody's.
pub(super) fn add(
    index: &Index<'_>,
    class: &OurClass<'_>,
    made: &mut Expansion,
    report: &mut Report,
) {
    let Some(parameters) = &class.object.spec.parameters else { return };
    let policy = match find(index, parameters) {
        Ok(policy) => policy,
        Err((part, message)) => {
            let field = format!("spec.parameters.{part}");
            return report.problem("IngressClass", class.object, &field, message);
        }
    };
    let name = &class.object.metadata.name;
    let target = GatewayTarget {
        group: "gateway.networking.k8s.io".to_owned(),
        kind: GatewayKind::Gateway,
        name: name.clone(),
        section_name: None,
    };
    let spec = ClientPolicySpec { target_refs: vec![target], ..policy.spec.clone() };
    let resource = derived(policy, NAMESPACE, &format!("ingress:{name}"), spec);
    made.sources.add("ClientPolicy", &resource, vec![Place::copied("ClientPolicy", policy)]);
    made.objects.push(Object::ClientPolicy(resource));
}

fn find<'a>(
    index: &Index<'a>,
    parameters: &IngressParameters,
) -> Result<&'a Resource<ClientPolicySpec>, (&'static str, String)> {
    let IngressParameters { api_group, kind, name, namespace, .. } = parameters;
    if (api_group.as_deref(), &**kind) != (Some("sheave.dev"), "ClientPolicy") {
        return Err(("kind", format!("{kind} is not supported, only ClientPolicy of sheave.dev")));
    }
    let Some(namespace) = namespace.as_deref() else {
        return Err(("namespace", "is missing: a ClientPolicy has one".to_owned()));
    };
    let policy = index.client_policies.get(&(namespace, name)).copied();
    policy.ok_or_else(|| ("name", format!("there is no ClientPolicy {namespace}/{name}")))
}
