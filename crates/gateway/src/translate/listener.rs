//! Gateways and their listeners: which are accepted, at which addresses they are served, and why some are not.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv6Addr};
use std::sync::Arc;

use super::conflict::find_conflicts;
use super::index::{ObjectIndex, by_age};
use super::listener_set::{ListenerSetContext, ListenerSets};
use super::listener_tls::{self, ListenerTlsMode};
use super::namespace_scope::NamespaceScope;
use super::owner::OwnerObject;
use super::report::{TranslationReport, ValidationFault};
use crate::addresses::{AddressAssignment, RequestedAddress};
use crate::managed_services::{self, ManagedServices, PublishedAddress, TargetPortMap};
use crate::matching::HostPattern;
use crate::objects::{
    self, FromNamespaces, GatewayAddress, GatewayClassSpec, GatewayName, GatewaySpec, ObjectMeta,
    TypedObject,
};
use crate::snapshot::{Http3Settings, TlsCertificate, TransportProtocol, UrlScheme};
use crate::status::{
    ConditionReason, ConditionType, GatewayClassStatus, StatusCondition, StatusDetail,
};

/// A Gateway of one of our classes, whether accepted or not, with what its translation needs.
pub(super) struct GatewayContext<'a> {
    pub(super) object: &'a TypedObject<GatewaySpec>,
    /// The Gateway's own listeners, then those of the ListenerSets that it allows, in the order of precedence.
    pub(super) listeners: Vec<ListenerContext<'a>>,
    /// The ListenerSets that refer to it, the oldest first.
    pub(super) sets: Vec<ListenerSetContext<'a>>,
    /// Addresses of the Gateway; empty if the Gateway as a whole is not served.
    pub(super) addresses: Vec<IpAddr>,
    /// The client certificate for connections to endpoints: `None` if there is none, an error if it cannot be used.
    pub(super) client_certificate: Option<Result<Arc<TlsCertificate>, ValidationFault>>,
    /// Target ports by listener port; `None` if they are the same.
    pub(super) target_ports: Option<TargetPortMap>,
    /// The reason why the Gateway as a whole is not accepted, and so not served.
    pub(super) fault: Option<ValidationFault>,
    /// The reason why it lacks some of the addresses that it requests.
    pub(super) unassigned: Option<ValidationFault>,
    /// The error in its `allowedListeners`. It allows no ListenerSet then.
    pub(super) allowed_listeners_fault: Option<ValidationFault>,
}

/// A listener of a Gateway of ours.
pub(super) struct ListenerContext<'a> {
    /// The Gateway, or a ListenerSet of it.
    pub(super) owner: OwnerObject<'a>,
    /// Index among the owner's listeners.
    pub(super) place: usize,
    pub(super) spec: &'a objects::ListenerSpec,
    /// The protocol; HTTP if the listener's is unknown and it is not served.
    pub(super) protocol: ProtocolType,
    pub(super) hosts: HostPattern,
    /// The namespaces that routes may attach from.
    allowed: NamespaceScope<'a>,
    /// The TLS mode; `None` if there is no TLS, or none that can be served.
    pub(super) tls_mode: Option<ListenerTlsMode>,
    /// True if clients are asked for certificates, and another listener of the port might not ask.
    pub(super) asks_clients: bool,
    /// HTTP/3 settings, or why HTTP/3 cannot be served; `None` if it is not enabled.
    pub(super) http3: Option<Result<Http3Settings, ValidationFault>>,
    /// Number of attached routes. Gateway API demands it for a listener that is not served, too.
    pub(super) attached_routes: usize,
    /// The reason why it is not served.
    pub(super) fault: Option<ValidationFault>,
    /// A conflict with another listener.
    pub(super) conflict: Option<ValidationFault>,
    /// The name of another TLS listener that has hosts and the port in common with it.
    pub(super) overlaps: Option<&'a str>,
    /// References that cannot be resolved: unknown route kinds, certificates.
    pub(super) unresolved: Vec<ValidationFault>,
}

/// The protocol of a listener.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum ProtocolType {
    Http,
    Https,
    /// Connections in terminated TLS, or TLS that is passed through.
    Tls,
    Tcp,
    Udp,
}

impl ProtocolType {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "HTTP" => Some(Self::Http),
            "HTTPS" => Some(Self::Https),
            "TLS" => Some(Self::Tls),
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            _ => None,
        }
    }

    /// Returns the kinds of routes that can attach.
    const fn route_kinds(self) -> &'static [&'static str] {
        match self {
            Self::Http | Self::Https => &["HTTPRoute", "GRPCRoute"],
            Self::Tls => &["TLSRoute"],
            Self::Tcp => &["TCPRoute"],
            Self::Udp => &["UDPRoute"],
        }
    }

    pub(super) const fn transport(self) -> TransportProtocol {
        match self {
            Self::Http | Self::Https | Self::Tls | Self::Tcp => TransportProtocol::Tcp,
            Self::Udp => TransportProtocol::Udp,
        }
    }

    /// True if connections begin with TLS, and so with SNI.
    pub(super) const fn is_encrypted(self) -> bool {
        match self {
            Self::Https | Self::Tls => true,
            Self::Http | Self::Tcp | Self::Udp => false,
        }
    }

    /// True if the protocol selects routes by host.
    const fn has_hosts(self) -> bool {
        match self {
            Self::Http | Self::Https | Self::Tls => true,
            Self::Tcp | Self::Udp => false,
        }
    }

    /// Returns the scheme of URLs at the listener.
    pub(super) const fn scheme(self) -> UrlScheme {
        if self.is_encrypted() { UrlScheme::Https } else { UrlScheme::Http }
    }
}

impl<'a> GatewayContext<'a> {
    /// True if a listener is served on at least one address.
    pub(super) fn serves(&self, listener: usize) -> bool {
        self.listeners[listener].is_served() && !self.addresses.is_empty()
    }

    pub(super) fn name(&self) -> GatewayName {
        let ObjectMeta { namespace, name, .. } = &self.object.metadata;
        (namespace.clone(), name.clone())
    }

    pub(super) const fn owner(&self) -> OwnerObject<'a> {
        OwnerObject::of("Gateway", self.object)
    }

    /// Returns the Gateway's own listeners, without those of ListenerSets.
    pub(super) fn own_listeners(&self) -> &[ListenerContext<'a>] {
        &self.listeners[..self.object.spec.listeners.len()]
    }

    /// Returns why the Gateway has no address although it is accepted.
    pub(super) fn unassigned_fault(&self) -> Option<&ValidationFault> {
        self.unassigned.as_ref().filter(|_| self.addresses.is_empty())
    }
}

impl ListenerContext<'_> {
    /// Returns the label `namespace/owner/listener`. All listeners that represent hosts of Ingresses have the same
    /// label, so that metrics keep their labels as hosts are added and removed.
    pub(super) fn label(&self) -> String {
        let metadata = self.owner.metadata;
        let name = self.spec.name.split(':').next().unwrap_or_default();
        format!("{}/{}/{name}", metadata.namespace, metadata.name)
    }

    /// Returns the section name for policies that target a part of the Gateway. Policies cannot target a listener of a
    /// ListenerSet.
    pub(super) fn section(&self) -> Option<&str> {
        self.belongs_to_gateway().then_some(&*self.spec.name)
    }

    /// True if the listener is the Gateway's own.
    pub(super) fn belongs_to_gateway(&self) -> bool {
        self.owner.kind == "Gateway"
    }

    /// True if routes of this kind and namespace may attach.
    pub(super) fn allows(
        &self,
        index: &ObjectIndex<'_>,
        route_kind: &str,
        namespace: &str,
    ) -> bool {
        self.allowed.permits(index, namespace) && self.supported_kinds().contains(&route_kind)
    }

    /// Returns the kinds of routes that may attach: those of the protocol that the listener allows. An unknown protocol
    /// has none.
    pub(super) fn supported_kinds(&self) -> Vec<&'static str> {
        let kinds = &self.spec.allowed_routes.kinds;
        let is_asked_for =
            |name: &&str| kinds.is_empty() || kinds.iter().any(|kind| is_kind(kind, name));
        let known =
            ProtocolType::parse(&self.spec.protocol).map_or(&[][..], ProtocolType::route_kinds);
        known.iter().copied().filter(is_asked_for).collect()
    }

    pub(super) const fn is_served(&self) -> bool {
        let can_decrypt = !self.protocol.is_encrypted() || self.tls_mode.is_some();
        self.claims_hosts() && can_decrypt
    }

    /// True if the listener was to ask its clients for certificates but is not served. No other listener of its Gateway
    /// may serve its hosts then, which might ask for none.
    pub(super) fn withholds_hosts(&self) -> bool {
        self.protocol == ProtocolType::Https
            && self.conflict.is_none()
            && !self.is_served()
            && self.asks_clients
    }

    /// True if the listener keeps its hosts. A missing certificate does not give them to another namespace.
    pub(super) const fn claims_hosts(&self) -> bool {
        self.fault.is_none() && self.conflict.is_none()
    }
}

fn is_kind(kind: &objects::RouteKind, name: &str) -> bool {
    is_gateway_api(kind.group.as_deref()) && kind.kind == name
}

/// True if the group is that of Gateway API, which is the default.
pub(super) fn is_gateway_api(group: Option<&str>) -> bool {
    group.is_none_or(|group| group == "gateway.networking.k8s.io")
}

/// Returns the Gateways of our classes, the oldest first, with all errors of them and of their listeners.
pub(super) fn gateways<'a>(
    index: &ObjectIndex<'a>,
    addresses: &AddressAssignment,
    report: &mut TranslationReport,
) -> Vec<GatewayContext<'a>> {
    for class in index.classes.values().filter(|class| is_ours(index, class)) {
        report_class(class, report);
    }
    let sets = ListenerSets::new(index, report);
    let mut gateways = Vec::new();
    for object in by_age(&index.gateways) {
        let class = &object.spec.gateway_class_name;
        match index.classes.get(&("", &**class)) {
            Some(class) if is_ours(index, class) => {
                gateways.push(accepted_gateway(index, addresses, object, &sets, report));
            }
            Some(_) => {}
            None => {
                let message = format!("there is no GatewayClass {class}");
                report.problem_if_ours("Gateway", object, "spec.gatewayClassName", message);
            }
        }
    }
    if let AddressAssignment::ManagedServices(services) = addresses {
        assign_target_ports(&mut gateways, services, report);
    }
    find_conflicts(&mut gateways, index.settings.share_hostnames, report);
    gateways
}

/// Assigns a target port to each listener port of each Gateway.
fn assign_target_ports(
    gateways: &mut [GatewayContext<'_>],
    services: &ManagedServices,
    report: &mut TranslationReport,
) {
    let requested_ports = |gateway: &GatewayContext<'_>| {
        (gateway.name(), gateway.listeners.iter().map(|listener| listener.spec.port).collect())
    };
    let requested_ports: Vec<_> = gateways.iter().map(requested_ports).collect();
    for (gateway, targets) in gateways.iter_mut().zip(services.assign(&requested_ports)) {
        let lacks = |it: &&mut ListenerContext<'_>| !targets.contains_key(&it.spec.port);
        for listener in gateway.listeners.iter_mut().filter(lacks) {
            let field = format!("spec.listeners[{}].port", listener.place);
            let message = "all target ports of managed Services are in use";
            let fault = ValidationFault::new(ConditionReason::PortUnavailable, field, message);
            report.owner_fault(listener.owner, &fault);
            listener.fault.get_or_insert(fault);
        }
        gateway.target_ports = Some(targets);
    }
}

/// Returns the port to listen on for a listener port: its target port, if there are target ports.
pub(super) fn listen_port(targets: Option<&TargetPortMap>, port: u16) -> u16 {
    targets.and_then(|targets| targets.get(&port)).copied().unwrap_or(port)
}

pub(super) fn is_ours(index: &ObjectIndex<'_>, class: &TypedObject<GatewayClassSpec>) -> bool {
    index.settings.controllers.own_class(class)
}

fn report_class(class: &TypedObject<GatewayClassSpec>, report: &mut TranslationReport) {
    let mut condition = StatusCondition::yes(ConditionType::Accepted, ConditionReason::Accepted);
    if class.spec.parameters_ref.is_some() {
        let message = "parameters of a class are not supported";
        report.problem("GatewayClass", class, "spec.parametersRef", message);
        condition = StatusCondition::no(
            condition.kind,
            ConditionReason::InvalidParameters,
            message.to_owned(),
        );
    }
    report.status(
        "GatewayClass",
        class,
        StatusDetail::GatewayClass(GatewayClassStatus::new(vec![condition])),
    );
}

fn accepted_gateway<'a>(
    index: &ObjectIndex<'_>,
    addresses: &AddressAssignment,
    object: &'a TypedObject<GatewaySpec>,
    sets: &ListenerSets<'a>,
    report: &mut TranslationReport,
) -> GatewayContext<'a> {
    let spec = &object.spec;
    if spec.default_scope.is_some() {
        report.problem("Gateway", object, "spec.defaultScope", "is not supported");
    }
    let fault = parameters_fault(spec);
    let served = ServedAddresses::find(object, addresses);
    let (allowed, scope_fault) = match allowed_listeners(object) {
        Ok(allowed) => (allowed, None),
        Err(fault) => (NamespaceScope::None, Some(fault)),
    };
    for fault in fault.iter().chain(&served.fault).chain(&served.unassigned).chain(&scope_fault) {
        report.fault("Gateway", object, fault);
    }
    let mut sets = sets.of(index, object, &allowed, report);
    let mut listeners = Vec::new();
    let mut add = |owner, specs: &'a [objects::ListenerSpec]| {
        let (first, mut names) = (listeners.len(), BTreeSet::new());
        listeners.extend(specs.iter().enumerate().map(|(place, spec)| {
            let is_duplicate = !names.insert(&*spec.name);
            ListenerBuilder { index, gateway: object, owner, spec, place, is_duplicate }
                .build(report)
        }));
        first..listeners.len()
    };
    add(OwnerObject::of("Gateway", object), &spec.listeners);
    for set in sets.iter_mut().filter(|set| set.fault.is_none()) {
        set.listeners = add(set.owner(), &set.object.spec.listeners);
    }
    let client_certificate = listener_tls::client_certificate(index, object, report);
    let fault = fault.or(served.fault);
    let addresses = if fault.is_none() { served.addresses } else { Vec::new() };
    let unassigned = served.unassigned;
    let targets = None;
    GatewayContext {
        object,
        listeners,
        sets,
        addresses,
        client_certificate,
        target_ports: targets,
        fault,
        unassigned,
        allowed_listeners_fault: scope_fault,
    }
}

/// Returns the namespaces that ListenerSets may attach from.
pub(super) fn allowed_listeners(
    gateway: &TypedObject<GatewaySpec>,
) -> Result<NamespaceScope<'_>, ValidationFault> {
    let Some(allowed) = &gateway.spec.allowed_listeners else { return Ok(NamespaceScope::None) };
    let own = &gateway.metadata.namespace;
    NamespaceScope::read(&allowed.namespaces, FromNamespaces::None, own).map_err(
        |(part, message)| {
            let field = format!("spec.allowedListeners.namespaces.{part}");
            ValidationFault::new(ConditionReason::UnsupportedValue, field, message)
        },
    )
}

fn parameters_fault(spec: &GatewaySpec) -> Option<ValidationFault> {
    spec.infrastructure.as_ref()?.parameters_ref.as_ref()?;
    let field = "spec.infrastructure.parametersRef";
    let message = "parameters of a Gateway are not supported";
    Some(ValidationFault::new(ConditionReason::InvalidParameters, field, message))
}

/// The addresses that a Gateway is served on.
#[derive(Default)]
struct ServedAddresses {
    addresses: Vec<IpAddr>,
    /// The reason why the Gateway is not accepted.
    fault: Option<ValidationFault>,
    /// The reason why some of the requested addresses are missing.
    unassigned: Option<ValidationFault>,
}

impl ServedAddresses {
    fn find(gateway: &TypedObject<GatewaySpec>, addresses: &AddressAssignment) -> Self {
        let requested =
            (0..).zip(&gateway.spec.addresses).map(|(n, asked)| requested_address(n, asked));
        let requested: Vec<RequestedAddress> = match requested.collect() {
            Ok(requested) => requested,
            Err(fault) => return Self { fault: Some(fault), ..Self::default() },
        };
        match addresses {
            AddressAssignment::Host | AddressAssignment::SharedService(_) => {
                Self { addresses: host_addresses(&requested), ..Self::default() }
            }
            AddressAssignment::Pool { assigned } => {
                Self::of_pool(addresses.assigned(&gateway.metadata), &requested, assigned)
            }
            AddressAssignment::ManagedServices(services) => {
                Self::of_managed_service(services, &gateway.metadata, &requested)
            }
        }
    }

    /// Returns the addresses that the pool has assigned.
    fn of_pool(
        own: &[IpAddr],
        requested: &[RequestedAddress],
        assigned: &BTreeMap<GatewayName, Vec<IpAddr>>,
    ) -> Self {
        let lacks = |address: &RequestedAddress| match address {
            RequestedAddress::Specific(address) => (!own.contains(address)).then_some(*address),
            RequestedAddress::Any => None,
        };
        let mut lacking = requested.iter().enumerate();
        let unusable =
            lacking.find_map(|(n, address)| Some(unusable(n, lacks(address)?, assigned)));
        let wanted = requested.len().max(1);
        let unassigned = unusable.or_else(|| {
            let message = "the pool has no free address for the Gateway";
            (own.len() < wanted).then(|| {
                ValidationFault::new(ConditionReason::AddressNotAssigned, "spec.addresses", message)
            })
        });
        Self { addresses: own.to_vec(), fault: None, unassigned }
    }

    /// Returns every address of the machine, because the Gateway is behind a Service. The load balancer of the Service
    /// determines the published addresses.
    fn of_managed_service(
        services: &ManagedServices,
        gateway: &ObjectMeta,
        requested: &[RequestedAddress],
    ) -> Self {
        let gateway = (gateway.namespace.clone(), gateway.name.clone());
        let (places, service) =
            (services.addresses(&gateway), managed_services::service_name(&gateway));
        let lacks = |address: &RequestedAddress| match address {
            RequestedAddress::Specific(address) => {
                (!places.contains(&PublishedAddress::Ip(*address))).then_some(*address)
            }
            RequestedAddress::Any => None,
        };
        let not_yet = |message| {
            ValidationFault::new(ConditionReason::AddressNotAssigned, "spec.addresses", message)
        };
        let unassigned = if services.foreign.contains(&service) {
            Some(not_yet(format!(
                "Service {service} exists and is not managed by this installation of Sheave"
            )))
        } else if places.is_empty() {
            Some(not_yet(format!(
                "no load balancer has assigned an address to Service {service} yet"
            )))
        } else {
            requested.iter().enumerate().find_map(|(n, address)| {
                let message = format!("the load balancer has not assigned {}", lacks(address)?);
                let field = format!("spec.addresses[{n}].value");
                Some(ValidationFault::new(ConditionReason::AddressNotUsable, field, message))
            })
        };
        Self { addresses: host_addresses(&[]), fault: None, unassigned }
    }
}

fn requested_address(
    place: usize,
    asked: &GatewayAddress,
) -> Result<RequestedAddress, ValidationFault> {
    RequestedAddress::parse(asked).map_err(|(part, message)| {
        let field = format!("spec.addresses[{place}].{part}");
        ValidationFault::new(ConditionReason::UnsupportedAddress, field, message)
    })
}

/// Returns the requested addresses. Without a request, every IPv4 and IPv6 address of the machine is used.
fn host_addresses(requested: &[RequestedAddress]) -> Vec<IpAddr> {
    let any = IpAddr::V6(Ipv6Addr::UNSPECIFIED);
    if requested.is_empty() {
        return vec![any];
    }
    let address = |address: &RequestedAddress| match address {
        RequestedAddress::Specific(address) => *address,
        RequestedAddress::Any => any,
    };
    requested.iter().map(address).collect()
}

/// Returns why a Gateway does not get the address that it requests.
fn unusable(
    place: usize,
    address: IpAddr,
    assigned: &BTreeMap<GatewayName, Vec<IpAddr>>,
) -> ValidationFault {
    let mut owners = assigned.iter().filter(|(_, addresses)| addresses.contains(&address));
    let message = match owners.next() {
        Some(((namespace, name), _)) => {
            format!("{address} is assigned to Gateway {namespace}/{name}")
        }
        None => format!("{address} is not in the pool"),
    };
    ValidationFault::new(
        ConditionReason::AddressNotUsable,
        format!("spec.addresses[{place}].value"),
        message,
    )
}

/// Builds a listener from its spec.
struct ListenerBuilder<'a, 'i> {
    index: &'i ObjectIndex<'i>,
    gateway: &'a TypedObject<GatewaySpec>,
    owner: OwnerObject<'a>,
    spec: &'a objects::ListenerSpec,
    /// Index among the owner's listeners.
    place: usize,
    /// True if an earlier listener has the same name.
    is_duplicate: bool,
}

impl<'a> ListenerBuilder<'a, '_> {
    fn build(&self, report: &mut TranslationReport) -> ListenerContext<'a> {
        let spec = self.spec;
        let known = ProtocolType::parse(&spec.protocol);
        let protocol = known.unwrap_or(ProtocolType::Http);
        // A protocol without requests has no hosts, so the hostname is ignored.
        let hostname =
            spec.hostname.as_ref().filter(|_| known.is_some_and(ProtocolType::has_hosts));
        let mut tls = listener_tls::ListenerTlsResult::default();
        if protocol.is_encrypted() {
            tls = listener_tls::ListenerTlsBuilder {
                index: self.index,
                gateway: self.gateway,
                owner: self.owner,
                place: self.place,
                listener: spec,
                is_https: protocol == ProtocolType::Https,
            }
            .build(report);
        }
        let (allowed, scope_fault) = match self.allowed_routes(spec) {
            Ok(allowed) => (allowed, None),
            Err(fault) => (NamespaceScope::None, Some(fault)),
        };
        let mut listener = ListenerContext {
            owner: self.owner,
            place: self.place,
            spec,
            protocol,
            hosts: hostname.map_or(HostPattern::Any, |hostname| hostname.0.clone()),
            allowed,
            tls_mode: tls.tls_mode,
            asks_clients: tls.asks_clients,
            http3: None,
            attached_routes: 0,
            fault: self.fault(spec).or(scope_fault).or(tls.fault),
            conflict: None,
            overlaps: None,
            unresolved: self.kinds_fault(spec, protocol).into_iter().collect(),
        };
        for fault in listener.fault.iter().chain(&listener.unresolved) {
            report.owner_fault(self.owner, fault);
        }
        // These are reported already.
        listener.unresolved.splice(0..0, tls.unresolved);
        listener
    }

    fn fault(&self, spec: &objects::ListenerSpec) -> Option<ValidationFault> {
        let fault = |reason, part: &str, message: &str| {
            Some(ValidationFault::new(
                reason,
                format!("spec.listeners[{}].{part}", self.place),
                message,
            ))
        };
        if self.is_duplicate {
            let message = format!("another listener of the {} has this name", self.owner.kind);
            return fault(ConditionReason::Invalid, "name", &message);
        }
        let Some(protocol) = ProtocolType::parse(&spec.protocol) else {
            let message =
                format!("{} is not supported, only HTTP, HTTPS, TLS, TCP and UDP", spec.protocol);
            return fault(ConditionReason::UnsupportedProtocol, "protocol", &message);
        };
        if spec.port == 0 && self.owner.metadata.in_cluster {
            let message = "must be from 1 to 65535: clients cannot learn a random port";
            return fault(ConditionReason::PortUnavailable, "port", message);
        }
        if spec.tls.is_some() && !protocol.is_encrypted() {
            let message = "is only for the protocols HTTPS and TLS";
            return fault(ConditionReason::UnsupportedValue, "tls", message);
        }
        None
    }

    fn allowed_routes(
        &self,
        spec: &'a objects::ListenerSpec,
    ) -> Result<NamespaceScope<'a>, ValidationFault> {
        let (asked, own) = (&spec.allowed_routes.namespaces, &self.owner.metadata.namespace);
        NamespaceScope::read(asked, FromNamespaces::Same, own).map_err(|(part, message)| {
            let field = format!("spec.listeners[{}].allowedRoutes.namespaces.{part}", self.place);
            ValidationFault::new(ConditionReason::UnsupportedValue, field, message)
        })
    }

    fn kinds_fault(
        &self,
        spec: &objects::ListenerSpec,
        protocol: ProtocolType,
    ) -> Option<ValidationFault> {
        let ours = protocol.route_kinds();
        let is_known = |kind: &objects::RouteKind| ours.iter().any(|name| is_kind(kind, name));
        let mut kinds = (0..).zip(&spec.allowed_routes.kinds);
        let (n, kind): (usize, _) = kinds.find(|(_, kind)| !is_known(kind))?;
        let field = format!("spec.listeners[{}].allowedRoutes.kinds[{n}]", self.place);
        let message = format!("{} is not supported, only {}", kind.kind, ours.join(" and "));
        Some(ValidationFault::new(ConditionReason::InvalidRouteKinds, field, message))
    }
}
