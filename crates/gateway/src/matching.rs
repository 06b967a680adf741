//! Request matching: finds the rule that serves a request in a time that does not grow with the number of routes.
//!
//! The precedence is Gateway API's: the listener with the most specific hostname, within it the most specific route
//! hostname, then the path (exact, then regular expressions, then the longest prefix), then a method match, then the
//! larger number of header fields, then the larger number of query parameters, then the oldest rule. Hosts are a tree
//! of labels read from the right, paths a tree of segments. A request costs one hash lookup per label and segment, one
//! step back for each less specific match it falls back to, and a check of each rule at the paths that it reaches. The
//! module must not know where rules come from or where they lead.

/// A tree of words with one hash lookup per word.
mod trie;
/// Host names in normal form.
mod host;
/// Host and path patterns.
mod pattern;
/// Match conditions besides host and path.
mod condition;
/// The rules of a table as one list, for clients that match requests themselves.
mod precedence;
/// Explanation of a match: why one rule serves a request, and the others do not.
mod explain;
#[cfg(test)]
mod tests;

use std::cmp::Reverse;
use std::sync::Arc;

pub use condition::{
    FieldCondition, InvalidPattern, MatchConditions, RegexPattern, SearchPattern, UnmetCondition,
    ValuePattern, query_value,
};
pub use explain::{MatchResult, PlainRequest, RouteExplanation, RuleVerdict};
pub use host::{HostName, HostNameBuffer, OwnedHostName};
pub use pattern::{HostPattern, InvalidHost, InvalidPath, PathPattern};

use crate::snapshot::Rule;
use trie::{TriePosition, WordTrie};

/// Attributes of a request that rules match on.
pub trait RequestAttributes {
    /// The method as the client wrote it.
    fn method(&self) -> &[u8];
    /// The authority without its port, in any letter case; may be empty.
    fn host(&self) -> &[u8];
    /// The path without its query; it begins with `/`.
    fn path(&self) -> &[u8];
    /// The query without its `?`; may be empty.
    fn query(&self) -> &[u8];
    /// The values of every header field of a name, which is given in lower case.
    fn headers<'r>(&'r self, name: &'r str) -> impl Iterator<Item = &'r [u8]>;
}

/// One match of a rule. Of several matches the first in Gateway API's order wins.
#[derive(Clone, Debug)]
pub struct RouteMatch {
    /// The path that the request must have.
    pub path: PathPattern,
    /// Further conditions that the request must meet.
    pub conditions: MatchConditions,
}

/// The rules of one address, indexed by host and path.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    /// Routes by listener hostname. A request belongs to the most specific of the listeners that share the address, and
    /// to no other.
    listeners: HostTrie<ListenerRoutes>,
    /// All entries in the order in which they were added.
    entries: Vec<RouteEntry>,
}

/// The hosts of a listener, and its rules.
#[derive(Clone, Debug, Default)]
struct ListenerRoutes {
    hosts: HostPattern,
    routes: HostTrie<PathTrie>,
}

/// A rule under one of its matches.
#[derive(Clone, Debug)]
struct RouteEntry {
    listener: HostPattern,
    hosts: HostPattern,
    route_match: Arc<RouteMatch>,
    rule: Arc<Rule>,
}

impl RouteTable {
    /// Adds a listener. The listener takes the requests for its hosts even if none of its rules matches.
    pub fn add_listener(&mut self, hosts: &HostPattern) {
        self.listeners.entry(hosts).hosts = hosts.clone();
    }

    /// Adds a rule to a listener. Of two rules with the same match the one added first wins.
    pub fn add_rule(
        &mut self,
        listener: &HostPattern,
        hosts: &HostPattern,
        route_match: &Arc<RouteMatch>,
        rule: &Arc<Rule>,
    ) {
        let (number, rule) = (self.entries.len(), Arc::clone(rule));
        self.entries.push(RouteEntry {
            listener: listener.clone(),
            hosts: hosts.clone(),
            route_match: Arc::clone(route_match),
            rule,
        });
        self.add_listener(listener);
        self.listeners.entry(listener).routes.entry(hosts).add(number, &self.entries);
    }

    /// Returns every rule, once for each of its matches.
    pub fn rules(&self) -> impl Iterator<Item = &Arc<Rule>> {
        self.entries.iter().map(|entry| &entry.rule)
    }

    /// Returns the rule that serves a request.
    ///
    /// A host longer than the DNS limit matches only patterns without a host.
    pub fn find(&self, request: &impl RequestAttributes) -> Option<&Arc<Rule>> {
        let mut buffer = HostNameBuffer::new();
        self.find_at(HostName::new(request.host(), &mut buffer), request)
    }

    /// Returns the rule that serves a request with this host. For callers that need the normalised name themselves.
    pub fn find_at(
        &self,
        host: HostName<'_>,
        request: &impl RequestAttributes,
    ) -> Option<&Arc<Rule>> {
        self.find_entry(host, request).map(|entry| &entry.rule)
    }

    fn find_entry(
        &self,
        host: HostName<'_>,
        request: &impl RequestAttributes,
    ) -> Option<&RouteEntry> {
        let listener = self.listeners.find(host)?;
        listener.routes.find_first(host, |paths| paths.find(request, &self.entries))
    }
}

/// A map from host patterns to `T`.
#[derive(Clone, Debug)]
pub struct HostTrie<T> {
    labels: WordTrie<HostNode<T>>,
}

/// The values of one name: for the name itself and for its subdomains.
#[derive(Clone, Debug)]
struct HostNode<T> {
    exact: Option<T>,
    wildcard: Option<T>,
}

impl<T> Default for HostTrie<T> {
    fn default() -> Self {
        Self { labels: WordTrie::default() }
    }
}

impl<T> Default for HostNode<T> {
    fn default() -> Self {
        Self { exact: None, wildcard: None }
    }
}

impl<T: Default> HostTrie<T> {
    /// Returns the value of a pattern, and creates it if there is none.
    pub fn entry(&mut self, pattern: &HostPattern) -> &mut T {
        let slot = match pattern {
            HostPattern::Any => &mut self.labels.entry(std::iter::empty()).wildcard,
            HostPattern::Wildcard(name) => &mut self.labels.entry(labels(name.as_bytes())).wildcard,
            HostPattern::Exact(name) => &mut self.labels.entry(labels(name.as_bytes())).exact,
        };
        slot.get_or_insert_default()
    }
}

impl<T> HostTrie<T> {
    /// Returns the values of all patterns that cover every host of `pattern`.
    pub(crate) fn covering(&self, pattern: &HostPattern) -> Vec<&T> {
        let end = self.descend(pattern);
        let names = end.is_exact.then(|| self.labels.value(end));
        let (own, above) = match pattern {
            HostPattern::Exact(_) => (names.and_then(|names| names.exact.as_ref()), true),
            HostPattern::Wildcard(_) | HostPattern::Any => (None, false),
        };
        let above = if end.is_exact && above { self.labels.parent(end) } else { Some(end) };
        let above = above.into_iter().flat_map(|at| self.labels.ancestors(at));
        own.into_iter().chain(above.filter_map(|names| names.wildcard.as_ref())).collect()
    }

    /// Returns the values of all patterns that have a host in common with `pattern`.
    pub(crate) fn common(&self, pattern: &HostPattern) -> Vec<&T> {
        let mut found = self.covering(pattern);
        let end = self.descend(pattern);
        let is_one = matches!(pattern, HostPattern::Exact(_));
        if end.is_exact && !is_one {
            let beneath = self.labels.descendants(end).into_iter();
            found.extend(beneath.flat_map(|names| names.exact.iter().chain(&names.wildcard)));
        }
        found
    }

    fn descend(&self, pattern: &HostPattern) -> TriePosition {
        match pattern {
            HostPattern::Any => self.labels.descend(std::iter::empty()),
            HostPattern::Wildcard(name) | HostPattern::Exact(name) => {
                self.labels.descend(labels(name.as_bytes()))
            }
        }
    }

    /// Returns the value of the most specific pattern that matches `host`.
    pub fn find(&self, host: HostName<'_>) -> Option<&T> {
        self.find_first(host, Some)
    }

    /// Returns the first result of `accept` over the values of the patterns that match `host`, the most specific
    /// pattern first.
    fn find_first<'a, R>(
        &'a self,
        host: HostName<'_>,
        accept: impl Fn(&'a T) -> Option<R>,
    ) -> Option<R> {
        let end = self.labels.descend(labels(host.as_bytes()));
        let names = self.labels.value(end);
        if end.is_exact
            && let Some(found) = names.exact.as_ref().and_then(&accept)
        {
            return Some(found);
        }
        // `*.example.com` does not match `example.com`: the whole host is not a subdomain of itself.
        let mut next = if end.is_exact { self.labels.parent(end) } else { Some(end) };
        while let Some(at) = next {
            if let Some(found) = self.labels.value(at).wildcard.as_ref().and_then(&accept) {
                return Some(found);
            }
            next = self.labels.parent(at);
        }
        None
    }
}

/// The rules of one host pattern, by path, as indices into the entries.
#[derive(Clone, Debug, Default)]
struct PathTrie {
    segments: WordTrie<PathRules>,
    /// True if any path is a regular expression. Most tables have none and skip the check.
    has_patterns: bool,
}

/// The rules of one path, each list in the order of precedence.
#[derive(Clone, Debug, Default)]
struct PathRules {
    /// Rules for exactly this path.
    exact: Vec<usize>,
    /// Rules with a regular expression that has this path as its literal prefix.
    patterns: Vec<usize>,
    /// Rules for this path and all paths below it.
    prefix: Vec<usize>,
}

impl PathTrie {
    fn add(&mut self, number: usize, entries: &[RouteEntry]) {
        let route_match = |number: usize| &entries[number].route_match;
        let ends = self.segments.entry(segments(route_match(number).path.literal_prefix()));
        let list = match route_match(number).path {
            PathPattern::Exact(_) => &mut ends.exact,
            PathPattern::Prefix(_) => &mut ends.prefix,
            PathPattern::Regex(_) => {
                self.has_patterns = true;
                &mut ends.patterns
            }
        };
        let order = |number: &usize| {
            let RouteMatch { path, conditions } = &**route_match(*number);
            Reverse((path.pattern_length(), conditions.precedence()))
        };
        // Entries of equal precedence stay in the order in which they were added.
        let position = list.partition_point(|other| order(other) <= order(&number));
        list.insert(position, number);
    }

    fn find<'e>(
        &self,
        request: &impl RequestAttributes,
        entries: &'e [RouteEntry],
    ) -> Option<&'e RouteEntry> {
        let first = |numbers: &[usize]| {
            let mut entries = numbers.iter().map(|&number| &entries[number]);
            entries.find(|entry| entry.route_match.conditions.are_met_by(request))
        };
        let path = request.path();
        let end = self.segments.descend(segments(path));
        let ends = self.segments.value(end);
        if end.is_exact
            && let Some(found) = first(&ends.exact)
        {
            return Some(found);
        }
        let mut ancestors = self.segments.ancestors(end);
        if self.has_patterns {
            let matches = |number: &&usize| entries[**number].route_match.path.matches(path);
            let found = ancestors.clone().find_map(|ends| {
                let mut matching =
                    ends.patterns.iter().filter(matches).map(|&number| &entries[number]);
                matching.find(|entry| entry.route_match.conditions.are_met_by(request))
            });
            if found.is_some() {
                return found;
            }
        }
        ancestors.find_map(|ends| first(&ends.prefix))
    }
}

/// Returns the labels of a name, the top-level domain first.
fn labels(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.rsplit(|&byte| byte == b'.')
}

/// Returns the segments after each `/` of a path: none for the empty path, one empty segment for `/`.
fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').skip(1)
}
