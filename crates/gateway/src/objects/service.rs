//! `Service` (v1) and `EndpointSlice` (discovery.k8s.io/v1): a name for endpoints, and the endpoints.

use schemars::JsonSchema;
use serde::Deserialize;

use super::scalar::{IgnoredField, TargetPort};

/// A name for endpoints, and their ports. How a cluster's own network serves it does not concern us.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ServiceSpec {
    /// How it is reached in a cluster; an ExternalName has no endpoints.
    #[serde(rename = "type")]
    pub kind: ServiceType,
    /// Its ports.
    #[schemars(length(max = 100))]
    pub ports: Vec<ServicePort>,
    /// For a cluster's own network.
    #[serde(rename = "allocateLoadBalancerNodePorts")]
    pub allocate_node_ports: Option<IgnoredField>,
    /// For a cluster's own network.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<IgnoredField>,
    /// For a cluster's own network.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<IgnoredField>,
    /// For a cluster's own network.
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<IgnoredField>,
    /// The name in DNS that an ExternalName stands for.
    #[schemars(extend("format" = "host"))]
    pub external_name: Option<String>,
    /// For a cluster's own network.
    pub external_traffic_policy: Option<IgnoredField>,
    /// For a cluster's own network.
    pub health_check_node_port: Option<IgnoredField>,
    /// For a cluster's own network.
    pub internal_traffic_policy: Option<IgnoredField>,
    /// For a cluster's own network.
    pub ip_families: Option<IgnoredField>,
    /// For a cluster's own network.
    pub ip_family_policy: Option<IgnoredField>,
    /// For a cluster's own network.
    pub load_balancer_class: Option<IgnoredField>,
    /// For a cluster's own network.
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Option<IgnoredField>,
    /// For a cluster's own network.
    pub load_balancer_source_ranges: Option<IgnoredField>,
    /// The endpoints' `ready` already holds it.
    pub publish_not_ready_addresses: Option<IgnoredField>,
    /// EndpointSlices are made from it, by a cluster.
    pub selector: Option<IgnoredField>,
    /// For a cluster's own network.
    pub session_affinity: Option<IgnoredField>,
    /// For a cluster's own network.
    pub session_affinity_config: Option<IgnoredField>,
    /// A preference among endpoints: `PreferSameZone` and `PreferClose` are as BackendPolicy's `preferSameZone`.
    pub traffic_distribution: Option<String>,
}

/// How a Service is reached in a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// By an address of the cluster.
    #[default]
    ClusterIP,
    /// By a port of every node.
    NodePort,
    /// By an address outside.
    LoadBalancer,
    /// It is another name in DNS.
    ExternalName,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePort {
    /// Joins it to the ports of EndpointSlices; may be empty if it is the only one.
    #[serde(default)]
    pub name: String,
    /// What routes name.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// `TCP` when not given.
    pub protocol: Option<String>,
    /// What is spoken there.
    pub app_protocol: Option<String>,
    /// EndpointSlices hold what it stands for; of our own Services we look at it.
    pub target_port: Option<TargetPort>,
    /// For a cluster's own network.
    pub node_port: Option<IgnoredField>,
}

/// Some endpoints of the Service that the label `kubernetes.io/service-name` names.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointSliceSpec {
    /// What the addresses are.
    pub address_type: AddressType,
    /// The endpoints.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub endpoints: Vec<SliceEndpoint>,
    /// The ports that all of them have.
    #[serde(default)]
    #[schemars(length(max = 20_000))]
    pub ports: Vec<SlicePort>,
}

/// What the addresses of a slice are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum AddressType {
    /// IPv4 addresses.
    IPv4,
    /// IPv6 addresses.
    IPv6,
    /// Names in DNS, which we do not serve.
    #[serde(rename = "FQDN")]
    Fqdn,
}

/// One that can serve.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SliceEndpoint {
    /// Its address; Kubernetes gives one and leaves the meaning of more to nobody.
    #[schemars(length(max = 100))]
    pub addresses: Vec<String>,
    /// Whether it wants requests.
    #[serde(default)]
    pub conditions: EndpointConditions,
    /// Its name within the Service.
    pub hostname: Option<IgnoredField>,
    /// Where it runs.
    pub node_name: Option<String>,
    /// The zone it runs in.
    pub zone: Option<String>,
    /// Its Pod.
    pub target_ref: Option<IgnoredField>,
    /// Who should prefer it.
    pub hints: Option<IgnoredField>,
    /// Where it runs, as it was written once.
    pub deprecated_topology: Option<IgnoredField>,
}

/// Whether an endpoint wants requests.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EndpointConditions {
    /// It wants new requests; not known is yes.
    pub ready: Option<bool>,
    /// It answers, even while it is terminating; not known is `ready`.
    pub serving: Option<bool>,
    /// It is going away; not known is no.
    pub terminating: Option<bool>,
}

/// A port of a slice's endpoints.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SlicePort {
    /// The Service port it belongs to.
    pub name: String,
    /// Its number.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// `TCP` when not given.
    pub protocol: Option<String>,
    /// What is spoken there; the Service's port decides.
    pub app_protocol: Option<IgnoredField>,
}
