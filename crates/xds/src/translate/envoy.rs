//! Routes and Clusters as Envoys get them. An Envoy forwards the HTTP requests of others, so it can do more than a gRPC
//! client: it matches methods and queries, redirects, rewrites, changes header fields, copies requests, and retries HTTP
//! statuses.
//!
//! What neither can do is reported once, for both.

/// Matches of requests.
mod matcher;
/// Actions: the clusters, rewrites, retries and timeouts.
mod action;
/// Redirects.
mod redirect;
/// Clusters.
mod cluster;
/// TLS to endpoints.
mod tls;

use std::collections::BTreeSet;
use std::sync::Arc;

use gateway::matching::RouteMatch;
use gateway::snapshot::{
    Backend, DirectResponseSettings, HeaderEdits, MirrorPolicy, RouteFilters, Rule, RuleTarget,
};

use super::TranslationFinding;
use super::route::{HeaderChanges, UNSERVED, header_changes};
use crate::message::{DirectResponse, RouteConfiguration, RouteEntry, RouteMatcher, VirtualHost};

pub(crate) use cluster::{cluster, unresolved_cluster};

/// Returns the routes of a port.
pub(super) fn routes(
    matches: &[(&RouteMatch, &Arc<Rule>)],
    backends: &[Backend],
    findings: &mut BTreeSet<TranslationFinding>,
) -> Vec<RouteEntry> {
    let mut routes = Vec::new();
    for (route_match, rule) in matches {
        let mut find = |message| {
            findings.extend([TranslationFinding { subject: Arc::clone(&rule.name), message }])
        };
        if rule.filters.as_ref().is_some_and(|filters| filters.cors.is_some()) {
            find("cross-origin requests (CORS): clients do not answer them".to_owned());
        }
        match matcher::matchers(route_match) {
            Ok(matchers) => {
                routes.extend(matchers.into_iter().map(|matcher| entry(rule, matcher, backends)));
            }
            Err(message) => find(format!("{message}; clients have no such route")),
        }
    }
    routes
}

/// Returns the routes of some hosts.
pub(super) fn virtual_host(
    name: &str,
    domains: Vec<String>,
    routes: Vec<RouteEntry>,
) -> VirtualHost {
    VirtualHost { name: name.to_owned(), domains, routes }
}

/// Returns a RouteConfiguration. The port in a request's host is the one by which clients reach the Envoy.
pub(super) fn configuration(name: &str, virtual_hosts: Vec<VirtualHost>) -> RouteConfiguration {
    RouteConfiguration { name: name.to_owned(), virtual_hosts, ignore_port_in_host_matching: true }
}

/// Returns the backends that get copies of the requests of a rule.
pub(super) fn mirrors(rule: &Rule) -> &[MirrorPolicy] {
    rule.filters.as_ref().map_or(&[], |filters| &filters.mirrors)
}

fn entry(rule: &Rule, matcher: RouteMatcher, backends: &[Backend]) -> RouteEntry {
    let none = RouteFilters::default();
    let filters = rule.filters.as_deref().unwrap_or(&none);
    let mut entry = RouteEntry { name: rule.name.to_string(), ..RouteEntry::default() };
    let has_rules = filters.traffic.as_ref().is_some_and(|it| it.request_rules.is_some());
    if filters.security.is_some() || filters.external_auth.is_some() || has_rules {
        // An Envoy does not check its clients, asks no authorizer, and gets no request rules.
        entry.direct_response = Some(UNSERVED);
    } else if let Some(direct) = filters.traffic.as_ref().and_then(|it| it.direct_response.as_ref())
    {
        entry.direct_response = Some(match direct {
            DirectResponseSettings::Response { status, content: None } => {
                DirectResponse { status: u32::from(*status) }
            }
            // Envoys get no bodies of responses.
            DirectResponseSettings::Response { content: Some(_), .. }
            | DirectResponseSettings::Invalid => UNSERVED,
        });
    } else if let Some(redirect) = &filters.redirect {
        entry.redirect = Some(redirect::response(redirect, &matcher));
    } else if is_unserved(rule) {
        entry.direct_response = Some(UNSERVED);
    } else {
        entry.route = Some(action::action(rule, filters, &matcher, backends));
    }
    let (request, response) =
        (escaped_changes(&filters.request_headers), escaped_changes(&filters.response_headers));
    RouteEntry {
        r#match: Some(matcher),
        request_headers_to_add: request.added,
        request_headers_to_remove: request.removed,
        response_headers_to_add: response.added,
        response_headers_to_remove: response.removed,
        ..entry
    }
}

/// True if no backend can be resolved, or if one has a filter of its own without which it must not be used.
fn is_unserved(rule: &Rule) -> bool {
    let is_obstacle =
        |filters: &RouteFilters| filters.redirect.is_some() || filters.rewrite.is_some();
    rule.targets.iter().all(|it| matches!(it.target, RuleTarget::Unresolved))
        || rule.targets.iter().filter_map(|it| it.filters.as_deref()).any(is_obstacle)
}

/// Returns changes to header fields; a percent sign would begin a variable.
fn escaped_changes(edits: &HeaderEdits) -> HeaderChanges {
    let mut changes = header_changes(edits);
    for header in changes.added.iter_mut().filter_map(|it| it.header.as_mut()) {
        header.value = header.value.replace('%', "%%");
    }
    changes
}
