//! Policies of requests from the annotations of Ingresses.

use super::annotation::{AnnotationSettings, FIELD};
use super::source::IngressField;
use super::{IngressExpansion, derived};
use crate::objects::{
    ApiObject, IngressSpec, RateLimitPolicySpec, RouteTarget, RouteTargetKind, SecurityPolicySpec,
    SharedObject, TrafficLimits, TrafficPolicySpec, TypedObject,
};

/// Status of a request over a limit: `limit-req-status-code` of ingress-nginx if it is not set.
const REJECTED: u16 = 503;

/// Adds policies for the routes of an Ingress, as far as annotations ask for them.
pub(super) fn add(
    ingress: &TypedObject<IngressSpec>,
    settings: &AnnotationSettings,
    routes: Vec<String>,
    expansion: &mut IngressExpansion,
) {
    if routes.is_empty() {
        return;
    }
    let target = |name| RouteTarget {
        group: "gateway.networking.k8s.io".to_owned(),
        kind: RouteTargetKind::HttpRoute,
        name,
        section_name: None,
    };
    let target_refs: Vec<_> = routes.into_iter().map(target).collect();
    let access = &settings.client_addresses;
    let has_access = !access.allow.is_empty() || !access.deny.is_empty();
    if has_access || settings.basic_auth.is_some() || settings.external_auth.is_some() {
        let spec = SecurityPolicySpec {
            target_refs: target_refs.clone(),
            client_addresses: has_access.then(|| access.clone()),
            basic_auth: settings.basic_auth.clone(),
            api_keys: None,
            jwt: None,
            external_auth: settings.external_auth.clone(),
        };
        let policy = policy("SecurityPolicy", ingress, spec, expansion);
        expansion.objects.push(ApiObject::SecurityPolicy(policy));
    }
    // A response in place of the answer 500 would open what is closed.
    let direct_response = settings.direct_response.clone().filter(|_| !settings.denies_all);
    let error_pages = Vec::from_iter(settings.error_page.clone());
    let is_default = settings.traffic == TrafficLimits::default();
    if !is_default || direct_response.is_some() || !error_pages.is_empty() {
        let spec = TrafficPolicySpec {
            target_refs: target_refs.clone(),
            limits: settings.traffic.clone(),
            direct_response,
            error_pages,
            compression: None,
        };
        let policy = policy("TrafficPolicy", ingress, spec, expansion);
        expansion.objects.push(ApiObject::TrafficPolicy(policy));
    }
    if !settings.rates.is_empty() {
        // The routes share the limits: in nginx a limit is that of the Ingress, over all its hosts and paths.
        let spec = RateLimitPolicySpec {
            target_refs,
            limits: settings.rates.clone(),
            status: REJECTED,
            ingress: Some(ingress.metadata.name.clone()),
        };
        let policy = policy("RateLimitPolicy", ingress, spec, expansion);
        expansion.objects.push(ApiObject::RateLimitPolicy(policy));
    }
}

/// Returns a policy of an Ingress.
fn policy<S>(
    kind: &str,
    ingress: &TypedObject<IngressSpec>,
    spec: S,
    expansion: &mut IngressExpansion,
) -> SharedObject<S> {
    let (namespace, name) = (&ingress.metadata.namespace, &ingress.metadata.name);
    // No user's policy can have this name.
    let policy = derived(ingress, namespace, &format!("ingress:{name}"), spec);
    expansion.sources.add(kind, &policy, vec![IngressField::of(ingress, FIELD)]);
    policy.into()
}
