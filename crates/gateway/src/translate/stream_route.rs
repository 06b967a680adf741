//! TCPRoutes and UDPRoutes: what becomes of each.

use std::collections::BTreeMap;

use super::attach::{Asking, Attachment, settle};
use super::backend::{Referrer, resolve};
use super::draft::{RouteDraft, RuleDraft, TargetDraft};
use super::index::{ByName, Index, by_age};
use super::listener::OurGateway;
use super::{Fault, Report, condition};
use crate::objects::{Resource, StreamRouteRule, StreamRouteSpec};
use crate::snapshot::Transport;
use crate::status::{ConditionType, Detail, ParentStatus, Reason};

/// Who has a listener already, by the places of Gateway and listener: a connection shows nothing to choose a route by,
/// so that the oldest route has all of them.
type Taken = BTreeMap<(usize, usize), String>;

/// The routes that attach to Gateways of ours, in Gateway API's order among equals.
pub(super) fn drafts(
    index: &Index<'_>,
    gateways: &mut [OurGateway<'_>],
    report: &mut Report,
) -> Vec<RouteDraft> {
    let mut taken = Taken::new();
    let mut kind = |routes: &ByName<'_, _>, transport| -> Vec<_> {
        let routes = by_age(routes).into_iter();
        routes
            .filter_map(|route| draft(index, route, transport, gateways, &mut taken, report))
            .collect()
    };
    let mut drafts = kind(&index.tcp_routes, Transport::Tcp);
    drafts.extend(kind(&index.udp_routes, Transport::Udp));
    drafts
}

fn draft(
    index: &Index<'_>,
    route: &Resource<StreamRouteSpec>,
    transport: Transport,
    gateways: &mut [OurGateway<'_>],
    taken: &mut Taken,
    report: &mut Report,
) -> Option<RouteDraft> {
    let kind = match transport {
        Transport::Tcp => "TCPRoute",
        Transport::Udp => "UDPRoute",
    };
    let (spec, name) = (&route.spec, &route.metadata.name);
    let asking = Asking { kind, route, parents: &spec.parent_refs, hostnames: &[] };
    let parents = asking.parents(index, gateways, report);
    if parents.is_empty() {
        return None;
    }
    if spec.use_default_gateways.is_some() {
        report.problem(kind, route, "spec.useDefaultGateways", "is not supported");
    }
    if spec.rules.len() > 1 {
        let message = "is not served: connections cannot be told apart, so the first rule has all";
        report.problem(kind, route, "spec.rules[1]", message);
    }
    let referrer = Referrer { kind, namespace: &route.metadata.namespace };
    let (rule, unresolved) = rule(index, referrer, name, &spec.rules[0], transport);
    let mut attachments: Vec<Attachment> = Vec::new();
    let mut statuses = Vec::new();
    for parent in parents {
        let attached = take(parent.attached, &parent.field, kind, name, taken);
        let fault = attached.as_ref().err();
        fault.into_iter().for_each(|fault| report.fault(kind, route, fault));
        let conditions = vec![
            condition(ConditionType::Accepted, Reason::Accepted, fault),
            condition(ConditionType::ResolvedRefs, Reason::ResolvedRefs, unresolved.first()),
        ];
        statuses.push(ParentStatus { parent: parent.reference.clone(), conditions });
        attachments.extend(attached.into_iter().flatten());
    }
    unresolved.iter().for_each(|fault| report.fault(kind, route, fault));
    report.status(kind, route, Detail::Route(statuses));
    settle(&mut attachments, gateways);
    Some(RouteDraft { rules: vec![rule], attachments }).filter(|it| !it.attachments.is_empty())
}

/// Takes the listeners at a parent that nobody has, if that is any of them.
fn take(
    attached: Result<Vec<Attachment>, Fault>,
    field: &str,
    kind: &str,
    name: &str,
    taken: &mut Taken,
) -> Result<Vec<Attachment>, Fault> {
    let mut attached = attached?;
    let owner = attached.iter().find_map(|it| taken.get(&(it.gateway, it.listener)));
    let refusal = owner.map(|owner| format!("{kind} {owner} has this listener and is older"));
    attached.retain(|it| !taken.contains_key(&(it.gateway, it.listener)));
    taken.extend(attached.iter().map(|it| ((it.gateway, it.listener), name.to_owned())));
    match refusal {
        Some(message) if attached.is_empty() => Err(Fault::new(Reason::Conflicted, field, message)),
        Some(_) | None => Ok(attached),
    }
}

/// Where connections go, and the references that lead nowhere.
fn rule(
    index: &Index<'_>,
    referrer: Referrer<'_>,
    route: &str,
    rule: &StreamRouteRule,
    transport: Transport,
) -> (RuleDraft, Vec<Fault>) {
    let mut unresolved = Vec::new();
    let mut targets = Vec::new();
    for (n, reference) in rule.backend_refs.iter().enumerate() {
        let field = format!("spec.rules[0].backendRefs[{n}]");
        let key = resolve(index, referrer, reference.service(), transport, &field)
            .map_err(|fault| unresolved.push(fault))
            .ok();
        if reference.weight > 0 {
            targets.push(TargetDraft {
                key,
                weight: reference.weight,
                ..TargetDraft::unresolved()
            });
        }
    }
    if targets.is_empty() {
        targets.push(TargetDraft::unresolved());
    }
    let name = rule.name.as_deref().unwrap_or("0");
    let name = format!("{}/{route}/{name}", referrer.namespace).into();
    (RuleDraft { name, targets, ..RuleDraft::default() }, unresolved)
}
