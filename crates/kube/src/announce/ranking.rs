//! Ranking of nodes for an address: the node with more of the endpoints behind it is preferred.
//!
//! Pure function of data that all nodes have in common.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// Factor of endpoints that makes a move worthwhile. A move cuts every connection, and saves later ones a hop.
const MOVE_FACTOR: usize = 2;

/// Nodes that can hold an address, with the number of endpoints on each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRanking {
    pub(crate) address: IpAddr,
    pub(crate) endpoints: BTreeMap<String, usize>,
}

impl NodeRanking {
    /// Returns the number of nodes that are preferred to this one. `except` is left out: the node that has just
    /// released the address.
    pub(super) fn rank(&self, node: &str, except: Option<&str>) -> usize {
        let own = self.preference(node);
        let others = self.endpoints.keys().map(String::as_str);
        let others = others.filter(|other| *other != node && Some(*other) != except);
        others.filter(|other| self.preference(other) > own).count()
    }

    /// True if the address should move from one node to the other.
    pub(super) fn is_move_worthwhile(&self, from: &str, to: &str) -> bool {
        self.count(to) > MOVE_FACTOR * self.count(from)
    }

    /// Returns the preference of a node; more is better. Among nodes with equal counts, each address prefers a
    /// different node, so that one node does not hold all of them.
    fn preference<'n>(&self, node: &'n str) -> (bool, usize, u64, &'n str) {
        let mut hasher = DefaultHasher::new();
        (self.address, node).hash(&mut hasher);
        (self.endpoints.contains_key(node), self.count(node), hasher.finish(), node)
    }

    fn count(&self, node: &str) -> usize {
        self.endpoints.get(node).copied().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranking<const N: usize>(endpoints: [(&str, usize); N]) -> NodeRanking {
        let endpoints = endpoints.map(|(node, count)| (node.to_owned(), count)).into();
        NodeRanking { address: IpAddr::from([192, 0, 2, 1]), endpoints }
    }

    #[test]
    fn node_with_more_endpoints_ranks_first() {
        let ranking = ranking([("n1", 1), ("n2", 3), ("n3", 2)]);
        let ranks = ["n1", "n2", "n3", "unknown"].map(|node| ranking.rank(node, None));
        assert_eq!(ranks, [2, 0, 1, 3]);
        assert_eq!(ranking.rank("n3", Some("n2")), 0);
    }

    #[test]
    fn node_ranks_are_unique() {
        let ranking = ranking([("n1", 2), ("n2", 2), ("n3", 2)]);
        let mut ranks = ["n1", "n2", "n3"].map(|node| ranking.rank(node, None));
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2]);
    }

    #[test]
    fn move_requires_more_than_twice_the_endpoints() {
        let ranking = ranking([("n1", 2), ("n2", 4), ("n3", 5), ("n4", 0)]);
        assert!(!ranking.is_move_worthwhile("n1", "n2"));
        assert!(ranking.is_move_worthwhile("n1", "n3"));
        assert!(ranking.is_move_worthwhile("n4", "n1"));
        assert!(!ranking.is_move_worthwhile("n4", "unknown"));
    }
}
