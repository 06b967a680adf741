//! HTTPRoutes and GRPCRoutes: attaches them, and reports their statuses.

use super::attach::{AttachmentRequest, ParentAttachment, ParentIndex, retain_served};
use super::backend::ReferenceScope;
use super::draft::RouteDraft;
use super::index::{ObjectIndex, by_age};
use super::listener::GatewayContext;
use super::report::TranslationReport;
use super::rule::{RouteRules, RuleScope, grpc_rules, http_rules};
use super::transparent::ServiceAttachment;
use crate::objects::TypedObject;
use crate::status::{ParentStatus, StatusDetail};

/// Returns the routes that attach to accepted Gateways, and in transparent mode to Services, in Gateway API's order of
/// precedence within a kind.
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
        drafts.extend(route_drafts(
            index,
            parent_index,
            &request,
            gateways,
            report,
            |route, scope, report| http_rules(index, route, scope, report),
        ));
    }
    for route in by_age(&index.grpc_routes) {
        let (parents, hostnames) = (&*route.spec.parent_refs, &*route.spec.hostnames);
        let request = AttachmentRequest { kind: "GRPCRoute", route, parents, hostnames };
        let of_route = route_drafts(
            index,
            parent_index,
            &request,
            gateways,
            report,
            |route, scope, report| grpc_rules(index, route, scope, report),
        );
        drafts.extend(of_route.into_iter().map(|draft| RouteDraft { is_grpc: true, ..draft }));
    }
    drafts
}

/// Returns a draft for the Gateways and one for the Services that a route attaches to, which may differ in the
/// references that are permitted.
fn route_drafts<S>(
    index: &ObjectIndex<'_>,
    parent_index: &ParentIndex<'_>,
    request: &AttachmentRequest<'_, S>,
    gateways: &mut [GatewayContext<'_>],
    report: &mut TranslationReport,
    rules: impl Fn(&TypedObject<S>, RuleScope<'_>, &mut TranslationReport) -> RouteRules,
) -> Vec<RouteDraft> {
    let AttachmentRequest { kind, route, .. } = *request;
    let parents = request.parents(index, parent_index, gateways, report);
    let services = parent_index.services.attachments(kind, route, request.parents);
    let faults = parents.iter().filter_map(|parent| parent.attached.as_ref().err());
    let of_services = services.iter().filter_map(|parent| parent.attached.as_ref().err());
    for fault in faults.chain(of_services) {
        report.fault(kind, route, fault);
    }
    let (mut drafts, mut statuses) = (Vec::new(), Vec::new());
    if !parents.is_empty() {
        let attached = parents.iter().filter_map(|parent| parent.attached.as_ref().ok());
        let attached: Vec<_> = attached.flatten().collect();
        let scope = RuleScope { attached: &attached, references: ReferenceScope::Gateways };
        let rules = rules(route, scope, report);
        drafts.extend(gateway_draft(rules, parents, gateways, &mut statuses));
    }
    if !services.is_empty() {
        let attached = services.iter().filter_map(|parent| parent.attached.as_ref().ok());
        let hides_clients = attached.clone().any(|it| parent_index.services.hide_clients(it));
        let references = ReferenceScope::Services { hides_clients };
        let mut own_report = TranslationReport::default();
        let rules = rules(route, RuleScope { attached: &[], references }, &mut own_report);
        // Most problems are the same for both kinds of parents.
        own_report.problems.retain(|problem| !report.problems.contains(problem));
        report.problems.append(&mut own_report.problems);
        drafts.extend(service_draft(rules, services, &mut statuses));
    }
    if !statuses.is_empty() {
        report.status(kind, route, StatusDetail::Route(statuses));
    }
    drafts
}

/// Returns the draft for the Gateways that a route attaches to, if there are any.
fn gateway_draft(
    rules: RouteRules,
    parents: Vec<ParentAttachment<'_>>,
    gateways: &mut [GatewayContext<'_>],
    statuses: &mut Vec<ParentStatus>,
) -> Option<RouteDraft> {
    let mut attachments = Vec::new();
    for parent in parents {
        let attached = rules.require_rules(parent.attached);
        let conditions = rules.conditions(attached.as_ref().err());
        statuses.push(ParentStatus { parent: parent.reference.clone(), conditions });
        attachments.extend(attached.into_iter().flatten());
    }
    retain_served(&mut attachments, gateways);
    let service_ports = Vec::new();
    let draft = RouteDraft {
        rules: rules.drafts,
        attachments,
        service_ports,
        load_balancer_port: None,
        is_grpc: false,
    };
    Some(draft).filter(|it| !it.attachments.is_empty())
}

/// Returns the draft for the Services that a route attaches to, if there are any.
fn service_draft(
    rules: RouteRules,
    parents: Vec<ServiceAttachment<'_>>,
    statuses: &mut Vec<ParentStatus>,
) -> Option<RouteDraft> {
    let mut service_ports = Vec::new();
    for parent in parents {
        let attached = rules.require_rules(parent.attached);
        let conditions = rules.conditions(attached.as_ref().err());
        statuses.push(ParentStatus { parent: parent.reference.clone(), conditions });
        // Several references may select the same port.
        for port in attached.into_iter().flatten() {
            if !service_ports.contains(&port) {
                service_ports.push(port);
            }
        }
    }
    let attachments = Vec::new();
    let draft = RouteDraft {
        rules: rules.drafts,
        attachments,
        service_ports,
        load_balancer_port: None,
        is_grpc: false,
    };
    Some(draft).filter(|it| !it.service_ports.is_empty())
}
