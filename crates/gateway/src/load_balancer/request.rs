//! Requests of a Service: IP versions, addresses, and with which Services it shares them.

use std::collections::BTreeSet;
use std::net::IpAddr;

use ipnet::IpNet;

use super::{ADDRESSES_ANNOTATION, SHARE_ANNOTATION, ServiceFinding};
use crate::address_pool::IpFamily;
use crate::objects::{CidrBlock, ServicePort, ServiceSpec, TypedObject};

/// Maximum number of source ranges of a Service.
const MAX_SOURCE_RANGES: usize = 1_000;

/// The request for an address of one IP version.
#[derive(Debug)]
pub(super) struct FamilyRequest {
    pub(super) family: IpFamily,
    /// The requested address; `None`: any.
    pub(super) specific: Option<IpAddr>,
    /// True if the Service does without, as long as it has an address of its other IP version.
    pub(super) is_optional: bool,
}

/// Returns the requests of a Service, in the order of its IP versions, and a finding for each that cannot be met.
pub(super) fn read(
    service: &TypedObject<ServiceSpec>,
) -> (Vec<FamilyRequest>, Vec<ServiceFinding>) {
    let spec = &service.spec;
    let named = spec.ip_families.iter().flatten().map(|name| match &**name {
        "IPv6" => IpFamily::V6,
        _ => IpFamily::V4,
    });
    let mut families: Vec<_> = named.collect();
    if families.is_empty() {
        families.push(IpFamily::V4);
    }
    let prefers = spec.ip_family_policy.as_deref() == Some("PreferDualStack");
    let mut requests: Vec<FamilyRequest> = Vec::new();
    for family in families {
        if !requests.iter().any(|it| it.family == family) {
            requests.push(FamilyRequest { family, specific: None, is_optional: prefers });
        }
    }
    if !spec.ports.iter().any(has_transport) {
        // An address would not be served.
        return (Vec::new(), Vec::new());
    }
    let mut findings = Vec::new();
    for text in requested_texts(service) {
        if let Err(finding) = add_specific(&mut requests, text) {
            findings.push(finding);
        }
    }
    (requests, findings)
}

/// Returns the networks of the clients that a Service serves; `None` is all. A field that cannot be read as a whole
/// would let in others, or lock out its own: the error says why.
pub fn source_ranges(spec: &ServiceSpec) -> Result<Option<Vec<IpNet>>, String> {
    let texts = spec.load_balancer_source_ranges.iter().flatten().map(|it| it.trim());
    let texts: Vec<_> = texts.filter(|it| !it.is_empty()).collect();
    if texts.len() > MAX_SOURCE_RANGES {
        return Err(format!("there are more than {MAX_SOURCE_RANGES} loadBalancerSourceRanges"));
    }
    let parse = |text: &&str| {
        let block = CidrBlock::parse(text).map(|block| block.0);
        block.ok_or_else(|| format!("{text:?} in loadBalancerSourceRanges is no CIDR block"))
    };
    let networks = texts.iter().map(parse).collect::<Result<Vec<_>, _>>()?;
    Ok((!networks.is_empty()).then_some(networks))
}

/// True if the protocol of a port is one that Sheave serves.
fn has_transport(port: &ServicePort) -> bool {
    matches!(port.protocol.as_deref().unwrap_or("TCP"), "TCP" | "UDP")
}

/// Returns the requested addresses. The annotation has precedence over the field, which Kubernetes has deprecated.
fn requested_texts(service: &TypedObject<ServiceSpec>) -> Vec<&str> {
    let annotation = service.metadata.annotations.get(ADDRESSES_ANNOTATION);
    let field = service.spec.load_balancer_ip.as_ref();
    let text = annotation.or(field).map_or("", String::as_str);
    text.split(',').map(str::trim).filter(|it| !it.is_empty()).collect()
}

fn add_specific(requests: &mut [FamilyRequest], text: &str) -> Result<(), ServiceFinding> {
    let invalid = |message| Err(ServiceFinding::new("InvalidAddress", message));
    let Ok(address) = text.parse::<IpAddr>() else {
        return invalid(format!("the requested address {text:?} is not an IP address"));
    };
    let family = IpFamily::of(address);
    let Some(request) = requests.iter_mut().find(|it| it.family == family) else {
        return invalid(format!(
            "{address} is requested, but ipFamilies does not name its IP version"
        ));
    };
    if request.specific.is_some_and(|it| it != address) {
        return invalid(format!("{address} is a second request for an address of its IP version"));
    }
    request.specific = Some(address);
    Ok(())
}

/// The terms on which a Service shares its address.
pub(super) struct SharingTerms<'a> {
    namespace: &'a str,
    key: Option<&'a str>,
    ports: BTreeSet<(u16, &'a str)>,
    is_local: bool,
    service: &'a ServiceSpec,
}

impl<'a> SharingTerms<'a> {
    pub(super) fn of(service: &'a TypedObject<ServiceSpec>) -> Self {
        let TypedObject { metadata, spec, .. } = service;
        let key = metadata.annotations.get(SHARE_ANNOTATION).map(String::as_str);
        let ports = spec.ports.iter();
        Self {
            namespace: &metadata.namespace,
            key: key.filter(|key| !key.is_empty()),
            ports: ports.map(|it| (it.port, it.protocol.as_deref().unwrap_or("TCP"))).collect(),
            is_local: is_node_local(spec),
            service: spec,
        }
    }

    /// Returns if it shares with any Service.
    pub(super) const fn shares(&self) -> bool {
        self.key.is_some()
    }

    /// Returns why two Services cannot have one address; `None` if they can.
    pub(super) fn conflict(&self, other: &Self) -> Option<&'static str> {
        if self.namespace != other.namespace || self.key.is_none() || self.key != other.key {
            return Some("they do not share addresses by the same key");
        }
        if !self.ports.is_disjoint(&other.ports) {
            return Some("they have a port in common");
        }
        // One node carries the address. Local endpoints of both are there only if they are the same pods.
        let differ = self.is_local != other.is_local
            || (self.is_local && self.service.selector != other.service.selector);
        differ.then_some("their externalTrafficPolicy does not let one node serve both")
    }
}

/// True if a Service sends clients from outside of the cluster only to endpoints on the node that they come to.
pub fn is_node_local(spec: &ServiceSpec) -> bool {
    spec.external_traffic_policy.as_deref() == Some("Local")
}
