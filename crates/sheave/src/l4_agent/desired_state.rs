//! From the planned services and the places of their endpoints to the desired state of the data path. Pure.

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use l4::{
    DesiredState, EndpointPlace, EndpointSpec, NodeSpec, NodeWay, ServiceSpec, VipAnnouncement,
};

use super::service_plan::{EndpointState, PlanFinding, PlannedEndpoint, PlannedPort, ServicePlan};

/// The places of endpoints of this node, and the ways to other nodes, as far as they are known.
#[derive(Clone, Debug, Default)]
pub(super) struct KnownPlaces {
    /// Places of endpoints on this node, or why they have none.
    pub(super) local: BTreeMap<IpAddr, Result<EndpointPlace, String>>,
    /// Ways to other nodes, or why there is none.
    pub(super) ways: BTreeMap<String, Result<NodeWay, String>>,
    /// Announcement of each virtual address; those that are absent are silent.
    pub(super) announced: BTreeMap<IpAddr, VipAnnouncement>,
    /// Addresses of this node, which are no virtual ones.
    pub(super) own: BTreeSet<IpAddr>,
}

/// Returns the desired state, and what cannot be served. An endpoint without a place is left out. An address is left to
/// the proxy if it has a port whose endpoints all have none, or if none of its ports has endpoints.
pub(super) fn desired_state(
    plan: &ServicePlan,
    this_node: &str,
    places: &KnownPlaces,
) -> (DesiredState, BTreeSet<PlanFinding>) {
    let mut findings = plan.findings.clone();
    let mut services = Vec::new();
    let mut left = BTreeSet::new();
    let mut served = BTreeSet::new();
    for port in &plan.ports {
        let vip = port.address.ip();
        let service = service_spec(port, this_node, places, &mut findings);
        let is_wanted = port.endpoints.iter().any(|it| it.state != EndpointState::Unready);
        let has_place = service.endpoints.iter().any(|it| it.weight > 0);
        if places.own.contains(&vip) {
            findings
                .insert(PlanFinding::new(&port.service, format!("{vip} is this node's address")));
            left.insert(vip);
        } else if is_wanted && !has_place {
            let message =
                format!("no endpoint of {} has a place: the proxy serves it", port.address);
            findings.insert(PlanFinding::new(&port.service, message));
            left.insert(vip);
        } else if !service.endpoints.is_empty() {
            // Endpoints that are not ready keep their connections.
            served.insert(vip);
        }
        services.push(service);
    }
    services.retain(|it| {
        let vip = it.address.ip();
        served.contains(&vip) && !left.contains(&vip)
    });
    let vips = services.iter().map(|it| it.address.ip());
    let announcement = |vip| (vip, places.announced.get(&vip).copied().unwrap_or_default());
    let state = DesiredState {
        vips: vips.map(announcement).collect(),
        nodes: nodes(plan, places),
        services,
    };
    (state, findings)
}

fn service_spec(
    port: &PlannedPort,
    this_node: &str,
    places: &KnownPlaces,
    findings: &mut BTreeSet<PlanFinding>,
) -> ServiceSpec {
    let mut endpoints = Vec::new();
    for endpoint in &port.endpoints {
        match place(endpoint, this_node, places) {
            Ok(place) => endpoints.push(EndpointSpec {
                address: endpoint.address,
                weight: u32::from(endpoint.state != EndpointState::Unready),
                is_draining: endpoint.state != EndpointState::Ready,
                place,
            }),
            Err(reason) => {
                let message = format!("the endpoint {} is left out: {reason}", endpoint.address);
                findings.insert(PlanFinding::new(&port.service, message));
            }
        }
    }
    ServiceSpec {
        address: port.address,
        protocol: port.protocol,
        has_client_affinity: port.has_client_affinity,
        quic_server_id_length: port.quic_server_id_length,
        source_ranges: port.source_ranges.clone(),
        endpoints,
    }
}

fn place(
    endpoint: &PlannedEndpoint,
    this_node: &str,
    places: &KnownPlaces,
) -> Result<EndpointPlace, String> {
    match endpoint.node.as_deref() {
        None => Err("the EndpointSlice does not name its node".to_owned()),
        Some(node) if node == this_node => {
            let unknown = || Err("its interface is not known".to_owned());
            places.local.get(&endpoint.address.ip()).cloned().unwrap_or_else(unknown)
        }
        Some(node) => match places.ways.get(node) {
            Some(Ok(_)) => Ok(EndpointPlace::Node(node.to_owned())),
            Some(Err(reason)) => Err(reason.clone()),
            None => Err(format!("there is no Node {node} with an InternalIP")),
        },
    }
}

/// Returns the ways to other nodes, those without endpoints too: their packets must be known as theirs.
fn nodes(plan: &ServicePlan, places: &KnownPlaces) -> BTreeMap<String, NodeSpec> {
    let ways = places.ways.iter().filter_map(|(name, way)| Some((name, *way.as_ref().ok()?)));
    let spec = |(name, way): (&String, NodeWay)| {
        let addresses = plan.nodes.get(name).cloned().unwrap_or_default();
        (name.clone(), NodeSpec { addresses, way })
    };
    ways.map(spec).collect()
}

#[cfg(test)]
mod tests;
