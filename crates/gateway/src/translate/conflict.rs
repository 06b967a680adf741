//! Conflicts between listeners: decides which of several listeners with the same address, port and hostname are served.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::listener::{GatewayContext, ListenerContext, ProtocolType, listen_port};
use super::report::{TranslationReport, ValidationFault};
use crate::matching::{HostPattern, HostTrie};
use crate::snapshot::TransportProtocol;
use crate::status::ConditionReason;

/// The claims of listeners on one socket, each by its number: a lower number has precedence.
#[derive(Default)]
struct ListenerClaims {
    by_hosts: BTreeMap<(HostPattern, ProtocolType), Vec<usize>>,
    /// The first claim of each protocol.
    by_protocol: BTreeMap<ProtocolType, usize>,
}

impl ListenerClaims {
    fn add(&mut self, number: usize, listener: &ListenerContext<'_>) {
        let claim = (listener.hosts.clone(), listener.protocol);
        self.by_hosts.entry(claim).or_default().push(number);
        self.by_protocol.entry(listener.protocol).or_insert(number);
    }

    /// Returns the first claim that conflicts with a listener, other than its own claim `own`. Listeners of one
    /// address, port and transport must have the same protocol and differ in hostname. HTTPS and TLS can share a port
    /// if the hostnames differ, because both begin with the SNI of the client.
    fn conflict_with(
        &self,
        own: Option<usize>,
        listener: &ListenerContext<'_>,
    ) -> Option<(usize, ConditionReason)> {
        let ListenerContext { protocol, hosts, .. } = listener;
        let same_hosts = |protocol: ProtocolType| {
            let claims = self.by_hosts.get(&(hosts.clone(), protocol)).into_iter().flatten();
            claims.copied().find(|number| Some(*number) != own)
        };
        let same = same_hosts(*protocol).map(|number| (number, ConditionReason::HostnameConflict));
        let others = self.by_protocol.iter().filter(|(other, _)| *other != protocol);
        let others = others.filter_map(|(other, first)| {
            let both_encrypted = protocol.is_encrypted() && other.is_encrypted();
            let number = if both_encrypted { same_hosts(*other)? } else { *first };
            Some((number, ConditionReason::ProtocolConflict))
        });
        same.into_iter().chain(others).min_by_key(|(number, _)| *number)
    }
}

/// Finds all conflicts. Within a Gateway, none of its own listeners that conflict is served, as Gateway API demands;
/// listeners of ListenerSets yield to those with precedence. Between Gateways, the older one keeps its sockets, so that
/// a new Gateway does not take down an existing one.
pub(super) fn find_conflicts(gateways: &mut [GatewayContext<'_>], report: &mut TranslationReport) {
    let mut taken: BTreeMap<(SocketAddr, TransportProtocol), ListenerClaims> = BTreeMap::new();
    // The listener of each claim.
    let mut names: Vec<String> = Vec::new();
    for gateway in gateways {
        find_conflicts_within(gateway);
        let GatewayContext { addresses, listeners, target_ports: targets, .. } = gateway;
        for listener in listeners.iter_mut().filter(|it| it.is_served()) {
            let transport = listener.protocol.transport();
            let port = listen_port(targets.as_ref(), listener.spec.port);
            let sockets: Vec<_> =
                addresses.iter().map(|ip| (SocketAddr::new(*ip, port), transport)).collect();
            let mut claims = sockets.iter().filter_map(|socket| taken.get(socket));
            match claims.find_map(|claims| claims.conflict_with(None, listener)) {
                Some((other, reason)) => {
                    listener.conflict = Some(conflict(listener.place, reason, &names[other]));
                }
                None => {
                    let claim =
                        |socket| taken.entry(socket).or_default().add(names.len(), listener);
                    sockets.into_iter().for_each(claim);
                    names.push(listener.label());
                }
            }
        }
        for listener in &*listeners {
            let fault = listener.conflict.iter();
            fault.for_each(|fault| report.owner_fault(listener.owner, fault));
        }
        find_overlaps(listeners);
    }
}

fn find_conflicts_within(gateway: &mut GatewayContext<'_>) {
    let own = gateway.own_listeners().len();
    let mut ports: BTreeMap<(u16, TransportProtocol), ListenerClaims> = BTreeMap::new();
    let port = |listener: &ListenerContext<'_>| (listener.spec.port, listener.protocol.transport());
    for (place, listener) in
        gateway.own_listeners().iter().enumerate().filter(|(_, it)| it.is_served())
    {
        ports.entry(port(listener)).or_default().add(place, listener);
    }
    for (place, listener) in gateway.listeners.iter_mut().enumerate() {
        if !listener.is_served() {
            continue;
        }
        let claims = ports.entry(port(listener)).or_default();
        let earlier = claims.conflict_with((place < own).then_some(place), listener);
        listener.conflict = earlier
            .map(|(_, reason)| conflict(listener.place, reason, "another listener of the Gateway"));
        // A listener that yields makes no claim, so it does not conflict with later ones.
        if place >= own && listener.conflict.is_none() {
            claims.add(place, listener);
        }
    }
}

/// Records for each TLS listener another one on its port with hosts in common.
fn find_overlaps(listeners: &mut [ListenerContext<'_>]) {
    let mut ports: BTreeMap<u16, HostTrie<Vec<usize>>> = BTreeMap::new();
    let is_meant = |it: &ListenerContext<'_>| it.protocol.is_encrypted() && it.is_served();
    for (place, listener) in listeners.iter().enumerate().filter(|(_, it)| is_meant(it)) {
        ports.entry(listener.spec.port).or_default().entry(&listener.hosts).push(place);
    }
    for place in 0..listeners.len() {
        let listener = &listeners[place];
        let Some(hosts) = ports.get(&listener.spec.port).filter(|_| is_meant(listener)) else {
            continue;
        };
        let others = hosts.common(&listener.hosts).into_iter().flatten();
        let first = others.copied().filter(|other| *other != place).min();
        listeners[place].overlaps = first.map(|other| &*listeners[other].spec.name);
    }
}

fn conflict(place: usize, reason: ConditionReason, with: &str) -> ValidationFault {
    let message = if reason == ConditionReason::ProtocolConflict {
        format!("has the same address and port as {with}, which speaks another protocol")
    } else {
        format!("has the same address, port and hostname as {with}")
    };
    ValidationFault::new(reason, format!("spec.listeners[{place}]"), message)
}
