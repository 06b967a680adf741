//! RouteConfigurations: the matches of a port in their order of precedence, each with its action.

use std::collections::BTreeSet;
use std::sync::Arc;

use gateway::matching::RouteMatch;
use gateway::snapshot::{Backend, HeaderEdits, HeaderField, RouteFilters, Rule};

use super::{TranslationFinding, action, matcher};
use crate::message::{
    DirectResponse, HeaderValue, HeaderValueOption, RouteConfiguration, RouteEntry, VirtualHost,
};

/// The status of the response to a request that cannot be served. gRPC clients fail the call as unavailable.
pub(super) const UNSERVED: DirectResponse = DirectResponse { status: 500 };

/// Changes to header fields, as messages have them.
#[derive(Clone, Default)]
pub(super) struct HeaderChanges {
    pub(super) added: Vec<HeaderValueOption>,
    pub(super) removed: Vec<String>,
}

/// Returns the routes of a port.
pub(super) fn configuration(
    name: &str,
    matches: &[(&RouteMatch, &Arc<Rule>)],
    backends: &[Backend],
    findings: &mut BTreeSet<TranslationFinding>,
) -> RouteConfiguration {
    let mut routes = Vec::new();
    for (route_match, rule) in matches {
        let mut find = |message| {
            findings.extend([TranslationFinding { subject: Arc::clone(&rule.name), message }])
        };
        let matchers = match matcher::matchers(route_match) {
            Ok(matchers) => matchers,
            Err(message) => {
                find(format!("{message}; clients have no such route"));
                continue;
            }
        };
        let entry = entry(rule, backends, &mut find);
        let entries = matchers
            .into_iter()
            .map(|matcher| RouteEntry { r#match: Some(matcher), ..entry.clone() });
        routes.extend(entries);
    }
    let host = VirtualHost { name: name.to_owned(), domains: vec!["*".to_owned()], routes };
    RouteConfiguration {
        name: name.to_owned(),
        virtual_hosts: vec![host],
        ..RouteConfiguration::default()
    }
}

/// Returns the route of a rule, without its match.
fn entry(rule: &Rule, backends: &[Backend], find: &mut impl FnMut(String)) -> RouteEntry {
    let name = rule.name.to_string();
    let none = RouteFilters::default();
    let filters = rule.filters.as_deref().unwrap_or(&none);
    let targets = || rule.targets.iter().filter_map(|it| it.filters.as_deref());
    if let Some(obstacle) = std::iter::once(filters).chain(targets()).find_map(obstacle) {
        find(format!("{obstacle} cannot be done by clients: calls of this rule fail"));
        return RouteEntry { name, direct_response: Some(UNSERVED), ..RouteEntry::default() };
    }
    for filters in std::iter::once(filters).chain(targets()) {
        ignored_filters(filters).for_each(|what| {
            find(format!("{what}: gRPC clients do not do this, calls are served without it"));
        });
    }
    let (request, response) =
        (header_changes(&filters.request_headers), header_changes(&filters.response_headers));
    RouteEntry {
        r#match: None,
        route: Some(action::action(rule, backends, find)),
        redirect: None,
        direct_response: None,
        request_headers_to_add: request.added,
        request_headers_to_remove: request.removed,
        response_headers_to_add: response.added,
        response_headers_to_remove: response.removed,
        name,
        non_forwarding_action: None,
    }
}

/// Returns the filter without which a request must not be served.
fn obstacle(filters: &RouteFilters) -> Option<&'static str> {
    let direct = filters.traffic.as_ref().is_some_and(|it| it.direct_response.is_some());
    let rules = filters.traffic.as_ref().is_some_and(|it| it.request_rules.is_some());
    let obstacles = [
        (filters.security.is_some(), "a check of the client"),
        (filters.external_auth.is_some(), "a question to an authorizer"),
        (rules, "request rules"),
        (direct, "a response in place of an endpoint's"),
        (filters.redirect.is_some(), "a redirect"),
        (filters.rewrite.is_some(), "a rewrite"),
    ];
    obstacles.into_iter().find(|(is_there, _)| *is_there).map(|(_, what)| what)
}

/// Returns the filters that gRPC clients ignore.
fn ignored_filters(filters: &RouteFilters) -> impl Iterator<Item = &'static str> + use<> {
    let ignored = [
        (filters.rate_limit.is_some(), "a limit of the rate of requests"),
        (filters.traffic.is_some(), "a TrafficPolicy"),
        (!filters.mirrors.is_empty(), "copies of requests"),
        (!filters.request_headers.is_empty(), "changes to header fields of requests"),
        (!filters.response_headers.is_empty(), "changes to header fields of responses"),
    ];
    ignored.into_iter().filter(|(is_there, _)| *is_there).map(|(_, what)| what)
}

pub(super) fn header_changes(edits: &HeaderEdits) -> HeaderChanges {
    let option = |action| {
        move |field: &HeaderField| HeaderValueOption {
            header: Some(HeaderValue {
                key: field.name.to_string(),
                value: field.value.to_string(),
            }),
            append_action: action,
        }
    };
    let set = edits.set.iter().map(option(HeaderValueOption::OVERWRITE));
    HeaderChanges {
        added: set.chain(edits.add.iter().map(option(HeaderValueOption::APPEND))).collect(),
        removed: edits.remove.iter().map(ToString::to_string).collect(),
    }
}
