//! Conflicts between listeners: decides which of several listeners with the same address, port and hostname are served.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

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
    owners: HostnameOwners,
}

/// The namespaces that own hostnames of one socket. The namespace of the oldest Gateway owns a hostname, and every name
/// below a wildcard. A listener without a hostname owns none.
#[derive(Default)]
struct HostnameOwners(BTreeMap<HostPattern, String>);

impl HostnameOwners {
    fn add(&mut self, hosts: &HostPattern, namespace: &str) {
        if *hosts != HostPattern::Any {
            self.0.entry(hosts.clone()).or_insert_with(|| namespace.to_owned());
        }
    }

    /// Returns the namespace other than `own` that owns all these hosts.
    fn foreign_owner(&self, hosts: &HostPattern, own: &str) -> Option<&str> {
        let owner = |hosts: &HostPattern| self.0.get(hosts).map(String::as_str);
        let wildcards = hosts.covering_wildcards();
        let mut owners = wildcards.filter_map(|hosts| owner(&hosts)).chain(owner(hosts));
        owners.find(|owner| *owner != own)
    }
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
/// a new Gateway does not take down an existing one. Between Gateways of different namespaces in a cluster, the older
/// one also keeps the names below its wildcards, unless `share_hostnames` is set.
pub(super) fn find_conflicts(
    gateways: &mut [GatewayContext<'_>],
    share_hostnames: bool,
    report: &mut TranslationReport,
) {
    let mut taken = TakenSockets::default();
    for gateway in gateways {
        find_conflicts_within(gateway);
        let metadata = &gateway.object.metadata;
        let namespace = &*metadata.namespace;
        let checks_owners = metadata.in_cluster && !share_hostnames;
        let GatewayContext { addresses, listeners, target_ports: targets, .. } = gateway;
        for listener in listeners.iter_mut().filter(|it| it.claims_hosts()) {
            let port = listen_port(targets.as_ref(), listener.spec.port);
            let sockets: Vec<_> = addresses.iter().map(|ip| SocketAddr::new(*ip, port)).collect();
            let conflict = taken.conflict(&sockets, namespace, listener).or_else(|| {
                let owner = taken.foreign_owner(&sockets, namespace, listener)?;
                checks_owners.then(|| ownership_conflict(listener.place, &owner))
            });
            match conflict {
                // Without a certificate the listener is not served anyway.
                Some(conflict) => {
                    listener.conflict = Some(conflict).filter(|_| listener.is_served())
                }
                None => taken.add(&sockets, namespace, listener),
            }
        }
        for listener in &*listeners {
            let fault = listener.conflict.iter();
            fault.for_each(|fault| report.owner_fault(listener.owner, fault));
        }
        find_overlaps(listeners);
    }
}

/// The sockets of all Gateways so far.
#[derive(Default)]
struct TakenSockets {
    sockets: BTreeMap<(SocketAddr, TransportProtocol), ListenerClaims>,
    /// Namespace of the Gateway, and label of the listener, of each claim.
    claimants: Vec<(String, String)>,
}

impl TakenSockets {
    fn add(&mut self, sockets: &[SocketAddr], namespace: &str, listener: &ListenerContext<'_>) {
        for socket in sockets {
            let key = (*socket, listener.protocol.transport());
            let claims = self.sockets.entry(key).or_default();
            claims.owners.add(&listener.hosts, namespace);
            if listener.is_served() {
                claims.add(self.claimants.len(), listener);
            }
        }
        self.claimants.push((namespace.to_owned(), listener.label()));
    }

    fn claims(
        &self,
        sockets: &[SocketAddr],
        transport: TransportProtocol,
    ) -> impl Iterator<Item = &ListenerClaims> {
        sockets.iter().filter_map(move |socket| self.sockets.get(&(*socket, transport)))
    }

    /// Returns the conflict with the first claim of another Gateway. A Gateway of another namespace is not named: its
    /// objects need not be known to the author of this one.
    fn conflict(
        &self,
        sockets: &[SocketAddr],
        namespace: &str,
        listener: &ListenerContext<'_>,
    ) -> Option<ValidationFault> {
        let mut claims = self.claims(sockets, listener.protocol.transport());
        let (other, reason) = claims.find_map(|claims| claims.conflict_with(None, listener))?;
        let (owner, label) = &self.claimants[other];
        let with = if owner == namespace {
            label.clone()
        } else {
            format!("a Gateway of namespace {owner}")
        };
        Some(conflict(listener.place, reason, &with))
    }

    /// Returns the namespace of an older Gateway that owns the hosts of a listener. If that Gateway listens on every
    /// address, it owns them at each single address as well.
    fn foreign_owner(
        &self,
        sockets: &[SocketAddr],
        namespace: &str,
        listener: &ListenerContext<'_>,
    ) -> Option<String> {
        let on_all = |socket: &SocketAddr| {
            let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
            (socket.ip() != any).then(|| SocketAddr::new(any, socket.port()))
        };
        let all: Vec<_> = sockets.iter().flat_map(|it| [Some(*it), on_all(it)]).flatten().collect();
        let mut claims = self.claims(&all, listener.protocol.transport());
        let owner = claims.find_map(|it| it.owners.foreign_owner(&listener.hosts, namespace));
        owner.map(str::to_owned)
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

/// The name of the owner's namespace helps the operator, and is not secret: names of Services contain it too.
fn ownership_conflict(place: usize, owner: &str) -> ValidationFault {
    let message = format!("has a hostname that belongs to an older Gateway of namespace {owner}");
    let reason = ConditionReason::HostnameConflict;
    ValidationFault::new(reason, format!("spec.listeners[{place}].hostname"), message)
}
