//! Explanation of the decision of [`RouteTable::find`]: why one rule serves a request, and the others do not.
//!
//! It checks every rule. It is for diagnostics, not for the request path.

use super::condition::UnmetCondition;
use super::{
    HostName, HostNameBuffer, HostPattern, RequestAttributes, RouteEntry, RouteMatch, RouteTable,
};
use crate::snapshot::Rule;

/// A request given as text, for the explanation of a hypothetical request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainRequest {
    /// The method, such as `GET`.
    pub method: String,
    /// The host without a port.
    pub host: String,
    /// The path without a query.
    pub path: String,
    /// The query without its `?`.
    pub query: String,
    /// Names and values of the header fields.
    pub headers: Vec<(String, String)>,
}

impl RequestAttributes for PlainRequest {
    fn method(&self) -> &[u8] {
        self.method.as_bytes()
    }

    fn host(&self) -> &[u8] {
        self.host.as_bytes()
    }

    fn path(&self) -> &[u8] {
        self.path.as_bytes()
    }

    fn query(&self) -> &[u8] {
        self.query.as_bytes()
    }

    fn headers<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r [u8]> {
        let is_named = move |field: &&(String, String)| field.0.eq_ignore_ascii_case(name);
        self.headers.iter().filter(is_named).map(|(_, value)| value.as_bytes())
    }
}

/// The result of matching a request against a table.
#[derive(Clone, Debug)]
pub struct RouteExplanation<'t> {
    /// The hosts of the listener that the request belongs to; `None` if it belongs to none.
    pub listener: Option<&'t HostPattern>,
    /// A verdict for every match of every rule. The chosen one, if any, comes first, then the nearest misses.
    pub verdicts: Vec<RuleVerdict<'t>>,
}

/// The verdict on one match of a rule.
#[derive(Clone, Debug)]
pub struct RuleVerdict<'t> {
    /// The rule.
    pub rule: &'t Rule,
    /// The hosts of the match.
    pub hosts: &'t HostPattern,
    /// The path and the conditions of the match.
    pub route_match: &'t RouteMatch,
    /// The reason why it serves the request, or does not.
    pub result: MatchResult<'t>,
}

/// The reason why a rule serves a request, or does not; the variants are in the order of nearness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchResult<'t> {
    /// The rule serves the request.
    Chosen,
    /// The rule matches, but the chosen one has precedence.
    LowerPrecedence,
    /// Host and path match, but this condition is not met.
    Unmet(UnmetCondition<'t>),
    /// The host matches, the path does not.
    OtherPath,
    /// The host does not match.
    OtherHost,
    /// The rule belongs to another listener on the same address.
    OtherListener,
}

impl RouteTable {
    /// Explains why a rule serves a request, and the others do not.
    pub fn explain(&self, request: &impl RequestAttributes) -> RouteExplanation<'_> {
        let mut buffer = HostNameBuffer::new();
        let host = HostName::new(request.host(), &mut buffer);
        let chosen = self.find_entry(host, request);
        let listener = self.listeners.find(host).map(|listener| &listener.hosts);
        let verdict = |entry| verdict(entry, request, host, listener, chosen);
        let mut verdicts: Vec<_> = self.entries.iter().map(verdict).collect();
        verdicts.sort_by_key(|verdict| verdict.result.distance());
        RouteExplanation { listener, verdicts }
    }
}

impl MatchResult<'_> {
    const fn distance(&self) -> u8 {
        match self {
            Self::Chosen => 0,
            Self::LowerPrecedence => 1,
            Self::Unmet(_) => 2,
            Self::OtherPath => 3,
            Self::OtherHost => 4,
            Self::OtherListener => 5,
        }
    }
}

fn verdict<'t>(
    entry: &'t RouteEntry,
    request: &impl RequestAttributes,
    host: HostName<'_>,
    listener: Option<&HostPattern>,
    chosen: Option<&RouteEntry>,
) -> RuleVerdict<'t> {
    let RouteEntry { hosts, route_match, rule, .. } = entry;
    let result = if chosen.is_some_and(|chosen| std::ptr::eq(chosen, entry)) {
        MatchResult::Chosen
    } else if listener != Some(&entry.listener) {
        MatchResult::OtherListener
    } else if !hosts.matches(host) {
        MatchResult::OtherHost
    } else if !route_match.path.matches(request.path()) {
        MatchResult::OtherPath
    } else {
        route_match
            .conditions
            .first_unmet(request)
            .map_or(MatchResult::LowerPrecedence, MatchResult::Unmet)
    };
    RuleVerdict { rule, hosts, route_match, result }
}
