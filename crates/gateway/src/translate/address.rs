//! The addresses that we accept on: listeners of Gateways that share one are one listener of the Snapshot.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::TranslationReport;
use super::attach::{CommonHosts, RouteAttachment};
use super::listener::{self, AcceptedGateway, AcceptedListener, listen_port};
use super::listener_tls::ListenerTlsMode;
use super::policy::ClientPolicies;
use crate::addresses::AddressAssignment;
use crate::matching::{HostPattern, RouteMatch, RouteTable};
use crate::snapshot::{
    Listener, ListenerProtocol, ListenerTls, Rule, SniRule, TlsPayload, TransportProtocol,
};

/// The listeners of a Snapshot while rules are added to them.
pub(super) struct ListenerDrafts {
    listeners: Vec<Listener>,
    /// Those of each listener; none: there is no TLS.
    sni_rules: Vec<SniRulesDraft>,
    places: BTreeMap<(SocketAddr, TransportProtocol), usize>,
    /// The addresses are those of a cluster.
    free_bind: bool,
}

/// What becomes of TLS connections at an address.
#[derive(Default)]
struct SniRulesDraft {
    by_hosts: BTreeMap<HostPattern, SniRule>,
    /// What the listeners of the address have.
    of_listeners: Vec<HostPattern>,
    /// Whether there are requests in some.
    have_requests: bool,
}

impl SniRulesDraft {
    /// Adds that of a listener, before there are rules.
    fn add_listener(&mut self, site: SniRule) {
        self.have_requests |= matches!(site.payload, TlsPayload::Requests);
        self.of_listeners.push(site.hosts.clone());
        self.by_hosts.insert(site.hosts.clone(), site);
    }

    /// Adds one for hosts of a listener, in place of what closes their connections. Those that another listener asks for
    /// more specifically are that one's, whether or not it has a route for them.
    fn add_hosts(&mut self, listener: &HostPattern, site: SniRule) {
        let is_nearer = |other: &HostPattern| {
            other.specificity() > listener.specificity() && other.covers(&site.hosts)
        };
        if !self.of_listeners.iter().any(is_nearer) {
            self.by_hosts.insert(site.hosts.clone(), site);
        }
    }
}

/// Every address that a listener of a Gateway is served on, without rules yet.
pub(super) fn listeners(
    gateways: &[AcceptedGateway<'_>],
    addresses: &AddressAssignment,
    policies: &ClientPolicies<'_>,
    report: &mut TranslationReport,
) -> ListenerDrafts {
    let mut made = ListenerDrafts {
        listeners: Vec::new(),
        sni_rules: Vec::new(),
        places: BTreeMap::new(),
        free_bind: matches!(addresses, AddressAssignment::Pool { .. }),
    };
    for gateway in gateways {
        for listener in gateway.listeners.iter().filter(|listener| listener.is_served()) {
            for address in sockets(gateway, listener) {
                made.add(address, gateway, listener, policies, report);
            }
        }
    }
    made
}

impl ListenerDrafts {
    fn add(
        &mut self,
        address: SocketAddr,
        gateway: &AcceptedGateway<'_>,
        listener: &AcceptedListener<'_>,
        policies: &ClientPolicies<'_>,
        report: &mut TranslationReport,
    ) {
        let client = policies.settings(gateway.object, listener.section());
        let transport = listener.protocol.transport();
        let place = *self.places.entry((address, transport)).or_insert(self.listeners.len());
        if place == self.listeners.len() {
            let (name, client) = (listener.label().into(), Arc::clone(client));
            let protocol = empty_protocol(listener.protocol);
            let (tls, http3) = (None, None);
            let free_bind = self.free_bind;
            let public_port = gateway.target_ports.is_some().then_some(listener.spec.port);
            self.listeners.push(Listener {
                address,
                public_port,
                free_bind,
                name,
                client,
                protocol,
                tls,
                http3,
            });
            self.sni_rules.push(SniRulesDraft::default());
        }
        let made = &mut self.listeners[place];
        let mut is_contrary = made.client != *client;
        if listener.protocol == listener::ProtocolType::Https {
            let http3 = listener.http3.as_ref().and_then(|http3| http3.as_ref().ok()).copied();
            if self.sni_rules[place].have_requests {
                is_contrary |= made.http3 != http3;
            } else {
                make_http(&mut made.protocol);
                made.http3 = http3;
            }
        }
        match &mut made.protocol {
            ListenerProtocol::Http(routes) if listener.protocol != listener::ProtocolType::Tls => {
                routes.add_listener(&listener.hosts);
            }
            ListenerProtocol::Http(_) | ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => {}
        }
        if let Some(site) = sni_rule(listener, &listener.hosts, None) {
            self.sni_rules[place].add_listener(site);
        }
        if is_contrary {
            policies.report_shared_address(gateway.object, listener, made, report);
        }
    }

    /// Adds a rule wherever its route has attached.
    pub(super) fn add_rule(
        &mut self,
        gateways: &[AcceptedGateway<'_>],
        attachments: &[RouteAttachment],
        matches: &[Arc<RouteMatch>],
        rule: &Arc<Rule>,
    ) {
        for attachment in attachments {
            let gateway = &gateways[attachment.gateway];
            let listener = &gateway.listeners[attachment.listener];
            for address in sockets(gateway, listener) {
                let place = self.places[&(address, listener.protocol.transport())];
                if listener.protocol == listener::ProtocolType::Tls {
                    add_sni_rules(&mut self.sni_rules[place], listener, &attachment.hosts, rule);
                    continue;
                }
                match &mut self.listeners[place].protocol {
                    ListenerProtocol::Http(routes) => {
                        add_matches(routes, listener, attachment, matches, rule)
                    }
                    ListenerProtocol::Tcp(only) | ListenerProtocol::Udp(only) => {
                        only.get_or_insert_with(|| Arc::clone(rule));
                    }
                }
            }
        }
    }

    pub(super) fn into_listeners(self) -> Vec<Listener> {
        let with_tls = |(listener, sites): (Listener, SniRulesDraft)| {
            let sites: Vec<_> = sites.by_hosts.into_values().collect();
            let tls = (!sites.is_empty()).then(|| Arc::new(ListenerTls::new(sites)));
            Listener { tls, ..listener }
        };
        self.listeners.into_iter().zip(self.sni_rules).map(with_tls).collect()
    }
}

/// What is spoken at an address, before there are rules.
fn empty_protocol(protocol: listener::ProtocolType) -> ListenerProtocol {
    match protocol {
        listener::ProtocolType::Http | listener::ProtocolType::Https => {
            ListenerProtocol::Http(RouteTable::default())
        }
        listener::ProtocolType::Tls | listener::ProtocolType::Tcp => ListenerProtocol::Tcp(None),
        listener::ProtocolType::Udp => ListenerProtocol::Udp(None),
    }
}

/// Where TLS alone was, requests come too.
fn make_http(protocol: &mut ListenerProtocol) {
    match protocol {
        ListenerProtocol::Http(_) => {}
        ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => {
            *protocol = ListenerProtocol::Http(RouteTable::default())
        }
    }
}

/// What becomes of TLS connections for some hosts of a listener; none if it has no TLS.
fn sni_rule(
    listener: &AcceptedListener<'_>,
    hosts: &HostPattern,
    rule: Option<&Arc<Rule>>,
) -> Option<SniRule> {
    let terminate = match listener.tls_mode.as_ref()? {
        ListenerTlsMode::Terminate(terms) => Some(Arc::clone(terms)),
        ListenerTlsMode::Passthrough => None,
    };
    let carries = match listener.protocol {
        listener::ProtocolType::Https => TlsPayload::Requests,
        listener::ProtocolType::Http
        | listener::ProtocolType::Tls
        | listener::ProtocolType::Tcp
        | listener::ProtocolType::Udp => TlsPayload::Connections(rule.cloned()),
    };
    Some(SniRule { hosts: hosts.clone(), terminate, payload: carries })
}

/// Adds a rule for connections to hosts.
fn add_sni_rules(
    sites: &mut SniRulesDraft,
    listener: &AcceptedListener<'_>,
    hosts: &[CommonHosts],
    rule: &Arc<Rule>,
) {
    for CommonHosts { hosts, .. } in hosts {
        if let Some(site) = sni_rule(listener, hosts, Some(rule)) {
            sites.add_hosts(&listener.hosts, site);
        }
    }
}

/// Adds a rule for each host and each match. The table asks for the listener's hosts first, so the route's may go beyond
/// them.
fn add_matches(
    routes: &mut RouteTable,
    listener: &AcceptedListener<'_>,
    attachment: &RouteAttachment,
    matches: &[Arc<RouteMatch>],
    rule: &Arc<Rule>,
) {
    for CommonHosts { route_hosts: hosts, .. } in &attachment.hosts {
        matches.iter().for_each(|asked| routes.add_rule(&listener.hosts, hosts, asked, rule));
    }
}

/// Where a listener is served.
pub(super) fn sockets(
    gateway: &AcceptedGateway<'_>,
    listener: &AcceptedListener<'_>,
) -> impl Iterator<Item = SocketAddr> {
    let port = listen_port(gateway.target_ports.as_ref(), listener.spec.port);
    gateway.addresses.iter().map(move |ip| SocketAddr::new(*ip, port))
}
