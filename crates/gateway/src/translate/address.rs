//! The addresses that we accept on: listeners of Gateways that share one are one listener of the Snapshot.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Report;
use super::attach::Attachment;
use super::listener::{self, OurGateway, OurListener, label};
use super::policy::ClientPolicies;
use crate::matching::{Match, RouteTable};
use crate::snapshot::{Listener, Protocol, Rule, Transport};

/// The listeners of a Snapshot while rules are added to them.
pub(super) struct Addresses {
    listeners: Vec<Listener>,
    places: BTreeMap<(SocketAddr, Transport), usize>,
}

/// Every address that a listener of a Gateway is served on, without rules yet.
pub(super) fn addresses(
    gateways: &[OurGateway<'_>],
    policies: &ClientPolicies<'_>,
    report: &mut Report,
) -> Addresses {
    let mut made = Addresses { listeners: Vec::new(), places: BTreeMap::new() };
    for gateway in gateways {
        for listener in gateway.listeners.iter().filter(|listener| listener.is_served()) {
            for address in sockets(gateway, listener) {
                made.add(address, gateway, listener, policies, report);
            }
        }
    }
    made
}

impl Addresses {
    fn add(
        &mut self,
        address: SocketAddr,
        gateway: &OurGateway<'_>,
        listener: &OurListener<'_>,
        policies: &ClientPolicies<'_>,
        report: &mut Report,
    ) {
        let client = policies.settings(gateway.object, &listener.spec.name);
        let transport = listener.protocol.transport();
        let place = *self.places.entry((address, transport)).or_insert(self.listeners.len());
        if place == self.listeners.len() {
            let (name, client) = (label(gateway.object, listener.spec).into(), Arc::clone(client));
            let protocol = match listener.protocol {
                listener::Protocol::Http => Protocol::Http(RouteTable::default()),
                listener::Protocol::Tcp => Protocol::Tcp(None),
                listener::Protocol::Udp => Protocol::Udp(None),
            };
            self.listeners.push(Listener { address, name, client, protocol, tls: None });
        }
        let made = &mut self.listeners[place];
        match &mut made.protocol {
            Protocol::Http(routes) => routes.add_listener(&listener.hosts),
            Protocol::Tcp(_) | Protocol::Udp(_) => {}
        }
        if made.client != *client {
            policies.report_shared_address(gateway.object, &listener.spec.name, made, report);
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
        self.listeners
    }
}

/// Adds a rule for each host and each match.
fn add_matches(
    routes: &mut RouteTable,
    listener: &OurListener<'_>,
    attachment: &Attachment,
    matches: &[Arc<Match>],
    rule: &Arc<Rule>,
) {
    for hosts in &attachment.hosts {
        matches.iter().for_each(|asked| routes.add_rule(&listener.hosts, hosts, asked, rule));
    }
}

fn sockets(
    gateway: &OurGateway<'_>,
    listener: &OurListener<'_>,
) -> impl Iterator<Item = SocketAddr> {
    let port = listener.spec.port;
    gateway.addresses.iter().map(move |ip| SocketAddr::new(*ip, port))
}
