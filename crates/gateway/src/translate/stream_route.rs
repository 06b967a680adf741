//! TLSRoutes, TCPRoutes and UDPRoutes: what becomes of each.

use std::collections::BTreeMap;

use super::attach::{Asking, Attachment, settle};
use super::backend::{Referrer, resolve};
use super::draft::{RouteDraft, RuleDraft, TargetDraft};
use super::index::{Index, by_age};
use super::listener::OurGateway;
use super::{Fault, Report, condition};
use crate::matching::HostPattern;
use crate::objects::{
    Hostname, ParentRef, Resource, StreamRouteRule, StreamRouteSpec, TlsRouteSpec,
};
use crate::snapshot::Transport;
use crate::status::{ConditionType, Detail, ParentStatus, Reason};

/// Who has the connections for some hosts of a listener already, by the places of Gateway and listener: nothing else
/// tells connections apart, so that the oldest route has all of them.
type Taken = BTreeMap<(usize, usize, HostPattern), String>;

/// What these kinds have in common.
struct Asked<'a, S> {
    kind: &'static str,
    transport: Transport,
    route: &'a Resource<S>,
    parents: &'a [ParentRef],
    hostnames: &'a [Hostname],
    rules: &'a [StreamRouteRule],
    wants_default_gateways: bool,
}

/// The routes that attach to Gateways of ours, in Gateway API's order among equals.
pub(super) fn drafts(
    index: &Index<'_>,
    gateways: &mut [OurGateway<'_>],
    report: &mut Report,
) -> Vec<RouteDraft> {
    let mut taken = Taken::new();
    let mut drafts = Vec::new();
    for route in by_age(&index.tls_routes) {
        drafts.extend(tls(route).draft(index, gateways, &mut taken, report));
    }
    for route in by_age(&index.tcp_routes) {
        let asked = stream("TCPRoute", Transport::Tcp, route);
        drafts.extend(asked.draft(index, gateways, &mut taken, report));
    }
    for route in by_age(&index.udp_routes) {
        let asked = stream("UDPRoute", Transport::Udp, route);
        drafts.extend(asked.draft(index, gateways, &mut taken, report));
    }
    drafts
}

fn tls(route: &Resource<TlsRouteSpec>) -> Asked<'_, TlsRouteSpec> {
    let spec = &route.spec;
    Asked {
        kind: "TLSRoute",
        transport: Transport::Tcp,
        route,
        parents: &spec.parent_refs,
        hostnames: &spec.hostnames,
        rules: &spec.rules,
        wants_default_gateways: spec.use_default_gateways.is_some(),
    }
}

fn stream<'a>(
    kind: &'static str,
    transport: Transport,
    route: &'a Resource<StreamRouteSpec>,
) -> Asked<'a, StreamRouteSpec> {
    let spec = &route.spec;
    Asked {
        kind,
        transport,
        route,
        parents: &spec.parent_refs,
        hostnames: &[],
        rules: &spec.rules,
        wants_default_gateways: spec.use_default_gateways.is_some(),
    }
}

impl<S> Asked<'_, S> {
    fn draft(
        &self,
        index: &Index<'_>,
        gateways: &mut [OurGateway<'_>],
        taken: &mut Taken,
        report: &mut Report,
    ) -> Option<RouteDraft> {
        let Self { kind, route, parents, hostnames, .. } = *self;
        let parents = Asking { kind, route, parents, hostnames }.parents(index, gateways, report);
        if parents.is_empty() {
            return None;
        }
        if self.wants_default_gateways {
            report.problem(kind, route, "spec.useDefaultGateways", "is not supported");
        }
        if self.rules.len() > 1 {
            let message =
                "is not served: connections cannot be told apart, so the first rule has all";
            report.problem(kind, route, "spec.rules[1]", message);
        }
        let (rule, unresolved) = self.rule(index, &self.rules[0]);
        let mut attachments: Vec<Attachment> = Vec::new();
        let mut statuses = Vec::new();
        for parent in parents {
            let attached = self.take(parent.attached, &parent.field, taken);
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
        let draft = RouteDraft { rules: vec![rule], attachments, is_grpc: false };
        Some(draft).filter(|it| !it.attachments.is_empty())
    }

    /// Takes what nobody has yet of the listeners at a parent, if that is anything.
    fn take(
        &self,
        attached: Result<Vec<Attachment>, Fault>,
        field: &str,
        taken: &mut Taken,
    ) -> Result<Vec<Attachment>, Fault> {
        let mut attached = attached?;
        let mut refusal = None;
        for Attachment { gateway, listener, hosts, .. } in &mut attached {
            hosts.retain(|host| match taken.get(&(*gateway, *listener, host.clone())) {
                None => true,
                Some(owner) => {
                    refusal.get_or_insert_with(|| self.refusal(owner));
                    false
                }
            });
            let name = &self.route.metadata.name;
            taken.extend(
                hosts.iter().map(|host| ((*gateway, *listener, host.clone()), name.clone())),
            );
        }
        attached.retain(|it| !it.hosts.is_empty());
        match refusal {
            Some(message) if attached.is_empty() => {
                Err(Fault::new(Reason::Conflicted, field, message))
            }
            Some(_) | None => Ok(attached),
        }
    }

    fn refusal(&self, owner: &str) -> String {
        let kind = self.kind;
        if self.hostnames.is_empty() {
            format!("{kind} {owner} has this listener and is older")
        } else {
            format!("{kind} {owner} has these hostnames there and is older")
        }
    }

    /// Where connections go, and the references that lead nowhere.
    fn rule(&self, index: &Index<'_>, rule: &StreamRouteRule) -> (RuleDraft, Vec<Fault>) {
        let metadata = &self.route.metadata;
        let referrer = Referrer { kind: self.kind, namespace: &metadata.namespace };
        let mut unresolved = Vec::new();
        let mut targets = Vec::new();
        for (n, reference) in rule.backend_refs.iter().enumerate() {
            let field = format!("spec.rules[0].backendRefs[{n}]");
            let key = resolve(index, referrer, reference.service(), self.transport, &field)
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
        let name = format!("{}/{}/{name}", metadata.namespace, metadata.name).into();
        (RuleDraft { name, targets, ..RuleDraft::default() }, unresolved)
    }
}
