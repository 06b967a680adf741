//! Translation of Kubernetes objects into a Snapshot and statuses by Gateway API v1.7. It is a pure function.
//!
//! Configuration that is in error is left out or answers 500, and does not affect anything else. Every error is
//! reported as a problem for the author of the object and as a condition of its status.

/// The result of a translation, and the report that collects it.
mod report;
/// Objects by name and age.
mod index;
/// Ingresses, expanded into equivalent objects of Gateway API.
pub mod ingress;
/// Objects of any kind.
mod owner;
/// Certificates and keys in PEM.
mod certificate;
/// References to certificates.
mod reference;
/// The Secrets and ConfigMaps that objects refer to.
mod certificate_objects;
/// Namespaces that routes and ListenerSets may attach from.
mod namespace_scope;
/// Gateways and their listeners.
mod listener;
/// ListenerSets, which add listeners to a Gateway.
mod listener_set;
/// The TLS of listeners.
mod listener_tls;
/// Options of the TLS of listeners.
mod client_options;
/// Statuses of Gateways.
mod gateway_status;
/// Conflicts between listeners for the same address, port and hostname.
mod conflict;
/// Listeners that serve HTTP/3 too.
mod http3;
/// Listen addresses.
mod address;
/// Managed Services in front of Gateways.
mod managed_service;
/// Attachment of routes to listeners.
mod attach;
/// Routes before their rules and backends have indices in a Snapshot.
mod draft;
/// HTTPRoutes and GRPCRoutes.
mod route;
/// Rules of HTTPRoutes and GRPCRoutes.
mod rule;
/// Matches of HTTPRoute rules.
mod matches;
/// Matches of GRPCRoute rules.
mod grpc_match;
/// Filters of HTTPRoutes and GRPCRoutes.
mod filter;
/// TLSRoutes, TCPRoutes and UDPRoutes.
mod stream_route;
/// Services whose addresses are taken in transparent mode.
mod transparent;
/// Services of type LoadBalancer that Sheave serves.
mod load_balancer;
/// Listeners of gRPC servers.
mod xds_servers;
/// Session affinity of Services.
mod session_affinity;
/// Objects that cannot be read.
mod invalid_object;
/// Services and EndpointSlices: the targets of backend references.
mod backend;
/// ReferenceGrants, which allow references from other namespaces.
mod grant;
/// BackendTLSPolicies: TLS of connections to endpoints.
mod backend_tls;
/// Protocol and TLS of connections to endpoints.
mod backend_transport;
/// BackendPolicies and ClientPolicies: which policy applies to which target.
mod policy;
/// Policies of requests: which of them applies where.
mod route_policy;
/// RateLimitPolicies.
mod rate_limit;
/// Users of Secrets.
mod htpasswd;
/// `apiKeys` of SecurityPolicies.
mod api_keys;
/// `jwt` of SecurityPolicies.
mod jwt;
/// `basicAuth` of SecurityPolicies.
mod basic_auth;
/// Authorization of requests by other servers.
mod external_auth;
/// SecurityPolicies.
mod security;
/// Request rules of TrafficPolicies.
mod request_rules;
/// TrafficPolicies.
mod traffic;
/// Policies of requests of all kinds.
mod request_policies;
/// Settings of one rule that come from policies.
mod rule_policies;
/// Revocation of client certificates.
mod revocation;
/// `sessionPersistence` of rules and policies.
mod session_persistence;
/// XBackendTrafficPolicies.
mod backend_traffic;
/// Settings of policies with every default filled in.
mod settings;

use std::collections::BTreeSet;
use std::sync::Arc;

pub use backend::EndpointIndex;
pub use certificate::CertificateValidity;
pub use certificate_objects::certificate_objects;
pub use report::TranslationResult;

use crate::objects::ApiObject;
use crate::snapshot::{Backend, BackendKey, BackendSettings, Snapshot};
use crate::translation_settings::TranslationSettings;
use attach::ParentIndex;
use draft::{RouteDraft, RuleDraft};
use index::ObjectIndex;
use listener::{GatewayContext, ListenerContext};
use report::TranslationReport;
use request_policies::RequestPolicies;

/// Translates objects, given the settings of the operator.
pub fn translate(objects: &[ApiObject], settings: &TranslationSettings) -> TranslationResult {
    let addresses = &settings.addresses;
    let mut report = TranslationReport::default();
    let mut index = ObjectIndex::new(objects, settings, &mut report);
    let expansion = ingress::expand(&index, &mut report);
    index.add(&expansion.objects, &mut report);
    let client_policies = policy::client_policies(&index, &mut report);
    let tls_policies = backend_tls::backend_tls_policies(&index, &mut report);
    let request_policies = RequestPolicies::new(&index, &mut report);
    let backend_policies = policy::backend_policies(&index, &tls_policies, &mut report);
    let backend_traffic =
        backend_traffic::backend_traffic_policies(&index, &backend_policies, &mut report);

    let mut gateways = listener::gateways(&index, addresses, &mut report);
    revocation::add(&mut gateways, &client_policies);
    http3::find(&mut gateways, &client_policies, &mut report);
    let services = transparent::services(&index);
    services.report(&index, &mut report);
    let load_balancers = load_balancer::services(&index);
    load_balancers.report(&index, &mut report);
    let parents = ParentIndex::new(&gateways, &services);
    let mut routes = route::drafts(&index, &parents, &mut gateways, &mut report);
    routes.extend(stream_route::drafts(&index, &parents, &mut gateways, &mut report));
    routes.extend(services.default_routes(&routes));
    routes.extend(load_balancers.routes());
    let mut listeners = address::listeners(&gateways, addresses, &client_policies, &mut report);
    gateway_status::statuses(&gateways, addresses, &mut report);
    invalid_object::statuses(&index, &parents, &gateways, addresses, &mut report);
    let usage = backend_transport::backend_usage(&routes, request_policies.authorizers());
    usage.report_ignored_client_certificates(&tls_policies, &gateways, &mut report);
    tls_policies.statuses(&usage.ancestors, &gateways, &mut report);

    let keys = backend_keys(&routes, &request_policies);
    let endpoints = EndpointIndex::of_index(&index, &services);
    backend::check_slices(&endpoints, &keys, &mut report);
    let settings = |key: &BackendKey| {
        let transport = usage.transport(key, &index, &tls_policies, &gateways);
        let mut settings = backend_policies.settings(&index, key, transport);
        backend_traffic.adjust(key, backend_policies.spec(&index, key), &mut settings);
        settings
    };
    let with_rule_affinity = keys_with_rule_affinity(&routes);
    let backend = |key: &BackendKey| Backend {
        key: key.clone(),
        source: backend::source(&index, key),
        endpoints: endpoints.of(key),
        elsewhere: endpoints.elsewhere(key),
        settings: {
            let mut settings = settings(key);
            services.adjust(key, &mut settings, backend_policies.applies_to(&index, key));
            load_balancers.adjust(key, &mut settings);
            let has_rule_affinity = with_rule_affinity.contains(key);
            let service_uid = backend::service_uid(&index, key);
            BackendSettings { has_rule_affinity, service_uid, ..settings }
        },
    };
    let mut snapshot =
        Snapshot { backends: keys.iter().map(backend).collect(), ..Default::default() };
    let of_listener = |gateway: &GatewayContext<'_>, listener: &ListenerContext<'_>| {
        request_policies.of_listener(gateway, listener)
    };
    let mut service_listeners = services.listeners();
    let mut load_balancer_listeners = load_balancers.listeners();
    for route in &routes {
        for draft in &route.rules {
            let own = request_policies.of_rule(draft.origin.as_ref());
            let rule = Arc::new(draft.rule(snapshot.rules.len(), &keys, own));
            let attachments = &route.attachments;
            listeners.add_rule(&gateways, attachments, &draft.matches, &rule, of_listener);
            service_listeners.add_rule(&route.service_ports, &draft.matches, &rule);
            load_balancer_listeners.add_rule(route, draft, &rule);
            snapshot.rules.push(rule);
        }
    }
    snapshot.api_keys = request_policies.api_keys();
    snapshot.jwt = request_policies.jwt();
    snapshot.rate_limits = request_policies.into_rate_limits();
    snapshot.listeners = listeners.into_listeners();
    snapshot.service_ports = service_listeners.port_routes(|key| {
        let is_encrypted = settings(key).tls.is_some();
        backend_policies.xds_server(&index, key, is_encrypted)
    });
    let transparent_services = service_listeners.add_to(&mut snapshot.listeners);
    let load_balancer_services = load_balancer_listeners.add_to(&mut snapshot.listeners);
    let (managed_services, retained_gateways) =
        managed_service::desired_services(&index, &gateways);
    let TranslationReport { statuses, problems, certificate_validities, .. } = report;
    let mut translation = TranslationResult {
        snapshot,
        statuses,
        problems,
        certificate_validities,
        managed_services,
        retained_gateways,
        transparent_services,
        load_balancer_services,
    };
    expansion.attribute(&mut translation);
    translation.problems.sort_by(|a, b| a.origin.cmp(&b.origin));
    translation
}

/// Returns the backends of the rules that have a session affinity of their own.
fn keys_with_rule_affinity(routes: &[RouteDraft]) -> BTreeSet<&BackendKey> {
    let rules = routes.iter().flat_map(|route| &route.rules).filter(|rule| rule.affinity.is_some());
    rules.flat_map(|rule| &rule.targets).filter_map(|target| target.key.as_ref()).collect()
}

/// Returns every backend that a rule or a policy of requests names, sorted, each once.
fn backend_keys(routes: &[RouteDraft], policies: &RequestPolicies<'_>) -> Vec<BackendKey> {
    let keys = routes.iter().flat_map(|route| &route.rules).flat_map(RuleDraft::keys);
    let keys = keys.chain(policies.keys());
    keys.cloned().collect::<BTreeSet<_>>().into_iter().collect()
}
