//! What becomes of Gateways and their listeners, as their statuses say it.

use std::net::IpAddr;

use super::listener::{OurGateway, OurListener};
use super::{Fault, Report, condition, listener_tls};
use crate::status::{Condition, ConditionType, Detail, GatewayStatus, ListenerStatus, Reason};

/// What became of each Gateway.
pub(super) fn statuses(gateways: &[OurGateway<'_>], report: &mut Report) {
    for gateway in gateways {
        let listeners = gateway.listeners.iter().map(|it| listener_status(gateway, it)).collect();
        let is_known = |address: &&IpAddr| !address.is_unspecified();
        let detail = Detail::Gateway(GatewayStatus {
            addresses: gateway.addresses.iter().filter(is_known).copied().collect(),
            conditions: gateway_conditions(gateway),
            listeners,
            attached_listener_sets: 0,
        });
        report.status("Gateway", gateway.object, detail);
    }
}

fn gateway_conditions(gateway: &OurGateway<'_>) -> Vec<Condition> {
    let mut conditions = state(gateway).to_vec();
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
    let is_bad = |listener: &&OurListener<'_>| !listener.is_served();
    let bad: Vec<_> = gateway.listeners.iter().filter(is_bad).map(|it| &*it.spec.name).collect();
    if bad.is_empty() {
        return [
            Condition::yes(Accepted, Reason::Accepted),
            Condition::yes(Programmed, Reason::Programmed),
        ];
    }
    let some_served = bad.len() < gateway.listeners.len();
    let message = format!("listeners that are not served: {}", bad.join(", "));
    let programmed = if some_served { Reason::Programmed } else { Reason::Invalid };
    let condition =
        |kind, reason| Condition { kind, holds: some_served, reason, message: message.clone() };
    [condition(Accepted, Reason::ListenersNotValid), condition(Programmed, programmed)]
}

fn listener_status(gateway: &OurGateway<'_>, listener: &OurListener<'_>) -> ListenerStatus {
    use ConditionType::{Accepted, Conflicted, Http3, Programmed, ResolvedRefs};
    let refusal = listener.fault.as_ref().or(listener.conflict.as_ref());
    let accepted = condition(Accepted, Reason::Accepted, refusal);
    // Without a certificate it is accepted, and yet nothing can be served.
    let undecryptable = listener.unresolved.first().filter(|_| !listener.is_served());
    let invalid = refusal.or(gateway.fault.as_ref()).or(undecryptable);
    let programmed = condition(Programmed, Reason::Programmed, invalid.map(programmed).as_ref());
    let resolved = condition(ResolvedRefs, Reason::ResolvedRefs, listener.unresolved.first());
    let mut conflicted = condition(Conflicted, Reason::NoConflicts, listener.conflict.as_ref());
    // The one condition that holds when something is wrong.
    conflicted.holds = !conflicted.holds;
    let http3 =
        listener.http3.as_ref().map(|it| condition(Http3, Reason::Programmed, it.as_ref().err()));
    ListenerStatus {
        name: listener.spec.name.clone(),
        supported_kinds: listener.supported_kinds(),
        attached_routes: listener.attached_routes,
        conditions: [accepted, programmed, resolved, conflicted].into_iter().chain(http3).collect(),
    }
}

/// Not programmed has one reason, whatever the fault.
fn programmed(fault: &Fault) -> Fault {
    Fault { reason: Reason::Invalid, ..fault.clone() }
}
