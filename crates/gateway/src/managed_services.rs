//! Services in front of Sheave, one for each Gateway: their names, manifests and port mappings.
//!
//! The Gateways share the pods of Sheave, and a connection through a Service no longer shows its original address. So
//! each port of each Gateway is mapped to a port of its own on the pods, and keeps it. This module does not write
//! Services.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::net::IpAddr;
use std::ops::RangeInclusive;

use serde_json::{Map, Value, json};

use crate::objects::{ApiObject, GatewayInfrastructure, GatewayName, ServiceSpec, TypedObject};
use crate::snapshot::TransportProtocol;

/// The label of all Services in front of Gateways, and of no others.
pub const SERVICE_LABEL: &str = "sheave.dev/front";
/// The annotation with the Gateway of a Service: `namespace/name`.
pub const GATEWAY_ANNOTATION: &str = "sheave.dev/gateway";
/// The annotation with the name of the controller that manages a Service. Services of earlier versions lack it: the
/// installation that needs one adopts it, and none but the one with the default name deletes it.
pub const CONTROLLER_ANNOTATION: &str = "sheave.dev/controller";
/// The annotation with a hash of the manifest. If it differs, the Service is written again, so that fields that are no
/// longer in the manifest are removed.
const CONTENT_ANNOTATION: &str = "sheave.dev/content";
/// Gateway API's label of resources that are created for a Gateway.
const GATEWAY_NAME_LABEL: &str = "gateway.networking.k8s.io/gateway-name";

/// The range of ports on the pods: below the ephemeral ports of the kernel, and below node ports.
const TARGET_PORT_RANGE: RangeInclusive<u16> = 20_000..=29_999;
/// Maximum length of a name or of a label value.
const MAX_LABEL_CHARACTERS: usize = 63;

/// An address at which clients reach a Gateway.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum PublishedAddress {
    /// An IP address.
    Ip(IpAddr),
    /// A DNS name, which some load balancers have instead.
    Hostname(String),
}

impl fmt::Display for PublishedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Hostname(name) => name.fmt(f),
        }
    }
}

/// The observed Services in front of Gateways.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagedServices {
    /// The Service of each Gateway that has one.
    pub services: BTreeMap<GatewayName, ObservedService>,
    /// The names of other Services in Sheave's namespace, those of other installations included.
    pub foreign: BTreeSet<String>,
}

/// An observed Service in front of a Gateway.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ObservedService {
    /// Its ports, and the ports of Sheave to which they are mapped.
    pub target_ports: TargetPortMap,
    /// The addresses at which clients reach it.
    pub addresses: Vec<PublishedAddress>,
}

/// Ports of clients, mapped to ports of Sheave.
pub type TargetPortMap = BTreeMap<u16, u16>;

/// The desired state of a Service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DesiredService {
    /// The Gateway of the Service.
    pub gateway: GatewayName,
    /// The ports of the Service, mapped to ports of Sheave.
    pub ports: BTreeMap<(u16, TransportProtocol), u16>,
    /// Labels and annotations that the Gateway requests.
    pub infrastructure: GatewayInfrastructure,
    /// The address that the Gateway requests.
    pub requested_address: Option<IpAddr>,
}

impl ManagedServices {
    /// Reads the Services of a namespace, for the installation with this controller. Their addresses are not known yet.
    pub fn read(objects: &[ApiObject], namespace: &str, controller: &str) -> Self {
        let mut managed = Self::default();
        for object in objects {
            let ApiObject::Service(service) = object else { continue };
            if service.metadata.namespace != namespace {
                continue;
            }
            match gateway_of(service, controller) {
                Some(gateway) => {
                    let (target_ports, addresses) = (target_ports(&service.spec), Vec::new());
                    managed.services.insert(gateway, ObservedService { target_ports, addresses });
                }
                None => _ = managed.foreign.insert(service.metadata.name.clone()),
            }
        }
        managed
    }

    /// Returns the ports of Sheave for the ports of Gateways. Existing mappings are kept. Other ports get the lowest
    /// free ones, in the order of the Gateways, or none if no port is free.
    pub(crate) fn assign(&self, requested: &[(GatewayName, BTreeSet<u16>)]) -> Vec<TargetPortMap> {
        let is_requested =
            |name: &GatewayName| requested.iter().any(|(gateway, _)| gateway == name);
        // The ports of a Gateway that is invalid, or that was just deleted, are not free yet.
        let others = self.services.iter().filter(|(name, _)| !is_requested(name));
        let mut taken: BTreeSet<u16> =
            others.flat_map(|(_, it)| it.target_ports.values()).copied().collect();
        let mut keep = |(name, ports): &(GatewayName, BTreeSet<u16>)| -> TargetPortMap {
            let previous = self.services.get(name).map(|known| &known.target_ports);
            let previous = previous.into_iter().flatten().map(|(port, target)| (*port, *target));
            let previous = previous.filter(|(port, _)| ports.contains(port));
            previous
                .filter(|(_, target)| TARGET_PORT_RANGE.contains(target) && taken.insert(*target))
                .collect()
        };
        let mut assigned: Vec<TargetPortMap> = requested.iter().map(&mut keep).collect();
        let mut free = TARGET_PORT_RANGE.filter(|port| !taken.contains(port));
        for (targets, (_, ports)) in assigned.iter_mut().zip(requested) {
            for port in ports {
                if !targets.contains_key(port)
                    && let Some(target) = free.next()
                {
                    targets.insert(*port, target);
                }
            }
        }
        assigned
    }

    /// Returns the addresses at which clients reach a Gateway.
    pub(crate) fn addresses(&self, gateway: &GatewayName) -> &[PublishedAddress] {
        self.services.get(gateway).map_or(&[], |known| &known.addresses)
    }
}

/// Returns the Gateway of a Service that this installation manages.
fn gateway_of(service: &TypedObject<ServiceSpec>, controller: &str) -> Option<GatewayName> {
    service.metadata.labels.get(SERVICE_LABEL)?;
    let of = service.metadata.annotations.get(CONTROLLER_ANNOTATION);
    if of.is_some_and(|of| of != controller) {
        return None;
    }
    let (namespace, name) =
        service.metadata.annotations.get(GATEWAY_ANNOTATION)?.split_once('/')?;
    Some((namespace.to_owned(), name.to_owned()))
}

fn target_ports(spec: &ServiceSpec) -> TargetPortMap {
    let target = |port: &crate::objects::ServicePort| Some((port.port, port.target_port?.0?));
    spec.ports.iter().filter_map(target).collect()
}

/// Returns the name of the Service in front of a Gateway. It ends with a hash, because the rest may be truncated and
/// the joined names may be ambiguous.
pub fn service_name((namespace, name): &GatewayName) -> String {
    let number = format!("{:08x}", fingerprint(&format!("{namespace}/{name}")));
    let plain = |c: char| if c.is_ascii_lowercase() || c.is_ascii_digit() { c } else { '-' };
    let readable: String = format!("sheave-{namespace}-{name}").chars().map(plain).collect();
    let readable = truncate(&readable, MAX_LABEL_CHARACTERS - number.len() - 1);
    format!("{}-{number}", readable.trim_end_matches('-'))
}

/// Returns the manifest of the Service in front of a Gateway. Fields that the Gateway does not determine come from the
/// template.
pub fn service_manifest(
    desired: &DesiredService,
    template: &Value,
    namespace: &str,
    controller: &str,
) -> Value {
    let mut service = template.clone();
    let gateway = format!("{}/{}", desired.gateway.0, desired.gateway.1);
    let label = truncate(&desired.gateway.1, MAX_LABEL_CHARACTERS).trim_end_matches(['-', '.']);
    let ours = [(SERVICE_LABEL, "gateway"), (GATEWAY_NAME_LABEL, label)];
    service["apiVersion"] = json!("v1");
    service["kind"] = json!("Service");
    let metadata = object(&mut service["metadata"]);
    metadata.insert("name".to_owned(), json!(service_name(&desired.gateway)));
    metadata.insert("namespace".to_owned(), json!(namespace));
    let labels = object(metadata.entry("labels").or_insert(Value::Null));
    labels.extend(texts(&desired.infrastructure.labels));
    labels.extend(ours.map(|(name, value)| (name.to_owned(), json!(value))));
    let annotations = object(metadata.entry("annotations").or_insert(Value::Null));
    annotations.extend(texts(&desired.infrastructure.annotations));
    annotations.insert(GATEWAY_ANNOTATION.to_owned(), json!(gateway));
    annotations.insert(CONTROLLER_ANNOTATION.to_owned(), json!(controller));
    let spec = object(&mut service["spec"]);
    spec.insert("ports".to_owned(), desired.ports.iter().map(port).collect());
    if let Some(address) = desired.requested_address {
        spec.insert("loadBalancerIP".to_owned(), json!(address));
    }
    let mut hasher = DefaultHasher::new();
    service.to_string().hash(&mut hasher);
    service["metadata"]["annotations"][CONTENT_ANNOTATION] =
        json!(format!("{:016x}", hasher.finish()));
    service
}

/// True if an object has all desired fields, whatever other fields it has.
pub fn has_desired_fields(is: &Value, should: &Value) -> bool {
    match (is, should) {
        (Value::Object(is), Value::Object(should)) => should
            .iter()
            .all(|(name, should)| is.get(name).is_some_and(|is| has_desired_fields(is, should))),
        (Value::Array(is), Value::Array(should)) => {
            is.len() == should.len()
                && is.iter().zip(should).all(|(is, should)| has_desired_fields(is, should))
        }
        (is, should) => is == should,
    }
}

fn port(((number, transport), target): (&(u16, TransportProtocol), &u16)) -> Value {
    let (name, protocol) = match transport {
        TransportProtocol::Tcp => (format!("tcp-{number}"), "TCP"),
        TransportProtocol::Udp => (format!("udp-{number}"), "UDP"),
    };
    json!({ "name": name, "port": number, "protocol": protocol, "targetPort": target })
}

fn object(value: &mut Value) -> &mut Map<String, Value> {
    if !value.is_object() {
        *value = json!({});
    }
    value.as_object_mut().expect("the value is an object")
}

fn texts(texts: &BTreeMap<String, String>) -> impl Iterator<Item = (String, Value)> {
    texts.iter().map(|(name, text)| (name.clone(), json!(text)))
}

/// FNV-1a. It must not change between versions, because Services would change their names, and load balancers their
/// addresses.
fn fingerprint(text: &str) -> u32 {
    let step = |hash: u32, byte: u8| (hash ^ u32::from(byte)).wrapping_mul(16_777_619);
    text.bytes().fold(2_166_136_261, step)
}

/// Returns the beginning of a text, which must be ASCII, as names are.
fn truncate(text: &str, most: usize) -> &str {
    text.get(..most).unwrap_or(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn gateway(name: &str) -> GatewayName {
        ("shop".to_owned(), name.to_owned())
    }

    fn asking(name: &str, ports: &[u16]) -> (GatewayName, BTreeSet<u16>) {
        (gateway(name), ports.iter().copied().collect())
    }

    fn known(name: &str, targets: &[(u16, u16)]) -> ManagedServices {
        let known = ObservedService {
            target_ports: targets.iter().copied().collect(),
            addresses: Vec::new(),
        };
        ManagedServices { services: [(gateway(name), known)].into(), foreign: BTreeSet::new() }
    }

    #[test]
    fn every_gateway_port_gets_a_unique_target_port() {
        let assigned =
            ManagedServices::default().assign(&[asking("a", &[80, 443]), asking("b", &[80])]);
        assert_eq!(assigned[0], TargetPortMap::from([(80, 20_000), (443, 20_001)]));
        assert_eq!(assigned[1], TargetPortMap::from([(80, 20_002)]));
    }

    #[test]
    fn assigned_target_port_is_kept() {
        let services = known("b", &[(80, 20_000)]);
        let assigned = services.assign(&[asking("a", &[80]), asking("b", &[80, 81])]);
        assert_eq!(assigned[0], TargetPortMap::from([(80, 20_001)]));
        assert_eq!(assigned[1], TargetPortMap::from([(80, 20_000), (81, 20_002)]));
    }

    #[test]
    fn target_port_of_an_existing_service_is_not_reassigned() {
        let services = known("unreadable", &[(80, 20_000)]);
        assert_eq!(services.assign(&[asking("a", &[80])])[0], TargetPortMap::from([(80, 20_001)]));
    }

    #[test]
    fn foreign_or_duplicate_target_ports_are_not_adopted() {
        let services = known("a", &[(80, 9900), (81, 20_005), (82, 20_005)]);
        let expected = TargetPortMap::from([(80, 20_000), (81, 20_005), (82, 20_001)]);
        assert_eq!(services.assign(&[asking("a", &[80, 81, 82])])[0], expected);
    }

    #[test]
    fn service_names_of_gateways_are_unique() {
        let names = [("a-b", "c"), ("a", "b-c"), ("a", "b.c")];
        let names =
            names.map(|(namespace, of)| service_name(&(namespace.to_owned(), of.to_owned())));
        assert_eq!(names.iter().collect::<BTreeSet<_>>().len(), 3, "{names:?}");
        assert_eq!(names[0], "sheave-a-b-c-508f0545", "once given, a name is kept");
        let long = service_name(&("a".repeat(63), "b".repeat(63)));
        assert!(long.len() <= 63 && long.starts_with("sheave-aaa"), "{long}");
    }

    #[test]
    fn service_combines_gateway_and_template() {
        let infrastructure = GatewayInfrastructure {
            labels: [("team".to_owned(), "shop".to_owned())].into(),
            annotations: [("lb".to_owned(), "internal".to_owned())].into(),
            parameters_ref: None,
        };
        let ports =
            [((80, TransportProtocol::Tcp), 20_000), ((443, TransportProtocol::Udp), 20_001)]
                .into();
        let address = Some(IpAddr::from([192, 0, 2, 1]));
        let desired = DesiredService {
            gateway: gateway("web"),
            ports,
            infrastructure,
            requested_address: address,
        };
        let template = json!({
            "metadata": { "annotations": { "lb": "external", "of": "all" } },
            "spec": { "type": "LoadBalancer", "selector": { "app": "sheave" } },
        });
        let made = service_manifest(&desired, &template, "system", "a.test/b");
        let expected = json!({
            "kind": "Service",
            "metadata": {
                "name": service_name(&gateway("web")),
                "namespace": "system",
                "labels": { SERVICE_LABEL: "gateway", GATEWAY_NAME_LABEL: "web", "team": "shop" },
                "annotations": {
                    "lb": "internal", "of": "all", GATEWAY_ANNOTATION: "shop/web",
                    CONTROLLER_ANNOTATION: "a.test/b",
                },
            },
            "spec": {
                "type": "LoadBalancer",
                "selector": { "app": "sheave" },
                "loadBalancerIP": "192.0.2.1",
                "ports": [
                    { "name": "tcp-80", "port": 80, "protocol": "TCP", "targetPort": 20_000 },
                    { "name": "udp-443", "port": 443, "protocol": "UDP", "targetPort": 20_001 },
                ],
            },
        });
        assert!(has_desired_fields(&made, &expected), "{made}");
        let plain = DesiredService { infrastructure: GatewayInfrastructure::default(), ..desired };
        assert!(
            !has_desired_fields(&made, &service_manifest(&plain, &template, "system", "a.test/b")),
            "less is another content"
        );
    }

    #[test]
    fn fields_defaulted_by_the_cluster_are_no_difference() {
        let should = json!({ "a": [{ "b": 1 }] });
        assert!(has_desired_fields(&json!({ "a": [{ "b": 1, "c": 2 }], "d": 3 }), &should));
        for is in [json!({ "a": [] }), json!({ "a": [{ "b": 2 }] }), json!({}), json!(null)] {
            assert!(!has_desired_fields(&is, &should), "{is}");
        }
    }
}
