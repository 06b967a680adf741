//! Objects of a cluster that cannot be read: their statuses say so.

use std::slice;

use super::attach::Asking;
use super::index::Index;
use super::listener::{OurGateway, is_ours};
use super::{Fault, Report, condition};
use crate::addresses::Addresses;
use crate::objects::{Metadata, RefusedSpec, RefusedTarget, Resource};
use crate::status::{
    Condition, ConditionType, Detail, GatewayStatus, ParentStatus, Reason, TargetStatus,
};

/// What becomes of each: nothing.
pub(super) fn statuses(
    index: &Index<'_>,
    gateways: &[OurGateway<'_>],
    addresses: &Addresses,
    report: &mut Report,
) {
    for object in &index.refused {
        match object.spec.kind {
            "Gateway" => gateway(index, object, addresses, report),
            "BackendPolicy" => policy("Service", object, report),
            "ClientPolicy" => policy("Gateway", object, report),
            _ => route(index, object, gateways, report),
        }
    }
}

fn refusal(kind: ConditionType, reason: Reason, spec: &RefusedSpec) -> Condition {
    condition(kind, reason, Some(&Fault::new(reason, "", &*spec.message)))
}

fn gateway(
    index: &Index<'_>,
    object: &Resource<RefusedSpec>,
    addresses: &Addresses,
    report: &mut Report,
) {
    let class = object.spec.class.as_deref().and_then(|class| index.classes.get(&("", class)));
    if class.is_some_and(|class| is_ours(class)) {
        let conditions = [ConditionType::Accepted, ConditionType::Programmed]
            .map(|kind| refusal(kind, Reason::Invalid, &object.spec));
        let conditions = conditions.into();
        // It says what it has, which is how it is known that it has it.
        let Metadata { namespace, name, .. } = &object.metadata;
        let addresses = addresses.places(&(namespace.clone(), name.clone()));
        let detail = GatewayStatus { addresses, conditions, ..GatewayStatus::default() };
        report.status("Gateway", object, Detail::Gateway(detail));
    }
}

fn route(
    index: &Index<'_>,
    object: &Resource<RefusedSpec>,
    gateways: &[OurGateway<'_>],
    report: &mut Report,
) {
    let RefusedSpec { kind, parents, .. } = &object.spec;
    let mut statuses = Vec::new();
    // One by one, for those that lead nowhere are not worth a word here.
    for parent in parents {
        let parents = slice::from_ref(parent);
        let asking = Asking { kind, route: object, parents, hostnames: &[] };
        let ours = asking.parents(index, gateways, &mut Report::default());
        let conditions =
            vec![refusal(ConditionType::Accepted, Reason::UnsupportedValue, &object.spec)];
        statuses.extend(
            ours.into_iter()
                .map(|_| ParentStatus { parent: parent.clone(), conditions: conditions.clone() }),
        );
    }
    if !statuses.is_empty() {
        report.status(kind, object, Detail::Route(statuses));
    }
}

fn policy(target_kind: &'static str, object: &Resource<RefusedSpec>, report: &mut Report) {
    let status = |target: &RefusedTarget| TargetStatus {
        kind: target_kind,
        namespace: object.metadata.namespace.clone(),
        name: target.name.clone(),
        section_name: target.section_name.clone(),
        conditions: vec![refusal(ConditionType::Accepted, Reason::Invalid, &object.spec)],
    };
    let statuses = object.spec.targets.iter().map(status).collect();
    report.status(object.spec.kind, object, Detail::Policy(statuses));
}
