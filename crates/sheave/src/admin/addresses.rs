//! The addresses of a pool as JSON, for the announcer.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;
use std::sync::Arc;

use gateway::addresses::EndpointsByNode;
use gateway::load_balancer::{AddressAnnouncement, BgpAttributes, BgpRouter};
use proxy::ListenerView;
use serde::{Deserialize, Serialize};

use crate::report::ProcessReport;

/// Pool addresses served on this node. The announcer parses it.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct AddressesResponse {
    /// Addresses that one node at a time carries.
    pub(crate) addresses: Vec<AddressEndpoints>,
    /// Addresses to which every node that serves them announces a route.
    #[serde(default)]
    pub(crate) routes: Vec<AddressRoute>,
    /// Routers to which the routes are announced.
    #[serde(default)]
    pub(crate) routers: Vec<BgpRouter>,
}

/// A virtual IP that is announced by BGP.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddressRoute {
    pub(crate) address: IpAddr,
    /// Attributes of the route.
    #[serde(flatten)]
    pub(crate) attributes: BgpAttributes,
}

/// The endpoints behind a virtual IP, by node.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct AddressEndpoints {
    pub(crate) address: IpAddr,
    /// Number of endpoints on each node that has a ready replica.
    pub(crate) endpoints: BTreeMap<String, usize>,
}

impl AddressesResponse {
    /// Excludes addresses without a bound socket here: they are not served here. Those of Services with
    /// `externalTrafficPolicy: Local` are not served without an endpoint on this node either.
    pub(super) fn of(report: &ProcessReport, listening: &[ListenerView]) -> Self {
        let bound = listening.iter().map(|listener| listener.address.ip()).collect();
        Self::among(report, &bound)
    }

    fn among(report: &ProcessReport, bound: &BTreeSet<IpAddr>) -> Self {
        let (mut addresses, mut routes) = (Vec::new(), Vec::new());
        for (address, counts) in served_addresses(report, bound) {
            let address = *address;
            match report.announcements.get(&address) {
                Some(AddressAnnouncement::Bgp(attributes)) => {
                    routes.push(AddressRoute { address, attributes: attributes.clone() });
                }
                Some(AddressAnnouncement::Layer2) | None => {
                    let endpoints = counts_by_node(counts, &report.nodes);
                    addresses.push(AddressEndpoints { address, endpoints });
                }
            }
        }
        Self { addresses, routes, routers: report.bgp_routers.to_vec() }
    }
}

/// Returns the addresses that this node may carry, of those with a bound socket.
fn served_addresses<'r>(
    report: &'r ProcessReport,
    bound: &BTreeSet<IpAddr>,
) -> impl Iterator<Item = (&'r IpAddr, &'r EndpointsByNode)> {
    let of_nodes = node_local_addresses(report);
    report.endpoint_counts.iter().filter(move |(address, counts)| {
        let has_endpoint = || counts.get(&report.node).is_some_and(|count| *count > 0);
        bound.contains(address) && (!of_nodes.contains(address) || has_endpoint())
    })
}

/// Returns the addresses that only nodes with endpoints may carry.
fn node_local_addresses(report: &ProcessReport) -> BTreeSet<IpAddr> {
    let services = report.load_balancers.iter().filter(|service| service.is_node_local);
    services.flat_map(|service| &service.addresses).copied().collect()
}

fn counts_by_node(counts: &EndpointsByNode, nodes: &BTreeSet<Arc<str>>) -> BTreeMap<String, usize> {
    let count = |node: &Arc<str>| (node.to_string(), counts.get(node).copied().unwrap_or_default());
    nodes.iter().map(count).collect()
}

#[cfg(test)]
mod tests {
    use gateway::load_balancer::LoadBalancerService;
    use gateway::objects::RouteCommunity;

    use super::*;

    /// Returns the addresses that are served on a node, for a Service with endpoints on `n1` alone.
    fn served_on(node: &str, is_node_local: bool) -> usize {
        let address: IpAddr = [192, 0, 2, 7].into();
        let service = LoadBalancerService {
            namespace: "shop".into(),
            name: "db".into(),
            uid: None,
            addresses: vec![address],
            sockets: Vec::new(),
            is_node_local,
            findings: Vec::new(),
        };
        let counts = EndpointsByNode::from([("n1".into(), 1)]);
        let report = ProcessReport {
            endpoint_counts: Arc::new([(address, counts)].into()),
            load_balancers: [service].into(),
            node: node.into(),
            ..ProcessReport::new()
        };
        served_addresses(&report, &[address].into()).count()
    }

    #[test]
    fn an_address_of_local_endpoints_is_served_on_their_nodes_alone() {
        assert_eq!([served_on("n1", true), served_on("n2", true)], [1, 0]);
        assert_eq!([served_on("n1", false), served_on("n2", false)], [1, 1]);
    }

    #[test]
    fn address_that_is_announced_by_bgp_is_a_route_and_has_no_holder() {
        let addresses: [IpAddr; 2] = [[192, 0, 2, 7].into(), [192, 0, 2, 8].into()];
        let attributes = BgpAttributes {
            communities: vec![RouteCommunity::Standard(65000, 1)],
            local_preference: Some(200),
        };
        let announcement = AddressAnnouncement::Bgp(attributes.clone());
        let report = ProcessReport {
            endpoint_counts: Arc::new(addresses.map(|it| (it, EndpointsByNode::new())).into()),
            announcements: Arc::new([(addresses[0], announcement)].into()),
            ..ProcessReport::new()
        };
        let response = AddressesResponse::among(&report, &addresses.into());
        assert_eq!(response.routes, [AddressRoute { address: addresses[0], attributes }]);
        let held: Vec<_> = response.addresses.iter().map(|it| it.address).collect();
        assert_eq!(held, [addresses[1]]);
        let json = serde_json::to_value(&response).unwrap();
        assert_eq!(json["routes"][0]["communities"][0], "65000:1");
        let read: AddressesResponse = serde_json::from_value(json).unwrap();
        assert_eq!(read.routes, response.routes);
    }

    #[test]
    fn only_nodes_with_a_ready_replica_are_counted() {
        let counts = EndpointsByNode::from([("n1".into(), 3), ("n3".into(), 1)]);
        let nodes = BTreeSet::from(["n1".into(), "n2".into()]);
        let expected = [("n1".to_owned(), 3), ("n2".to_owned(), 0)];
        assert_eq!(counts_by_node(&counts, &nodes), BTreeMap::from(expected));
    }
}
