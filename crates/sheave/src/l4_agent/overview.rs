//! State of the data path as JSON, for people and for `sheave top`.

use std::collections::BTreeMap;

use l4::{EndpointPlace, NodeWay, TrafficCount, VipAnnouncement};
use serde::{Deserialize, Serialize};

use super::agent::L4Agent;
use super::flow_report;

/// Response of `/api/v1/l4`.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(crate) struct L4Overview {
    /// The reason why nothing is served, or why the last change is not in force.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(super) unready: Option<String>,
    /// `announced` or `silent`, by virtual address.
    addresses: BTreeMap<String, String>,
    pub(crate) services: Vec<L4ServiceInfo>,
    /// Way to each other node.
    nodes: BTreeMap<String, String>,
    not_served: Vec<String>,
    pub(super) problems: Vec<String>,
}

/// One port of a Service at one address.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct L4ServiceInfo {
    /// `namespace/service`.
    pub(crate) service: String,
    pub(crate) address: String,
    pub(crate) protocol: String,
    #[serde(flatten)]
    pub(crate) traffic: L4Traffic,
    pub(crate) endpoints: Vec<L4EndpointInfo>,
}

/// One endpoint. Its traffic is that of all Services that have it.
#[derive(Debug, Deserialize, Serialize)]
pub(crate) struct L4EndpointInfo {
    pub(crate) address: String,
    /// `local`, `host-network`, or the name of the node.
    pub(crate) place: String,
    pub(crate) draining: bool,
    /// True if new connections come to it as long as others serve too.
    pub(crate) new_connections: bool,
    #[serde(flatten)]
    pub(crate) traffic: L4Traffic,
}

/// Traffic that has passed this node since the entry is there, in both directions.
#[derive(Clone, Copy, Debug, Default, Deserialize, Serialize)]
pub(crate) struct L4Traffic {
    pub(crate) packets: u64,
    pub(crate) bytes: u64,
    /// Connections and UDP flows for which this node chose.
    pub(crate) connections: u64,
}

impl From<TrafficCount> for L4Traffic {
    fn from(count: TrafficCount) -> Self {
        let TrafficCount { packets, bytes, connections } = count;
        Self { packets, bytes, connections }
    }
}

impl L4Overview {
    pub(super) fn of(agent: &L4Agent) -> Self {
        let findings = agent.findings.iter();
        let mut overview = Self {
            not_served: findings.map(|it| format!("{}: {}", it.object, it.message)).collect(),
            ..Self::default()
        };
        let Some(desired) = &agent.desired else { return overview };
        for (vip, announcement) in &desired.vips {
            let text = match announcement {
                VipAnnouncement::Silent => "silent",
                VipAnnouncement::Announced(_) => "announced",
            };
            overview.addresses.insert(vip.to_string(), text.to_owned());
        }
        for (name, node) in &desired.nodes {
            overview.nodes.insert(name.clone(), way_label(&node.way).to_owned());
        }
        overview.services =
            desired.services.iter().map(|it| L4ServiceInfo::of(agent, it)).collect();
        overview
    }
}

impl L4ServiceInfo {
    fn of(agent: &L4Agent, service: &l4::ServiceSpec) -> Self {
        let traffic = |count: Option<TrafficCount>| count.map(L4Traffic::from).unwrap_or_default();
        let endpoints = service.endpoints.iter().map(|it| {
            let id = agent.table.endpoint(it.address);
            L4EndpointInfo {
                address: it.address.to_string(),
                place: place_label(&it.place).to_owned(),
                draining: it.is_draining,
                new_connections: it.weight > 0 && !it.is_draining,
                traffic: traffic(id.and_then(|id| agent.data_path.endpoint_traffic(id).ok())),
            }
        });
        let id = agent.table.service(service.address, service.protocol).map(|it| it.id);
        Self {
            service: agent.service_name(service.address, service.protocol).to_owned(),
            address: service.address.to_string(),
            protocol: flow_report::protocol_label(service.protocol).to_owned(),
            traffic: traffic(id.and_then(|id| agent.data_path.service_traffic(id).ok())),
            endpoints: endpoints.collect(),
        }
    }
}

fn place_label(place: &EndpointPlace) -> &str {
    match place {
        EndpointPlace::Local(_) => "local",
        EndpointPlace::HostNetwork => "host-network",
        EndpointPlace::Node(name) => name,
    }
}

fn way_label(way: &NodeWay) -> &'static str {
    match way {
        NodeWay::Layer2 { .. } => "layer2",
        NodeWay::Vxlan { .. } => "vxlan",
        NodeWay::FullNat { .. } => "full-nat",
    }
}
