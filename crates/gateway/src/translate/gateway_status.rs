//! What becomes of Gateways and their listeners, as their statuses say it.

use super::address::sockets;
use super::listener::{OurGateway, OurListener};
use super::{Fault, Report, condition, listener_set, listener_tls};
use crate::addresses::Addresses;
use crate::fronts::Place;
use crate::status::{Condition, ConditionType, Detail, GatewayStatus, ListenerStatus, Reason};

/// What became of each Gateway and of its ListenerSets.
pub(super) fn statuses(gateways: &[OurGateway<'_>], addresses: &Addresses, report: &mut Report) {
    for gateway in gateways {
        let detail = Detail::Gateway(GatewayStatus {
            addresses: places(gateway, addresses),
            conditions: gateway_conditions(gateway),
            listeners: gateway.own().iter().map(|it| listener_status(gateway, it)).collect(),
            attached_listener_sets: gateway.attached_sets(),
        });
        report.status("Gateway", gateway.object, detail);
        listener_set::statuses(gateway, report);
    }
}

/// Where clients find it. One that is not accepted is not served, and says what it has nevertheless, which is how it is
/// known to have it.
fn places(gateway: &OurGateway<'_>, addresses: &Addresses) -> Vec<Place> {
    let own = gateway.addresses.iter().filter(|address| !address.is_unspecified());
    let own: Vec<_> = own.copied().map(Place::Ip).collect();
    match addresses {
        Addresses::Own => own,
        // What it asks for itself, no Service leads to.
        Addresses::Shared(_) if !own.is_empty() => own,
        Addresses::Shared(_) | Addresses::Pool { .. } | Addresses::Fronts(_) => {
            addresses.places(&gateway.name())
        }
    }
}

fn gateway_conditions(gateway: &OurGateway<'_>) -> Vec<Condition> {
    let [mut accepted, programmed] = state(gateway);
    // It is accepted all the same: its own listeners are none the worse for it.
    if let Some(Fault { field, message, .. }) = &gateway.unclear {
        let separator = if accepted.message.is_empty() { "" } else { "; " };
        accepted.message += &format!("{separator}{field} {message}");
    }
    let mut conditions = vec![accepted, programmed];
    if let Some(client) = &gateway.client_certificate {
        let kind = ConditionType::ResolvedRefs;
        conditions.push(condition(kind, Reason::ResolvedRefs, client.as_ref().err()));
    }
    if listener_tls::is_insecure(&gateway.object.spec) {
        let kind = ConditionType::InsecureFrontendValidationMode;
        conditions.push(Condition::yes(kind, Reason::ConfigurationChanged));
    }
    conditions
}

fn state(gateway: &OurGateway<'_>) -> [Condition; 2] {
    use ConditionType::{Accepted, Programmed};
    if let Some(Fault { reason, message, .. }) = &gateway.fault {
        let programmed = Condition::no(Programmed, Reason::Invalid, message.clone());
        return [Condition::no(Accepted, *reason, message.clone()), programmed];
    }
    served_conditions(gateway.own(), Reason::Invalid, gateway.unassigned.as_ref())
}

/// What holds for whoever has these listeners: it is accepted as long as one of them is served. `unserved` is why nothing
/// is programmed if none is, `unassigned` why the Gateway has not its addresses.
pub(super) fn served_conditions(
    listeners: &[OurListener<'_>],
    unserved: Reason,
    unassigned: Option<&Fault>,
) -> [Condition; 2] {
    use ConditionType::{Accepted, Programmed};
    let (good, bad): (Vec<_>, Vec<_>) = listeners.iter().partition(|listener| listener.is_served());
    let names: Vec<_> = bad.iter().map(|listener| &*listener.spec.name).collect();
    let message = format!("listeners that are not served: {}", names.join(", "));
    let some_served = !good.is_empty();
    let accepted = if bad.is_empty() {
        Condition::yes(Accepted, Reason::Accepted)
    } else {
        let (reason, message) = (Reason::ListenersNotValid, message.clone());
        Condition { kind: Accepted, holds: some_served, reason, message }
    };
    let programmed = match unassigned {
        _ if !some_served => Condition::no(Programmed, unserved, message),
        Some(fault) => condition(Programmed, Reason::Programmed, Some(fault)),
        None if bad.is_empty() => Condition::yes(Programmed, Reason::Programmed),
        None => Condition { kind: Programmed, holds: true, reason: Reason::Programmed, message },
    };
    [accepted, programmed]
}

pub(super) fn listener_status(
    gateway: &OurGateway<'_>,
    listener: &OurListener<'_>,
) -> ListenerStatus {
    use ConditionType::{Accepted, Conflicted, Http3, Programmed, ResolvedRefs};
    let refusal = listener.fault.as_ref().or(listener.conflict.as_ref());
    let accepted = condition(Accepted, Reason::Accepted, refusal);
    let unprogrammed = unprogrammed(gateway, listener);
    let programmed = condition(Programmed, Reason::Programmed, unprogrammed.as_ref());
    let resolved = condition(ResolvedRefs, Reason::ResolvedRefs, listener.unresolved.first());
    let mut conflicted = condition(Conflicted, Reason::NoConflicts, listener.conflict.as_ref());
    // The one condition that holds when something is wrong.
    conflicted.holds = !conflicted.holds;
    let http3 =
        listener.http3.as_ref().map(|it| condition(Http3, Reason::Programmed, it.as_ref().err()));
    let always = [accepted, programmed, resolved, conflicted].into_iter();
    let served = listener.is_served().then(|| sockets(gateway, listener));
    let transport = listener.protocol.transport();
    ListenerStatus {
        name: listener.spec.name.clone(),
        supported_kinds: listener.supported_kinds(),
        attached_routes: listener.attached_routes,
        sockets: served.into_iter().flatten().map(|socket| (socket, transport)).collect(),
        conditions: always.chain(overlap(listener)).chain(http3).collect(),
    }
}

/// Gateway API wants it told where the names that clients ask for do not keep listeners of a port apart. It is a warning,
/// which is left out where there is nothing to warn of.
fn overlap(listener: &OurListener<'_>) -> Option<Condition> {
    let other = listener.overlaps?;
    let kind = ConditionType::OverlappingTLSConfig;
    let message = format!(
        "hosts of listener {other} are among them: a request on a connection of the other listener is answered with 421"
    );
    Some(Condition { message, ..Condition::yes(kind, Reason::OverlappingHostnames) })
}

/// Why the data plane does not serve a listener. A conflict keeps its own reason, an address that is still to come is
/// waited for, and all else is invalid.
fn unprogrammed(gateway: &OurGateway<'_>, listener: &OurListener<'_>) -> Option<Fault> {
    // Without a certificate it is accepted, and yet nothing can be served.
    let undecryptable = listener.unresolved.first().filter(|_| !listener.is_served());
    let with = |reason| move |fault: &Fault| Fault { reason, ..fault.clone() };
    let invalid = listener.fault.as_ref().map(with(Reason::Invalid));
    invalid
        .or_else(|| listener.conflict.clone())
        .or_else(|| gateway.fault.as_ref().map(with(Reason::Invalid)))
        .or_else(|| undecryptable.map(with(Reason::Invalid)))
        .or_else(|| gateway.unassigned_fault().map(with(Reason::Pending)))
}
