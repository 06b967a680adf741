//! From objects to the services of the layer-4 data path, wherever their endpoints are. Pure.
//!
//! A virtual address is taken as a whole or left to the proxy as a whole: the programs drop what comes to a port of it
//! that they do not know. What exceeds the maps is left to it too, the newest Services first.

/// Room in the maps of the kernel.
mod map_room;

use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};

use gateway::load_balancer::{self, QUIC_SERVER_ID_ANNOTATION};
use gateway::objects::{
    AddressType, EndpointConditions, EndpointSliceSpec, SERVICE_NAME_LABEL, ServicePort,
    ServiceSpec, SliceEndpoint, TypedObject,
};
use gateway::transparent::BALANCE_ANNOTATION;
use gateway::{AddressFilter, ApiObject};
use ipnet::IpNet;
use l4::TransportProtocol;
use map_room::MapRoom;

/// Addresses in the statuses of Services, by namespace and name.
pub(super) type StatusAddresses = BTreeMap<(String, String), Vec<IpAddr>>;

/// The services that the data path is to serve, and the nodes.
#[derive(Clone, Debug, Default, Eq, PartialEq)]
pub(super) struct ServicePlan {
    /// Ports of Services, in the order of their addresses and the numbers of their protocols.
    pub(super) ports: Vec<PlannedPort>,
    /// Addresses of each node.
    pub(super) nodes: BTreeMap<String, Vec<IpAddr>>,
    pub(super) findings: BTreeSet<PlanFinding>,
}

/// One port of a Service at one address.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PlannedPort {
    /// `namespace/service`.
    pub(super) service: String,
    pub(super) address: SocketAddr,
    pub(super) protocol: TransportProtocol,
    pub(super) has_client_affinity: bool,
    pub(super) quic_server_id_length: Option<u8>,
    /// Networks of the clients; `None` is all.
    pub(super) source_ranges: Option<Vec<IpNet>>,
    pub(super) endpoints: Vec<PlannedEndpoint>,
}

/// One endpoint of a port.
#[derive(Clone, Debug, Eq, PartialEq)]
pub(super) struct PlannedEndpoint {
    pub(super) address: SocketAddr,
    /// Name of its node, if the EndpointSlice has it.
    pub(super) node: Option<String>,
    pub(super) state: EndpointState,
}

/// State of an endpoint by the connections that it gets, the best first.
#[derive(Clone, Copy, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) enum EndpointState {
    /// New ones and those that it has.
    Ready,
    /// Those that it has, and new ones if no endpoint is ready: it terminates.
    Terminating,
    /// Those that it has: it is not ready.
    Unready,
}

/// Something that is not served by the data path, and why.
#[derive(Clone, Debug, Eq, Ord, PartialEq, PartialOrd)]
pub(super) struct PlanFinding {
    /// The Service as `namespace/name`, or an address.
    pub(super) object: String,
    pub(super) message: String,
}

impl PlanFinding {
    pub(super) fn new(object: impl ToString, message: impl Into<String>) -> Self {
        Self { object: object.to_string(), message: message.into() }
    }
}

/// Returns the services of the class `sheave.dev/l4` that the data path serves on a node.
pub(super) fn plan(
    objects: &[ApiObject],
    addresses: &StatusAddresses,
    this_node: &str,
) -> ServicePlan {
    let mut plan = ServicePlan { nodes: nodes(objects), ..ServicePlan::default() };
    let slices = slices(objects);
    let mut left = BTreeSet::new();
    let mut room = MapRoom::default();
    let mut ports: BTreeMap<(SocketAddr, u8), PlannedPort> = BTreeMap::new();
    let mut services: Vec<_> = objects.iter().filter_map(load_balancer_service).collect();
    services.sort_by(|a, b| a.metadata.precedence().cmp(&b.metadata.precedence()));
    for service in services {
        let name = (service.metadata.namespace.clone(), service.metadata.name.clone());
        let vips = addresses.get(&name).map_or(&[][..], Vec::as_slice);
        let slices = slices.get(&(&*name.0, &*name.1)).map_or(&[][..], Vec::as_slice);
        let label = format!("{}/{}", name.0, name.1);
        let mut served = Vec::new();
        for &vip in vips {
            match reason_against_address(vip, &plan.nodes) {
                None => served.push(vip),
                Some(reason) => {
                    left.insert(vip);
                    plan.findings.insert(PlanFinding::new(&label, reason));
                }
            }
        }
        let planned = match reason_for_proxy(service) {
            Some(reason) => Err(reason.to_owned()),
            None => service_ports(service, &served, slices, this_node, &mut plan.findings),
        };
        let planned = planned.and_then(|ports| room.take(&ports).map(|()| ports));
        let service_ports = match planned {
            Ok(ports) => ports,
            Err(reason) => {
                left.extend(vips.iter().copied());
                plan.findings.insert(PlanFinding::new(&label, reason));
                continue;
            }
        };
        for port in service_ports {
            match ports.entry((port.address, port.protocol as u8)) {
                Entry::Vacant(free) => _ = free.insert(port),
                Entry::Occupied(_) => {
                    let message = format!("another Service has {} already", port.address);
                    plan.findings.insert(PlanFinding::new(&label, message));
                }
            }
        }
    }
    let (taken, shared): (Vec<_>, Vec<_>) =
        ports.into_values().partition(|it| !left.contains(&it.address.ip()));
    for port in shared {
        let message = "it shares its address with a Service that the proxy serves";
        plan.findings.insert(PlanFinding::new(&port.service, message));
    }
    plan.ports = taken;
    plan
}

/// Returns the ports of a Service at its addresses.
///
/// # Errors
/// The reason why the data path cannot serve them.
fn service_ports(
    service: &TypedObject<ServiceSpec>,
    vips: &[IpAddr],
    slices: &[&EndpointSliceSpec],
    this_node: &str,
    findings: &mut BTreeSet<PlanFinding>,
) -> Result<Vec<PlannedPort>, String> {
    let label = format!("{}/{}", service.metadata.namespace, service.metadata.name);
    let source_ranges = load_balancer::source_ranges(&service.spec)?;
    let mut planned = Vec::new();
    for port in &service.spec.ports {
        let Some(protocol) = protocol(port) else {
            let message = format!("port {}: its protocol is not served", port.port);
            findings.insert(PlanFinding::new(&label, message));
            continue;
        };
        let quic_server_id_length = quic_server_id_length(service, protocol, findings);
        planned.extend(vips.iter().map(|vip| PlannedPort {
            service: label.clone(),
            address: SocketAddr::new(*vip, port.port),
            protocol,
            has_client_affinity: service.spec.session_affinity.as_deref() == Some("ClientIP"),
            quic_server_id_length,
            source_ranges: source_ranges.clone(),
            endpoints: endpoints(service, port, vip.is_ipv4(), slices, this_node),
        }));
    }
    Ok(planned)
}

fn load_balancer_service(object: &ApiObject) -> Option<&TypedObject<ServiceSpec>> {
    let ApiObject::Service(service) = object else { return None };
    // A Service without a class is the proxy's, even if that is the default load balancer.
    load_balancer::is_ours(service, false).then_some(&**service)
}

fn nodes(objects: &[ApiObject]) -> BTreeMap<String, Vec<IpAddr>> {
    let node = |object: &ApiObject| match object {
        ApiObject::Node(it) => {
            Some((it.metadata.name.clone(), it.spec.internal_addresses().collect()))
        }
        _ => None,
    };
    objects.iter().filter_map(node).collect()
}

type SlicesByService<'a> = BTreeMap<(&'a str, &'a str), Vec<&'a EndpointSliceSpec>>;

fn slices(objects: &[ApiObject]) -> SlicesByService<'_> {
    let mut slices = SlicesByService::new();
    for object in objects {
        let ApiObject::EndpointSlice(slice) = object else { continue };
        if let Some(service) = slice.metadata.labels.get(SERVICE_NAME_LABEL) {
            let name = (&*slice.metadata.namespace, &**service);
            slices.entry(name).or_default().push(&slice.spec);
        }
    }
    slices
}

/// Returns why a Service stays with the proxy.
fn reason_for_proxy(service: &TypedObject<ServiceSpec>) -> Option<&'static str> {
    let annotation = service.metadata.annotations.get(BALANCE_ANNOTATION);
    annotation.is_some_and(|it| it == "requests").then_some("the proxy balances its requests")
}

/// Returns why an address cannot be a virtual one: all packets to it would be taken.
fn reason_against_address(vip: IpAddr, nodes: &BTreeMap<String, Vec<IpAddr>>) -> Option<String> {
    if let Some((node, _)) = nodes.iter().find(|(_, addresses)| addresses.contains(&vip)) {
        return Some(format!("its address {vip} is that of the node {node}"));
    }
    let refused = AddressFilter::default().check_slice(SocketAddr::new(vip, 0)).err()?;
    Some(format!("its address {vip} {refused}"))
}

fn protocol(port: &ServicePort) -> Option<TransportProtocol> {
    match port.protocol.as_deref().unwrap_or("TCP") {
        "TCP" => Some(TransportProtocol::Tcp),
        "UDP" => Some(TransportProtocol::Udp),
        _ => None,
    }
}

/// Reads the annotation for server IDs of QUIC. A wrong value is a finding, and turns them off.
fn quic_server_id_length(
    service: &TypedObject<ServiceSpec>,
    protocol: TransportProtocol,
    findings: &mut BTreeSet<PlanFinding>,
) -> Option<u8> {
    let text = service.metadata.annotations.get(QUIC_SERVER_ID_ANNOTATION)?;
    match text.parse() {
        Ok(length @ 1..=4) => (protocol == TransportProtocol::Udp).then_some(length),
        Ok(_) | Err(_) => {
            let label = format!("{}/{}", service.metadata.namespace, service.metadata.name);
            let message = format!("{QUIC_SERVER_ID_ANNOTATION} must be 1 to 4, is {text:?}");
            findings.insert(PlanFinding::new(label, message));
            None
        }
    }
}

/// Returns the endpoints of a port with addresses of one IP version, sorted.
fn endpoints(
    service: &TypedObject<ServiceSpec>,
    port: &ServicePort,
    is_ipv4: bool,
    slices: &[&EndpointSliceSpec],
    this_node: &str,
) -> Vec<PlannedEndpoint> {
    let wanted = if is_ipv4 { AddressType::IPv4 } else { AddressType::IPv6 };
    let is_local_only = load_balancer::is_node_local(&service.spec);
    let protocol = port.protocol.as_deref().unwrap_or("TCP");
    let mut found: BTreeMap<SocketAddr, PlannedEndpoint> = BTreeMap::new();
    for slice in slices.iter().filter(|it| it.address_type == wanted) {
        let numbers = slice.ports.iter().filter(|it| {
            it.name == port.name && it.protocol.as_deref().unwrap_or("TCP") == protocol
        });
        for number in numbers.filter_map(|it| it.port) {
            let usable = slice
                .endpoints
                .iter()
                .filter(|it| !is_local_only || it.node_name.as_deref() == Some(this_node));
            for endpoint in usable.filter_map(|it| planned_endpoint(it, number, is_ipv4)) {
                let known = found.entry(endpoint.address).or_insert_with(|| endpoint.clone());
                // While an endpoint moves to another slice it is in both.
                if endpoint.state < known.state {
                    *known = endpoint;
                }
            }
        }
    }
    found.into_values().collect()
}

fn planned_endpoint(endpoint: &SliceEndpoint, port: u16, is_ipv4: bool) -> Option<PlannedEndpoint> {
    let ip: IpAddr = endpoint.addresses.first()?.parse().ok()?;
    let address = SocketAddr::new(ip, port);
    let is_usable =
        ip.is_ipv4() == is_ipv4 && AddressFilter::default().check_slice(address).is_ok();
    is_usable.then(|| PlannedEndpoint {
        address,
        node: endpoint.node_name.clone(),
        state: state(endpoint.conditions),
    })
}

fn state(conditions: EndpointConditions) -> EndpointState {
    let is_terminating = conditions.terminating == Some(true);
    let is_ready = conditions.ready != Some(false) && !is_terminating;
    let is_serving = conditions.serving.or(conditions.ready) != Some(false);
    match (is_ready, is_terminating && is_serving) {
        (true, _) => EndpointState::Ready,
        (false, true) => EndpointState::Terminating,
        (false, false) => EndpointState::Unready,
    }
}

#[cfg(test)]
mod tests;
