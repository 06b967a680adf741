//! `Node` (v1): the addresses of a machine of the cluster, which the layer-4 data path needs.

use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;

/// The type of the addresses at which nodes reach one another.
const INTERNAL_IP: &str = "InternalIP";

/// The fields of a Node. All others are accepted and dropped.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeFields {
    /// The status.
    pub status: NodeStatus,
}

/// The status of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeStatus {
    /// The addresses.
    pub addresses: Vec<NodeAddress>,
}

/// An address of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct NodeAddress {
    /// The type: `InternalIP`, `ExternalIP`, `Hostname` and others.
    #[serde(rename = "type")]
    pub kind: String,
    /// The address or the name.
    pub address: String,
}

impl NodeFields {
    /// Returns the addresses at which other nodes reach this one.
    pub fn internal_addresses(&self) -> impl Iterator<Item = IpAddr> {
        let internal = self.status.addresses.iter().filter(|it| it.kind == INTERNAL_IP);
        internal.filter_map(|it| it.address.parse().ok())
    }
}
