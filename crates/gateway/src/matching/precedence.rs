//! The rules of a table as one list, in which the first match wins: for clients that match requests themselves.

use std::cmp::Reverse;
use std::sync::Arc;

use super::{PathPattern, RouteEntry, RouteMatch, RouteTable, segments};
use crate::snapshot::Rule;

impl RouteTable {
    /// Returns the matches of a table whose rules are all for any host, with their rules. Of the matches that a request
    /// meets, the first is the one that [`find`](Self::find) chooses.
    #[must_use]
    pub fn by_precedence(&self) -> Vec<(&RouteMatch, &Arc<Rule>)> {
        let mut entries: Vec<_> = self.entries.iter().collect();
        // The sort is stable: entries of equal precedence stay in the order in which they were added.
        entries.sort_by_key(|entry| precedence(entry));
        entries.into_iter().map(|entry| (&*entry.route_match, &entry.rule)).collect()
    }
}

/// Returns the key that orders entries of all paths as `find` meets them: exact paths, regular expressions and prefixes,
/// each from the longest chain of literal segments to the shortest.
fn precedence(entry: &RouteEntry) -> impl Ord + use<> {
    let RouteMatch { path, conditions } = &*entry.route_match;
    let kind = match path {
        PathPattern::Exact(_) => 0,
        PathPattern::Regex(_) => 1,
        PathPattern::Prefix(_) => 2,
    };
    let depth = segments(path.literal_prefix()).count();
    (kind, Reverse((depth, path.pattern_length(), conditions.precedence())))
}
