//! The addresses of a pool as JSON, for the announcer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gateway::addresses::EndpointsByNode;
use proxy::ListenerView;
use serde::{Deserialize, Serialize};

use crate::report::ProcessReport;

/// Pool addresses served on this node. The announcer parses it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AddressesResponse {
    pub(crate) addresses: Vec<AddressEndpoints>,
}

/// The endpoints behind a virtual IP, by node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddressEndpoints {
    pub(crate) address: IpAddr,
    /// Number of endpoints on each node that has a ready replica.
    pub(crate) endpoints: BTreeMap<String, usize>,
}

impl AddressesResponse {
    /// Excludes addresses without a bound socket here: they are not served here.
    pub(super) fn of(report: &ProcessReport, listening: &[ListenerView]) -> Self {
        let bound: BTreeSet<_> = listening.iter().map(|listener| listener.address.ip()).collect();
        let served = report.endpoint_counts.iter().filter(|(address, _)| bound.contains(address));
        let address = |(address, counts): (&IpAddr, &EndpointsByNode)| AddressEndpoints {
            address: *address,
            endpoints: counts_by_node(counts, &report.nodes),
        };
        Self { addresses: served.map(address).collect() }
    }
}

fn counts_by_node(counts: &EndpointsByNode, nodes: &BTreeSet<Arc<str>>) -> BTreeMap<String, usize> {
    let count = |node: &Arc<str>| (node.to_string(), counts.get(node).copied().unwrap_or_default());
    nodes.iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_nodes_with_a_ready_replica_are_counted() {
        let counts = EndpointsByNode::from([("n1".into(), 3), ("n3".into(), 1)]);
        let nodes = BTreeSet::from(["n1".into(), "n2".into()]);
        let expected = [("n1".to_owned(), 3), ("n2".to_owned(), 0)];
        assert_eq!(counts_by_node(&counts, &nodes), BTreeMap::from(expected));
    }
}
