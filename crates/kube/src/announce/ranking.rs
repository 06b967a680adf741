//! Which node is the better place for an address: the one with more of the endpoints behind it.
//!
//! Pure: a function of what the Sheaves of all nodes see alike.

use std::collections::BTreeMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;

/// So many times the endpoints make a move worth while. A move cuts every connection, and saves the others a hop.
const MOVE_FACTOR: usize = 2;

/// The nodes that can carry an address, and how many endpoints each has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct NodeRanking {
    pub(crate) address: IpAddr,
    pub(crate) endpoints: BTreeMap<String, usize>,
}

impl NodeRanking {
    /// How many other nodes are preferred to one. Somebody may be left out: who has just let the address go.
    pub(super) fn rank(&self, node: &str, except: Option<&str>) -> usize {
        let ours = self.preference(node);
        let others = self.endpoints.keys().map(String::as_str);
        let others = others.filter(|other| *other != node && Some(*other) != except);
        others.filter(|other| self.preference(other) > ours).count()
    }

    /// Whether an address should move from one node to another.
    pub(super) fn is_move_worthwhile(&self, from: &str, to: &str) -> bool {
        self.count(to) > MOVE_FACTOR * self.count(from)
    }

    /// More is better. Where nodes have as many, each address has a favourite of its own, so that not one node carries all.
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

    fn standing<const N: usize>(endpoints: [(&str, usize); N]) -> NodeRanking {
        let endpoints = endpoints.map(|(node, count)| (node.to_owned(), count)).into();
        NodeRanking { address: IpAddr::from([192, 0, 2, 1]), endpoints }
    }

    #[test]
    fn node_with_more_endpoints_ranks_first() {
        let standing = standing([("n1", 1), ("n2", 3), ("n3", 2)]);
        let ranks = ["n1", "n2", "n3", "nobody"].map(|node| standing.rank(node, None));
        assert_eq!(ranks, [2, 0, 1, 3]);
        assert_eq!(standing.rank("n3", Some("n2")), 0);
    }

    #[test]
    fn node_ranks_are_unique() {
        let standing = standing([("n1", 2), ("n2", 2), ("n3", 2)]);
        let mut ranks = ["n1", "n2", "n3"].map(|node| standing.rank(node, None));
        ranks.sort_unstable();
        assert_eq!(ranks, [0, 1, 2]);
    }

    #[test]
    fn move_requires_more_than_twice_the_endpoints() {
        let standing = standing([("n1", 2), ("n2", 4), ("n3", 5), ("n4", 0)]);
        assert!(!standing.is_move_worthwhile("n1", "n2"));
        assert!(standing.is_move_worthwhile("n1", "n3"));
        assert!(standing.is_move_worthwhile("n4", "n1"));
        assert!(!standing.is_move_worthwhile("n4", "nobody"));
    }
}
