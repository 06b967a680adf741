//! HTTPRoutes and GRPCRoutes: what becomes of each.

use super::Report;
use super::attach::{Asking, Attachment, Parents, settle};
use super::draft::RouteDraft;
use super::index::{Index, by_age};
use super::listener::OurGateway;
use super::rule::{Rules, grpc_rules, http_rules};
use crate::objects::Resource;
use crate::status::{Detail, ParentStatus};

/// The routes that attach to Gateways of ours, in Gateway API's order among equals of a kind.
pub(super) fn drafts(
    index: &Index<'_>,
    known: &Parents<'_>,
    gateways: &mut [OurGateway<'_>],
    report: &mut Report,
) -> Vec<RouteDraft> {
    let mut drafts = Vec::new();
    for route in by_age(&index.routes) {
        let (parents, hostnames) = (&*route.spec.parent_refs, &*route.spec.hostnames);
        let asking = Asking { kind: "HTTPRoute", route, parents, hostnames };
        drafts.extend(draft(index, known, &asking, gateways, report, |route, attached, report| {
            http_rules(index, route, attached, report)
        }));
    }
    for route in by_age(&index.grpc_routes) {
        let (parents, hostnames) = (&*route.spec.parent_refs, &*route.spec.hostnames);
        let asking = Asking { kind: "GRPCRoute", route, parents, hostnames };
        let draft = draft(index, known, &asking, gateways, report, |route, attached, report| {
            grpc_rules(index, route, attached, report)
        });
        drafts.extend(draft.map(|draft| RouteDraft { is_grpc: true, ..draft }));
    }
    drafts
}

fn draft<S>(
    index: &Index<'_>,
    known: &Parents<'_>,
    asking: &Asking<'_, S>,
    gateways: &mut [OurGateway<'_>],
    report: &mut Report,
    rules: impl Fn(&Resource<S>, &[&Attachment], &mut Report) -> Rules,
) -> Option<RouteDraft> {
    let Asking { kind, route, .. } = *asking;
    let parents = asking.parents(index, known, gateways, report);
    if parents.is_empty() {
        return None;
    }
    for fault in parents.iter().filter_map(|parent| parent.attached.as_ref().err()) {
        report.fault(kind, route, fault);
    }
    let attached = parents.iter().filter_map(|parent| parent.attached.as_ref().ok());
    let rules = rules(route, &attached.flatten().collect::<Vec<_>>(), report);
    let mut attachments = Vec::new();
    let mut statuses = Vec::new();
    for parent in parents {
        let attached = match parent.attached {
            Ok(_) if rules.drafts.is_empty() => Err(rules.nothing_left()),
            attached => attached,
        };
        let conditions = rules.conditions(attached.as_ref().err());
        statuses.push(ParentStatus { parent: parent.reference.clone(), conditions });
        attachments.extend(attached.into_iter().flatten());
    }
    report.status(kind, route, Detail::Route(statuses));
    settle(&mut attachments, gateways);
    let draft = RouteDraft { rules: rules.drafts, attachments, is_grpc: false };
    Some(draft).filter(|it| !it.attachments.is_empty())
}
