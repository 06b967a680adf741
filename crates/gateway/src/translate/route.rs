//! HTTPRoutes and GRPCRoutes: attaches them, and reports their statuses.

use super::attach::{AttachmentRequest, ParentIndex, RouteAttachment, retain_served};
use super::draft::RouteDraft;
use super::index::{ObjectIndex, by_age};
use super::listener::GatewayContext;
use super::report::TranslationReport;
use super::rule::{RouteRules, grpc_rules, http_rules};
use crate::objects::TypedObject;
use crate::status::{ParentStatus, StatusDetail};

/// Returns the routes that attach to accepted Gateways, in Gateway API's order of precedence within a kind.
pub(super) fn drafts(
    index: &ObjectIndex<'_>,
    parent_index: &ParentIndex<'_>,
    gateways: &mut [GatewayContext<'_>],
    report: &mut TranslationReport,
) -> Vec<RouteDraft> {
    let mut drafts = Vec::new();
    for route in by_age(&index.routes) {
        let (parents, hostnames) = (&*route.spec.parent_refs, &*route.spec.hostnames);
        let request = AttachmentRequest { kind: "HTTPRoute", route, parents, hostnames };
        drafts.extend(draft(
            index,
            parent_index,
            &request,
            gateways,
            report,
            |route, attached, report| http_rules(index, route, attached, report),
        ));
    }
    for route in by_age(&index.grpc_routes) {
        let (parents, hostnames) = (&*route.spec.parent_refs, &*route.spec.hostnames);
        let request = AttachmentRequest { kind: "GRPCRoute", route, parents, hostnames };
        let draft =
            draft(index, parent_index, &request, gateways, report, |route, attached, report| {
                grpc_rules(index, route, attached, report)
            });
        drafts.extend(draft.map(|draft| RouteDraft { is_grpc: true, ..draft }));
    }
    drafts
}

fn draft<S>(
    index: &ObjectIndex<'_>,
    parent_index: &ParentIndex<'_>,
    request: &AttachmentRequest<'_, S>,
    gateways: &mut [GatewayContext<'_>],
    report: &mut TranslationReport,
    rules: impl Fn(&TypedObject<S>, &[&RouteAttachment], &mut TranslationReport) -> RouteRules,
) -> Option<RouteDraft> {
    let AttachmentRequest { kind, route, .. } = *request;
    let parents = request.parents(index, parent_index, gateways, report);
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
            Ok(_) if rules.drafts.is_empty() => Err(rules.no_rules_fault()),
            attached => attached,
        };
        let conditions = rules.conditions(attached.as_ref().err());
        statuses.push(ParentStatus { parent: parent.reference.clone(), conditions });
        attachments.extend(attached.into_iter().flatten());
    }
    report.status(kind, route, StatusDetail::Route(statuses));
    retain_served(&mut attachments, gateways);
    let draft = RouteDraft { rules: rules.drafts, attachments, is_grpc: false };
    Some(draft).filter(|it| !it.attachments.is_empty())
}
