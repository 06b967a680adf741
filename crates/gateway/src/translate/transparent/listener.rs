//! Listeners of the Snapshot for ports of Services, one for each ClusterIP.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use super::eligibility::finding;
use super::port_protocol::PortProtocol;
use super::{PortAttachment, PortContext, RouteRole, ServiceContext, TransparentServices};
use crate::matching::{HostPattern, RouteMatch, RouteTable};
use crate::snapshot::{
    BackendKey, ClientSettings, InterceptionSettings, Listener, ListenerProtocol, PathSettings,
    Rule, ServicePortRoutes, TransportProtocol, XdsServerSettings,
};
use crate::transparent::TransparentService;

/// The time without a byte after which a connection or a body counts as abandoned. Without Sheave the kernel would
/// forget a connection after this time: the default of kube-proxy's `conntrack.tcpEstablishedTimeout`.
pub(super) const IDLE_TIMEOUT: Duration = Duration::from_hours(24);
/// The time between two requests after which a client's connection is closed.
const CONNECTION_IDLE_TIMEOUT: Duration = Duration::from_hours(1);

/// The listeners of Services before their rules are added.
pub(in super::super) struct ServiceListeners<'s, 'a> {
    services: &'s TransparentServices<'a>,
    /// Routing of each port, by its index.
    ports: Vec<PortRouting>,
}

/// The rules of a port.
#[derive(Clone, Default)]
struct PortRouting {
    default: Option<Arc<Rule>>,
    default_requests: RouteTable,
    /// Rules of routes for all clients; `None` if there are none.
    producer: Option<RouteTable>,
    /// Rules of routes for clients of a namespace.
    consumers: BTreeMap<Arc<str>, RouteTable>,
}

impl<'a> TransparentServices<'a> {
    pub(in super::super) fn listeners(&self) -> ServiceListeners<'_, 'a> {
        ServiceListeners { services: self, ports: vec![PortRouting::default(); self.ports.len()] }
    }

    /// Returns the addresses of the Services with ports, with the index of the port.
    fn sockets(&self) -> impl Iterator<Item = (usize, SocketAddr)> {
        self.ports.iter().enumerate().flat_map(|(number, port)| {
            let addresses = self.services[port.service].addresses.iter();
            addresses.map(move |ip| (number, SocketAddr::new(*ip, port.spec.port)))
        })
    }
}

impl ServiceListeners<'_, '_> {
    /// Adds a rule at every port that its route has attached to. Hosts do not matter there (GEP-1294, "hostnames").
    pub(in super::super) fn add_rule(
        &mut self,
        attachments: &[PortAttachment],
        matches: &[Arc<RouteMatch>],
        rule: &Arc<Rule>,
    ) {
        for PortAttachment { port, role } in attachments {
            let routing = &mut self.ports[*port];
            let table = match role {
                RouteRole::Default => {
                    routing.default = Some(Arc::clone(rule));
                    &mut routing.default_requests
                }
                RouteRole::Producer => routing.producer.get_or_insert_default(),
                RouteRole::Consumer(of) => routing.consumers.entry(Arc::clone(of)).or_default(),
            };
            let any = HostPattern::Any;
            matches.iter().for_each(|it| table.add_rule(&any, &any, it, rule));
        }
    }

    /// Adds the listeners to those of Gateways, and returns the Services. An address that another listener has is not
    /// taken.
    pub(in super::super) fn add_to(self, listeners: &mut Vec<Listener>) -> Vec<TransparentService> {
        let Self { services, ports } = self;
        let is_tcp = |it: &&Listener| it.protocol.transport() == TransportProtocol::Tcp;
        let mut used: BTreeSet<_> = listeners.iter().filter(is_tcp).map(|it| it.address).collect();
        let client = [false, true].map(|appends_forwarded_for| {
            Arc::new(ClientSettings { appends_forwarded_for, ..client_settings() })
        });
        let mut found: Vec<_> = services.services.iter().map(transparent_service).collect();
        for (number, address) in services.sockets() {
            let port = &services.ports[number];
            let service = &mut found[port.service];
            if !used.insert(address) {
                let message = format!("{address} is not taken, because another listener has it");
                service.findings.push(finding("AddressConflict", message));
                continue;
            }
            service.addresses.push(address);
            let annotations = &services.services[port.service].annotations;
            let keep_client_address = !annotations.hides_clients;
            listeners.push(Listener {
                address,
                public_port: None,
                free_bind: false,
                name: services.label(port).into(),
                client: Arc::clone(&client[usize::from(annotations.appends_forwarded_for)]),
                protocol: ports[number].protocol(port),
                tls: None,
                http3: None,
                interception: Some(InterceptionSettings { keep_client_address }),
                consumer_routes: ports[number].consumer_routes(port),
                sources: None,
            });
        }
        let annotated = found.into_iter().zip(&services.services);
        annotated.filter(|(_, service)| service.is_annotated).map(|(found, _)| found).collect()
    }

    /// Returns the routing of all ports, for clients that choose endpoints themselves, if there may be any. `server`
    /// returns the settings of the servers behind a port.
    pub(in super::super) fn port_routes(
        &self,
        server: impl Fn(&BackendKey) -> XdsServerSettings,
    ) -> Vec<ServicePortRoutes> {
        if !self.services.proxyless {
            return Vec::new();
        }
        let ports = self.services.ports.iter().zip(&self.ports);
        ports
            .map(|(port, routing)| {
                let key = self.services.key(port);
                ServicePortRoutes {
                    server: server(&key),
                    namespace: key.namespace,
                    service: key.service,
                    port: key.port,
                    routes: routing.requests().clone(),
                    consumer_routes: routing.consumer_routes(port),
                }
            })
            .collect()
    }
}

impl PortRouting {
    /// Returns the routing of the requests of clients without routes of their own.
    fn requests(&self) -> &RouteTable {
        self.producer.as_ref().unwrap_or(&self.default_requests)
    }

    fn protocol(&self, port: &PortContext<'_>) -> ListenerProtocol {
        let requests = || self.requests().clone();
        match port.protocol {
            PortProtocol::Requests => ListenerProtocol::Http(requests()),
            PortProtocol::Detected => ListenerProtocol::Detected {
                requests: requests(),
                connections: self.default.clone(),
            },
            PortProtocol::Connections => ListenerProtocol::Tcp(self.default.clone()),
        }
    }

    fn consumer_routes(&self, port: &PortContext<'_>) -> BTreeMap<Arc<str>, RouteTable> {
        if port.protocol.has_requests() { self.consumers.clone() } else { BTreeMap::new() }
    }
}

fn transparent_service(service: &ServiceContext<'_>) -> TransparentService {
    let ServiceContext { object, annotations, fault, findings, .. } = service;
    let metadata = &object.metadata;
    TransparentService {
        namespace: (&*metadata.namespace).into(),
        name: (&*metadata.name).into(),
        uid: metadata.uid.as_deref().map(Arc::from),
        addresses: Vec::new(),
        adopt: annotations.adopt,
        findings: fault.iter().chain(findings).cloned().collect(),
    }
}

/// Returns the settings of clients that do not know of Sheave: messages and paths stay as they are, and only what has
/// been idle for very long is ended.
pub(in super::super) fn client_settings() -> ClientSettings {
    let path =
        PathSettings { normalise: false, merge_slashes: false, reject_escaped_slashes: false };
    ClientSettings {
        forwards_unchanged: true,
        keeps_underscores: true,
        keeps_proxy_fields: true,
        path,
        connection_idle_timeout: CONNECTION_IDLE_TIMEOUT,
        body_timeout: IDLE_TIMEOUT,
        stream_idle_timeout: IDLE_TIMEOUT,
        ..ClientSettings::default()
    }
}
