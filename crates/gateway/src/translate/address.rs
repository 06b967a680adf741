//! The addresses that we accept on: listeners of Gateways that share one are one listener of the Snapshot.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Report;
use super::attach::{Attachment, CommonHosts};
use super::listener::{self, OurGateway, OurListener, our_port};
use super::listener_tls::Terms;
use super::policy::ClientPolicies;
use crate::addresses::Addresses;
use crate::matching::{HostPattern, Match, RouteTable};
use crate::snapshot::{Carried, Listener, ListenerTls, Protocol, Rule, TlsSite, Transport};

/// The listeners of a Snapshot while rules are added to them.
pub(super) struct ListenerDrafts {
    listeners: Vec<Listener>,
    /// Those of each listener; none: there is no TLS.
    sites: Vec<Sites>,
    places: BTreeMap<(SocketAddr, Transport), usize>,
    /// The addresses are those of a cluster.
    free_bind: bool,
}

/// What becomes of TLS connections at an address.
#[derive(Default)]
struct Sites {
    by_hosts: BTreeMap<HostPattern, TlsSite>,
    /// What the listeners of the address have.
    of_listeners: Vec<HostPattern>,
    /// Whether there are requests in some.
    have_requests: bool,
}

impl Sites {
    /// Adds that of a listener, before there are rules.
    fn add_listener(&mut self, site: TlsSite) {
        self.have_requests |= matches!(site.carries, Carried::Requests);
        self.of_listeners.push(site.hosts.clone());
        self.by_hosts.insert(site.hosts.clone(), site);
    }

    /// Adds one for hosts of a listener, in place of what closes their connections. Those that another listener asks for
    /// more specifically are that one's, whether or not it has a route for them.
    fn add_hosts(&mut self, listener: &HostPattern, site: TlsSite) {
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
    gateways: &[OurGateway<'_>],
    addresses: &Addresses,
    policies: &ClientPolicies<'_>,
    report: &mut Report,
) -> ListenerDrafts {
    let mut made = ListenerDrafts {
        listeners: Vec::new(),
        sites: Vec::new(),
        places: BTreeMap::new(),
        free_bind: matches!(addresses, Addresses::Pool { .. }),
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
        gateway: &OurGateway<'_>,
        listener: &OurListener<'_>,
        policies: &ClientPolicies<'_>,
        report: &mut Report,
    ) {
        let client = policies.settings(gateway.object, listener.section());
        let transport = listener.protocol.transport();
        let place = *self.places.entry((address, transport)).or_insert(self.listeners.len());
        if place == self.listeners.len() {
            let (name, client) = (listener.label().into(), Arc::clone(client));
            let protocol = empty(listener.protocol);
            let (tls, http3) = (None, None);
            let free_bind = self.free_bind;
            let public_port = gateway.targets.is_some().then_some(listener.spec.port);
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
            self.sites.push(Sites::default());
        }
        let made = &mut self.listeners[place];
        let mut is_contrary = made.client != *client;
        if listener.protocol == listener::Protocol::Https {
            let http3 = listener.http3.as_ref().and_then(|http3| http3.as_ref().ok()).copied();
            if self.sites[place].have_requests {
                is_contrary |= made.http3 != http3;
            } else {
                make_http(&mut made.protocol);
                made.http3 = http3;
            }
        }
        match &mut made.protocol {
            Protocol::Http(routes) if listener.protocol != listener::Protocol::Tls => {
                routes.add_listener(&listener.hosts);
            }
            Protocol::Http(_) | Protocol::Tcp(_) | Protocol::Udp(_) => {}
        }
        if let Some(site) = site(listener, &listener.hosts, None) {
            self.sites[place].add_listener(site);
        }
        if is_contrary {
            policies.report_shared_address(gateway.object, listener, made, report);
        }
    }

    /// Adds a rule wherever its route has attached.
    pub(super) fn add_rule(
        &mut self,
        gateways: &[OurGateway<'_>],
        attachments: &[Attachment],
        matches: &[Arc<Match>],
        rule: &Arc<Rule>,
    ) {
        for attachment in attachments {
            let gateway = &gateways[attachment.gateway];
            let listener = &gateway.listeners[attachment.listener];
            for address in sockets(gateway, listener) {
                let place = self.places[&(address, listener.protocol.transport())];
                if listener.protocol == listener::Protocol::Tls {
                    add_sites(&mut self.sites[place], listener, &attachment.hosts, rule);
                    continue;
                }
                match &mut self.listeners[place].protocol {
                    Protocol::Http(routes) => {
                        add_matches(routes, listener, attachment, matches, rule)
                    }
                    Protocol::Tcp(only) | Protocol::Udp(only) => {
                        only.get_or_insert_with(|| Arc::clone(rule));
                    }
                }
            }
        }
    }

    pub(super) fn into_listeners(self) -> Vec<Listener> {
        let with_tls = |(listener, sites): (Listener, Sites)| {
            let sites: Vec<_> = sites.by_hosts.into_values().collect();
            let tls = (!sites.is_empty()).then(|| Arc::new(ListenerTls::new(sites)));
            Listener { tls, ..listener }
        };
        self.listeners.into_iter().zip(self.sites).map(with_tls).collect()
    }
}

/// What is spoken at an address, before there are rules.
fn empty(protocol: listener::Protocol) -> Protocol {
    match protocol {
        listener::Protocol::Http | listener::Protocol::Https => {
            Protocol::Http(RouteTable::default())
        }
        listener::Protocol::Tls | listener::Protocol::Tcp => Protocol::Tcp(None),
        listener::Protocol::Udp => Protocol::Udp(None),
    }
}

/// Where TLS alone was, requests come too.
fn make_http(protocol: &mut Protocol) {
    match protocol {
        Protocol::Http(_) => {}
        Protocol::Tcp(_) | Protocol::Udp(_) => *protocol = Protocol::Http(RouteTable::default()),
    }
}

/// What becomes of TLS connections for some hosts of a listener; none if it has no TLS.
fn site(
    listener: &OurListener<'_>,
    hosts: &HostPattern,
    rule: Option<&Arc<Rule>>,
) -> Option<TlsSite> {
    let terminate = match listener.terms.as_ref()? {
        Terms::Terminate(terms) => Some(Arc::clone(terms)),
        Terms::Passthrough => None,
    };
    let carries = match listener.protocol {
        listener::Protocol::Https => Carried::Requests,
        listener::Protocol::Http
        | listener::Protocol::Tls
        | listener::Protocol::Tcp
        | listener::Protocol::Udp => Carried::Connections(rule.cloned()),
    };
    Some(TlsSite { hosts: hosts.clone(), terminate, carries })
}

/// Adds a rule for connections to hosts.
fn add_sites(
    sites: &mut Sites,
    listener: &OurListener<'_>,
    hosts: &[CommonHosts],
    rule: &Arc<Rule>,
) {
    for CommonHosts { hosts, .. } in hosts {
        if let Some(site) = site(listener, hosts, Some(rule)) {
            sites.add_hosts(&listener.hosts, site);
        }
    }
}

/// Adds a rule for each host and each match. The table asks for the listener's hosts first, so the route's may go beyond
/// them.
fn add_matches(
    routes: &mut RouteTable,
    listener: &OurListener<'_>,
    attachment: &Attachment,
    matches: &[Arc<Match>],
    rule: &Arc<Rule>,
) {
    for CommonHosts { asked: hosts, .. } in &attachment.hosts {
        matches.iter().for_each(|asked| routes.add_rule(&listener.hosts, hosts, asked, rule));
    }
}

/// Where a listener is served.
pub(super) fn sockets(
    gateway: &OurGateway<'_>,
    listener: &OurListener<'_>,
) -> impl Iterator<Item = SocketAddr> {
    let port = our_port(gateway.targets.as_ref(), listener.spec.port);
    gateway.addresses.iter().map(move |ip| SocketAddr::new(*ip, port))
}
