//! Services whose addresses are taken in transparent mode: which they are, what of them is taken, and why the rest is
//! not. Their routes and listeners are in the modules below.

/// Annotations of a Service.
mod annotation;
/// The addresses of a Service, and why it has none to take.
mod eligibility;
/// The protocol of a port.
mod port_protocol;
/// NetworkPolicies that may apply to the pods of a Service.
mod network_policy;
/// Endpoints that are used from this node.
mod locality;
/// HTTPRoutes and GRPCRoutes of Services.
mod route;
/// Listeners of Services.
mod listener;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

pub(super) use listener::client_settings;
pub(super) use locality::{EndpointLocality, SliceMember};
pub(super) use network_policy::restricting_policy;
pub(super) use port_protocol::PortProtocol;
pub(super) use route::{PortAttachment, RouteRole, ServiceAttachment, every_request};

use super::index::{NamespacedName, ObjectIndex};
use super::report::TranslationReport;
use super::session_affinity;
use crate::objects::{ServicePort, ServiceSpec, ServiceType, TypedObject};
use crate::snapshot::{BackendKey, BackendSettings, EndpointLocation};
use crate::translation_settings::TransparentSettings;
use crate::transparent::TransparentFinding;
use annotation::ServiceAnnotations;

/// The Services that routes may name as parents, and their TCP ports: those with the annotation, or all.
#[derive(Default)]
pub(super) struct TransparentServices<'a> {
    settings: TransparentSettings,
    /// True if clients that choose endpoints themselves are served: then all Services are among these, without an
    /// address if they have no annotation.
    proxyless: bool,
    services: Vec<ServiceContext<'a>>,
    by_name: BTreeMap<NamespacedName<'a>, usize>,
    ports: Vec<PortContext<'a>>,
    /// Ports that GRPCRoutes have attached to, each with the namespace if it is a consumer's. HTTPRoutes yield there.
    grpc_ports: BTreeSet<(usize, Option<&'a str>)>,
}

/// A Service with the annotation, or one for clients that choose endpoints themselves.
struct ServiceContext<'a> {
    object: &'a TypedObject<ServiceSpec>,
    annotations: ServiceAnnotations,
    /// True if the Service or its Namespace has the annotation.
    is_annotated: bool,
    /// The ClusterIPs of the IP versions that can be taken. Empty if the Service is not taken.
    addresses: Vec<IpAddr>,
    /// The reason why the Service is not taken, on any node.
    fault: Option<TransparentFinding>,
    /// Parts that are not taken, and settings without effect.
    findings: Vec<TransparentFinding>,
}

/// A TCP port of a Service that is taken on some node.
struct PortContext<'a> {
    /// Index of the Service.
    service: usize,
    spec: &'a ServicePort,
    protocol: PortProtocol,
}

/// Returns the Services with the annotation in transparent mode, and all Services with endpoints if there may be clients
/// that choose endpoints themselves; sorted by name.
pub(super) fn services<'a>(index: &ObjectIndex<'a>) -> TransparentServices<'a> {
    let (transparent, proxyless) = (index.settings.transparent.as_ref(), index.settings.proxyless);
    let settings = transparent.cloned().unwrap_or_default();
    let mut found = TransparentServices { settings, proxyless, ..TransparentServices::default() };
    if transparent.is_none() && !proxyless {
        return found;
    }
    for (name, object) in &index.services {
        let annotated =
            transparent.and_then(|settings| ServiceContext::new(index, settings, object));
        let service = annotated.or_else(|| ServiceContext::proxyless(object).filter(|_| proxyless));
        if let Some(service) = service {
            found.add(*name, service);
        }
    }
    found.grpc_ports = found.find_grpc_ports(index);
    found
}

impl<'a> TransparentServices<'a> {
    fn add(&mut self, name: NamespacedName<'a>, service: ServiceContext<'a>) {
        let number = self.services.len();
        let ports = service.object.spec.ports.iter().filter(|port| is_tcp(port));
        let ports = ports.filter(|_| service.fault.is_none()).map(|spec| PortContext {
            service: number,
            spec,
            protocol: PortProtocol::of(spec),
        });
        self.ports.extend(ports);
        self.by_name.insert(name, number);
        self.services.push(service);
    }

    /// Reports values of annotations that are not known.
    pub(super) fn report(&self, index: &ObjectIndex<'_>, report: &mut TranslationReport) {
        if index.settings.transparent.is_none() {
            return;
        }
        for namespace in index.namespaces.values() {
            if let Some(message) = annotation::namespace_fault(&namespace.metadata) {
                report.problem("Namespace", namespace, annotation::BALANCE_FIELD, message);
            }
        }
        for service in &self.services {
            for (field, message) in &service.annotations.faults {
                report.problem("Service", service.object, field, message.as_str());
            }
        }
    }

    /// Changes the settings of a backend to those of its Service: session affinity, and the endpoints that are
    /// preferred. A BackendPolicy has precedence. Without one, no response is cut for being slow.
    pub(super) fn adjust(
        &self,
        key: &BackendKey,
        settings: &mut BackendSettings,
        has_policy: bool,
    ) {
        let zone = self.settings.zone.clone().filter(|_| settings.prefers_same_zone);
        settings.preferred_location = zone.map(EndpointLocation::Zone);
        let Some(service) = self.taken(&key.namespace, &key.service) else { return };
        if !has_policy {
            settings.idle_timeout = listener::IDLE_TIMEOUT;
        }
        if service.prefers_node() && !self.settings.node.is_empty() {
            let node = Arc::clone(&self.settings.node);
            settings.preferred_location = Some(EndpointLocation::Node(node));
        }
        session_affinity::adjust(&service.object.spec, settings);
    }

    /// Returns which endpoints of each Service are used from this node. Others have all of their endpoints.
    pub(super) fn localities(&self) -> BTreeMap<NamespacedName<'a>, EndpointLocality> {
        let taken = self.by_name.iter().map(|(name, number)| (*name, &self.services[*number]));
        let taken = taken.filter(|(_, service)| !service.addresses.is_empty());
        taken
            .filter_map(|(name, service)| {
                Some((name, EndpointLocality::of(&self.settings, &service.object.spec)?))
            })
            .collect()
    }

    /// Returns a Service that is taken on this node.
    fn taken(&self, namespace: &str, name: &str) -> Option<&ServiceContext<'a>> {
        let service = &self.services[*self.by_name.get(&(namespace, name))?];
        (!service.addresses.is_empty()).then_some(service)
    }
}

impl<'a> ServiceContext<'a> {
    /// Returns `None` if the Service does not have the annotation. One that only its Namespace has is ignored for
    /// Services that cannot be taken.
    fn new(
        index: &ObjectIndex<'_>,
        settings: &TransparentSettings,
        object: &'a TypedObject<ServiceSpec>,
    ) -> Option<Self> {
        let namespace = index.namespaces.get(&("", &*object.metadata.namespace));
        let annotations =
            ServiceAnnotations::read(&object.metadata, namespace.map(|it| &it.metadata))?;
        let mut findings = Vec::new();
        let addresses = match eligibility::addresses(object) {
            Err(_) if annotations.of_namespace => return None,
            addresses => addresses,
        };
        let fault = match &addresses {
            Err(fault) => Some(fault.clone()),
            Ok(_) => annotations.fault().or_else(|| {
                let policy = annotations.hides_clients.then(|| restricting_policy(index, object));
                policy.flatten().map(eligibility::network_policy_fault)
            }),
        };
        if !annotations.of_namespace {
            findings.extend(eligibility::other_ports(&object.spec));
        }
        let mut addresses = addresses.unwrap_or_default();
        if fault.is_none() {
            findings.extend(eligibility::retain_available(settings, &object.spec, &mut addresses));
            findings.extend(eligibility::affinity_finding(&object.spec));
        } else {
            addresses.clear();
        }
        Some(Self { object, annotations, is_annotated: true, addresses, fault, findings })
    }

    /// Returns a Service whose addresses are left alone. `None` if it has no endpoints, as an alias of a DNS name.
    fn proxyless(object: &'a TypedObject<ServiceSpec>) -> Option<Self> {
        match object.spec.kind {
            ServiceType::ExternalName => return None,
            ServiceType::ClusterIP | ServiceType::NodePort | ServiceType::LoadBalancer => {}
        }
        Some(Self {
            object,
            annotations: ServiceAnnotations::default(),
            is_annotated: false,
            addresses: Vec::new(),
            fault: None,
            findings: Vec::new(),
        })
    }

    /// True if endpoints on the client's node are used first.
    fn prefers_node(&self) -> bool {
        let distribution = self.object.spec.traffic_distribution.as_deref();
        self.annotations.prefers_local || distribution == Some("PreferSameNode")
    }
}

fn is_tcp(port: &ServicePort) -> bool {
    port.protocol.as_deref().is_none_or(|protocol| protocol == "TCP")
}
