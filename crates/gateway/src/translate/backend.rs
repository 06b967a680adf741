//! Services and EndpointSlices: resolves backend references, and selects the endpoints that get new requests.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;

use super::grant::permits;
use super::index::{NamespacedName, ObjectIndex, PolicyTarget};
use super::report::{TranslationReport, ValidationFault};
use super::transparent::{
    self, EndpointLocality, SliceMember, TransparentServices, restricting_policy,
};
use crate::address_filter::AddressFilter;
use crate::objects::{
    AddressType, ApiObject, EndpointSliceSpec, ObjectMeta, SERVICE_NAME_LABEL, ServicePort,
    ServiceRef, ServiceSpec, ServiceType, SliceEndpoint, SlicePort, TypedObject,
};
use crate::problem::ObjectProblem;
use crate::snapshot::{
    BackendKey, EndpointProtocol, EndpointSource, EndpointSpec, TransportProtocol,
};
use crate::status::ConditionReason;
use crate::translation_settings::TranslationSettings;

/// The endpoints of every Service.
///
/// Serves the fast path for a change in EndpointSlices alone: it returns the endpoints of a backend without a new
/// translation. They are the same that a translation of the same objects returns.
#[derive(Clone, Debug)]
pub struct EndpointIndex<'a> {
    services: BTreeMap<NamespacedName<'a>, &'a ServiceSpec>,
    slices: BTreeMap<NamespacedName<'a>, Vec<&'a TypedObject<EndpointSliceSpec>>>,
    /// Services of which not all endpoints are used from this node, in transparent mode.
    localities: BTreeMap<NamespacedName<'a>, EndpointLocality>,
    filter: AddressFilter,
    /// Problems of duplicate object names. On the fast path nothing else checks them.
    duplicate_problems: Vec<ObjectProblem>,
}

impl<'a> EndpointIndex<'a> {
    /// Indexes the EndpointSlices by Service.
    pub fn new(objects: &'a [ApiObject], settings: &TranslationSettings) -> Self {
        let mut report = TranslationReport::default();
        let index = ObjectIndex::new(objects, settings, &mut report);
        let services = transparent::services(&index);
        Self { duplicate_problems: report.problems, ..Self::of_index(&index, &services) }
    }

    pub(super) fn of_index(index: &ObjectIndex<'a>, transparent: &TransparentServices<'a>) -> Self {
        let services =
            index.services.iter().map(|(name, service)| (*name, &service.spec)).collect();
        let mut slices: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for slice in index.slices.values() {
            if let Some(service) = service_of(slice) {
                slices.entry(service).or_default().push(*slice);
            }
        }
        let filter = index.settings.address_filter.clone();
        let localities = transparent.localities();
        Self { services, slices, localities, filter, duplicate_problems: Vec::new() }
    }

    /// Returns the problems that a translation of the same objects would report of the EndpointSlices of these
    /// backends, so that the fast path rejects the same objects.
    pub fn problems(&self, backends: &[BackendKey]) -> Vec<ObjectProblem> {
        let mut report = TranslationReport {
            problems: self.duplicate_problems.clone(),
            ..TranslationReport::default()
        };
        check_slices(self, backends, &mut report);
        report.problems
    }

    /// Returns the endpoints of a backend, sorted by address. The list is empty if there is no such Service or port, or
    /// if the Service is an alias of a DNS name.
    ///
    /// A Pod of a dual-stack Service is one endpoint, known by its address of the Service's first IP version. Ready
    /// endpoints are returned. If none is ready, the endpoints that still serve while they terminate are returned, as
    /// kube-proxy does: a late answer is better than none. In transparent mode, the traffic policy of the Service and
    /// the hints of its endpoints apply.
    /// If the key names a node, those on the node are returned.
    pub fn of(&self, key: &BackendKey) -> Vec<EndpointSpec> {
        let is_meant =
            |it: &SliceMember<'_>| key.node.is_none() || it.spec.node.as_ref() == key.node.as_ref();
        self.select(key, is_meant)
    }

    /// Returns the endpoints of a backend on other nodes than that of its key; none if the key names no node. They get
    /// no requests.
    pub fn elsewhere(&self, key: &BackendKey) -> Vec<EndpointSpec> {
        if key.node.is_none() {
            return Vec::new();
        }
        self.select(key, |it| it.spec.node.as_ref() != key.node.as_ref())
    }

    fn select(
        &self,
        key: &BackendKey,
        is_meant: impl Fn(&SliceMember<'_>) -> bool,
    ) -> Vec<EndpointSpec> {
        let name = (&*key.namespace, &*key.service);
        let service = self.services.get(&name);
        let port = service.and_then(|service| find_port(service, key.port, key.transport));
        let (Some(port), Some(slices)) = (port, self.slices.get(&name)) else { return Vec::new() };
        let at_port = |slice: &'a TypedObject<EndpointSliceSpec>| {
            let mut endpoints = endpoints_of(&slice.spec, &port.name, key.transport);
            if slice.metadata.in_cluster {
                endpoints.retain(|it| self.filter.check_slice(it.spec.address).is_ok());
            }
            endpoints
        };
        let members = slices.iter().copied().flat_map(at_port);
        let mut all = joined(members, service.is_some_and(|service| prefers_ipv6(service)));
        if let Some(locality) = self.localities.get(&name) {
            locality.retain(&mut all);
        }
        all.retain(is_meant);
        let of = |is_ready| all.iter().filter(move |it| it.is_ready == is_ready);
        let ready = deduplicated(of(true));
        if ready.is_empty() { deduplicated(of(false)) } else { ready }
    }
}

/// The kind and namespace of an object that refers to a Service.
#[derive(Clone, Copy)]
pub(super) struct ServiceReferrer<'a> {
    pub(super) kind: &'a str,
    pub(super) namespace: &'a str,
    pub(super) scope: ReferenceScope,
}

/// The clients whose requests a reference to a Service serves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ReferenceScope {
    /// Clients of Gateways. A reference to another namespace needs a ReferenceGrant.
    Gateways,
    /// Clients of a Service in transparent mode. They could reach the Service directly, so no reference needs a
    /// ReferenceGrant (GEP-1294, "Namespace boundaries").
    Services {
        /// True if endpoints see the node instead of the client, so that NetworkPolicies would not see the client.
        hides_clients: bool,
    },
}

/// Returns the backend of a reference in a route's rule. `field` is the field path of the reference.
pub(super) fn resolve(
    index: &ObjectIndex<'_>,
    referrer: ServiceReferrer<'_>,
    reference: ServiceRef<'_>,
    transport: TransportProtocol,
    field: &str,
) -> Result<BackendKey, ValidationFault> {
    let fault = |reason, part: &str, message| {
        Err(ValidationFault::new(reason, format!("{field}.{part}"), message))
    };
    let kind = reference.kind.unwrap_or("Service");
    let group = reference.group.unwrap_or("");
    if (group, kind) != ("", "Service") {
        let message = format!("{kind} of group \"{group}\" is not supported, only Service");
        return fault(ConditionReason::InvalidKind, "kind", message);
    }
    let (namespace, name) = (reference.namespace.unwrap_or(referrer.namespace), reference.name);
    if namespace != referrer.namespace
        && referrer.scope == ReferenceScope::Gateways
        && !permits(index, (referrer.kind, referrer.namespace), ("Service", namespace, name))
    {
        let message = format!(
            "no ReferenceGrant of namespace {namespace} lets {} of {} use this Service",
            plural(referrer.kind),
            referrer.namespace
        );
        return fault(ConditionReason::RefNotPermitted, "namespace", message);
    }
    let Some(service) = index.services.get(&(namespace, name)) else {
        return fault(
            ConditionReason::BackendNotFound,
            "name",
            format!("there is no Service {namespace}/{name}"),
        );
    };
    if (referrer.scope == ReferenceScope::Services { hides_clients: true })
        && let Some(policy) = restricting_policy(index, service)
    {
        let message = format!(
            "connections would come from the node, and NetworkPolicy {policy} may restrict clients of this Service"
        );
        return fault(ConditionReason::RefNotPermitted, "name", message);
    }
    let Some(number) = reference.port else {
        return fault(
            ConditionReason::BackendNotFound,
            "port",
            "a Service needs a port".to_owned(),
        );
    };
    let port = find_port(&service.spec, number, transport);
    let is_alias = service.spec.kind == ServiceType::ExternalName;
    if is_alias && service.spec.external_name.is_none() {
        let message = format!("Service {namespace}/{name} has no externalName");
        return fault(ConditionReason::BackendNotFound, "name", message);
    }
    if is_alias && let Some(message) = external_name_fault(index, service) {
        return fault(ConditionReason::ExternalNameNotAllowed, "name", message);
    }
    // The ports of an alias need not be listed in a file, which belongs to the operator.
    if port.is_none() && (!is_alias || service.metadata.in_cluster) {
        let protocol = protocol_name(transport);
        let message = format!("Service {namespace}/{name} has no {protocol} port {number}");
        return fault(ConditionReason::BackendNotFound, "port", message);
    }
    let kinds = ["HTTPRoute", "GRPCRoute", "SecurityPolicy", "TrafficPolicy", "Ingress"];
    if kinds.contains(&referrer.kind)
        && let Some(port) = port
        && let Some(message) = protocol_fault(index, (namespace, name), port)
    {
        return fault(ConditionReason::UnsupportedProtocol, "port", message);
    }
    Ok(BackendKey {
        namespace: namespace.into(),
        service: name.into(),
        port: number,
        transport,
        node: None,
    })
}

/// Returns the plural of a kind.
fn plural(kind: &str) -> String {
    match kind.strip_suffix('y') {
        Some(start) => format!("{start}ies"),
        None if kind.ends_with('s') => format!("{kind}es"),
        None => format!("{kind}s"),
    }
}

/// Returns the UID of a backend's Service, if it has one.
pub(super) fn service_uid(index: &ObjectIndex<'_>, key: &BackendKey) -> Option<Arc<str>> {
    let service = index.services.get(&(&*key.namespace, &*key.service))?;
    service.metadata.uid.as_deref().map(Arc::from)
}

/// Returns the source of a backend's endpoints.
pub(super) fn source(index: &ObjectIndex<'_>, key: &BackendKey) -> EndpointSource {
    let alias = external_name(index, key);
    alias.map_or(EndpointSource::Slices, |(host, is_filtered)| EndpointSource::Dns {
        host: host.into(),
        port: key.port,
        is_filtered,
    })
}

/// Returns why a resolved backend lacks endpoints: the last answer for its name had addresses that are rejected.
pub(super) fn rejected_answer(
    index: &ObjectIndex<'_>,
    key: &BackendKey,
    field: &str,
) -> Option<ValidationFault> {
    let (host, _) = external_name(index, key).filter(|(_, is_filtered)| *is_filtered)?;
    let message = format!("{host}: {}", index.settings.rejected_answers.get(host)?);
    let reason = ConditionReason::AddressNotAllowed;
    Some(ValidationFault::new(reason, format!("{field}.name"), message))
}

/// Returns the name in DNS that a backend's Service stands for, without a dot at its end, and whether its addresses are
/// filtered.
fn external_name<'i>(index: &'i ObjectIndex<'_>, key: &BackendKey) -> Option<(&'i str, bool)> {
    let service = index.services.get(&(&*key.namespace, &*key.service))?;
    match service.spec.kind {
        ServiceType::ExternalName => {
            let name = service.spec.external_name.as_deref()?;
            Some((name.trim_end_matches('.'), service.metadata.in_cluster))
        }
        ServiceType::ClusterIP | ServiceType::NodePort | ServiceType::LoadBalancer => None,
    }
}

/// Returns why the ExternalName of a Service of a cluster is not served: an author of Services could reach through it
/// what only Sheave can reach (CVE-2021-25740).
fn external_name_fault(
    index: &ObjectIndex<'_>,
    service: &TypedObject<ServiceSpec>,
) -> Option<String> {
    if !service.metadata.in_cluster {
        return None;
    }
    let settings = &index.settings;
    let ObjectMeta { namespace, name, .. } = &service.metadata;
    if !settings.address_filter.allows_names() {
        return Some(format!(
            "Service {namespace}/{name} is of type ExternalName, which --external-names does not allow"
        ));
    }
    let alias = service.spec.external_name.as_deref()?;
    settings.cluster_domain.contains(alias).then(|| {
        format!(
            "Service {namespace}/{name} stands for {alias}, a name of the cluster: \
             refer to that Service itself, with a ReferenceGrant if it is in another namespace"
        )
    })
}

/// Reports everything in the EndpointSlices of these backends that yields no endpoint but was perhaps meant to.
pub(super) fn check_slices(
    endpoints: &EndpointIndex<'_>,
    backends: &[BackendKey],
    report: &mut TranslationReport,
) {
    let services: BTreeSet<NamespacedName<'_>> =
        backends.iter().map(|key| (&*key.namespace, &*key.service)).collect();
    for slice in services.iter().filter_map(|name| endpoints.slices.get(name)).flatten() {
        let filter = slice.metadata.in_cluster.then_some(&endpoints.filter);
        for (field, message) in slice_faults(&slice.spec, filter) {
            report.problem("EndpointSlice", slice, &field, message);
        }
    }
}

/// Returns the port of a Service with this number and transport.
pub(super) fn find_port(
    service: &ServiceSpec,
    number: u16,
    transport: TransportProtocol,
) -> Option<&ServicePort> {
    let is_meant =
        |port: &&ServicePort| port.port == number && is_of(transport, port.protocol.as_deref());
    service.ports.iter().find(is_meant)
}

/// Returns the protocol of a port's appProtocol, by the names of the Kubernetes standard, those of Istio, and our own;
/// `None` for others.
pub(super) fn port_protocol(port: &ServicePort) -> Option<EndpointProtocol> {
    match port.app_protocol.as_deref()? {
        "kubernetes.io/h2c" | "h2c" | "http2" | "grpc" => Some(EndpointProtocol::Http2),
        "kubernetes.io/ws" | "kubernetes.io/wss" | "http" => Some(EndpointProtocol::Http1),
        "sheave.dev/h3" => Some(EndpointProtocol::Http3),
        _ => None,
    }
}

/// True if the port of a backend says that its endpoints speak HTTP/1.1.
pub(super) fn is_http1_port(index: &ObjectIndex<'_>, key: &BackendKey) -> bool {
    let service = index.services.get(&(&*key.namespace, &*key.service));
    let port = service.and_then(|it| find_port(&it.spec, key.port, key.transport));
    port.and_then(port_protocol) == Some(EndpointProtocol::Http1)
}

const fn protocol_name(transport: TransportProtocol) -> &'static str {
    match transport {
        TransportProtocol::Tcp => "TCP",
        TransportProtocol::Udp => "UDP",
    }
}

/// True if the port's protocol is this transport. The default is TCP.
fn is_of(transport: TransportProtocol, protocol: Option<&str>) -> bool {
    protocol.unwrap_or("TCP") == protocol_name(transport)
}

/// Returns why requests cannot go to a port with this appProtocol. An unknown appProtocol is treated as HTTP. An
/// encrypted one needs a policy for certificate verification.
fn protocol_fault(
    index: &ObjectIndex<'_>,
    service: NamespacedName<'_>,
    port: &ServicePort,
) -> Option<String> {
    let (number, protocol) = (port.port, port.app_protocol.as_deref()?);
    match protocol {
        "https" | "kubernetes.io/wss" | "sheave.dev/h3" if !is_encrypted(index, service, port) => {
            Some(format!(
                "port {number} has appProtocol {protocol}, which needs a BackendTLSPolicy"
            ))
        }
        _ => None,
    }
}

/// True if a policy determines certificate verification at a port: a BackendTLSPolicy, or a BackendPolicy that skips
/// verification.
fn is_encrypted(index: &ObjectIndex<'_>, service: NamespacedName<'_>, port: &ServicePort) -> bool {
    let is_meant =
        |target: &PolicyTarget<'_>| target.section.is_none_or(|section| *section == *port.name);
    index.policies_of(service).iter().any(|target| target.encrypts && is_meant(target))
}

fn service_of(slice: &TypedObject<EndpointSliceSpec>) -> Option<NamespacedName<'_>> {
    let service = slice.metadata.labels.get(SERVICE_NAME_LABEL)?;
    Some((&slice.metadata.namespace, service))
}

/// Returns if an endpoint is ready for new requests: false if it only serves while it terminates, `None` if it does not
/// serve. Conditions that are absent have the defaults of the EndpointSlice API.
fn readiness(endpoint: &SliceEndpoint) -> Option<bool> {
    let conditions = endpoint.conditions;
    let ready = conditions.ready.unwrap_or(true);
    let serving = conditions.serving.unwrap_or(ready);
    let terminating = conditions.terminating.unwrap_or(false);
    match (ready, serving && terminating) {
        (true, _) => Some(true),
        (false, true) => Some(false),
        (false, false) => None,
    }
}

/// Returns the endpoints of a slice at one of its ports that serve.
fn endpoints_of<'s>(
    slice: &'s EndpointSliceSpec,
    port_name: &str,
    transport: TransportProtocol,
) -> Vec<SliceMember<'s>> {
    let is_meant =
        |port: &&SlicePort| port.name == port_name && is_of(transport, port.protocol.as_deref());
    let Some(port) = slice.ports.iter().find(is_meant).and_then(|port| port.port) else {
        return Vec::new();
    };
    let member = |endpoint: &'s SliceEndpoint| {
        let readiness = readiness(endpoint);
        let (is_serving, is_ready) = (readiness.is_some(), readiness == Some(true));
        let ip = parse_address(slice.address_type, endpoint.addresses.first()?)?;
        let zone = endpoint.zone.as_deref().map(Arc::from);
        let node = endpoint.node_name.as_deref().map(Arc::from);
        let spec = EndpointSpec { zone, node, ..EndpointSpec::new(SocketAddr::new(ip, port)) };
        let pod = endpoint.target_ref.as_ref().filter(|target| target.kind == "Pod");
        Some(SliceMember { spec, pod, hints: endpoint.hints.as_ref(), is_serving, is_ready })
    };
    slice.endpoints.iter().filter_map(member).collect()
}

/// True if the first IP version of the Service is IPv6.
fn prefers_ipv6(service: &ServiceSpec) -> bool {
    service.ip_families.iter().flatten().next().is_some_and(|family| family == "IPv6")
}

/// Joins the two addresses of each Pod, which are in slices of different IP versions, so that its limits are those of
/// the Pod; returns the endpoints that serve. The entry of the first IP version says if it does: slices change one
/// after the other, and a Pod must not be known by its second address meanwhile.
fn joined<'a>(
    members: impl Iterator<Item = SliceMember<'a>>,
    ipv6_first: bool,
) -> Vec<SliceMember<'a>> {
    let (mut first, others): (Vec<_>, Vec<_>) =
        members.partition(|it| it.spec.address.is_ipv6() == ipv6_first);
    let other_addresses: BTreeMap<_, _> =
        others.iter().filter_map(|it| Some((it.pod?, it.spec.address))).collect();
    let mut joined = BTreeSet::new();
    for member in &mut first {
        let known = member.pod.and_then(|pod| other_addresses.get_key_value(pod));
        if let Some((pod, address)) = known {
            member.spec.other_address = Some(*address);
            joined.insert(*pod);
        }
    }
    first.extend(others.into_iter().filter(|it| it.pod.is_none_or(|pod| !joined.contains(pod))));
    first.retain(|it| it.is_serving);
    first
}

/// Sorts endpoints and removes duplicates: a Pod that moves from one slice to another is briefly in both.
fn deduplicated<'a>(endpoints: impl Iterator<Item = &'a SliceMember<'a>>) -> Vec<EndpointSpec> {
    let mut specs: Vec<_> = endpoints.map(|it| it.spec.clone()).collect();
    specs.sort_unstable();
    specs.dedup_by_key(|spec| spec.address);
    specs
}

fn parse_address(kind: AddressType, text: &str) -> Option<IpAddr> {
    match kind {
        AddressType::IPv4 => text.parse().ok().map(IpAddr::V4),
        AddressType::IPv6 => text.parse().ok().map(IpAddr::V6),
        AddressType::Fqdn => None,
    }
}

fn slice_faults(
    slice: &EndpointSliceSpec,
    filter: Option<&AddressFilter>,
) -> Vec<(String, String)> {
    if slice.address_type == AddressType::Fqdn {
        return vec![("addressType".to_owned(), "FQDN is not supported".to_owned())];
    }
    let ports =
        slice.ports.iter().enumerate().filter(|(_, port)| port.port.is_none()).map(|(n, _)| {
            (format!("ports[{n}].port"), "a port without a number is not supported".to_owned())
        });
    let endpoints = slice.endpoints.iter().enumerate().filter_map(|(n, endpoint)| {
        let (part, message) = endpoint_fault(slice.address_type, &endpoint.addresses)?;
        Some((format!("endpoints[{n}].addresses{part}"), message))
    });
    let rejected = filter.into_iter().flat_map(|filter| rejected_addresses(slice, filter));
    ports.chain(endpoints).chain(rejected).collect()
}

/// Returns a fault for each endpoint that the filter rejects at one of its ports.
fn rejected_addresses<'a>(
    slice: &'a EndpointSliceSpec,
    filter: &'a AddressFilter,
) -> impl Iterator<Item = (String, String)> + 'a {
    slice.endpoints.iter().enumerate().filter_map(move |(n, endpoint)| {
        let address = parse_address(slice.address_type, endpoint.addresses.first()?)?;
        let mut ports = slice.ports.iter().filter_map(|port| port.port);
        let rejection =
            ports.find_map(|port| filter.check_slice(SocketAddr::new(address, port)).err())?;
        Some((format!("endpoints[{n}].addresses[0]"), format!("{address} {rejection}")))
    })
}

fn endpoint_fault(kind: AddressType, addresses: &[String]) -> Option<(&'static str, String)> {
    let [first, others @ ..] = addresses else {
        return Some(("", "is empty".to_owned()));
    };
    if parse_address(kind, first).is_none() {
        return Some(("[0]", format!("{first} is not an {kind:?} address")));
    }
    // Kubernetes treats the addresses as interchangeable for one endpoint, so they are not separate endpoints.
    let message = "only the first address is used; write an endpoint for each address";
    (!others.is_empty()).then(|| ("[1]", message.to_owned()))
}
