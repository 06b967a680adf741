//! Objects by name and age, each once.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::certificate::CertificateResult;
use super::report::TranslationReport;
use crate::certificate_object::CertificateObject;
use crate::objects::{
    AddressPoolSpec, ApiObject, BackendPolicySpec, BackendTlsPolicySpec, BackendTrafficPolicySpec,
    BgpPeerSpec, ClientPolicySpec, ConfigMapSpec, EndpointSliceSpec, GatewayClassSpec, GatewaySpec,
    GrantFrom, GrantTo, GrpcRouteSpec, HttpRouteSpec, IngressClassSpec, IngressSpec, InvalidObject,
    LabelSelector, ListenerSetSpec, NamespaceSpec, NetworkPolicySpec, ObjectMeta, PartialPolicy,
    RateLimitPolicySpec, ReferenceGrantSpec, SECURITY_POLICY, SecretSpec, SecurityPolicySpec,
    ServiceSpec, StreamRouteSpec, TlsRouteSpec, TrafficPolicySpec, TypedObject, namespace_labels,
};
use crate::translation_settings::TranslationSettings;

pub(super) const BACKEND_POLICY: &str = "BackendPolicy";
pub(super) const RATE_LIMIT_POLICY: &str = "RateLimitPolicy";
pub(super) const TRAFFIC_POLICY: &str = "TrafficPolicy";
pub(super) const BACKEND_TLS_POLICY: &str = "BackendTLSPolicy";
pub(super) const BACKEND_TRAFFIC_POLICY: &str = "XBackendTrafficPolicy";

/// A namespace and a name.
pub(super) type NamespacedName<'a> = (&'a str, &'a str);

/// The objects of one kind by name.
pub(super) type ObjectsByName<'a, S> = BTreeMap<NamespacedName<'a>, &'a TypedObject<S>>;

/// Objects by kind and name.
#[derive(Default)]
pub(super) struct ObjectIndex<'a> {
    pub(super) settings: TranslationSettings,
    /// By name only, because namespaces have no namespace.
    pub(super) namespaces: ObjectsByName<'a, NamespaceSpec>,
    /// By name only, because classes have no namespace.
    pub(super) classes: ObjectsByName<'a, GatewayClassSpec>,
    pub(super) gateways: ObjectsByName<'a, GatewaySpec>,
    pub(super) listener_sets: ObjectsByName<'a, ListenerSetSpec>,
    pub(super) routes: ObjectsByName<'a, HttpRouteSpec>,
    pub(super) grpc_routes: ObjectsByName<'a, GrpcRouteSpec>,
    pub(super) tls_routes: ObjectsByName<'a, TlsRouteSpec>,
    pub(super) tcp_routes: ObjectsByName<'a, StreamRouteSpec>,
    pub(super) udp_routes: ObjectsByName<'a, StreamRouteSpec>,
    /// By name only, because classes have no namespace.
    pub(super) ingress_classes: ObjectsByName<'a, IngressClassSpec>,
    pub(super) ingresses: ObjectsByName<'a, IngressSpec>,
    grants: ObjectsByName<'a, ReferenceGrantSpec>,
    /// Objects that ReferenceGrants permit references to, by the grant's namespace and the kind and namespace of the
    /// referring object of Gateway API.
    pub(super) granted: BTreeMap<(&'a str, &'a str, &'a str), Vec<&'a GrantTo>>,
    pub(super) services: ObjectsByName<'a, ServiceSpec>,
    pub(super) slices: ObjectsByName<'a, EndpointSliceSpec>,
    pub(super) network_policies: ObjectsByName<'a, NetworkPolicySpec>,
    pub(super) secrets: ObjectsByName<'a, SecretSpec>,
    /// Cached certificates of Secrets, filled on first use: the check of a key is slow, and many objects may refer to
    /// it.
    pub(super) certificates: BTreeMap<NamespacedName<'a>, OnceCell<CertificateResult>>,
    pub(super) config_maps: ObjectsByName<'a, ConfigMapSpec>,
    pub(super) backend_tls_policies: ObjectsByName<'a, BackendTlsPolicySpec>,
    pub(super) backend_traffic_policies: ObjectsByName<'a, BackendTrafficPolicySpec>,
    pub(super) backend_policies: ObjectsByName<'a, BackendPolicySpec>,
    pub(super) client_policies: ObjectsByName<'a, ClientPolicySpec>,
    pub(super) rate_limit_policies: ObjectsByName<'a, RateLimitPolicySpec>,
    pub(super) security_policies: ObjectsByName<'a, SecurityPolicySpec>,
    pub(super) traffic_policies: ObjectsByName<'a, TrafficPolicySpec>,
    /// By name only, because pools have no namespace.
    pub(super) address_pools: ObjectsByName<'a, AddressPoolSpec>,
    /// By name only, because routers have no namespace.
    pub(super) bgp_peers: ObjectsByName<'a, BgpPeerSpec>,
    /// Objects that cannot be read.
    pub(super) invalid_objects: Vec<&'a TypedObject<InvalidObject>>,
    /// Policies by target Service, whether or not they apply there.
    pub(super) policy_targets: BTreeMap<NamespacedName<'a>, Vec<PolicyTarget<'a>>>,
}

/// A policy's reference to a Service.
pub(super) struct PolicyTarget<'a> {
    /// The policy's kind.
    pub(super) kind: &'static str,
    /// The policy's name.
    pub(super) policy: &'a str,
    /// The name of the target port; `None` for all ports.
    pub(super) section: Option<&'a str>,
    /// True if the policy requires encrypted connections.
    pub(super) encrypts: bool,
}

impl<'a> ObjectIndex<'a> {
    /// Indexes objects. Of two objects with the same name the first one counts. The second one is reported unless it is
    /// identical.
    pub(super) fn new(
        objects: &'a [ApiObject],
        settings: &TranslationSettings,
        report: &mut TranslationReport,
    ) -> Self {
        let mut index = Self { settings: settings.clone(), ..Self::default() };
        index.add(objects, report);
        index
    }

    /// Adds more objects.
    pub(super) fn add(&mut self, objects: &'a [ApiObject], report: &mut TranslationReport) {
        let index = self;
        for object in objects {
            match object {
                ApiObject::Namespace(namespace) => {
                    let name = ("", &*namespace.metadata.name);
                    add(&mut index.namespaces, "Namespace", name, namespace, report);
                }
                ApiObject::GatewayClass(class) => {
                    let name = ("", &*class.metadata.name);
                    add(&mut index.classes, "GatewayClass", name, class, report);
                }
                ApiObject::Gateway(it) => add(&mut index.gateways, "Gateway", name(it), it, report),
                ApiObject::ListenerSet(it) => {
                    add(&mut index.listener_sets, "ListenerSet", name(it), it, report);
                }
                ApiObject::HttpRoute(it) => {
                    add(&mut index.routes, "HTTPRoute", name(it), it, report)
                }
                ApiObject::GrpcRoute(it) => {
                    add(&mut index.grpc_routes, "GRPCRoute", name(it), it, report)
                }
                ApiObject::TlsRoute(it) => {
                    add(&mut index.tls_routes, "TLSRoute", name(it), it, report)
                }
                ApiObject::TcpRoute(it) => {
                    add(&mut index.tcp_routes, "TCPRoute", name(it), it, report)
                }
                ApiObject::UdpRoute(it) => {
                    add(&mut index.udp_routes, "UDPRoute", name(it), it, report)
                }
                ApiObject::IngressClass(class) => {
                    let name = ("", &*class.metadata.name);
                    add(&mut index.ingress_classes, "IngressClass", name, class, report);
                }
                ApiObject::Ingress(it) => {
                    add(&mut index.ingresses, "Ingress", name(it), it, report)
                }
                ApiObject::ReferenceGrant(it) => {
                    add(&mut index.grants, "ReferenceGrant", name(it), it, report);
                    index.grant(it);
                }
                ApiObject::Service(it) => add(&mut index.services, "Service", name(it), it, report),
                ApiObject::EndpointSlice(it) => {
                    add(&mut index.slices, "EndpointSlice", name(it), it, report);
                }
                // Requests are sent to endpoints, wherever they are.
                ApiObject::Node(_) => {}
                ApiObject::NetworkPolicy(it) => {
                    add(&mut index.network_policies, "NetworkPolicy", name(it), it, report);
                }
                ApiObject::Secret(it) => {
                    add(&mut index.secrets, "Secret", name(it), it, report);
                    index.certificates.entry(name(it)).or_default();
                }
                ApiObject::ConfigMap(it) => {
                    add(&mut index.config_maps, "ConfigMap", name(it), it, report);
                }
                ApiObject::BackendTlsPolicy(it) => {
                    let kind = BACKEND_TLS_POLICY;
                    add(&mut index.backend_tls_policies, kind, name(it), it, report);
                    let targets = it.spec.target_refs.iter().filter(|it| it.kind == "Service");
                    let targets = targets.map(|it| (&*it.name, it.section_name.as_deref()));
                    index.add_policy_targets(kind, &it.metadata, targets, true);
                }
                ApiObject::BackendTrafficPolicy(it) => {
                    let kind = BACKEND_TRAFFIC_POLICY;
                    add(&mut index.backend_traffic_policies, kind, name(it), it, report);
                }
                ApiObject::BackendPolicy(it) => {
                    add(&mut index.backend_policies, BACKEND_POLICY, name(it), it, report);
                    let encrypts = it.spec.tls.insecure_skip_verify;
                    index.add_backend_policy_targets(&it.metadata, &it.spec, encrypts);
                }
                ApiObject::ClientPolicy(it) => {
                    add(&mut index.client_policies, "ClientPolicy", name(it), it, report);
                }
                ApiObject::RateLimitPolicy(it) => {
                    add(&mut index.rate_limit_policies, RATE_LIMIT_POLICY, name(it), it, report);
                }
                ApiObject::SecurityPolicy(it) => {
                    add(&mut index.security_policies, SECURITY_POLICY, name(it), it, report);
                }
                ApiObject::TrafficPolicy(it) => {
                    add(&mut index.traffic_policies, TRAFFIC_POLICY, name(it), it, report);
                }
                ApiObject::AddressPool(pool) => {
                    let name = ("", &*pool.metadata.name);
                    add(&mut index.address_pools, "AddressPool", name, pool, report);
                }
                ApiObject::BgpPeer(peer) => {
                    let name = ("", &*peer.metadata.name);
                    add(&mut index.bgp_peers, "BgpPeer", name, peer, report);
                }
                ApiObject::Invalid(it) => {
                    index.invalid_objects.push(it);
                    index.add_invalid_object_targets(&it.metadata, &it.spec);
                }
            }
        }
    }

    fn grant(&mut self, grant: &'a TypedObject<ReferenceGrantSpec>) {
        let is_known = |from: &&GrantFrom| match &*from.group {
            "gateway.networking.k8s.io" => {
                ![SECURITY_POLICY, TRAFFIC_POLICY, "Ingress"].contains(&&*from.kind)
            }
            "sheave.dev" => [SECURITY_POLICY, TRAFFIC_POLICY].contains(&&*from.kind),
            "networking.k8s.io" => from.kind == "Ingress",
            _ => false,
        };
        for from in grant.spec.from.iter().filter(is_known) {
            let referrer = (&*grant.metadata.namespace, &*from.kind, &*from.namespace);
            self.granted.entry(referrer).or_default().extend(&grant.spec.to);
        }
    }

    fn add_invalid_object_targets(&mut self, metadata: &'a ObjectMeta, spec: &'a InvalidObject) {
        if spec.kind == BACKEND_TLS_POLICY {
            let targets = spec.services().map(|it| (&*it.name, it.section_name.as_deref()));
            self.add_policy_targets(BACKEND_TLS_POLICY, metadata, targets, true);
        }
        if let Some(PartialPolicy::Backend { spec, lacks_tls, .. }) = &spec.partial_policy {
            self.add_backend_policy_targets(
                metadata,
                spec,
                spec.tls.insecure_skip_verify || *lacks_tls,
            );
        }
    }

    fn add_backend_policy_targets(
        &mut self,
        metadata: &'a ObjectMeta,
        spec: &'a BackendPolicySpec,
        encrypts: bool,
    ) {
        let targets = spec.target_refs.iter();
        let targets = targets.map(|it| (&*it.name, it.section_name.as_deref()));
        self.add_policy_targets(BACKEND_POLICY, metadata, targets, encrypts);
    }

    fn add_policy_targets(
        &mut self,
        kind: &'static str,
        policy: &'a ObjectMeta,
        targets: impl Iterator<Item = (&'a str, Option<&'a str>)>,
        encrypts: bool,
    ) {
        for (service, section) in targets {
            let target = PolicyTarget { kind, policy: &policy.name, section, encrypts };
            self.policy_targets.entry((&policy.namespace, service)).or_default().push(target);
        }
    }

    /// Returns the policies that name a Service.
    pub(super) fn policies_of<'s>(&'s self, service: NamespacedName<'s>) -> &'s [PolicyTarget<'a>] {
        self.policy_targets.get(&service).map_or(&[], Vec::as_slice)
    }

    /// Returns the reason why an object with certificates is missing.
    pub(super) fn absence(&self, object: &CertificateObject) -> String {
        let CertificateObject { kind, namespace, name } = object;
        match self.settings.unreadable_objects.get(object) {
            Some(reason) => format!("{kind} {namespace}/{name} cannot be read: {reason}"),
            None => format!("there is no {kind} {namespace}/{name}"),
        }
    }

    /// True if a namespace has the labels that a selector demands.
    pub(super) fn selects(&self, selector: &LabelSelector, namespace: &str) -> bool {
        let metadata = self.namespaces.get(&("", namespace)).map(|it| &it.metadata);
        selector.matches(&namespace_labels(namespace, metadata))
    }
}

/// Returns objects in Gateway API's order of precedence: the oldest first, then by name.
pub(super) fn by_age<'a, S>(objects: &ObjectsByName<'a, S>) -> Vec<&'a TypedObject<S>> {
    sorted_by_age(objects.values().copied(), |it| &it.metadata)
}

/// Sorts anything with metadata in the same order.
pub(super) fn sorted_by_age<'a, T>(
    items: impl Iterator<Item = T>,
    metadata: impl Fn(&T) -> &'a ObjectMeta,
) -> Vec<T> {
    let mut sorted: Vec<_> = items.collect();
    sorted.sort_by(|a, b| metadata(a).precedence().cmp(&metadata(b).precedence()));
    sorted
}

fn name<S>(object: &TypedObject<S>) -> NamespacedName<'_> {
    (&object.metadata.namespace, &object.metadata.name)
}

fn add<'a, S: PartialEq>(
    objects: &mut ObjectsByName<'a, S>,
    kind: &str,
    name: NamespacedName<'a>,
    object: &'a TypedObject<S>,
    report: &mut TranslationReport,
) {
    let first = *objects.entry(name).or_insert(object);
    let same = first.spec == object.spec && first.metadata.labels == object.metadata.labels;
    if std::ptr::eq(first, object) || same {
        return;
    }
    let origin = &first.origin;
    let message =
        format!("is defined a second time, first in {} document {}", origin.file, origin.document);
    report.problem(kind, object, "metadata.name", message);
}
