//! The addresses that we accept on: listeners of Gateways that share one are one listener of the Snapshot.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::Report;
use super::listener::{OurGateway, OurListener, label};
use super::policy::ClientPolicies;
use super::route::Attachment;
use crate::matching::{Match, RouteTable};
use crate::snapshot::{Listener, Protocol, Rule};

/// The listeners of a Snapshot while rules are added to them.
pub(super) struct Addresses {
    listeners: Vec<Listener>,
    places: BTreeMap<SocketAddr, usize>,
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
        let place = *self.places.entry(address).or_insert(self.listeners.len());
        if place == self.listeners.len() {
            let (name, client) = (label(gateway.object, listener.spec).into(), Arc::clone(client));
            let protocol = Protocol::Http(RouteTable::default());
            self.listeners.push(Listener { address, name, client, protocol });
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
        for Attachment { gateway, listener, hosts } in attachments {
            let gateway = &gateways[*gateway];
            let listener = &gateway.listeners[*listener];
            for address in sockets(gateway, listener) {
                let Protocol::Http(routes) = &mut self.listeners[self.places[&address]].protocol
                else {
                    continue;
                };
                let pairs =
                    hosts.iter().flat_map(|hosts| matches.iter().map(move |asked| (hosts, asked)));
                pairs.for_each(|(hosts, asked)| {
                    routes.add_rule(&listener.hosts, hosts, asked, rule);
                });
            }
        }
    }

    pub(super) fn into_listeners(self) -> Vec<Listener> {
        self.listeners
    }
}

fn sockets(
    gateway: &OurGateway<'_>,
    listener: &OurListener<'_>,
) -> impl Iterator<Item = SocketAddr> {
    let port = listener.spec.port;
    gateway.addresses.iter().map(move |ip| SocketAddr::new(*ip, port))
}
