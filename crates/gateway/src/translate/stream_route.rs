//! TLSRoutes, TCPRoutes and UDPRoutes: attaches them, and reports their statuses.

use std::collections::BTreeMap;

use super::attach::{
    AttachmentRequest, ParentAttachment, ParentIndex, RouteAttachment, retain_served,
};
use super::backend::{ReferenceScope, ServiceReferrer, rejected_answer, resolve};
use super::draft::{RouteDraft, RuleDraft, TargetDraft};
use super::index::{ObjectIndex, by_age};
use super::listener::GatewayContext;
use super::report::{TranslationReport, ValidationFault, condition};
use crate::matching::HostPattern;
use crate::objects::{
    Hostname, ObjectMeta, ParentRef, StreamRouteRule, StreamRouteSpec, TlsRouteSpec, TypedObject,
};
use crate::snapshot::TransportProtocol;
use crate::status::{ConditionReason, ConditionType, ParentStatus, StatusDetail};

/// The route that owns each host of a listener, by the indices of Gateway and listener. Connections have no attribute
/// other than the host to route by, so one route gets all of them.
type HostOwners<'a> = BTreeMap<(usize, usize, HostPattern), &'a ObjectMeta>;

/// A route of one of these kinds.
struct StreamRouteSource<'a, S> {
    kind: &'static str,
    transport: TransportProtocol,
    route: &'a TypedObject<S>,
    parents: &'a [ParentRef],
    hostnames: &'a [Hostname],
    rules: &'a [StreamRouteRule],
    wants_default_gateways: bool,
}

/// Returns the routes that attach to accepted Gateways, in Gateway API's order of precedence.
pub(super) fn drafts(
    index: &ObjectIndex<'_>,
    parent_index: &ParentIndex<'_>,
    gateways: &mut [GatewayContext<'_>],
    report: &mut TranslationReport,
) -> Vec<RouteDraft> {
    let routes = by_age(&index.tls_routes).into_iter().map(tls).collect();
    let mut drafts = drafts_of(routes, index, parent_index, gateways, report);
    let tcp = |route| stream("TCPRoute", TransportProtocol::Tcp, route);
    let routes = by_age(&index.tcp_routes).into_iter().map(tcp).collect();
    drafts.extend(drafts_of(routes, index, parent_index, gateways, report));
    let udp = |route| stream("UDPRoute", TransportProtocol::Udp, route);
    let routes = by_age(&index.udp_routes).into_iter().map(udp).collect();
    drafts.extend(drafts_of(routes, index, parent_index, gateways, report));
    drafts
}

/// Returns the routes of one kind; `routes` begins with the oldest.
fn drafts_of<S>(
    routes: Vec<StreamRouteSource<'_, S>>,
    index: &ObjectIndex<'_>,
    parent_index: &ParentIndex<'_>,
    gateways: &mut [GatewayContext<'_>],
    report: &mut TranslationReport,
) -> Vec<RouteDraft> {
    let with_parents = routes.into_iter().map(|source| {
        let StreamRouteSource { kind, route, parents, hostnames, .. } = source;
        let request = AttachmentRequest { kind, route, parents, hostnames };
        let parents = request.parents(index, parent_index, gateways, report);
        (source, parents)
    });
    let attached_sources: Vec<_> =
        with_parents.filter(|(_, parents)| !parents.is_empty()).collect();
    let owners = owners(&attached_sources);
    let draft = |(source, parents): (StreamRouteSource<'_, S>, Vec<ParentAttachment<'_>>)| {
        source.draft(index, parents, gateways, &owners, report)
    };
    attached_sources.into_iter().filter_map(draft).collect()
}

/// Returns the owner of each host: the route with the more specific hostname, else the older route.
fn owners<'a, S>(
    sources: &[(StreamRouteSource<'a, S>, Vec<ParentAttachment<'a>>)],
) -> HostOwners<'a> {
    let mut owners = BTreeMap::new();
    for (source, parents) in sources {
        let attached = parents.iter().filter_map(|parent| parent.attached.as_ref().ok()).flatten();
        for RouteAttachment { gateway, listener, hosts, .. } in attached {
            for common in hosts {
                let claim = (common.route_hosts.specificity(), &source.route.metadata);
                let place = (*gateway, *listener, common.hosts.clone());
                let owner = owners.entry(place).or_insert(claim);
                if claim.0 > owner.0 {
                    *owner = claim;
                }
            }
        }
    }
    owners.into_iter().map(|(place, (_, owner))| (place, owner)).collect()
}

fn tls(route: &TypedObject<TlsRouteSpec>) -> StreamRouteSource<'_, TlsRouteSpec> {
    let spec = &route.spec;
    StreamRouteSource {
        kind: "TLSRoute",
        transport: TransportProtocol::Tcp,
        route,
        parents: &spec.parent_refs,
        hostnames: &spec.hostnames,
        rules: &spec.rules,
        wants_default_gateways: spec.use_default_gateways.is_some(),
    }
}

fn stream<'a>(
    kind: &'static str,
    transport: TransportProtocol,
    route: &'a TypedObject<StreamRouteSpec>,
) -> StreamRouteSource<'a, StreamRouteSpec> {
    let spec = &route.spec;
    StreamRouteSource {
        kind,
        transport,
        route,
        parents: &spec.parent_refs,
        hostnames: &[],
        rules: &spec.rules,
        wants_default_gateways: spec.use_default_gateways.is_some(),
    }
}

impl<S> StreamRouteSource<'_, S> {
    fn draft(
        &self,
        index: &ObjectIndex<'_>,
        parents: Vec<ParentAttachment<'_>>,
        gateways: &mut [GatewayContext<'_>],
        owners: &HostOwners<'_>,
        report: &mut TranslationReport,
    ) -> Option<RouteDraft> {
        let Self { kind, route, .. } = *self;
        if self.wants_default_gateways {
            report.problem(kind, route, "spec.useDefaultGateways", "is not supported");
        }
        if self.rules.len() > 1 {
            let message =
                "is not served: connections have no attribute to match, so the first rule gets all";
            report.problem(kind, route, "spec.rules[1]", message);
        }
        let (rule, unresolved) = self.rule(index, &self.rules[0]);
        let mut attachments: Vec<RouteAttachment> = Vec::new();
        let mut statuses = Vec::new();
        for ParentAttachment { reference, field, attached } in parents {
            let fault = attached.as_ref().err();
            let mut accepted = condition(ConditionType::Accepted, ConditionReason::Accepted, fault);
            let conflict =
                attached.as_ref().ok().and_then(|it| self.conflict_fault(it, &field, owners));
            fault.into_iter().chain(&conflict).for_each(|fault| report.fault(kind, route, fault));
            if let Some(ValidationFault { message, .. }) = conflict {
                accepted.message = message;
            }
            let resolved = condition(
                ConditionType::ResolvedRefs,
                ConditionReason::ResolvedRefs,
                unresolved.first(),
            );
            let conditions = vec![accepted, resolved];
            statuses.push(ParentStatus { parent: reference.clone(), conditions });
            attachments.extend(attached.into_iter().flatten());
        }
        unresolved.iter().for_each(|fault| report.fault(kind, route, fault));
        report.status(kind, route, StatusDetail::Route(statuses));
        retain_served(&mut attachments, gateways);
        for RouteAttachment { gateway, listener, hosts, .. } in &mut attachments {
            hosts.retain(|common| {
                let owner = owners[&(*gateway, *listener, common.hosts.clone())];
                std::ptr::eq(owner, &route.metadata)
            });
        }
        attachments.retain(|it| !it.hosts.is_empty());
        let rules = vec![rule];
        let service_ports = Vec::new();
        let draft = RouteDraft {
            rules,
            attachments,
            service_ports,
            load_balancer_port: None,
            is_grpc: false,
        };
        Some(draft).filter(|it| !it.attachments.is_empty())
    }

    /// Returns why the route gets no connections at a parent that it has attached to: other routes own all its hosts
    /// there. Gateway API demands that it is accepted nevertheless.
    fn conflict_fault(
        &self,
        attached: &[RouteAttachment],
        field: &str,
        owners: &HostOwners<'_>,
    ) -> Option<ValidationFault> {
        let mut owners =
            attached.iter().flat_map(|RouteAttachment { gateway, listener, hosts, .. }| {
                hosts.iter().map(|common| owners[&(*gateway, *listener, common.hosts.clone())])
            });
        let first = owners.next()?;
        let own = &self.route.metadata;
        let gets_something = std::ptr::eq(first, own) || owners.any(|it| std::ptr::eq(it, own));
        (!gets_something)
            .then(|| ValidationFault::new(ConditionReason::Conflicted, field, self.refusal(first)))
    }

    fn refusal(&self, owner: &ObjectMeta) -> String {
        let kind = self.kind;
        let name = if owner.namespace == self.route.metadata.namespace {
            owner.name.clone()
        } else {
            format!("{}/{}", owner.namespace, owner.name)
        };
        if self.hostnames.is_empty() {
            format!("{kind} {name} has this listener and is older")
        } else {
            format!("{kind} {name} has these hostnames there and has precedence")
        }
    }

    /// Returns the rule, and the references that cannot be resolved.
    fn rule(
        &self,
        index: &ObjectIndex<'_>,
        rule: &StreamRouteRule,
    ) -> (RuleDraft, Vec<ValidationFault>) {
        let metadata = &self.route.metadata;
        let scope = ReferenceScope::Gateways;
        let referrer = ServiceReferrer { kind: self.kind, namespace: &metadata.namespace, scope };
        let mut unresolved = Vec::new();
        let mut targets = Vec::new();
        for (n, reference) in rule.backend_refs.iter().enumerate() {
            let field = format!("spec.rules[0].backendRefs[{n}]");
            let key = resolve(index, referrer, reference.service(), self.transport, &field)
                .map_err(|fault| unresolved.push(fault))
                .ok();
            unresolved.extend(key.as_ref().and_then(|key| rejected_answer(index, key, &field)));
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
        let name = format!("{}/{}/{name}", metadata.namespace, metadata.name).into();
        (RuleDraft { name, targets, ..RuleDraft::default() }, unresolved)
    }
}
