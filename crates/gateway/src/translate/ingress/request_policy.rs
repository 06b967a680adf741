//! RateLimitPolicies from the annotations of Ingresses.

use super::annotation::{AnnotationSettings, FIELD};
use super::source::IngressField;
use super::{IngressExpansion, derived};
use crate::objects::{
    ApiObject, IngressSpec, RateLimitPolicySpec, RouteTarget, RouteTargetKind, TypedObject,
};

/// Status of a request over a limit: `limit-req-status-code` of ingress-nginx if it is not set.
const REJECTED: u16 = 503;

/// Adds a policy for the routes of an Ingress, if annotations set limits. The routes share the limits: in nginx a limit
/// is that of the Ingress, over all its hosts and paths.
pub(super) fn add(
    ingress: &TypedObject<IngressSpec>,
    settings: &AnnotationSettings,
    routes: Vec<String>,
    expansion: &mut IngressExpansion,
) {
    if settings.rates.is_empty() || routes.is_empty() {
        return;
    }
    let target = |name| RouteTarget {
        group: "gateway.networking.k8s.io".to_owned(),
        kind: RouteTargetKind::HttpRoute,
        name,
        section_name: None,
    };
    let spec = RateLimitPolicySpec {
        target_refs: routes.into_iter().map(target).collect(),
        limits: settings.rates.clone(),
        status: REJECTED,
        ingress: Some(ingress.metadata.name.clone()),
    };
    let (namespace, name) = (&ingress.metadata.namespace, &ingress.metadata.name);
    // No user's policy can have this name.
    let resource = derived(ingress, namespace, &format!("ingress:{name}"), spec);
    expansion.sources.add("RateLimitPolicy", &resource, vec![IngressField::of(ingress, FIELD)]);
    expansion.objects.push(ApiObject::RateLimitPolicy(resource.into()));
}
