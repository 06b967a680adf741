//! Statuses of objects in a cluster that cannot be read.

use std::slice;

use super::attach::{AttachmentRequest, ParentIndex};
use super::index::{
    BACKEND_POLICY, BACKEND_TRAFFIC_POLICY, ObjectIndex, RATE_LIMIT_POLICY, TRAFFIC_POLICY,
};
use super::listener::{GatewayContext, is_gateway_api, is_ours};
use super::listener_set;
use super::report::{TranslationReport, ValidationFault, condition};
use super::route_policy::RoutePolicy;
use crate::addresses::AddressAssignment;
use crate::objects::{
    InvalidObject, InvalidObjectTarget, ObjectMeta, ParentRef, RateLimitPolicySpec,
    RouteTargetKind, SECURITY_POLICY, SecurityPolicySpec, TrafficPolicySpec, TypedObject,
};
use crate::status::{
    ConditionReason, ConditionType, GatewayStatus, ParentStatus, StatusCondition, StatusDetail,
    TargetStatus,
};

/// Reports the status of each invalid object.
pub(super) fn statuses(
    index: &ObjectIndex<'_>,
    known: &ParentIndex<'_>,
    gateways: &[GatewayContext<'_>],
    addresses: &AddressAssignment,
    report: &mut TranslationReport,
) {
    for object in &index.invalid_objects {
        match object.spec.kind {
            "Gateway" => gateway(index, object, addresses, report),
            listener_set::KIND => listener_set(object, gateways, report),
            BACKEND_POLICY | BACKEND_TRAFFIC_POLICY => policy("Service", object, report),
            "ClientPolicy" => policy("Gateway", object, report),
            RATE_LIMIT_POLICY | SECURITY_POLICY | TRAFFIC_POLICY => {
                policy("Gateway", object, report)
            }
            "BgpPeer" => {
                let refused =
                    refusal(ConditionType::Accepted, ConditionReason::Invalid, &object.spec);
                report.status("BgpPeer", object, StatusDetail::BgpPeer(vec![refused]));
            }
            "HTTPRoute" | "GRPCRoute" | "TLSRoute" | "TCPRoute" | "UDPRoute" => {
                route(index, known, object, gateways, report);
            }
            // BackendTLSPolicies get their status where they are attached. The other kinds have no status from us.
            _ => {}
        }
    }
}

fn refusal(kind: ConditionType, reason: ConditionReason, spec: &InvalidObject) -> StatusCondition {
    condition(kind, reason, Some(&ValidationFault::new(reason, "", &*spec.message)))
}

fn gateway(
    index: &ObjectIndex<'_>,
    object: &TypedObject<InvalidObject>,
    addresses: &AddressAssignment,
    report: &mut TranslationReport,
) {
    let class = object.spec.class.as_deref().and_then(|class| index.classes.get(&("", class)));
    if class.is_some_and(|class| is_ours(index, class)) {
        let conditions = [ConditionType::Accepted, ConditionType::Programmed]
            .map(|kind| refusal(kind, ConditionReason::Invalid, &object.spec));
        let conditions = conditions.into();
        // The status keeps the addresses: it is the record of the assignment.
        let ObjectMeta { namespace, name, .. } = &object.metadata;
        let addresses = addresses.published_addresses(&(namespace.clone(), name.clone()));
        let detail = GatewayStatus { addresses, conditions, ..GatewayStatus::default() };
        report.status("Gateway", object, StatusDetail::Gateway(detail));
    }
}

fn listener_set(
    object: &TypedObject<InvalidObject>,
    gateways: &[GatewayContext<'_>],
    report: &mut TranslationReport,
) {
    let is_ours = object.spec.parents.first().is_some_and(|parent| {
        let namespace = parent.namespace.as_ref().unwrap_or(&object.metadata.namespace);
        let name = (&**namespace, &*parent.name);
        is_of_gateway(parent) && gateways.iter().any(|gateway| gateway.owner().name() == name)
    });
    if is_ours {
        let conditions = [ConditionType::Accepted, ConditionType::Programmed]
            .map(|kind| refusal(kind, ConditionReason::Invalid, &object.spec));
        let detail = StatusDetail::ListenerSet(conditions.into(), Vec::new());
        report.status(listener_set::KIND, object, detail);
    }
}

fn is_of_gateway(parent: &ParentRef) -> bool {
    let kind = parent.kind.as_deref().unwrap_or("Gateway");
    is_gateway_api(parent.group.as_deref()) && kind == "Gateway"
}

fn route(
    index: &ObjectIndex<'_>,
    known: &ParentIndex<'_>,
    object: &TypedObject<InvalidObject>,
    gateways: &[GatewayContext<'_>],
    report: &mut TranslationReport,
) {
    let InvalidObject { kind, parents, .. } = &object.spec;
    let mut statuses = Vec::new();
    // One parent at a time, so that references to other controllers are skipped without a report.
    for parent in parents {
        let parents = slice::from_ref(parent);
        let request = AttachmentRequest { kind, route: object, parents, hostnames: &[] };
        let ours = request.parents(index, known, gateways, &mut TranslationReport::default());
        let of_services = known.services.attachments(kind, object, parents);
        if !ours.is_empty() || !of_services.is_empty() {
            let (kind, reason) = (ConditionType::Accepted, ConditionReason::UnsupportedValue);
            let conditions = vec![refusal(kind, reason, &object.spec)];
            statuses.push(ParentStatus { parent: parent.clone(), conditions });
        }
    }
    if !statuses.is_empty() {
        report.status(kind, object, StatusDetail::Route(statuses));
    }
}

/// Reports the status of an invalid policy. If parts of it apply, its status is reported with them.
fn policy(
    target_kind: &'static str,
    object: &TypedObject<InvalidObject>,
    report: &mut TranslationReport,
) {
    if object.spec.partial_policy.is_some() {
        return;
    }
    let spec = &object.spec;
    let consequence = match spec.kind {
        SECURITY_POLICY => SecurityPolicySpec::unreadable("", spec).consequence,
        TRAFFIC_POLICY => TrafficPolicySpec::unreadable("", spec).consequence,
        BACKEND_TRAFFIC_POLICY => "it does not apply",
        _ => RateLimitPolicySpec::unreadable("", spec).consequence,
    };
    let message = format!("{}; {consequence}", object.spec.message);
    let kind_of = |target: &InvalidObjectTarget| {
        let is_one_of_several =
            [RATE_LIMIT_POLICY, SECURITY_POLICY, TRAFFIC_POLICY].contains(&object.spec.kind);
        let kind = target.kind.as_deref().filter(|_| is_one_of_several)?;
        RouteTargetKind::find(kind).map(RouteTargetKind::name)
    };
    let status = |target: &InvalidObjectTarget| TargetStatus {
        kind: kind_of(target).unwrap_or(target_kind),
        namespace: object.metadata.namespace.clone(),
        name: target.name.clone(),
        section_name: target.section_name.clone(),
        slots: None,
        conditions: vec![StatusCondition::no(
            ConditionType::Accepted,
            ConditionReason::Invalid,
            message.clone(),
        )],
    };
    let statuses = object.spec.targets.iter().map(status).collect();
    report.status(object.spec.kind, object, StatusDetail::Policy(statuses));
}
