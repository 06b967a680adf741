//! HTTPRoutes and GRPCRoutes that name a Service as parent (GAMMA, GEP-1294): the ports they attach to, and whose
//! requests they route there.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::super::draft::{RouteDraft, RuleDraft, TargetDraft};
use super::super::index::ObjectIndex;
use super::super::report::ValidationFault;
use super::port_protocol::PortProtocol;
use super::{PortContext, ServiceContext, TransparentServices};
use crate::matching::{MatchConditions, PathPattern, RouteMatch};
use crate::objects::{ParentRef, TypedObject};
use crate::snapshot::{BackendKey, TransportProtocol};
use crate::status::ConditionReason;

/// The kinds of route that may attach. The first has precedence (GEP-1294, "Route types").
const ROUTE_KINDS: [&str; 2] = ["GRPCRoute", "HTTPRoute"];

/// The attachment of a route to one port of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) struct PortAttachment {
    /// Index of the port among those of all Services.
    pub(super) port: usize,
    pub(in super::super) role: RouteRole,
}

/// The requests that a route of a Service applies to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in super::super) enum RouteRole {
    /// Those of a Service without routes, and connections that carry no requests.
    Default,
    /// Those of all clients: the route is in the namespace of the Service.
    Producer,
    /// Those of clients in the namespace of the route, which is another one.
    Consumer(Arc<str>),
}

/// The result of a reference of a route to a Service with the annotation.
pub(in super::super) struct ServiceAttachment<'a> {
    pub(in super::super) reference: &'a ParentRef,
    pub(in super::super) attached: Result<Vec<PortAttachment>, ValidationFault>,
}

impl<'a> TransparentServices<'a> {
    /// True if a reference of a route names a Service with the annotation.
    pub(in super::super) fn has_parent(&self, kind: &str, of: &str, parent: &ParentRef) -> bool {
        ROUTE_KINDS.contains(&kind) && self.find_parent(of, parent).is_some()
    }

    /// Returns the Service that a reference of a route in the namespace `of` names.
    fn find_parent(&self, of: &str, parent: &ParentRef) -> Option<usize> {
        let ParentRef { group, kind, namespace, name, .. } = parent;
        let is_service = (group.as_deref(), kind.as_deref()) == (Some(""), Some("Service"));
        let namespace = namespace.as_deref().unwrap_or(of);
        self.by_name.get(&(namespace, &**name)).copied().filter(|_| is_service)
    }

    /// Returns the result of each reference of a route to a Service with the annotation.
    pub(in super::super) fn attachments<'r, S>(
        &self,
        kind: &str,
        route: &TypedObject<S>,
        parents: &'r [ParentRef],
    ) -> Vec<ServiceAttachment<'r>> {
        let of = &*route.metadata.namespace;
        let mut found = Vec::new();
        for (n, reference) in parents.iter().enumerate() {
            if ROUTE_KINDS.contains(&kind)
                && let Some(service) = self.find_parent(of, reference)
            {
                let field = format!("spec.parentRefs[{n}]");
                let attached = self.attach(kind, of, service, reference, &field);
                found.push(ServiceAttachment { reference, attached });
            }
        }
        found
    }

    fn attach(
        &self,
        kind: &str,
        of: &str,
        service: usize,
        parent: &ParentRef,
        field: &str,
    ) -> Result<Vec<PortAttachment>, ValidationFault> {
        let refused = |reason, part: &str, message: String| {
            Err(ValidationFault::new(reason, format!("{field}{part}"), message))
        };
        let ServiceContext { object, fault, .. } = &self.services[service];
        if let Some(fault) = fault {
            let message = format!("the Service is not served: {}", fault.message);
            return refused(ConditionReason::NoMatchingParent, ".name", message);
        }
        let mut ports = self.selected_ports(service, parent);
        if ports.is_empty() {
            let message = "the Service has no TCP port of this name and number".to_owned();
            return refused(ConditionReason::NoMatchingParent, "", message);
        }
        ports.retain(|number| self.ports[*number].protocol.has_requests());
        if ports.is_empty() {
            let message = "the port does not carry HTTP, by its appProtocol or number".to_owned();
            return refused(ConditionReason::NotAllowedByListeners, "", message);
        }
        let namespace = &*object.metadata.namespace;
        let consumer = (namespace != of).then_some(of);
        if kind != ROUTE_KINDS[0] {
            ports.retain(|number| !self.grpc_ports.contains(&(*number, consumer)));
        }
        if ports.is_empty() {
            let message = "a GRPCRoute has the port, and precedence".to_owned();
            return refused(ConditionReason::Conflicted, "", message);
        }
        let role = consumer.map_or(RouteRole::Producer, |of| RouteRole::Consumer(of.into()));
        Ok(ports.into_iter().map(|port| PortAttachment { port, role: role.clone() }).collect())
    }

    /// Returns the indices of the ports of a Service that a reference selects.
    fn selected_ports(&self, service: usize, parent: &ParentRef) -> Vec<usize> {
        let is_selected = |port: &PortContext<'_>| {
            port.service == service
                && parent.port.is_none_or(|number| number == port.spec.port)
                && parent.section_name.as_ref().is_none_or(|name| *name == port.spec.name)
        };
        let ports = self.ports.iter().enumerate();
        ports.filter(|(_, port)| is_selected(port)).map(|(number, _)| number).collect()
    }

    /// Returns the ports that GRPCRoutes attach to, each with the namespace if it is a consumer's.
    pub(super) fn find_grpc_ports(
        &self,
        index: &ObjectIndex<'a>,
    ) -> BTreeSet<(usize, Option<&'a str>)> {
        let mut found = BTreeSet::new();
        for ((namespace, _), route) in &index.grpc_routes {
            let attachments = self.attachments(ROUTE_KINDS[0], route, &route.spec.parent_refs);
            for port in attachments.into_iter().filter_map(|it| it.attached.ok()).flatten() {
                let is_consumer = port.role != RouteRole::Producer;
                found.insert((port.port, is_consumer.then_some(*namespace)));
            }
        }
        found
    }

    /// True if endpoints see the node instead of the client, at some of these ports.
    pub(in super::super) fn hide_clients(&self, attachments: &[PortAttachment]) -> bool {
        let service = |it: &PortAttachment| &self.services[self.ports[it.port].service];
        attachments.iter().any(|it| service(it).annotations.hides_clients)
    }

    /// Returns the rules that ports have beside those of routes: to the endpoints of the Service itself.
    pub(in super::super) fn default_routes(&self, routes: &[RouteDraft]) -> Vec<RouteDraft> {
        let attachments = routes.iter().flat_map(|route| &route.service_ports);
        let producers = attachments.filter(|it| it.role == RouteRole::Producer);
        let routed: BTreeSet<usize> = producers.map(|it| it.port).collect();
        let needs_rule = |(number, port): &(usize, &PortContext<'_>)| {
            let is_taken = !self.services[port.service].addresses.is_empty();
            let is_routed = port.protocol == PortProtocol::Requests && routed.contains(number);
            (is_taken || self.proxyless) && !is_routed
        };
        let ports = self.ports.iter().enumerate().filter(needs_rule);
        ports.map(|(number, port)| self.default_route(number, port)).collect()
    }

    fn default_route(&self, number: usize, port: &PortContext<'_>) -> RouteDraft {
        let key = self.key(port);
        let rule = RuleDraft {
            name: self.label(port).into(),
            matches: vec![Arc::new(every_request())],
            targets: vec![TargetDraft { key: Some(key), ..TargetDraft::unresolved() }],
            ..RuleDraft::default()
        };
        RouteDraft {
            rules: vec![rule],
            attachments: Vec::new(),
            service_ports: vec![PortAttachment { port: number, role: RouteRole::Default }],
            load_balancer_port: None,
            is_grpc: false,
        }
    }

    /// Returns the backend of the Service's own endpoints at a port.
    pub(super) fn key(&self, port: &PortContext<'_>) -> BackendKey {
        let metadata = &self.services[port.service].object.metadata;
        BackendKey {
            namespace: (&*metadata.namespace).into(),
            service: (&*metadata.name).into(),
            port: port.spec.port,
            transport: TransportProtocol::Tcp,
            node: None,
        }
    }

    /// Returns the label `namespace/service/port`.
    pub(super) fn label(&self, port: &PortContext<'_>) -> String {
        let metadata = &self.services[port.service].object.metadata;
        let number = port.spec.port.to_string();
        let name = if port.spec.name.is_empty() { &number } else { &port.spec.name };
        format!("{}/{}/{name}", metadata.namespace, metadata.name)
    }
}

pub(in super::super) fn every_request() -> RouteMatch {
    RouteMatch {
        path: PathPattern::prefix("/").expect("a slash is a path"),
        conditions: MatchConditions::default(),
    }
}
