//! Objects by name and age, each once.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use super::Report;
use super::certificate::Checked;
use crate::objects::{
    BackendPolicySpec, BackendTlsPolicySpec, ClientPolicySpec, ConfigMapSpec, EndpointSliceSpec,
    GatewayClassSpec, GatewaySpec, GrantFrom, GrantTo, GrpcRouteSpec, HttpRouteSpec,
    IngressClassSpec, IngressSpec, LabelSelector, ListenerSetSpec, Metadata, NamespaceSpec, Object,
    ReferenceGrantSpec, RefusedSpec, Remains, Resource, SecretSpec, ServiceSpec, StreamRouteSpec,
    TlsRouteSpec, namespace_labels,
};

pub(super) const BACKEND_POLICY: &str = "BackendPolicy";
pub(super) const BACKEND_TLS_POLICY: &str = "BackendTLSPolicy";

/// A namespace and a name.
pub(super) type Name<'a> = (&'a str, &'a str);

/// The objects of one kind by name.
pub(super) type ByName<'a, S> = BTreeMap<Name<'a>, &'a Resource<S>>;

/// Objects by kind and name.
#[derive(Default)]
pub(super) struct Index<'a> {
    /// By name alone, for they have no namespace.
    pub(super) namespaces: ByName<'a, NamespaceSpec>,
    /// By name alone, too.
    pub(super) classes: ByName<'a, GatewayClassSpec>,
    pub(super) gateways: ByName<'a, GatewaySpec>,
    pub(super) listener_sets: ByName<'a, ListenerSetSpec>,
    pub(super) routes: ByName<'a, HttpRouteSpec>,
    pub(super) grpc_routes: ByName<'a, GrpcRouteSpec>,
    pub(super) tls_routes: ByName<'a, TlsRouteSpec>,
    pub(super) tcp_routes: ByName<'a, StreamRouteSpec>,
    pub(super) udp_routes: ByName<'a, StreamRouteSpec>,
    /// By name alone.
    pub(super) ingress_classes: ByName<'a, IngressClassSpec>,
    pub(super) ingresses: ByName<'a, IngressSpec>,
    grants: ByName<'a, ReferenceGrantSpec>,
    /// What ReferenceGrants of a namespace let objects of Gateway API of a kind and namespace refer to.
    pub(super) granted: BTreeMap<(&'a str, &'a str, &'a str), Vec<&'a GrantTo>>,
    pub(super) services: ByName<'a, ServiceSpec>,
    pub(super) slices: ByName<'a, EndpointSliceSpec>,
    pub(super) secrets: ByName<'a, SecretSpec>,
    /// What is in Secrets that somebody has asked for: to check a key takes long, and many may ask.
    pub(super) certificates: BTreeMap<Name<'a>, OnceCell<Checked>>,
    pub(super) config_maps: ByName<'a, ConfigMapSpec>,
    pub(super) backend_tls_policies: ByName<'a, BackendTlsPolicySpec>,
    pub(super) backend_policies: ByName<'a, BackendPolicySpec>,
    pub(super) client_policies: ByName<'a, ClientPolicySpec>,
    /// What cannot be read.
    pub(super) refused: Vec<&'a Resource<RefusedSpec>>,
    /// The policies that name a Service, whether they hold there or not.
    pub(super) aims: BTreeMap<Name<'a>, Vec<Aim<'a>>>,
}

/// That a policy names a Service.
pub(super) struct Aim<'a> {
    /// The policy's kind.
    pub(super) kind: &'static str,
    /// The policy's name.
    pub(super) policy: &'a str,
    /// Which port is meant; none: all of them.
    pub(super) section: Option<&'a str>,
    /// Whether connections are to be encrypted.
    pub(super) encrypts: bool,
}

impl<'a> Index<'a> {
    /// Of two objects of one name the first counts; the second is a problem unless it says the same.
    pub(super) fn new(objects: &'a [Object], report: &mut Report) -> Self {
        let mut index = Self::default();
        index.add(objects, report);
        index
    }

    /// The same with more objects.
    pub(super) fn add(&mut self, objects: &'a [Object], report: &mut Report) {
        let index = self;
        for object in objects {
            match object {
                Object::Namespace(namespace) => {
                    let name = ("", &*namespace.metadata.name);
                    add(&mut index.namespaces, "Namespace", name, namespace, report);
                }
                Object::GatewayClass(class) => {
                    let name = ("", &*class.metadata.name);
                    add(&mut index.classes, "GatewayClass", name, class, report);
                }
                Object::Gateway(it) => add(&mut index.gateways, "Gateway", name(it), it, report),
                Object::ListenerSet(it) => {
                    add(&mut index.listener_sets, "ListenerSet", name(it), it, report);
                }
                Object::HttpRoute(it) => add(&mut index.routes, "HTTPRoute", name(it), it, report),
                Object::GrpcRoute(it) => {
                    add(&mut index.grpc_routes, "GRPCRoute", name(it), it, report)
                }
                Object::TlsRoute(it) => {
                    add(&mut index.tls_routes, "TLSRoute", name(it), it, report)
                }
                Object::TcpRoute(it) => {
                    add(&mut index.tcp_routes, "TCPRoute", name(it), it, report)
                }
                Object::UdpRoute(it) => {
                    add(&mut index.udp_routes, "UDPRoute", name(it), it, report)
                }
                Object::IngressClass(class) => {
                    let name = ("", &*class.metadata.name);
                    add(&mut index.ingress_classes, "IngressClass", name, class, report);
                }
                Object::Ingress(it) => add(&mut index.ingresses, "Ingress", name(it), it, report),
                Object::ReferenceGrant(it) => {
                    add(&mut index.grants, "ReferenceGrant", name(it), it, report);
                    index.grant(it);
                }
                Object::Service(it) => add(&mut index.services, "Service", name(it), it, report),
                Object::EndpointSlice(it) => {
                    add(&mut index.slices, "EndpointSlice", name(it), it, report);
                }
                Object::Secret(it) => {
                    add(&mut index.secrets, "Secret", name(it), it, report);
                    index.certificates.entry(name(it)).or_default();
                }
                Object::ConfigMap(it) => {
                    add(&mut index.config_maps, "ConfigMap", name(it), it, report);
                }
                Object::BackendTlsPolicy(it) => {
                    let kind = BACKEND_TLS_POLICY;
                    add(&mut index.backend_tls_policies, kind, name(it), it, report);
                    let targets = it.spec.target_refs.iter().filter(|it| it.kind == "Service");
                    let targets = targets.map(|it| (&*it.name, it.section_name.as_deref()));
                    index.aim(kind, &it.metadata, targets, true);
                }
                Object::BackendPolicy(it) => {
                    add(&mut index.backend_policies, BACKEND_POLICY, name(it), it, report);
                    let encrypts = it.spec.tls.insecure_skip_verify;
                    index.aim_usage(&it.metadata, &it.spec, encrypts);
                }
                Object::ClientPolicy(it) => {
                    add(&mut index.client_policies, "ClientPolicy", name(it), it, report);
                }
                Object::Refused(it) => {
                    index.refused.push(it);
                    index.aim_refused(&it.metadata, &it.spec);
                }
            }
        }
    }

    fn grant(&mut self, grant: &'a Resource<ReferenceGrantSpec>) {
        let is_known = |from: &&GrantFrom| from.group == "gateway.networking.k8s.io";
        for from in grant.spec.from.iter().filter(is_known) {
            let whom = (&*grant.metadata.namespace, &*from.kind, &*from.namespace);
            self.granted.entry(whom).or_default().extend(&grant.spec.to);
        }
    }

    fn aim_refused(&mut self, metadata: &'a Metadata, spec: &'a RefusedSpec) {
        if spec.kind == BACKEND_TLS_POLICY {
            let targets = spec.services().map(|it| (&*it.name, it.section_name.as_deref()));
            self.aim(BACKEND_TLS_POLICY, metadata, targets, true);
        }
        if let Some(Remains::Backend { spec, lacks_tls }) = &spec.remains {
            self.aim_usage(metadata, spec, spec.tls.insecure_skip_verify || *lacks_tls);
        }
    }

    fn aim_usage(&mut self, metadata: &'a Metadata, spec: &'a BackendPolicySpec, encrypts: bool) {
        let targets = spec.target_refs.iter();
        let targets = targets.map(|it| (&*it.name, it.section_name.as_deref()));
        self.aim(BACKEND_POLICY, metadata, targets, encrypts);
    }

    fn aim(
        &mut self,
        kind: &'static str,
        policy: &'a Metadata,
        targets: impl Iterator<Item = (&'a str, Option<&'a str>)>,
        encrypts: bool,
    ) {
        for (service, section) in targets {
            let aim = Aim { kind, policy: &policy.name, section, encrypts };
            self.aims.entry((&policy.namespace, service)).or_default().push(aim);
        }
    }

    /// The policies that name a Service.
    pub(super) fn aims_at<'s>(&'s self, service: Name<'s>) -> &'s [Aim<'a>] {
        self.aims.get(&service).map_or(&[], Vec::as_slice)
    }

    /// Whether a namespace has the labels that are asked for.
    pub(super) fn selects(&self, selector: &LabelSelector, namespace: &str) -> bool {
        let metadata = self.namespaces.get(&("", namespace)).map(|it| &it.metadata);
        selector.matches(&namespace_labels(namespace, metadata))
    }
}

/// In Gateway API's order among equals: the oldest first, then by name.
pub(super) fn by_age<'a, S>(objects: &ByName<'a, S>) -> Vec<&'a Resource<S>> {
    sorted_by_age(objects.values().copied(), |it| &it.metadata)
}

/// The same of anything that has metadata.
pub(super) fn sorted_by_age<'a, T>(
    items: impl Iterator<Item = T>,
    metadata: impl Fn(&T) -> &'a Metadata,
) -> Vec<T> {
    let mut sorted: Vec<_> = items.collect();
    sorted.sort_by(|a, b| metadata(a).precedence().cmp(&metadata(b).precedence()));
    sorted
}

fn name<S>(object: &Resource<S>) -> Name<'_> {
    (&object.metadata.namespace, &object.metadata.name)
}

fn add<'a, S: PartialEq>(
    objects: &mut ByName<'a, S>,
    kind: &str,
    name: Name<'a>,
    object: &'a Resource<S>,
    report: &mut Report,
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
