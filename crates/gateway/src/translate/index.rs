//! Objects by name and age, each once.

use std::collections::BTreeMap;

use super::Report;
use crate::objects::{
    BackendPolicySpec, BackendTlsPolicySpec, ClientPolicySpec, ConfigMapSpec, EndpointSliceSpec,
    GatewayClassSpec, GatewaySpec, GrpcRouteSpec, HttpRouteSpec, IngressClassSpec, IngressSpec,
    LabelSelector, ListenerSetSpec, NamespaceSpec, Object, ReferenceGrantSpec, RefusedSpec,
    Resource, SecretSpec, ServiceSpec, StreamRouteSpec, TlsRouteSpec, namespace_labels,
};

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
    pub(super) grants: ByName<'a, ReferenceGrantSpec>,
    pub(super) services: ByName<'a, ServiceSpec>,
    pub(super) slices: ByName<'a, EndpointSliceSpec>,
    pub(super) secrets: ByName<'a, SecretSpec>,
    pub(super) config_maps: ByName<'a, ConfigMapSpec>,
    pub(super) backend_tls_policies: ByName<'a, BackendTlsPolicySpec>,
    pub(super) backend_policies: ByName<'a, BackendPolicySpec>,
    pub(super) client_policies: ByName<'a, ClientPolicySpec>,
    /// What cannot be read.
    pub(super) refused: Vec<&'a Resource<RefusedSpec>>,
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
                }
                Object::Service(it) => add(&mut index.services, "Service", name(it), it, report),
                Object::EndpointSlice(it) => {
                    add(&mut index.slices, "EndpointSlice", name(it), it, report);
                }
                Object::Secret(it) => add(&mut index.secrets, "Secret", name(it), it, report),
                Object::ConfigMap(it) => {
                    add(&mut index.config_maps, "ConfigMap", name(it), it, report);
                }
                Object::BackendTlsPolicy(it) => {
                    add(&mut index.backend_tls_policies, "BackendTLSPolicy", name(it), it, report);
                }
                Object::BackendPolicy(it) => {
                    add(&mut index.backend_policies, "BackendPolicy", name(it), it, report);
                }
                Object::ClientPolicy(it) => {
                    add(&mut index.client_policies, "ClientPolicy", name(it), it, report);
                }
                Object::Refused(it) => index.refused.push(it),
            }
        }
    }

    /// Whether a namespace has the labels that are asked for; without a selector none is meant.
    pub(super) fn selects(&self, selector: Option<&LabelSelector>, namespace: &str) -> bool {
        let metadata = self.namespaces.get(&("", namespace)).map(|it| &it.metadata);
        selector.is_some_and(|it| it.matches(&namespace_labels(namespace, metadata)))
    }
}

/// In Gateway API's order among equals: the oldest first, then by name.
pub(super) fn by_age<'a, S>(objects: &ByName<'a, S>) -> Vec<&'a Resource<S>> {
    let mut sorted: Vec<_> = objects.values().copied().collect();
    sorted.sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
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
