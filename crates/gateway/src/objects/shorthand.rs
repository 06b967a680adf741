//! Objects from the flags of `sheave serve`, so that `serve --listen … --to …` is the same configuration as a file.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use super::{
    AddressType, ApiObject, BackendPolicySpec, BackendRef, ClientPolicySpec, Duration,
    EndpointConditions, EndpointSliceSpec, GATEWAY_CONTROLLER, GatewayAddress, GatewayClassSpec,
    GatewayKind, GatewaySpec, GatewayTarget, HttpRouteRule, HttpRouteSpec, ListenerSpec,
    ListenerTlsConfig, MaxInFlight, ObjectMeta, ObjectRef, ParentRef, SERVICE_NAME_LABEL,
    SecretBytes, SecretSpec, ServiceKind, ServicePort, ServiceSpec, ServiceTarget, SharedObject,
    SliceEndpoint, SlicePort, StreamBackendRef, StreamRouteRule, StreamRouteSpec, TypedObject,
};
use crate::problem::ObjectOrigin;

/// The namespace of all objects made here, so that they never conflict with objects of files.
const NAMESPACE: &str = "flags";
const CLASS: &str = "sheave";
const SERVICE: &str = "backend";
const PORT: u16 = 80;
/// The ports of the Service: name and transport. Both lead to the same endpoints.
const PORTS: [(&str, &str); 2] = [("tcp", "TCP"), ("udp", "UDP")];

/// The flags of `serve`.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ShorthandFlags {
    /// The addresses to accept on, each once.
    pub listen: Vec<ListenFlag>,
    /// The number of certificates for HTTPS. [`certificate`] creates each of them.
    pub certificates: usize,
    /// True if HTTPS listeners also serve HTTP/3.
    pub http3: bool,
    /// The endpoints.
    pub to: Vec<SocketAddr>,
    /// Maximum number of requests in flight at one endpoint.
    pub max_in_flight: Option<MaxInFlight>,
    /// Maximum number of requests in the queue.
    pub queue: Option<u32>,
    /// Maximum time in the queue.
    pub queue_timeout: Option<Duration>,
}

/// An address to accept on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ListenFlag {
    /// The protocol.
    pub protocol: ListenFlagProtocol,
    /// The address and port.
    pub address: SocketAddr,
}

/// The protocol of an address.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ListenFlagProtocol {
    /// HTTP.
    Http,
    /// HTTP over TLS.
    Https,
    /// TCP, forwarded unchanged.
    Tcp,
    /// UDP.
    Udp,
}

impl ShorthandFlags {
    /// True if HTTP/3 is served at the address: beside HTTPS, unless the UDP port of the same number is used for
    /// another listener.
    fn serve_http3(&self, listen: ListenFlag) -> bool {
        let has_udp = self
            .listen
            .contains(&ListenFlag { protocol: ListenFlagProtocol::Udp, address: listen.address });
        self.http3 && listen.protocol == ListenFlagProtocol::Https && !has_udp
    }
}

/// Returns the objects for the flags. All requests, connections and flows go to one Service.
pub fn shorthand(flags: &ShorthandFlags) -> Vec<ApiObject> {
    let mut objects = vec![ApiObject::GatewayClass(class().into())];
    let gateway = |(n, listen): (usize, &ListenFlag)| gateway(n, *listen, flags.certificates);
    objects.extend(
        (1..).zip(&flags.listen).map(gateway).map(SharedObject::from).map(ApiObject::Gateway),
    );
    let with_http3 = (1..).zip(&flags.listen).filter(|(_, listen)| flags.serve_http3(**listen));
    objects.extend(
        with_http3
            .map(|(n, _)| client_policy(n))
            .map(SharedObject::from)
            .map(ApiObject::ClientPolicy),
    );
    let parents = |protocols: &[ListenFlagProtocol]| parents(&flags.listen, protocols);
    let requests = parents(&[ListenFlagProtocol::Http, ListenFlagProtocol::Https]);
    objects.extend(requests.map(http_route).map(SharedObject::from).map(ApiObject::HttpRoute));
    objects.extend(
        parents(&[ListenFlagProtocol::Tcp])
            .map(stream_route)
            .map(SharedObject::from)
            .map(ApiObject::TcpRoute),
    );
    objects.extend(
        parents(&[ListenFlagProtocol::Udp])
            .map(stream_route)
            .map(SharedObject::from)
            .map(ApiObject::UdpRoute),
    );
    objects.push(ApiObject::Service(service().into()));
    objects.extend(slices(&flags.to).map(SharedObject::from).map(ApiObject::EndpointSlice));
    objects.push(ApiObject::BackendPolicy(policy(flags).into()));
    objects
}

/// Adds the built-in GatewayClass `sheave` if a Gateway names it and the objects contain no GatewayClass. A configuration
/// file needs no GatewayClass, because only one controller reads it.
pub fn add_default_class(objects: &mut Vec<ApiObject>) {
    let has_class = objects.iter().any(|object| matches!(object, ApiObject::GatewayClass(_)));
    let names_default = |object: &ApiObject| matches!(object, ApiObject::Gateway(gateway) if gateway.spec.gateway_class_name == CLASS);
    if !has_class && objects.iter().any(names_default) {
        let origin = ObjectOrigin { file: Arc::from("built-in"), document: 1 };
        let class = TypedObject { origin, ..class() };
        objects.push(ApiObject::GatewayClass(class.into()));
    }
}

/// Returns the Secret of a certificate for HTTPS, numbered from 1: the chain and its key in PEM, as read at `origin`.
pub fn certificate(number: usize, origin: ObjectOrigin, chain: Vec<u8>, key: Vec<u8>) -> ApiObject {
    let values = [("tls.crt", chain), ("tls.key", key)];
    let data = values.map(|(name, value)| (name.to_owned(), SecretBytes(value))).into();
    let spec = SecretSpec { data, ..Default::default() };
    ApiObject::Secret(TypedObject { origin, ..resource(&certificate_name(number), spec) }.into())
}

fn certificate_name(number: usize) -> String {
    format!("certificate-{number}")
}

fn resource<S>(name: &str, spec: S) -> TypedObject<S> {
    let origin = ObjectOrigin { file: Arc::from("command line"), document: 1 };
    TypedObject { origin, metadata: ObjectMeta::named(NAMESPACE, name), spec }
}

fn class() -> TypedObject<GatewayClassSpec> {
    resource(
        CLASS,
        GatewayClassSpec { controller_name: GATEWAY_CONTROLLER.to_owned(), ..Default::default() },
    )
}

/// Returns the Gateway of one address. Each address has a Gateway of its own, because a Gateway combines every address
/// with every port.
fn gateway(number: usize, listen: ListenFlag, certificates: usize) -> TypedObject<GatewaySpec> {
    let protocol = match listen.protocol {
        ListenFlagProtocol::Http => "HTTP",
        ListenFlagProtocol::Https => "HTTPS",
        ListenFlagProtocol::Tcp => "TCP",
        ListenFlagProtocol::Udp => "UDP",
    };
    let listener = ListenerSpec {
        name: protocol.to_lowercase(),
        port: listen.address.port(),
        protocol: protocol.to_owned(),
        tls: (listen.protocol == ListenFlagProtocol::Https).then(|| tls(certificates)),
        ..Default::default()
    };
    let spec = GatewaySpec {
        gateway_class_name: CLASS.to_owned(),
        listeners: vec![listener],
        addresses: vec![GatewayAddress {
            kind: None,
            value: Some(listen.address.ip().to_string()),
        }],
        ..Default::default()
    };
    resource(&gateway_name(number), spec)
}

/// Returns the policy that enables HTTP/3.
fn client_policy(number: usize) -> TypedObject<ClientPolicySpec> {
    let target = GatewayTarget {
        group: "gateway.networking.k8s.io".to_owned(),
        kind: GatewayKind::Gateway,
        name: gateway_name(number),
        section_name: None,
    };
    let mut spec = ClientPolicySpec::for_targets(vec![target]);
    spec.http3.enabled = true;
    resource(&gateway_name(number), spec)
}

fn tls(certificates: usize) -> ListenerTlsConfig {
    let reference = |number| ObjectRef { name: certificate_name(number), ..Default::default() };
    ListenerTlsConfig {
        certificate_refs: (1..=certificates).map(reference).collect(),
        ..Default::default()
    }
}

fn gateway_name(number: usize) -> String {
    format!("listen-{number}")
}

/// Returns references to the Gateways of these protocols, or `None` if there are none.
fn parents(listen: &[ListenFlag], protocols: &[ListenFlagProtocol]) -> Option<Vec<ParentRef>> {
    let speak = (1..).zip(listen).filter(|(_, listen)| protocols.contains(&listen.protocol));
    let parent = |number| ParentRef { name: gateway_name(number), ..Default::default() };
    let parents: Vec<_> = speak.map(|(number, _)| parent(number)).collect();
    (!parents.is_empty()).then_some(parents)
}

fn http_route(parent_refs: Vec<ParentRef>) -> TypedObject<HttpRouteSpec> {
    let backend = BackendRef {
        group: None,
        kind: None,
        namespace: None,
        name: SERVICE.to_owned(),
        port: Some(PORT),
        weight: 1,
        filters: Vec::new(),
    };
    let rule = HttpRouteRule { backend_refs: vec![backend], ..Default::default() };
    resource("all", HttpRouteSpec { parent_refs, rules: vec![rule], ..Default::default() })
}

fn stream_route(parent_refs: Vec<ParentRef>) -> TypedObject<StreamRouteSpec> {
    let backend = StreamBackendRef {
        group: None,
        kind: None,
        namespace: None,
        name: SERVICE.to_owned(),
        port: Some(PORT),
        weight: 1,
    };
    let rule = StreamRouteRule { name: None, backend_refs: vec![backend] };
    resource("all", StreamRouteSpec { parent_refs, rules: vec![rule], ..Default::default() })
}

fn service() -> TypedObject<ServiceSpec> {
    let port = |(name, transport): (&str, &str)| ServicePort {
        name: name.to_owned(),
        port: PORT,
        protocol: Some(transport.to_owned()),
        ..Default::default()
    };
    let ports = PORTS.map(port).into();
    resource(SERVICE, ServiceSpec { ports, ..Default::default() })
}

/// Returns the slices of the endpoints. A slice has one address type, and one number for each of its ports.
fn slices(to: &[SocketAddr]) -> impl Iterator<Item = TypedObject<EndpointSliceSpec>> {
    let mut groups: BTreeMap<(bool, u16), Vec<SliceEndpoint>> = BTreeMap::new();
    for address in to {
        let endpoint = SliceEndpoint {
            addresses: vec![address.ip().to_string()],
            conditions: EndpointConditions::default(),
            ..Default::default()
        };
        groups.entry((address.is_ipv6(), address.port())).or_default().push(endpoint);
    }
    groups.into_iter().map(|((v6, port), endpoints)| slice(v6, port, endpoints))
}

fn slice(v6: bool, port: u16, endpoints: Vec<SliceEndpoint>) -> TypedObject<EndpointSliceSpec> {
    let (address_type, family) =
        if v6 { (AddressType::IPv6, "ipv6") } else { (AddressType::IPv4, "ipv4") };
    let slice_port = |(name, transport): (&str, &str)| SlicePort {
        name: name.to_owned(),
        port: Some(port),
        protocol: Some(transport.to_owned()),
        ..Default::default()
    };
    let ports = PORTS.map(slice_port).into();
    let spec = EndpointSliceSpec { address_type, endpoints, ports };
    let mut slice = resource(&format!("{SERVICE}-{family}-{port}"), spec);
    slice.metadata.labels.insert(SERVICE_NAME_LABEL.to_owned(), SERVICE.to_owned());
    slice
}

fn policy(flags: &ShorthandFlags) -> TypedObject<BackendPolicySpec> {
    let target = ServiceTarget {
        group: String::new(),
        kind: ServiceKind::Service,
        name: SERVICE.to_owned(),
        section_name: None,
    };
    let mut spec = BackendPolicySpec::for_targets(vec![target]);
    spec.max_in_flight_per_endpoint = flags.max_in_flight;
    spec.queue.max_requests = flags.queue;
    if let Some(timeout) = flags.queue_timeout {
        spec.queue.timeout = timeout;
    }
    resource(SERVICE, spec)
}
