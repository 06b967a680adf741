//! Pods and the EndpointSlices that name them, as far as tools need them.

use std::net::IpAddr;

use serde_json::Value;

use super::{AccessError, RequiredPermission, object_name};
use crate::ClusterClient;

/// Most pods or EndpointSlices of a namespace that are read.
const MAX_LISTED: usize = 5000;
/// Name of the container's port with the admin API, in the chart.
const ADMIN_PORT: &str = "admin";

/// A pod.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodSummary {
    /// Namespace.
    pub namespace: String,
    /// Name.
    pub name: String,
    /// Node; empty: not assigned yet.
    pub node: String,
    /// Phase, such as `Running`.
    pub phase: String,
    /// Addresses, of each IP version.
    pub addresses: Vec<IpAddr>,
    /// True if the condition `Ready` is true.
    pub is_ready: bool,
    /// True if it is being deleted.
    pub is_terminating: bool,
    /// Port with the name `admin`.
    pub admin_port: Option<u16>,
    /// Name of the first container.
    pub container: String,
    /// Arguments of the first container.
    pub arguments: Vec<String>,
}

/// Endpoint in an EndpointSlice of a Service.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct EndpointMention {
    /// Name of the Service, in the namespace of the slice.
    pub service: String,
    /// Condition `ready`.
    pub is_ready: bool,
    /// Condition `terminating`.
    pub is_terminating: bool,
}

impl ClusterClient {
    /// Returns the pods of a namespace with these labels.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn labelled_pods(
        &self,
        namespace: &str,
        selector: &str,
    ) -> Result<Vec<PodSummary>, AccessError> {
        let place = object_name(namespace)?;
        let mut escaped = Vec::new();
        gateway::snapshot::escape_query(selector.as_bytes(), &mut escaped);
        let selector = String::from_utf8_lossy(&escaped);
        let path =
            format!("/api/v1/namespaces/{place}/pods?labelSelector={selector}&limit={MAX_LISTED}");
        let permission = RequiredPermission::in_namespace("list", "pods", namespace);
        let list = self.get_json(&path, &permission, &format!("namespace {namespace}")).await?;
        let items = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        Ok(items.iter().map(PodSummary::of).collect())
    }

    /// Returns a pod.
    ///
    /// # Errors
    /// If it cannot be read.
    pub async fn pod(&self, namespace: &str, name: &str) -> Result<PodSummary, AccessError> {
        let path =
            format!("/api/v1/namespaces/{}/pods/{}", object_name(namespace)?, object_name(name)?);
        let permission = RequiredPermission::in_namespace("get", "pods", namespace);
        let pod = self.get_json(&path, &permission, &format!("pod {namespace}/{name}")).await?;
        Ok(PodSummary::of(&pod))
    }

    /// Returns where the EndpointSlices of the pod's namespace name it, once for each Service.
    ///
    /// # Errors
    /// If they cannot be listed.
    pub async fn endpoints_of(
        &self,
        pod: &PodSummary,
    ) -> Result<Vec<EndpointMention>, AccessError> {
        let namespace = object_name(&pod.namespace)?;
        let path = format!(
            "/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices?limit={MAX_LISTED}"
        );
        let resource = "endpointslices.discovery.k8s.io";
        let permission = RequiredPermission::in_namespace("list", resource, namespace);
        let list = self.get_json(&path, &permission, &format!("namespace {namespace}")).await?;
        let slices = list["items"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut mentions: Vec<_> = slices.iter().flat_map(|it| mentions_in(it, pod)).collect();
        mentions.sort();
        mentions.dedup();
        Ok(mentions)
    }
}

impl PodSummary {
    fn of(pod: &Value) -> Self {
        let text = |path: &str| {
            pod.pointer(path).and_then(Value::as_str).map(str::to_owned).unwrap_or_default()
        };
        let list =
            |value: Option<&Value>| value.and_then(Value::as_array).cloned().unwrap_or_default();
        let conditions = list(pod.pointer("/status/conditions"));
        let addresses = list(pod.pointer("/status/podIPs"));
        let addresses = addresses.iter().filter_map(|it| it["ip"].as_str()?.parse().ok());
        let containers = list(pod.pointer("/spec/containers"));
        let ports = containers.iter().flat_map(|it| list(it.get("ports")));
        let mut admin = ports.filter(|port| port["name"] == ADMIN_PORT);
        let first = containers.first();
        let arguments = list(first.and_then(|it| it.get("args")));
        Self {
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name"),
            node: text("/spec/nodeName"),
            phase: text("/status/phase"),
            addresses: addresses.collect(),
            is_ready: conditions.iter().any(|it| it["type"] == "Ready" && it["status"] == "True"),
            is_terminating: pod.pointer("/metadata/deletionTimestamp").is_some(),
            admin_port: admin.find_map(|port| port["containerPort"].as_u64()?.try_into().ok()),
            container: text("/spec/containers/0/name"),
            arguments: arguments.iter().filter_map(|it| it.as_str().map(str::to_owned)).collect(),
        }
    }
}

fn mentions_in(slice: &Value, pod: &PodSummary) -> Vec<EndpointMention> {
    let service = slice.pointer("/metadata/labels/kubernetes.io~1service-name");
    let Some(service) = service.and_then(Value::as_str) else { return Vec::new() };
    let endpoints = slice["endpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let is_pod = |endpoint: &&Value| {
        let target = &endpoint["targetRef"];
        if !target.is_null() {
            return target["kind"] == "Pod" && target["name"] == pod.name.as_str();
        }
        let addresses = endpoint["addresses"].as_array().map(Vec::as_slice).unwrap_or_default();
        let mut addresses = addresses.iter().filter_map(|it| it.as_str()?.parse().ok());
        addresses.any(|address: IpAddr| pod.addresses.contains(&address))
    };
    let mention = |endpoint: &Value| EndpointMention {
        service: service.to_owned(),
        // A missing condition means yes.
        is_ready: endpoint.pointer("/conditions/ready") != Some(&Value::Bool(false)),
        is_terminating: endpoint.pointer("/conditions/terminating") == Some(&Value::Bool(true)),
    };
    endpoints.iter().filter(is_pod).map(mention).collect()
}
