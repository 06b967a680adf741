//! Listeners that claim the same: which of them are served.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::listener::{OurGateway, OurListener, Protocol, our_port};
use super::{Fault, Report};
use crate::matching::HostPattern;
use crate::snapshot::Transport;
use crate::status::Reason;

/// What a listener takes at each of its addresses.
#[derive(Clone)]
struct Claim {
    protocol: Protocol,
    hosts: HostPattern,
    /// Whose it is.
    name: String,
}

impl Claim {
    /// Listeners of one address, port and transport must speak the same and differ in hostname. HTTPS and TLS can be told
    /// apart by hostname too, for both begin with the name that the client asks for.
    fn clash(&self, other: &Self) -> Option<Reason> {
        let (same_protocol, same_hosts) =
            (self.protocol == other.protocol, self.hosts == other.hosts);
        let both_encrypted = self.protocol.is_encrypted() && other.protocol.is_encrypted();
        match (same_protocol, same_hosts) {
            (true, true) => Some(Reason::HostnameConflict),
            (true, false) => None,
            (false, false) if both_encrypted => None,
            (false, true | false) => Some(Reason::ProtocolConflict),
        }
    }
}

fn claim(listener: &OurListener<'_>) -> Claim {
    let (protocol, hosts) = (listener.protocol, listener.hosts.clone());
    Claim { protocol, hosts, name: listener.label() }
}

/// Within a Gateway none of its own listeners that clash is served, as Gateway API asks; those of ListenerSets give way to
/// whoever goes before them. Between Gateways the older one keeps what it has, so that a newcomer takes nothing down.
pub(super) fn find_conflicts(gateways: &mut [OurGateway<'_>], report: &mut Report) {
    let mut taken: BTreeMap<(SocketAddr, Transport), Vec<Claim>> = BTreeMap::new();
    for gateway in gateways {
        mark_twins(gateway);
        let OurGateway { addresses, listeners, targets, .. } = gateway;
        for listener in listeners.iter_mut().filter(|it| it.is_served()) {
            let (claim, transport) = (claim(listener), listener.protocol.transport());
            let port = our_port(targets.as_ref(), listener.spec.port);
            let sockets: Vec<_> =
                addresses.iter().map(|ip| (SocketAddr::new(*ip, port), transport)).collect();
            let others = sockets.iter().filter_map(|socket| taken.get(socket)).flatten();
            let mut clashes = others.filter_map(|other| Some((other.clash(&claim)?, other)));
            match clashes.next() {
                Some((reason, other)) => {
                    listener.conflict = Some(conflict(listener.place, reason, &other.name));
                }
                None => sockets.into_iter().for_each(|socket| {
                    taken.entry(socket).or_default().push(claim.clone());
                }),
            }
        }
        for listener in listeners {
            let fault = listener.conflict.iter();
            fault.for_each(|fault| report.owner_fault(listener.owner, fault));
        }
    }
}

fn mark_twins(gateway: &mut OurGateway<'_>) {
    // Who has given way already claims nothing of those that come after it.
    let mut claims: Vec<Option<_>> = gateway
        .listeners
        .iter()
        .map(|it| it.is_served().then(|| (it.spec.port, it.protocol.transport(), claim(it))))
        .collect();
    let own = gateway.listeners.iter().filter(|listener| listener.is_gateways()).count();
    for (place, listener) in gateway.listeners.iter_mut().enumerate() {
        let Some((port, transport, claim)) = &claims[place] else { continue };
        let rivals = if place < own { &claims[..own] } else { &claims[..place] };
        let others = rivals.iter().enumerate().filter(|(other, _)| *other != place);
        let mut near = others
            .filter_map(|(_, other)| other.as_ref())
            .filter(|(theirs, over, _)| (theirs, over) == (port, transport));
        listener.conflict = near
            .find_map(|(_, _, other)| other.clash(claim))
            .map(|reason| conflict(listener.place, reason, "another listener of the Gateway"));
        if place >= own && listener.conflict.is_some() {
            claims[place] = None;
        }
    }
}

fn conflict(place: usize, reason: Reason, with: &str) -> Fault {
    let message = if reason == Reason::ProtocolConflict {
        format!("has the same address and port as {with}, which speaks another protocol")
    } else {
        format!("has the same address, port and hostname as {with}")
    };
    Fault::new(reason, format!("spec.listeners[{place}]"), message)
}
