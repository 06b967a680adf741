//! HTTPRoutes: where they attach, and what their rules come to.

use std::collections::BTreeSet;
use std::sync::Arc;

use super::index::{Index, by_age};
use super::listener::{OurGateway, is_gateway_api};
use super::{Fault, Report, backend, condition};
use crate::matching::{HostPattern, PathPattern};
use crate::objects::{
    Hostname, HttpRouteMatch, HttpRouteRule, HttpRouteSpec, ParentRef, PathMatchType, Resource,
};
use crate::snapshot::BackendKey;
use crate::status::{Condition, ConditionType, Detail, ParentStatus, Reason};

/// A route that has attached somewhere, before it has a place in a Snapshot.
pub(super) struct RouteDraft {
    pub(super) rules: Vec<RuleDraft>,
    pub(super) attachments: Vec<Attachment>,
}

/// A rule before its backends have places in a Snapshot.
pub(super) struct RuleDraft {
    /// `namespace/route/rule`.
    pub(super) name: Arc<str>,
    pub(super) paths: Vec<PathPattern>,
    /// With their weights, which are positive; `None` cannot be resolved. There is at least one.
    pub(super) targets: Vec<(Option<BackendKey>, u32)>,
}

/// Where a route has attached.
pub(super) struct Attachment {
    /// A place among our Gateways.
    pub(super) gateway: usize,
    /// A place among the Gateway's listeners.
    pub(super) listener: usize,
    /// The hosts that both the listener and the route ask for.
    pub(super) hosts: Vec<HostPattern>,
}

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
    let parents = parents(index, route, gateways, report);
    if parents.is_empty() {
        return None;
    }
    let rules = rules(index, route, report);
    let mut attachments = Vec::new();
    let mut statuses = Vec::new();
    for (parent, attached) in parents {
        let attached = match attached {
            Ok(_) if rules.drafts.is_empty() => Err(rules.nothing_left()),
            attached => attached,
        };
        let fault = attached.as_ref().err();
        statuses.push(ParentStatus { parent: parent.clone(), conditions: rules.conditions(fault) });
        attachments.extend(attached.into_iter().flatten());
    }
    report.status("HTTPRoute", route, Detail::HttpRoute(statuses));
    let listeners: BTreeSet<_> = attachments.iter().map(|it| (it.gateway, it.listener)).collect();
    for (gateway, listener) in listeners {
        gateways[gateway].listeners[listener].attached_routes += 1;
    }
    attachments.retain(|it| gateways[it.gateway].listeners[it.listener].is_served());
    Some(RouteDraft { rules: rules.drafts, attachments }).filter(|it| !it.attachments.is_empty())
}

/// The parents that are ours, each with where the route attaches or why it does not.
fn parents<'a>(
    index: &Index<'_>,
    route: &'a Resource<HttpRouteSpec>,
    gateways: &[OurGateway<'_>],
    report: &mut Report,
) -> Vec<(&'a ParentRef, Result<Vec<Attachment>, Fault>)> {
    if route.spec.parent_refs.is_empty() {
        report.problem(
            "HTTPRoute",
            route,
            "spec.parentRefs",
            "is empty: the route attaches to nothing",
        );
    }
    let mut parents = Vec::new();
    for (n, parent) in route.spec.parent_refs.iter().enumerate() {
        let field = format!("spec.parentRefs[{n}]");
        match find_gateway(index, route, parent, gateways) {
            Ok(Some(place)) => {
                let attached = attach(route, parent, &field, place, &gateways[place]);
                attached
                    .as_ref()
                    .err()
                    .into_iter()
                    .for_each(|it| report.fault("HTTPRoute", route, it));
                parents.push((parent, attached));
            }
            // Another controller's Gateway.
            Ok(None) => {}
            Err((part, message)) => {
                report.problem("HTTPRoute", route, &format!("{field}.{part}"), message);
            }
        }
    }
    parents
}

/// The place of a parent among our Gateways; none if it is another controller's.
fn find_gateway(
    index: &Index<'_>,
    route: &Resource<HttpRouteSpec>,
    parent: &ParentRef,
    gateways: &[OurGateway<'_>],
) -> Result<Option<usize>, (&'static str, String)> {
    let kind = parent.kind.as_deref().unwrap_or("Gateway");
    if !is_gateway_api(parent.group.as_deref()) || kind != "Gateway" {
        return Err(("kind", format!("{kind} is not supported, only Gateway")));
    }
    let namespace = parent.namespace.as_ref().unwrap_or(&route.metadata.namespace);
    let Some(object) = index.gateways.get(&(&**namespace, &*parent.name)) else {
        return Err(("name", format!("there is no Gateway {namespace}/{}", parent.name)));
    };
    Ok(gateways.iter().position(|gateway| std::ptr::eq(gateway.object, *object)))
}

/// Where a route attaches at a parent: listeners that are meant, allow it and have a host in common with it.
fn attach(
    route: &Resource<HttpRouteSpec>,
    parent: &ParentRef,
    field: &str,
    place: usize,
    gateway: &OurGateway<'_>,
) -> Result<Vec<Attachment>, Fault> {
    let listeners = gateway.listeners.iter().enumerate();
    let mut found: Vec<_> = listeners
        .filter(|(_, it)| parent.section_name.as_ref().is_none_or(|name| *name == it.spec.name))
        .filter(|(_, it)| parent.port.is_none_or(|port| port == it.spec.port))
        .collect();
    if found.is_empty() {
        let message = "the Gateway has no listener of this name and port";
        return Err(Fault::new(Reason::NoMatchingParent, field, message));
    }
    let (own, other) = (&gateway.object.metadata.namespace, &route.metadata.namespace);
    found.retain(|(_, listener)| listener.allows(own, other));
    if found.is_empty() {
        let message = format!("no listener allows HTTPRoutes of namespace {other}");
        return Err(Fault::new(Reason::NotAllowedByListeners, field, message));
    }
    let attachments: Vec<_> = found
        .into_iter()
        .map(|(listener, it)| Attachment {
            gateway: place,
            listener,
            hosts: common_hosts(&it.hosts, &route.spec.hostnames),
        })
        .filter(|attachment| !attachment.hosts.is_empty())
        .collect();
    if attachments.is_empty() {
        let message = "no listener has a hostname in common with the route";
        return Err(Fault::new(Reason::NoMatchingListenerHostname, "spec.hostnames", message));
    }
    Ok(attachments)
}

fn common_hosts(listener: &HostPattern, hostnames: &[Hostname]) -> Vec<HostPattern> {
    if hostnames.is_empty() {
        return vec![listener.clone()];
    }
    hostnames.iter().filter_map(|hostname| listener.intersect(&hostname.0)).collect()
}

/// What the rules of a route come to.
#[derive(Default)]
struct Rules {
    drafts: Vec<RuleDraft>,
    /// Why rules were left out.
    dropped: Vec<Fault>,
    /// References that lead nowhere: their share is answered with 500.
    unresolved: Vec<Fault>,
}

fn rules(index: &Index<'_>, route: &Resource<HttpRouteSpec>, report: &mut Report) -> Rules {
    let mut rules = Rules::default();
    if route.spec.use_default_gateways.is_some() {
        report.problem("HTTPRoute", route, "spec.useDefaultGateways", "is not supported");
    }
    for (n, rule) in route.spec.rules.iter().enumerate() {
        let field = format!("spec.rules[{n}]");
        let (paths, mut faults) = paths(rule, &field);
        faults.extend(unserved(rule, &field));
        if faults.is_empty() {
            let name = rule_name(route, n, rule);
            let targets = targets(index, route, rule, &field, &mut rules.unresolved);
            rules.drafts.push(RuleDraft { name, paths, targets });
        }
        rules.dropped.extend(faults);
    }
    for fault in rules.dropped.iter().chain(&rules.unresolved) {
        report.fault("HTTPRoute", route, fault);
    }
    rules
}

impl Rules {
    fn nothing_left(&self) -> Fault {
        Fault::new(Reason::UnsupportedValue, "spec.rules", self.dropped_message())
    }

    /// Gateway API prescribes how the message begins.
    fn dropped_message(&self) -> String {
        let fields: Vec<_> = self.dropped.iter().map(|fault| fault.field.as_str()).collect();
        format!("Dropped Rule because of {}", fields.join(", "))
    }

    /// What holds at a parent that the route has not attached to because of `fault`, or that it has.
    fn conditions(&self, fault: Option<&Fault>) -> Vec<Condition> {
        use ConditionType::{Accepted, PartiallyInvalid, ResolvedRefs};
        let mut conditions = vec![
            condition(Accepted, Reason::Accepted, fault),
            condition(ResolvedRefs, Reason::ResolvedRefs, self.unresolved.first()),
        ];
        if !self.dropped.is_empty() && !self.drafts.is_empty() {
            conditions.push(Condition {
                kind: PartiallyInvalid,
                holds: true,
                reason: Reason::UnsupportedValue,
                message: self.dropped_message(),
            });
        }
        conditions
    }
}

fn rule_name(route: &Resource<HttpRouteSpec>, place: usize, rule: &HttpRouteRule) -> Arc<str> {
    let number = place.to_string();
    let name = rule.name.as_ref().unwrap_or(&number);
    format!("{}/{}/{name}", route.metadata.namespace, route.metadata.name).into()
}

/// The paths that a rule asks for, and what is wrong with its matches. No match is every path.
fn paths(rule: &HttpRouteRule, field: &str) -> (Vec<PathPattern>, Vec<Fault>) {
    if rule.matches.is_empty() {
        return (vec![PathPattern::Prefix("/".into())], Vec::new());
    }
    let mut paths = Vec::new();
    let mut faults = Vec::new();
    for (n, wanted) in rule.matches.iter().enumerate() {
        let field = format!("{field}.matches[{n}]");
        match path(wanted) {
            Ok(path) => paths.push(path),
            Err((part, message)) => {
                faults.push(Fault::new(
                    Reason::UnsupportedValue,
                    format!("{field}.path.{part}"),
                    message,
                ));
            }
        }
        let unserved = [
            (!wanted.headers.is_empty(), "headers"),
            (!wanted.query_params.is_empty(), "queryParams"),
            (wanted.method.is_some(), "method"),
        ];
        faults.extend(not_supported(&field, &unserved));
    }
    (paths, faults)
}

fn path(wanted: &HttpRouteMatch) -> Result<PathPattern, (&'static str, String)> {
    let value = &wanted.path.value;
    let make = match wanted.path.kind {
        PathMatchType::Exact => PathPattern::exact,
        PathMatchType::PathPrefix => PathPattern::prefix,
        PathMatchType::RegularExpression => {
            return Err((
                "type",
                "RegularExpression is not supported, only Exact and PathPrefix".to_owned(),
            ));
        }
    };
    make(value).map_err(|fault| ("value", fault.to_string()))
}

/// What a rule asks for that we do not serve yet: the rule would mean something else without it.
fn unserved(rule: &HttpRouteRule, field: &str) -> Vec<Fault> {
    let unserved = [
        (!rule.filters.is_empty(), "filters"),
        (rule.timeouts.is_some(), "timeouts"),
        (rule.retry.is_some(), "retry"),
        (rule.session_persistence.is_some(), "sessionPersistence"),
    ];
    let mut faults: Vec<_> = not_supported(field, &unserved).collect();
    for (n, reference) in rule.backend_refs.iter().enumerate() {
        let field = format!("{field}.backendRefs[{n}]");
        faults.extend(not_supported(&field, &[(!reference.filters.is_empty(), "filters")]));
    }
    faults
}

fn not_supported(field: &str, parts: &[(bool, &str)]) -> impl Iterator<Item = Fault> {
    let present = parts.iter().filter(|(is_present, _)| *is_present);
    present.map(move |(_, part)| {
        Fault::new(Reason::UnsupportedValue, format!("{field}.{part}"), "is not supported")
    })
}

/// Where the requests of a rule go. One that can go nowhere is answered with 500, as Gateway API asks.
fn targets(
    index: &Index<'_>,
    route: &Resource<HttpRouteSpec>,
    rule: &HttpRouteRule,
    field: &str,
    unresolved: &mut Vec<Fault>,
) -> Vec<(Option<BackendKey>, u32)> {
    let mut targets = Vec::new();
    for (n, reference) in rule.backend_refs.iter().enumerate() {
        let field = format!("{field}.backendRefs[{n}]");
        let key = backend::resolve(index, &route.metadata.namespace, reference, &field)
            .map_err(|fault| unresolved.push(fault))
            .ok();
        if reference.weight > 0 {
            targets.push((key, reference.weight));
        }
    }
    if targets.is_empty() {
        targets.push((None, 1));
    }
    targets
}
