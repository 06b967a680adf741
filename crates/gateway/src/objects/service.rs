//! `Service` (v1) and `EndpointSlice` (discovery.k8s.io/v1): a name for a set of endpoints, and the endpoints.

use std::collections::BTreeMap;
use std::net::IpAddr;

use schemars::JsonSchema;
use serde::Deserialize;

use super::scalar::{IgnoredField, TargetPort};

/// The label of an EndpointSlice that names its Service.
pub const SERVICE_NAME_LABEL: &str = "kubernetes.io/service-name";

/// A name for a set of endpoints, and their ports. Fields for the cluster's own network are ignored, except in
/// transparent mode and if Sheave is the load balancer of the Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct ServiceSpec {
    /// The type. An ExternalName Service has no endpoints.
    #[serde(rename = "type")]
    pub kind: ServiceType,
    /// The ports.
    #[schemars(length(max = 100))]
    pub ports: Vec<ServicePort>,
    /// For the cluster's own network.
    #[serde(rename = "allocateLoadBalancerNodePorts")]
    pub allocate_node_ports: Option<IgnoredField>,
    /// The address within the cluster, `None` if the Service is headless. Read in transparent mode.
    #[serde(rename = "clusterIP")]
    pub cluster_ip: Option<String>,
    /// The addresses within the cluster, one for each IP version; the first is `clusterIP`. Read in transparent mode.
    #[serde(rename = "clusterIPs")]
    pub cluster_ips: Option<Vec<String>>,
    /// For the cluster's own network.
    #[serde(rename = "externalIPs")]
    pub external_ips: Option<IgnoredField>,
    /// The DNS name that an ExternalName Service stands for.
    #[schemars(extend("format" = "host"))]
    pub external_name: Option<String>,
    /// The endpoints that clients outside of the cluster may reach: `Local` for those on the node that carries the
    /// address, else all. Read if Sheave is the load balancer of the Service.
    pub external_traffic_policy: Option<String>,
    /// For the cluster's own network: kube-proxy serves it.
    pub health_check_node_port: Option<IgnoredField>,
    /// The endpoints that clients within the cluster may reach: `Local` for those on the client's node, else all. Read
    /// in transparent mode.
    pub internal_traffic_policy: Option<String>,
    /// The IP versions, `IPv4` and `IPv6`; an endpoint with addresses of both is known by that of the first.
    #[schemars(length(max = 2))]
    pub ip_families: Option<Vec<String>>,
    /// `PreferDualStack` if an address of one IP version suffices. Read if Sheave is the load balancer of the Service.
    pub ip_family_policy: Option<String>,
    /// The implementation of the load balancer, if the type is `LoadBalancer`.
    pub load_balancer_class: Option<String>,
    /// The requested address. Read if Sheave is the load balancer of the Service.
    #[serde(rename = "loadBalancerIP")]
    pub load_balancer_ip: Option<String>,
    /// The CIDR blocks of the clients that may connect to the address of the load balancer; if there are none, all. Read
    /// if Sheave is the load balancer of the Service.
    pub load_balancer_source_ranges: Option<Vec<String>>,
    /// Ignored: `ready` of the endpoints already accounts for it.
    pub publish_not_ready_addresses: Option<IgnoredField>,
    /// The labels of its pods. The cluster creates EndpointSlices from it; it is read only to find the NetworkPolicies
    /// that may apply to them.
    pub selector: Option<BTreeMap<String, String>>,
    /// `ClientIP` if each client stays at its endpoint. Read in transparent mode, and if Sheave is the load balancer of
    /// the Service.
    pub session_affinity: Option<String>,
    /// Settings of `ClientIP`.
    pub session_affinity_config: Option<SessionAffinityConfig>,
    /// A preference among endpoints. `PreferSameZone` and `PreferClose` have the effect of BackendPolicy's
    /// `preferSameZone`.
    pub traffic_distribution: Option<String>,
    /// The addresses in the status, if the Service is of a file. In a cluster, statuses change apart from the objects.
    #[serde(skip)]
    pub status_addresses: Vec<IpAddr>,
}

/// Settings of session affinity.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct SessionAffinityConfig {
    /// Settings of `ClientIP`.
    #[serde(rename = "clientIP")]
    pub client_ip: Option<ClientIpAffinity>,
}

/// Settings of session affinity by the client's address.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct ClientIpAffinity {
    /// The time without a connection after which a client may get another endpoint, in seconds. Default: 10800.
    pub timeout_seconds: Option<i64>,
}

/// The type of a Service: how a cluster exposes it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum ServiceType {
    /// By an address within the cluster.
    #[default]
    ClusterIP,
    /// By a port of every node.
    NodePort,
    /// By an external address.
    LoadBalancer,
    /// By an alias of another DNS name.
    ExternalName,
}

/// A port of a Service.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct ServicePort {
    /// The name, which joins it to the ports of EndpointSlices. It may be empty if it is the only port.
    #[serde(default)]
    pub name: String,
    /// The port number that routes refer to.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
    /// The transport. Default: `TCP`.
    pub protocol: Option<String>,
    /// The application protocol.
    pub app_protocol: Option<String>,
    /// The port of the pods. EndpointSlices hold the resolved number; it is read only for the Services that Sheave
    /// manages.
    pub target_port: Option<TargetPort>,
    /// For the cluster's own network.
    pub node_port: Option<IgnoredField>,
}

/// Some endpoints of the Service in the label `kubernetes.io/service-name`.
#[derive(Clone, Debug, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct EndpointSliceSpec {
    /// The type of the addresses.
    pub address_type: AddressType,
    /// The endpoints.
    #[serde(default)]
    #[schemars(length(max = 1000))]
    pub endpoints: Vec<SliceEndpoint>,
    /// The ports, which all endpoints share.
    #[serde(default)]
    #[schemars(length(max = 20_000))]
    pub ports: Vec<SlicePort>,
}

/// The type of the addresses of a slice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, JsonSchema)]
pub enum AddressType {
    /// IPv4 addresses.
    IPv4,
    /// IPv6 addresses.
    IPv6,
    /// DNS names, which are not supported.
    #[serde(rename = "FQDN")]
    Fqdn,
}

/// An endpoint.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct SliceEndpoint {
    /// The addresses. Kubernetes writes exactly one; further ones have no defined meaning.
    #[schemars(length(max = 100))]
    pub addresses: Vec<String>,
    /// The conditions of the endpoint.
    #[serde(default)]
    pub conditions: EndpointConditions,
    /// The hostname within the Service.
    pub hostname: Option<IgnoredField>,
    /// The node that it runs on.
    pub node_name: Option<String>,
    /// The zone that it runs in.
    pub zone: Option<String>,
    /// The Pod. Entries of two IP versions with the same Pod are one endpoint.
    pub target_ref: Option<EndpointTargetRef>,
    /// Zones or nodes that should prefer the endpoint. Read in transparent mode.
    pub hints: Option<EndpointHints>,
    /// The topology, in the form of an earlier version.
    pub deprecated_topology: Option<IgnoredField>,
}

/// The object that an endpoint is an address of.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointTargetRef {
    /// The kind.
    pub kind: String,
    /// The namespace.
    pub namespace: String,
    /// The name.
    pub name: String,
    /// The UID, which differs from that of an earlier object of the same name.
    pub uid: String,
}

/// The places from which an endpoint should be used.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", default)]
pub struct EndpointHints {
    /// Zones.
    pub for_zones: Option<Vec<EndpointHint>>,
    /// Nodes.
    pub for_nodes: Option<Vec<EndpointHint>>,
}

/// A zone or a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
pub struct EndpointHint {
    /// The name.
    pub name: String,
}

/// The conditions of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct EndpointConditions {
    /// True if it accepts new requests. Unknown means true.
    pub ready: Option<bool>,
    /// True if it answers, even while it is terminating. Unknown means the value of `ready`.
    pub serving: Option<bool>,
    /// True if it is terminating. Unknown means false.
    pub terminating: Option<bool>,
}

/// A port of the endpoints of a slice.
#[derive(Clone, Debug, Default, PartialEq, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct SlicePort {
    /// The name of the port of the Service.
    pub name: String,
    /// The port number.
    #[schemars(range(min = 1, max = 65535))]
    pub port: Option<u16>,
    /// The transport. Default: `TCP`.
    pub protocol: Option<String>,
    /// The application protocol. Ignored: the port of the Service determines it.
    pub app_protocol: Option<IgnoredField>,
}
