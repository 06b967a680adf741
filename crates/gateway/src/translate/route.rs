//! HTTPRoutes: where they attach, and why they do not.

use std::collections::BTreeSet;

use super::index::{Index, by_age};
use super::listener::{OurGateway, is_gateway_api};
use super::rule::{RuleDraft, rules};
use super::{Fault, Report};
use crate::matching::HostPattern;
use crate::objects::{Hostname, HttpRouteSpec, ParentRef, Resource};
use crate::status::{Detail, ParentStatus, Reason};

/// A route that has attached somewhere, before it has a place in a Snapshot.
pub(super) struct RouteDraft {
    pub(super) rules: Vec<RuleDraft>,
    pub(super) attachments: Vec<Attachment>,
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
    attachments.retain(|it| gateways[it.gateway].serves(it.listener));
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
