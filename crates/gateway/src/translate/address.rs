//! Listen addresses: listeners of Gateways that share an address become one listener of the Snapshot.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::attach::{CommonHosts, RouteAttachment};
use super::listener::{self, GatewayContext, ListenerContext, listen_port};
use super::listener_tls::ListenerTlsMode;
use super::policy::ClientPolicies;
use super::report::TranslationReport;
use super::rule_policies::RulePolicies;
use crate::addresses::AddressAssignment;
use crate::matching::{HostPattern, RouteMatch, RouteTable};
use crate::snapshot::{
    Listener, ListenerProtocol, ListenerTls, Rule, SniRule, TlsPayload, TransportProtocol,
};

/// The listeners of a Snapshot before their rules are added.
pub(super) struct ListenerDrafts {
    listeners: Vec<Listener>,
    /// SNI rules of each listener, by the same index; empty if the listener has no TLS.
    sni_rules: Vec<SniRulesDraft>,
    indices: BTreeMap<(SocketAddr, TransportProtocol), usize>,
    /// True if the addresses are from a cluster's pool and may come to this machine later.
    free_bind: bool,
}

/// SNI rules of one address, before all routes are added.
#[derive(Default)]
struct SniRulesDraft {
    by_hosts: BTreeMap<HostPattern, SniRule>,
    /// Hosts of the TLS listeners at the address.
    of_listeners: Vec<HostPattern>,
    /// True if some listener terminates TLS for HTTP requests.
    have_requests: bool,
}

impl SniRulesDraft {
    /// Adds the SNI rule of a listener, before there are routes.
    fn add_listener(&mut self, sni_rule: SniRule) {
        self.have_requests |= matches!(sni_rule.payload, TlsPayload::Requests);
        self.of_listeners.push(sni_rule.hosts.clone());
        self.by_hosts.insert(sni_rule.hosts.clone(), sni_rule);
    }

    /// Adds an SNI rule for hosts of a listener. It replaces the default, which closes their connections. Hosts that a
    /// more specific listener covers belong to that listener, even if it has no route for them.
    fn add_hosts(&mut self, listener: &HostPattern, sni_rule: SniRule) {
        let is_more_specific = |other: &HostPattern| {
            other.specificity() > listener.specificity() && other.covers(&sni_rule.hosts)
        };
        if !self.of_listeners.iter().any(is_more_specific) {
            self.by_hosts.insert(sni_rule.hosts.clone(), sni_rule);
        }
    }
}

/// Returns every address that a listener of a Gateway is served on, without rules.
pub(super) fn listeners(
    gateways: &[GatewayContext<'_>],
    addresses: &AddressAssignment,
    policies: &ClientPolicies<'_>,
    report: &mut TranslationReport,
) -> ListenerDrafts {
    let mut made = ListenerDrafts {
        listeners: Vec::new(),
        sni_rules: Vec::new(),
        indices: BTreeMap::new(),
        free_bind: matches!(addresses, AddressAssignment::Pool { .. }),
    };
    for gateway in gateways {
        for listener in gateway.listeners.iter().filter(|listener| listener.is_served()) {
            for address in sockets(gateway, listener) {
                made.add(address, gateway, listener, policies, report);
            }
        }
        made.withhold_hosts(gateway);
    }
    made
}

impl ListenerDrafts {
    /// Leaves hosts without routes if their listener was to ask for client certificates but is not served. Otherwise the
    /// routes of a less specific listener would serve them.
    fn withhold_hosts(&mut self, gateway: &GatewayContext<'_>) {
        for listener in gateway.listeners.iter().filter(|listener| listener.withholds_hosts()) {
            let is_instead = |other: &ListenerContext<'_>| {
                other.is_served()
                    && other.spec.port == listener.spec.port
                    && other.hosts.covers(&listener.hosts)
            };
            if !gateway.listeners.iter().any(is_instead) {
                continue;
            }
            for address in sockets(gateway, listener) {
                let index = self.indices.get(&(address, listener.protocol.transport()));
                let found = index.and_then(|index| self.listeners.get_mut(*index));
                if let Some(Listener { protocol: ListenerProtocol::Http(routes), .. }) = found {
                    routes.add_listener(&listener.hosts);
                }
            }
        }
    }

    fn add(
        &mut self,
        address: SocketAddr,
        gateway: &GatewayContext<'_>,
        listener: &ListenerContext<'_>,
        policies: &ClientPolicies<'_>,
        report: &mut TranslationReport,
    ) {
        let client = policies.settings(gateway.object, listener.section());
        let transport = listener.protocol.transport();
        let index = *self.indices.entry((address, transport)).or_insert(self.listeners.len());
        if index == self.listeners.len() {
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
                interception: None,
                consumer_routes: BTreeMap::new(),
                sources: None,
            });
            self.sni_rules.push(SniRulesDraft::default());
        }
        let made = &mut self.listeners[index];
        let mut has_conflict = made.client != *client;
        if listener.protocol == listener::ProtocolType::Https {
            let http3 = listener.http3.as_ref().and_then(|http3| http3.as_ref().ok()).copied();
            if self.sni_rules[index].have_requests {
                has_conflict |= made.http3 != http3;
            } else {
                make_http(&mut made.protocol);
                made.http3 = http3;
            }
        }
        match &mut made.protocol {
            ListenerProtocol::Http(routes) if listener.protocol != listener::ProtocolType::Tls => {
                routes.add_listener(&listener.hosts);
            }
            ListenerProtocol::Http(_)
            | ListenerProtocol::Tcp(_)
            | ListenerProtocol::Udp(_)
            | ListenerProtocol::Detected { .. } => {}
        }
        if let Some(sni_rule) = sni_rule(listener, &listener.hosts, None) {
            self.sni_rules[index].add_listener(sni_rule);
        }
        if has_conflict {
            policies.report_shared_address(gateway.object, listener, made, report);
        }
    }

    /// Adds a rule at every listener that its route has attached to. It has the policies of the listener there, as far
    /// as it has none of its own.
    pub(super) fn add_rule(
        &mut self,
        gateways: &[GatewayContext<'_>],
        attachments: &[RouteAttachment],
        matches: &[Arc<RouteMatch>],
        rule: &Arc<Rule>,
        of_listener: impl Fn(&GatewayContext<'_>, &ListenerContext<'_>) -> RulePolicies,
    ) {
        for attachment in attachments {
            let gateway = &gateways[attachment.gateway];
            let listener = &gateway.listeners[attachment.listener];
            let added = of_listener(gateway, listener).fill(rule.filters.as_deref());
            let rule = &added.map_or_else(
                || Arc::clone(rule),
                |filters| Arc::new(Rule { filters: Some(Box::new(filters)), ..Rule::clone(rule) }),
            );
            for address in sockets(gateway, listener) {
                let index = self.indices[&(address, listener.protocol.transport())];
                if listener.protocol == listener::ProtocolType::Tls {
                    add_sni_rules(&mut self.sni_rules[index], listener, &attachment.hosts, rule);
                    continue;
                }
                match &mut self.listeners[index].protocol {
                    ListenerProtocol::Http(routes) => {
                        add_matches(routes, listener, attachment, matches, rule)
                    }
                    ListenerProtocol::Tcp(only) | ListenerProtocol::Udp(only) => {
                        only.get_or_insert_with(|| Arc::clone(rule));
                    }
                    // A Gateway has no such listener.
                    ListenerProtocol::Detected { .. } => {}
                }
            }
        }
    }

    pub(super) fn into_listeners(self) -> Vec<Listener> {
        let with_tls = |(listener, sni_rules): (Listener, SniRulesDraft)| {
            let sni_rules: Vec<_> = sni_rules.by_hosts.into_values().collect();
            let tls = (!sni_rules.is_empty()).then(|| Arc::new(ListenerTls::new(sni_rules)));
            Listener { tls, ..listener }
        };
        self.listeners.into_iter().zip(self.sni_rules).map(with_tls).collect()
    }
}

/// Returns the protocol of a new address, without rules.
fn empty_protocol(protocol: listener::ProtocolType) -> ListenerProtocol {
    match protocol {
        listener::ProtocolType::Http | listener::ProtocolType::Https => {
            ListenerProtocol::Http(RouteTable::default())
        }
        listener::ProtocolType::Tls | listener::ProtocolType::Tcp => ListenerProtocol::Tcp(None),
        listener::ProtocolType::Udp => ListenerProtocol::Udp(None),
    }
}

/// Makes an address that had only TLS connections accept HTTP requests too.
fn make_http(protocol: &mut ListenerProtocol) {
    match protocol {
        ListenerProtocol::Http(_) | ListenerProtocol::Detected { .. } => {}
        ListenerProtocol::Tcp(_) | ListenerProtocol::Udp(_) => {
            *protocol = ListenerProtocol::Http(RouteTable::default())
        }
    }
}

/// Returns the SNI rule for some hosts of a listener, or `None` if the listener has no TLS.
fn sni_rule(
    listener: &ListenerContext<'_>,
    hosts: &HostPattern,
    rule: Option<&Arc<Rule>>,
) -> Option<SniRule> {
    let terminate = match listener.tls_mode.as_ref()? {
        ListenerTlsMode::Terminate(termination) => Some(Arc::clone(termination)),
        ListenerTlsMode::Passthrough => None,
    };
    let payload = match listener.protocol {
        listener::ProtocolType::Https => TlsPayload::Requests,
        listener::ProtocolType::Http
        | listener::ProtocolType::Tls
        | listener::ProtocolType::Tcp
        | listener::ProtocolType::Udp => TlsPayload::Connections(rule.cloned()),
    };
    Some(SniRule { hosts: hosts.clone(), terminate, payload })
}

/// Adds an SNI rule for each host.
fn add_sni_rules(
    sni_rules: &mut SniRulesDraft,
    listener: &ListenerContext<'_>,
    hosts: &[CommonHosts],
    rule: &Arc<Rule>,
) {
    for CommonHosts { hosts, .. } in hosts {
        if let Some(sni_rule) = sni_rule(listener, hosts, Some(rule)) {
            sni_rules.add_hosts(&listener.hosts, sni_rule);
        }
    }
}

/// Adds a rule for each host and each match. The table checks the hosts of the listener first, so the hosts of the
/// route may exceed them.
fn add_matches(
    routes: &mut RouteTable,
    listener: &ListenerContext<'_>,
    attachment: &RouteAttachment,
    matches: &[Arc<RouteMatch>],
    rule: &Arc<Rule>,
) {
    for CommonHosts { route_hosts: hosts, .. } in &attachment.hosts {
        matches
            .iter()
            .for_each(|route_match| routes.add_rule(&listener.hosts, hosts, route_match, rule));
    }
}

/// Returns the sockets that a listener is served on.
pub(super) fn sockets(
    gateway: &GatewayContext<'_>,
    listener: &ListenerContext<'_>,
) -> impl Iterator<Item = SocketAddr> {
    let port = listen_port(gateway.target_ports.as_ref(), listener.spec.port);
    gateway.addresses.iter().map(move |ip| SocketAddr::new(*ip, port))
}
