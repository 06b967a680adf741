//! Why a rule serves a request, and the others do not: the same decision as [`RouteTable::find`] makes, told in full.
//!
//! It looks at every rule, and is for people who ask, not for requests.

use super::condition::UnmetCondition;
use super::{
    HostName, HostNameBuffer, HostPattern, RequestAttributes, RouteEntry, RouteMatch, RouteTable,
};
use crate::snapshot::Rule;

/// A request that is written out, for those who ask what would become of one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlainRequest {
    /// As `GET`.
    pub method: String,
    /// Without a port.
    pub host: String,
    /// Without a query.
    pub path: String,
    /// Without its `?`.
    pub query: String,
    /// Names and values of header fields.
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

/// What becomes of a request at a table.
#[derive(Clone, Debug)]
pub struct RouteExplanation<'t> {
    /// The hosts of the listener that the request belongs to; `None`: it belongs to none.
    pub listener: Option<&'t HostPattern>,
    /// Every way to a rule, with what is to be said of it; the one that is chosen, if any, comes first, then those that
    /// are nearest to it.
    pub verdicts: Vec<RuleVerdict<'t>>,
}

/// What is to be said of one way to a rule.
#[derive(Clone, Debug)]
pub struct RuleVerdict<'t> {
    /// Where it leads.
    pub rule: &'t Rule,
    /// The hosts it asks for.
    pub hosts: &'t HostPattern,
    /// What else it asks for.
    pub route_match: &'t RouteMatch,
    /// Why it serves the request, or does not.
    pub result: MatchResult<'t>,
}

/// Why a rule serves a request, or does not; in the order of nearness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MatchResult<'t> {
    /// It serves the request.
    Chosen,
    /// It would, but the one that is chosen goes before it.
    LowerPrecedence,
    /// Host and path are right, but not this.
    Unmet(UnmetCondition<'t>),
    /// The host is right, the path another.
    OtherPath,
    /// The host is another.
    OtherHost,
    /// It is of another listener on the same address.
    OtherListener,
}

impl RouteTable {
    /// Why a rule serves a request, and the others do not.
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
    let RouteEntry { hosts, route_match: asked, rule, .. } = entry;
    let why = if chosen.is_some_and(|chosen| std::ptr::eq(chosen, entry)) {
        MatchResult::Chosen
    } else if listener != Some(&entry.listener) {
        MatchResult::OtherListener
    } else if !hosts.matches(host) {
        MatchResult::OtherHost
    } else if !asked.path.matches(request.path()) {
        MatchResult::OtherPath
    } else {
        asked
            .conditions
            .first_unmet(request)
            .map_or(MatchResult::LowerPrecedence, MatchResult::Unmet)
    };
    RuleVerdict { rule, hosts, route_match: asked, result: why }
}
