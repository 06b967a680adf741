//! The addresses of a Service that can be taken, and a finding for each part of it that cannot.

use std::net::IpAddr;

use super::is_tcp;
use crate::managed_services::SERVICE_LABEL;
use crate::objects::{ObjectMeta, ServiceSpec, ServiceType, TypedObject};
use crate::translation_settings::TransparentSettings;
use crate::transparent::TransparentFinding;

/// The default of `timeoutSeconds` of session affinity, which API servers fill in.
const AFFINITY_TIMEOUT: i64 = 10_800;

pub(super) fn finding(reason: &'static str, message: impl Into<String>) -> TransparentFinding {
    TransparentFinding { reason, message: message.into() }
}

/// Returns the ClusterIPs of a Service, or why it has none that can be taken, on any node.
pub(super) fn addresses(
    service: &TypedObject<ServiceSpec>,
) -> Result<Vec<IpAddr>, TransparentFinding> {
    let TypedObject { metadata, spec, .. } = service;
    let ObjectMeta { namespace, name, labels, .. } = metadata;
    match spec.kind {
        ServiceType::ExternalName => {
            let message = "a Service of type ExternalName has no address to take";
            return Err(finding("ExternalName", message));
        }
        ServiceType::ClusterIP | ServiceType::NodePort | ServiceType::LoadBalancer => {}
    }
    if labels.contains_key(SERVICE_LABEL) {
        let message = "the Service leads to Sheave: it is in front of a Gateway";
        return Err(finding("ManagedService", message));
    }
    if (&**namespace, &**name) == ("default", "kubernetes") {
        let message = "the Service is the API server's: Sheave would depend on itself";
        return Err(finding("ApiServer", message));
    }
    let one = spec.cluster_ip.iter().filter(|_| spec.cluster_ips.iter().all(Vec::is_empty));
    let texts: Vec<&String> = one.chain(spec.cluster_ips.iter().flatten()).collect();
    if texts.iter().any(|text| *text == "None") {
        let message = "the Service is headless: clients connect to its endpoints directly";
        return Err(finding("Headless", message));
    }
    let mut addresses = Vec::new();
    for text in texts.into_iter().filter(|text| !text.is_empty()) {
        let address = text.parse().ok().map(|it: IpAddr| it.to_canonical());
        let Some(address) = address.filter(is_of_services) else {
            return Err(finding("InvalidAddress", format!("{text:?} is not a ClusterIP")));
        };
        addresses.push(address);
    }
    if addresses.is_empty() {
        return Err(finding("NoClusterIP", "the Service has no ClusterIP yet"));
    }
    if !spec.ports.iter().any(is_tcp) {
        return Err(finding("NoTcpPort", "the Service has no TCP port"));
    }
    addresses.sort_unstable();
    addresses.dedup();
    Ok(addresses)
}

/// True if an address may be that of a Service.
fn is_of_services(address: &IpAddr) -> bool {
    !address.is_unspecified() && !address.is_loopback() && !address.is_multicast()
}

pub(super) fn network_policy_fault(policy: String) -> TransparentFinding {
    let message = format!(
        "connections would come from the node, and NetworkPolicy {policy} may restrict clients of the pods: \
         keep the client's address"
    );
    finding("NetworkPolicy", message)
}

/// Returns a finding for each port that is not a TCP port.
pub(super) fn other_ports(spec: &ServiceSpec) -> impl Iterator<Item = TransparentFinding> {
    spec.ports.iter().filter(|port| !is_tcp(port)).map(|port| {
        let (number, protocol) = (port.port, port.protocol.as_deref().unwrap_or_default());
        let message = format!("{protocol} port {number} is not taken, only TCP is");
        finding("UnsupportedProtocol", message)
    })
}

/// Removes the addresses that cannot be taken on this node, and returns why.
pub(super) fn retain_available(
    settings: &TransparentSettings,
    spec: &ServiceSpec,
    addresses: &mut Vec<IpAddr>,
) -> Vec<TransparentFinding> {
    if spec.internal_traffic_policy.as_deref() == Some("Local") && settings.node.is_empty() {
        addresses.clear();
        let message = "internalTrafficPolicy is Local, and the name of the node is not known";
        return vec![finding("UnknownNode", message)];
    }
    let is_available = |it: &IpAddr| if it.is_ipv4() { settings.ipv4 } else { settings.ipv6 };
    let lacking = addresses.iter().filter(|it| !is_available(it)).map(|address| {
        let version = if address.is_ipv4() { "IPv4" } else { "IPv6" };
        finding(
            "UnsupportedIPVersion",
            format!("{address} is not taken, because the node has no {version} address to take it"),
        )
    });
    let findings = lacking.collect();
    addresses.retain(is_available);
    findings
}

/// Returns a finding if session affinity is to end after another time than the default.
pub(super) fn affinity_finding(spec: &ServiceSpec) -> Option<TransparentFinding> {
    if spec.session_affinity.as_deref() != Some("ClientIP") {
        return None;
    }
    let asked = spec.session_affinity_config.as_ref()?.client_ip.as_ref()?.timeout_seconds?;
    (asked != AFFINITY_TIMEOUT).then(|| {
        let message = "timeoutSeconds of session affinity has no effect: a client stays at its endpoint while that serves";
        finding("AffinityTimeout", message)
    })
}
