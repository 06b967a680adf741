//! Policies of requests from the annotations of Ingresses.

use super::annotation::{AnnotationSettings, FIELD, HostClientCertificates};
use super::class_listeners::ClassListeners;
use super::source::IngressField;
use super::{IngressExpansion, derived};
use crate::matching::HostPattern;
use crate::objects::{
    ApiObject, IngressSpec, RateLimitPolicySpec, RouteTarget, RouteTargetKind, SecurityPolicySpec,
    SharedObject, TrafficLimits, TrafficPolicySpec, TypedObject,
};

/// Status of a request over a limit: `limit-req-status-code` of ingress-nginx if it is not set.
const REJECTED: u16 = 503;

/// Adds policies for the routes of an Ingress, as far as annotations ask for them.
pub(super) fn add(
    listeners: &ClassListeners<'_>,
    ingress: &TypedObject<IngressSpec>,
    settings: &AnnotationSettings,
    routes: Vec<(HostPattern, String)>,
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
    // The certificates of clients are a matter of hosts, which several Ingresses may have.
    let mut groups: Vec<(Option<&HostClientCertificates>, Vec<RouteTarget>)> = Vec::new();
    for (host, name) in &routes {
        let clients = listeners.client_certificates(host);
        match groups.iter_mut().find(|(known, _)| *known == clients) {
            Some((_, targets)) => targets.push(target(name.clone())),
            None => groups.push((clients, vec![target(name.clone())])),
        }
    }
    for (number, (clients, targets)) in groups.into_iter().enumerate() {
        add_security(ingress, settings, (number, clients), targets, expansion);
    }
    let target_refs: Vec<_> = routes.into_iter().map(|(_, name)| target(name)).collect();
    // A response in place of the answer 500 would open what is closed.
    let direct_response = settings.direct_response.clone().filter(|_| !settings.denies_all);
    let request_rules = match settings.denies_all {
        true => Vec::new(),
        false => settings.request_rules.clone(),
    };
    let error_pages = Vec::from_iter(settings.error_page.clone());
    let is_default = settings.traffic == TrafficLimits::default();
    if !is_default
        || !request_rules.is_empty()
        || direct_response.is_some()
        || !error_pages.is_empty()
    {
        let spec = TrafficPolicySpec {
            target_refs: target_refs.clone(),
            limits: settings.traffic.clone(),
            request_rules,
            direct_response,
            error_pages,
            compression: None,
        };
        let policy = policy("TrafficPolicy", ingress, 0, spec, expansion);
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
        let policy = policy("RateLimitPolicy", ingress, 0, spec, expansion);
        expansion.objects.push(ApiObject::RateLimitPolicy(policy));
    }
}

/// Adds the checks of clients of some routes of an Ingress, as far as there are any.
fn add_security(
    ingress: &TypedObject<IngressSpec>,
    settings: &AnnotationSettings,
    (number, clients): (usize, Option<&HostClientCertificates>),
    target_refs: Vec<RouteTarget>,
    expansion: &mut IngressExpansion,
) {
    let access = &settings.client_addresses;
    let has_access = !access.allow.is_empty() || !access.deny.is_empty();
    let spec = SecurityPolicySpec {
        target_refs,
        client_addresses: has_access.then(|| access.clone()),
        client_certificate: clients.map(|it| it.access.clone()),
        basic_auth: settings.basic_auth.clone(),
        api_keys: None,
        jwt: None,
        external_auth: settings.external_auth.clone(),
    };
    let is_empty = !has_access
        && clients.is_none()
        && spec.basic_auth.is_none()
        && spec.external_auth.is_none();
    if !is_empty {
        let policy = policy("SecurityPolicy", ingress, number, spec, expansion);
        expansion.objects.push(ApiObject::SecurityPolicy(policy));
    }
}

/// Returns a policy of an Ingress. The number tells policies of one kind apart.
fn policy<S>(
    kind: &str,
    ingress: &TypedObject<IngressSpec>,
    number: usize,
    spec: S,
    expansion: &mut IngressExpansion,
) -> SharedObject<S> {
    let (namespace, name) = (&ingress.metadata.namespace, &ingress.metadata.name);
    // No user's policy can have this name.
    let suffix = if number > 0 { format!(":{number}") } else { String::new() };
    let policy = derived(ingress, namespace, &format!("ingress:{name}{suffix}"), spec);
    expansion.sources.add(kind, &policy, vec![IngressField::of(ingress, FIELD)]);
    policy.into()
}
