//! HTTPRoutes: what becomes of each.

use super::Report;
use super::attach::{Asking, settle};
use super::draft::RouteDraft;
use super::index::{Index, by_age};
use super::listener::OurGateway;
use super::rule::rules;
use crate::objects::{HttpRouteSpec, Resource};
use crate::status::{Detail, ParentStatus};

/// The routes that attach to Gateways of ours, in Gateway API's order among equals.
pub(super) fn drafts(
    index: &Index<'_>,
    gateways: &mut [OurGateway<'_>],
    report: &mut Report,
) -> Vec<RouteDraft> {
    let routes = by_age(&index.routes);
    routes.into_iter().filter_map(|route| draft(index, route, gateways, report)).collect()
}

fn draft(
    index: &Index<'_>,
    route: &Resource<HttpRouteSpec>,
    gateways: &mut [OurGateway<'_>],
    report: &mut Report,
) -> Option<RouteDraft> {
    let spec = &route.spec;
    let (kind, parents, hostnames) = ("HTTPRoute", &*spec.parent_refs, &*spec.hostnames);
    let parents = Asking { kind, route, parents, hostnames }.parents(index, gateways, report);
    if parents.is_empty() {
        return None;
    }
    for fault in parents.iter().filter_map(|parent| parent.attached.as_ref().err()) {
        report.fault(kind, route, fault);
    }
    let attached = parents.iter().filter_map(|parent| parent.attached.as_ref().ok());
    let rules = rules(index, route, &attached.flatten().collect::<Vec<_>>(), report);
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
    let rules = rules.drafts;
    Some(RouteDraft { rules, attachments }).filter(|it| !it.attachments.is_empty())
}
