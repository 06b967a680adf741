//! Statuses of Gateways and their listeners.

use super::address::sockets;
use super::listener::{GatewayContext, ListenerContext};
use super::report::{TranslationReport, ValidationFault, condition};
use super::{listener_set, listener_tls};
use crate::addresses::AddressAssignment;
use crate::managed_services::PublishedAddress;
use crate::status::{
    ConditionReason, ConditionType, GatewayStatus, ListenerStatus, StatusCondition, StatusDetail,
};

/// Reports the status of each Gateway and of its ListenerSets.
pub(super) fn statuses(
    gateways: &[GatewayContext<'_>],
    addresses: &AddressAssignment,
    report: &mut TranslationReport,
) {
    for gateway in gateways {
        let detail = StatusDetail::Gateway(GatewayStatus {
            addresses: published_addresses(gateway, addresses),
            conditions: gateway_conditions(gateway),
            listeners: gateway
                .own_listeners()
                .iter()
                .map(|it| listener_status(gateway, it))
                .collect(),
            attached_listener_sets: gateway.attached_sets(),
        });
        report.status("Gateway", gateway.object, detail);
        listener_set::statuses(gateway, report);
    }
}

/// Returns the addresses at which clients reach a Gateway. A Gateway that is not accepted is not served, but its status
/// keeps its addresses: the status is the record of the assignment.
fn published_addresses(
    gateway: &GatewayContext<'_>,
    addresses: &AddressAssignment,
) -> Vec<PublishedAddress> {
    let own = gateway.addresses.iter().filter(|address| !address.is_unspecified());
    let own: Vec<_> = own.copied().map(PublishedAddress::Ip).collect();
    match addresses {
        AddressAssignment::Host => own,
        // A Service does not lead to addresses that the Gateway requests itself.
        AddressAssignment::SharedService(_) if !own.is_empty() => own,
        AddressAssignment::SharedService(_)
        | AddressAssignment::Pool { .. }
        | AddressAssignment::ManagedServices(_) => addresses.published_addresses(&gateway.name()),
    }
}

fn gateway_conditions(gateway: &GatewayContext<'_>) -> Vec<StatusCondition> {
    let [mut accepted, programmed] = state(gateway);
    // The Gateway stays accepted, because its own listeners are not affected.
    if let Some(ValidationFault { field, message, .. }) = &gateway.allowed_listeners_fault {
        let separator = if accepted.message.is_empty() { "" } else { "; " };
        accepted.message += &format!("{separator}{field} {message}");
    }
    let mut conditions = vec![accepted, programmed];
    if let Some(client) = &gateway.client_certificate {
        let kind = ConditionType::ResolvedRefs;
        conditions.push(condition(kind, ConditionReason::ResolvedRefs, client.as_ref().err()));
    }
    if listener_tls::is_insecure(&gateway.object.spec) {
        let kind = ConditionType::InsecureFrontendValidationMode;
        conditions.push(StatusCondition::yes(kind, ConditionReason::ConfigurationChanged));
    }
    conditions
}

fn state(gateway: &GatewayContext<'_>) -> [StatusCondition; 2] {
    use ConditionType::{Accepted, Programmed};
    if let Some(ValidationFault { reason, message, .. }) = &gateway.fault {
        let programmed = StatusCondition::no(Programmed, ConditionReason::Invalid, message.clone());
        return [StatusCondition::no(Accepted, *reason, message.clone()), programmed];
    }
    served_conditions(
        gateway.own_listeners(),
        ConditionReason::Invalid,
        gateway.unassigned.as_ref(),
    )
}

/// Returns the conditions `Accepted` and `Programmed` of the owner of these listeners. It is accepted as long as one of
/// them is served. `unserved` is the reason of `Programmed` if none is served, `unassigned` the reason if the Gateway
/// lacks addresses.
pub(super) fn served_conditions(
    listeners: &[ListenerContext<'_>],
    unserved: ConditionReason,
    unassigned: Option<&ValidationFault>,
) -> [StatusCondition; 2] {
    use ConditionType::{Accepted, Programmed};
    let (good, bad): (Vec<_>, Vec<_>) = listeners.iter().partition(|listener| listener.is_served());
    let names: Vec<_> = bad.iter().map(|listener| &*listener.spec.name).collect();
    let message = format!("listeners that are not served: {}", names.join(", "));
    let some_served = !good.is_empty();
    let accepted = if bad.is_empty() {
        StatusCondition::yes(Accepted, ConditionReason::Accepted)
    } else {
        let (reason, message) = (ConditionReason::ListenersNotValid, message.clone());
        StatusCondition { kind: Accepted, holds: some_served, reason, message }
    };
    let programmed = match unassigned {
        _ if !some_served => StatusCondition::no(Programmed, unserved, message),
        Some(fault) => condition(Programmed, ConditionReason::Programmed, Some(fault)),
        None if bad.is_empty() => StatusCondition::yes(Programmed, ConditionReason::Programmed),
        None => StatusCondition {
            kind: Programmed,
            holds: true,
            reason: ConditionReason::Programmed,
            message,
        },
    };
    [accepted, programmed]
}

pub(super) fn listener_status(
    gateway: &GatewayContext<'_>,
    listener: &ListenerContext<'_>,
) -> ListenerStatus {
    use ConditionType::{Accepted, Conflicted, Http3, Programmed, ResolvedRefs};
    let refusal = listener.fault.as_ref().or(listener.conflict.as_ref());
    let accepted = condition(Accepted, ConditionReason::Accepted, refusal);
    let unprogrammed = unprogrammed(gateway, listener);
    let programmed = condition(Programmed, ConditionReason::Programmed, unprogrammed.as_ref());
    let resolved =
        condition(ResolvedRefs, ConditionReason::ResolvedRefs, listener.unresolved.first());
    let mut conflicted =
        condition(Conflicted, ConditionReason::NoConflicts, listener.conflict.as_ref());
    // `Conflicted` is the one condition that is true in case of an error.
    conflicted.holds = !conflicted.holds;
    let http3 = listener
        .http3
        .as_ref()
        .map(|it| condition(Http3, ConditionReason::Programmed, it.as_ref().err()));
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

/// Returns the condition `OverlappingTLSConfig`, which Gateway API demands if SNI does not separate the listeners of a
/// port. It is a warning, and absent if there is no overlap.
fn overlap(listener: &ListenerContext<'_>) -> Option<StatusCondition> {
    let other = listener.overlaps?;
    let kind = ConditionType::OverlappingTLSConfig;
    let message = format!(
        "shares hosts with listener {other}: a request on a connection of the other listener is answered with 421"
    );
    Some(StatusCondition {
        message,
        ..StatusCondition::yes(kind, ConditionReason::OverlappingHostnames)
    })
}

/// Returns why the data plane does not serve a listener. A conflict keeps its own reason, a missing address is
/// `Pending`, and everything else is `Invalid`.
fn unprogrammed(
    gateway: &GatewayContext<'_>,
    listener: &ListenerContext<'_>,
) -> Option<ValidationFault> {
    // Without a certificate the listener is accepted but cannot be served.
    let undecryptable = listener.unresolved.first().filter(|_| !listener.is_served());
    let with = |reason| move |fault: &ValidationFault| ValidationFault { reason, ..fault.clone() };
    let invalid = listener.fault.as_ref().map(with(ConditionReason::Invalid));
    invalid
        .or_else(|| listener.conflict.clone())
        .or_else(|| gateway.fault.as_ref().map(with(ConditionReason::Invalid)))
        .or_else(|| undecryptable.map(with(ConditionReason::Invalid)))
        .or_else(|| gateway.unassigned_fault().map(with(ConditionReason::Pending)))
}
