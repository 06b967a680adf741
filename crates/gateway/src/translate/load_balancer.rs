//! Services of type LoadBalancer that Sheave serves: their listeners, at the addresses that they have been assigned,
//! and why the rest of them is not served.

use std::collections::BTreeSet;
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use ipnet::IpNet;

use super::draft::{RouteDraft, RuleDraft, TargetDraft};
use super::index::{NamespacedName, ObjectIndex};
use super::report::TranslationReport;
use super::session_affinity;
use super::transparent::{self, PortProtocol};
use crate::load_balancer::{self, LoadBalancerService, ServiceFinding};
use crate::matching::{HostPattern, RouteTable};
use crate::objects::{ObjectMeta, ServicePort, ServiceSpec, TypedObject};
use crate::snapshot::{
    BackendKey, BackendSettings, ClientSettings, Listener, ListenerProtocol, Rule,
    TransportProtocol,
};
use crate::status::{ConditionReason, ConditionType, StatusCondition, StatusDetail};
use crate::transparent::{BALANCE_ANNOTATION, FORWARDED_FOR_ANNOTATION};

/// The Services that Sheave serves, and their ports.
#[derive(Default)]
pub(super) struct LoadBalancerServices<'a> {
    /// In the order of their names.
    services: Vec<ServedService<'a>>,
    ports: Vec<ServedPort<'a>>,
}

/// A Service.
struct ServedService<'a> {
    object: &'a TypedObject<ServiceSpec>,
    /// Its addresses; empty if it is not served.
    addresses: Vec<IpAddr>,
    /// The node whose endpoints alone are used; `None`: all.
    node: Option<Arc<str>>,
    /// The networks of its clients; `None`: all.
    sources: Option<Arc<[IpNet]>>,
    appends_forwarded_for: bool,
    findings: Vec<ServiceFinding>,
}

/// A port of a Service that is served.
struct ServedPort<'a> {
    /// Index of the Service.
    service: usize,
    spec: &'a ServicePort,
    protocol: ServiceProtocol,
}

/// The protocol of a port.
#[derive(Clone, Copy, PartialEq, Eq)]
enum ServiceProtocol {
    Tcp(PortProtocol),
    Udp,
}

impl ServiceProtocol {
    /// Returns the protocol of a port, or `None` if it is not supported.
    fn of(port: &ServicePort, balances_requests: bool) -> Option<Self> {
        match port.protocol.as_deref().unwrap_or("TCP") {
            "TCP" if balances_requests => Some(Self::Tcp(PortProtocol::of(port))),
            "TCP" => Some(Self::Tcp(PortProtocol::Connections)),
            "UDP" => Some(Self::Udp),
            _ => None,
        }
    }

    const fn transport(self) -> TransportProtocol {
        match self {
            Self::Tcp(_) => TransportProtocol::Tcp,
            Self::Udp => TransportProtocol::Udp,
        }
    }
}

/// Returns the Services that Sheave serves, sorted by name.
pub(super) fn services<'a>(index: &ObjectIndex<'a>) -> LoadBalancerServices<'a> {
    let mut found = LoadBalancerServices::default();
    let Some(settings) = &index.settings.load_balancer else { return found };
    for (&(namespace, name), object) in &index.services {
        let name = (namespace.to_owned(), name.to_owned());
        let Some(assigned) = settings.assignment.services.get(&name) else { continue };
        let mut service = ServedService {
            object,
            addresses: assigned.addresses.clone(),
            node: None,
            sources: None,
            appends_forwarded_for: false,
            findings: assigned.findings.clone(),
        };
        service.read_policies(&settings.node);
        found.add(service);
    }
    found
}

impl<'a> LoadBalancerServices<'a> {
    fn add(&mut self, mut service: ServedService<'a>) {
        let index = self.services.len();
        let balances_requests = service.read_annotations();
        for spec in &service.object.spec.ports {
            match ServiceProtocol::of(spec, balances_requests) {
                Some(protocol) => self.ports.push(ServedPort { service: index, spec, protocol }),
                None => {
                    let protocol = spec.protocol.as_deref().unwrap_or_default();
                    let message = format!("{protocol} port {} is not served", spec.port);
                    service.find("UnsupportedProtocol", message);
                }
            }
        }
        self.services.push(service);
    }

    /// Reports the statuses of AddressPools and BgpPeers.
    pub(super) fn report(&self, index: &ObjectIndex<'_>, report: &mut TranslationReport) {
        let Some(settings) = &index.settings.load_balancer else { return };
        for pool in index.address_pools.values() {
            let findings = settings.assignment.pools.get(&pool.metadata.name);
            let findings = findings.map_or(&[][..], Vec::as_slice);
            for finding in findings {
                report.problem("AddressPool", pool, "spec", finding.message.as_str());
            }
            let conditions = pool_conditions(findings).into();
            report.status("AddressPool", pool, StatusDetail::AddressPool(conditions));
        }
        for peer in index.bgp_peers.values() {
            let accepted = match peer.spec.fault() {
                None => StatusCondition::yes(ConditionType::Accepted, ConditionReason::Accepted),
                Some((field, message)) => {
                    report.problem("BgpPeer", peer, &format!("spec.{field}"), message.as_str());
                    let message = format!("spec.{field}: {message}");
                    StatusCondition::no(ConditionType::Accepted, ConditionReason::Invalid, message)
                }
            };
            report.status("BgpPeer", peer, StatusDetail::BgpPeer(vec![accepted]));
        }
    }

    /// Changes the settings of a backend to the session affinity of its Service. A BackendPolicy has precedence.
    pub(super) fn adjust(&self, key: &BackendKey, settings: &mut BackendSettings) {
        let name = (&*key.namespace, &*key.service);
        let Ok(found) = self.services.binary_search_by_key(&name, ServedService::name) else {
            return;
        };
        let service = &self.services[found];
        if !service.addresses.is_empty() {
            session_affinity::adjust(&service.object.spec, settings);
        }
    }

    /// Returns the rule of each port: to the endpoints of its Service.
    pub(super) fn routes(&self) -> Vec<RouteDraft> {
        let is_served = |(_, port): &(usize, &ServedPort<'_>)| {
            !self.services[port.service].addresses.is_empty()
        };
        let ports = self.ports.iter().enumerate().filter(is_served);
        ports.map(|(number, port)| self.route(number, port)).collect()
    }

    fn route(&self, number: usize, port: &ServedPort<'_>) -> RouteDraft {
        let service = &self.services[port.service];
        let ObjectMeta { namespace, name, .. } = &service.object.metadata;
        let key = BackendKey {
            namespace: (&**namespace).into(),
            service: (&**name).into(),
            port: port.spec.port,
            transport: port.protocol.transport(),
            node: service.node.clone(),
        };
        let rule = RuleDraft {
            name: service.label(port.spec).into(),
            matches: vec![Arc::new(transparent::every_request())],
            targets: vec![TargetDraft { key: Some(key), ..TargetDraft::unresolved() }],
            ..RuleDraft::default()
        };
        RouteDraft {
            rules: vec![rule],
            attachments: Vec::new(),
            service_ports: Vec::new(),
            load_balancer_port: Some(number),
            is_grpc: false,
        }
    }

    pub(super) fn listeners(&self) -> LoadBalancerListeners<'_, 'a> {
        LoadBalancerListeners { services: self, rules: vec![None; self.ports.len()] }
    }
}

/// The listeners of Services before they have their rules.
pub(super) struct LoadBalancerListeners<'s, 'a> {
    services: &'s LoadBalancerServices<'a>,
    /// The rule of each port.
    rules: Vec<Option<(Arc<Rule>, RouteTable)>>,
}

impl LoadBalancerListeners<'_, '_> {
    /// Sets the rule of the port of a route, if it is one of ours.
    pub(super) fn add_rule(&mut self, route: &RouteDraft, draft: &RuleDraft, rule: &Arc<Rule>) {
        let Some(port) = route.load_balancer_port else { return };
        let (mut requests, any) = (RouteTable::default(), HostPattern::Any);
        draft.matches.iter().for_each(|it| requests.add_rule(&any, &any, it, rule));
        self.rules[port] = Some((Arc::clone(rule), requests));
    }

    /// Adds the listeners to those of Gateways, and returns the Services.
    pub(super) fn add_to(self, listeners: &mut Vec<Listener>) -> Vec<LoadBalancerService> {
        let Self { services: LoadBalancerServices { services, ports }, rules } = self;
        let socket = |it: &Listener| (it.address, it.protocol.transport());
        let mut used: BTreeSet<_> = listeners.iter().map(socket).collect();
        let client = [false, true].map(|appends_forwarded_for| {
            let settings = transparent::client_settings();
            Arc::new(ClientSettings { appends_forwarded_for, ..settings })
        });
        let mut found: Vec<_> = services.iter().map(ServedService::published).collect();
        for (port, rule) in ports.iter().zip(rules) {
            let Some((rule, requests)) = rule else { continue };
            let (service, published) = (&services[port.service], &mut found[port.service]);
            for ip in &service.addresses {
                let socket = (SocketAddr::new(*ip, port.spec.port), port.protocol.transport());
                if !used.insert(socket) {
                    let message = format!("another listener has {}", socket.0);
                    published.findings.push(ServiceFinding::new("AddressConflict", message));
                    continue;
                }
                published.sockets.push(socket);
                let appends = usize::from(service.appends_forwarded_for);
                listeners.push(Listener {
                    address: socket.0,
                    public_port: None,
                    free_bind: true,
                    name: service.label(port.spec).into(),
                    client: Arc::clone(&client[appends]),
                    protocol: protocol(port.protocol, &rule, &requests),
                    tls: None,
                    http3: None,
                    interception: None,
                    consumer_routes: Default::default(),
                    sources: service.sources.clone(),
                });
            }
        }
        found
    }
}

fn protocol(of: ServiceProtocol, rule: &Arc<Rule>, requests: &RouteTable) -> ListenerProtocol {
    match of {
        ServiceProtocol::Udp => ListenerProtocol::Udp(Some(Arc::clone(rule))),
        ServiceProtocol::Tcp(PortProtocol::Connections) => {
            ListenerProtocol::Tcp(Some(Arc::clone(rule)))
        }
        ServiceProtocol::Tcp(PortProtocol::Requests) => ListenerProtocol::Http(requests.clone()),
        ServiceProtocol::Tcp(PortProtocol::Detected) => ListenerProtocol::Detected {
            requests: requests.clone(),
            connections: Some(Arc::clone(rule)),
        },
    }
}

impl<'a> ServedService<'a> {
    fn name(&self) -> NamespacedName<'a> {
        (&self.object.metadata.namespace, &self.object.metadata.name)
    }

    /// Returns the label `namespace/service/port`.
    fn label(&self, port: &ServicePort) -> String {
        let (namespace, service) = self.name();
        let number = port.port.to_string();
        let name = if port.name.is_empty() { &number } else { &port.name };
        format!("{namespace}/{service}/{name}")
    }

    fn find(&mut self, reason: &'static str, message: impl Into<String>) {
        self.findings.push(ServiceFinding::new(reason, message));
    }

    /// Reads the restrictions of endpoints and of clients. A Service with one that cannot be enforced is not served.
    fn read_policies(&mut self, node: &Arc<str>) {
        let spec = &self.object.spec;
        if load_balancer::is_node_local(spec) {
            if node.is_empty() {
                self.addresses.clear();
                let message =
                    "externalTrafficPolicy is Local, and the name of the node is not known";
                self.find("UnknownNode", message);
            }
            self.node = Some(Arc::clone(node));
        }
        match load_balancer::source_ranges(spec) {
            Ok(sources) => self.sources = sources.map(Arc::from),
            Err(reason) => {
                self.addresses.clear();
                self.find("InvalidSourceRange", format!("the Service is not served: {reason}"));
            }
        }
    }

    /// Reads the annotations of transparent mode; returns if requests are balanced.
    fn read_annotations(&mut self) -> bool {
        let balances = self.annotation(BALANCE_ANNOTATION, ["none", "requests"]);
        self.appends_forwarded_for = self.annotation(FORWARDED_FOR_ANNOTATION, ["keep", "append"]);
        balances
    }

    /// True if an annotation has the second of its values. The first is the default.
    fn annotation(&mut self, name: &str, [first, second]: [&str; 2]) -> bool {
        let Some(value) = self.object.metadata.annotations.get(name) else { return false };
        if ![first, second].contains(&&**value) {
            let message = format!(
                "the annotation {name} must be {first} or {second}, is {value:?}: {first} applies"
            );
            self.find("UnknownValue", message);
        }
        value == second
    }

    fn published(&self) -> LoadBalancerService {
        let metadata = &self.object.metadata;
        LoadBalancerService {
            namespace: (&*metadata.namespace).into(),
            name: (&*metadata.name).into(),
            uid: metadata.uid.as_deref().map(Arc::from),
            addresses: self.addresses.clone(),
            sockets: Vec::new(),
            is_node_local: load_balancer::is_node_local(&self.object.spec),
            findings: self.findings.clone(),
        }
    }
}

/// Returns the conditions of a pool.
fn pool_conditions(findings: &[ServiceFinding]) -> [StatusCondition; 2] {
    let message = |is_meant: fn(&&ServiceFinding) -> bool| {
        let messages: Vec<_> = findings.iter().filter(is_meant).map(|it| &*it.message).collect();
        messages.join("; ")
    };
    let invalid = message(|it| it.reason == "Invalid");
    let accepted = match invalid.is_empty() {
        true => StatusCondition::yes(ConditionType::Accepted, ConditionReason::Accepted),
        false => StatusCondition::no(ConditionType::Accepted, ConditionReason::Invalid, invalid),
    };
    let overlaps = message(|it| it.reason != "Invalid");
    let kind = ConditionType::Conflicted;
    let conflicted = match overlaps.is_empty() {
        true => StatusCondition::no(kind, ConditionReason::NoConflicts, String::new()),
        false => StatusCondition {
            kind,
            holds: true,
            reason: ConditionReason::OverlappingAddresses,
            message: overlaps,
        },
    };
    [accepted, conflicted]
}
