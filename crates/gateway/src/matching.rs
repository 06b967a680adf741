//! From a request's host and path to the rule that serves it, in a time that does not grow with the number of routes.
//!
//! The order is Gateway API's: the listener with the most specific hostname, within it the route hostname that is most
//! specific, then the path: exact before prefix, the longest prefix first. Hosts are a tree of labels read from the
//! right, paths a tree of segments; a request costs one hash lookup per label and segment, and one step back for each
//! less specific match it falls back to. It must not know where rules come from or where they lead.

/// A tree of words with one hash lookup per word.
mod tree;
/// Which hosts and paths are meant.
mod pattern;
#[cfg(test)]
mod tests;

use std::sync::Arc;

pub use pattern::{HostPattern, InvalidHost, InvalidPath, PathPattern};

use crate::snapshot::Rule;
use tree::Tree;

/// The longest name that DNS has, 253 bytes and a dot at the end.
const MAX_HOST: usize = 254;

/// The rules of one address, found by host and path.
#[derive(Clone, Debug, Default)]
pub struct RouteTable {
    /// A request belongs to the most specific of the listeners that share the address, and to no other.
    listeners: Hosts<Hosts<Paths>>,
}

impl RouteTable {
    /// Adds a listener, so that it takes the requests for its hosts even where none of its rules matches.
    pub fn add_listener(&mut self, hosts: &HostPattern) {
        self.listeners.entry(hosts);
    }

    /// Adds a rule to a listener. Of two that match the same hosts and paths the first that was added wins.
    pub fn add_rule(
        &mut self,
        listener: &HostPattern,
        hosts: &HostPattern,
        path: &PathPattern,
        rule: &Arc<Rule>,
    ) {
        self.listeners.entry(listener).entry(hosts).add(path, rule);
    }

    /// The rule that serves a request.
    ///
    /// `host` is the authority without its port, in any case, and `path` the path without its query, which begins
    /// with `/`. A host longer than any name of DNS matches only what asks for no host.
    pub fn find(&self, host: &[u8], path: &[u8]) -> Option<&Arc<Rule>> {
        let mut lowered = [0; MAX_HOST];
        let host = match lowered.get_mut(..host.len()) {
            Some(copy) => {
                copy.copy_from_slice(host);
                copy.make_ascii_lowercase();
                copy.strip_suffix(b".").unwrap_or(copy)
            }
            None => b"",
        };
        let listener = self.listeners.find(host, Some)?;
        listener.find(host, |paths| paths.find(path))
    }
}

/// A `T` for each pattern of hosts.
#[derive(Clone, Debug)]
struct Hosts<T> {
    labels: Tree<Names<T>>,
}

/// What is known of one name: `T`s for the name itself and for the names below it.
#[derive(Clone, Debug)]
struct Names<T> {
    exact: Option<T>,
    below: Option<T>,
}

impl<T> Default for Hosts<T> {
    fn default() -> Self {
        Self { labels: Tree::default() }
    }
}

impl<T> Default for Names<T> {
    fn default() -> Self {
        Self { exact: None, below: None }
    }
}

impl<T: Default> Hosts<T> {
    fn entry(&mut self, pattern: &HostPattern) -> &mut T {
        let slot = match pattern {
            HostPattern::Any => &mut self.labels.entry(std::iter::empty()).below,
            HostPattern::Below(name) => &mut self.labels.entry(labels(name.as_bytes())).below,
            HostPattern::Exact(name) => &mut self.labels.entry(labels(name.as_bytes())).exact,
        };
        slot.get_or_insert_default()
    }
}

impl<T> Hosts<T> {
    /// The first that `accept` takes of the `T`s whose patterns match `host`, the most specific first.
    fn find<'a, R>(&'a self, host: &[u8], accept: impl Fn(&'a T) -> Option<R>) -> Option<R> {
        let end = self.labels.reach(labels(host));
        let names = self.labels.value(end);
        if end.whole
            && let Some(found) = names.exact.as_ref().and_then(&accept)
        {
            return Some(found);
        }
        // `*.example.com` is not `example.com`: the whole host is no name below itself.
        let mut next = if end.whole { self.labels.back(end) } else { Some(end) };
        while let Some(at) = next {
            if let Some(found) = self.labels.value(at).below.as_ref().and_then(&accept) {
                return Some(found);
            }
            next = self.labels.back(at);
        }
        None
    }
}

/// The rules of one pattern of hosts, by path.
#[derive(Clone, Debug, Default)]
struct Paths {
    segments: Tree<Ends>,
}

/// The rules of one path: for it alone, and for it and all below it.
#[derive(Clone, Debug, Default)]
struct Ends {
    exact: Option<Arc<Rule>>,
    prefix: Option<Arc<Rule>>,
}

impl Paths {
    fn add(&mut self, path: &PathPattern, rule: &Arc<Rule>) {
        let slot = match path {
            PathPattern::Exact(path) => &mut self.segments.entry(segments(path.as_bytes())).exact,
            PathPattern::Prefix(path) => {
                let path = path.trim_end_matches('/');
                &mut self.segments.entry(segments(path.as_bytes())).prefix
            }
        };
        slot.get_or_insert_with(|| Arc::clone(rule));
    }

    fn find(&self, path: &[u8]) -> Option<&Arc<Rule>> {
        let end = self.segments.reach(segments(path));
        let ends = self.segments.value(end);
        if end.whole && ends.exact.is_some() {
            return ends.exact.as_ref();
        }
        let mut next = Some(end);
        while let Some(at) = next {
            let prefix = &self.segments.value(at).prefix;
            if prefix.is_some() {
                return prefix.as_ref();
            }
            next = self.segments.back(at);
        }
        None
    }
}

/// The labels of a name, the top-level domain first.
fn labels(name: &[u8]) -> impl Iterator<Item = &[u8]> {
    name.rsplit(|&byte| byte == b'.')
}

/// What follows each `/` of a path: none for the empty path, one empty segment for `/`.
fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    path.split(|&byte| byte == b'/').skip(1)
}
