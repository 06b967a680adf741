//! Gateways: where to accept, which listener is whose, and which of them cannot be served.

use std::net::{IpAddr, Ipv6Addr};

use super::conflict::find_conflicts;
use super::index::{Index, by_age};
use super::{Fault, Report, condition};
use crate::matching::HostPattern;
use crate::objects::{
    self, FromNamespaces, GatewayAddress, GatewayClassSpec, GatewaySpec, Resource,
};
use crate::snapshot::Transport;
use crate::status::{Condition, ConditionType, Detail, ListenerStatus, Reason};

/// The controller of the GatewayClasses that are ours.
pub const CONTROLLER: &str = "sheave.dev/gateway";

/// A Gateway of ours.
pub(super) struct OurGateway<'a> {
    pub(super) object: &'a Resource<GatewaySpec>,
    pub(super) listeners: Vec<OurListener<'a>>,
    /// None if the Gateway as a whole is not served.
    pub(super) addresses: Vec<IpAddr>,
    /// Why the Gateway as a whole is not served.
    fault: Option<Fault>,
}

/// A listener of a Gateway of ours.
pub(super) struct OurListener<'a> {
    pub(super) spec: &'a objects::Listener,
    /// Of one that is not served, HTTP.
    pub(super) protocol: Protocol,
    pub(super) hosts: HostPattern,
    /// How many routes have attached; also to one that is not served, as Gateway API wants it.
    pub(super) attached_routes: usize,
    /// Why it is not served.
    fault: Option<Fault>,
    /// Who else claims the same.
    pub(super) conflict: Option<Fault>,
    /// Kinds of routes that it asks for and that we do not know.
    kinds_fault: Option<Fault>,
}

/// What a listener speaks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Protocol {
    Http,
    Tcp,
    Udp,
}

impl Protocol {
    fn parse(name: &str) -> Option<Self> {
        match name {
            "HTTP" => Some(Self::Http),
            "TCP" => Some(Self::Tcp),
            "UDP" => Some(Self::Udp),
            _ => None,
        }
    }

    /// The kind of routes that can attach.
    const fn route_kind(self) -> &'static str {
        match self {
            Self::Http => "HTTPRoute",
            Self::Tcp => "TCPRoute",
            Self::Udp => "UDPRoute",
        }
    }

    pub(super) const fn transport(self) -> Transport {
        match self {
            Self::Http | Self::Tcp => Transport::Tcp,
            Self::Udp => Transport::Udp,
        }
    }
}

impl OurGateway<'_> {
    /// Whether a listener is served on any address.
    pub(super) fn serves(&self, listener: usize) -> bool {
        self.listeners[listener].is_served() && !self.addresses.is_empty()
    }
}

impl OurListener<'_> {
    /// Whether routes of this kind and namespace may attach.
    pub(super) fn allows(
        &self,
        route_kind: &str,
        gateway_namespace: &str,
        route_namespace: &str,
    ) -> bool {
        let is_allowed = match self.spec.allowed_routes.namespaces.from {
            FromNamespaces::All => true,
            FromNamespaces::Same => gateway_namespace == route_namespace,
            FromNamespaces::Selector | FromNamespaces::None => false,
        };
        is_allowed && self.supported_kinds().contains(&route_kind)
    }

    fn supported_kinds(&self) -> Vec<&'static str> {
        let (kinds, ours) = (&self.spec.allowed_routes.kinds, self.protocol.route_kind());
        let is_asked_for = kinds.is_empty() || kinds.iter().any(|kind| is_kind(kind, ours));
        if is_asked_for { vec![ours] } else { Vec::new() }
    }

    pub(super) const fn is_served(&self) -> bool {
        self.fault.is_none() && self.conflict.is_none()
    }
}

fn is_kind(kind: &objects::RouteKind, name: &str) -> bool {
    is_gateway_api(kind.group.as_deref()) && kind.kind == name
}

/// Gateway API's group, which is also meant when none is given.
pub(super) fn is_gateway_api(group: Option<&str>) -> bool {
    group.is_none_or(|group| group == "gateway.networking.k8s.io")
}

/// The Gateways of our classes, the oldest first, with every reason against them and their listeners.
pub(super) fn gateways<'a>(index: &Index<'a>, report: &mut Report) -> Vec<OurGateway<'a>> {
    for class in index.classes.values().filter(|class| is_ours(class)) {
        report_class(class, report);
    }
    let mut gateways = Vec::new();
    for object in by_age(&index.gateways) {
        let class = &object.spec.gateway_class_name;
        match index.classes.get(&("", &**class)) {
            Some(class) if is_ours(class) => gateways.push(our_gateway(object, report)),
            Some(_) => {}
            None => {
                let message = format!("there is no GatewayClass {class}");
                report.problem("Gateway", object, "spec.gatewayClassName", message);
            }
        }
    }
    find_conflicts(&mut gateways, report);
    gateways
}

fn is_ours(class: &Resource<GatewayClassSpec>) -> bool {
    class.spec.controller_name == CONTROLLER
}

fn report_class(class: &Resource<GatewayClassSpec>, report: &mut Report) {
    let mut condition = Condition::yes(ConditionType::Accepted, Reason::Accepted);
    if class.spec.parameters_ref.is_some() {
        let message = "parameters of a class are not supported";
        report.problem("GatewayClass", class, "spec.parametersRef", message);
        condition = Condition::no(condition.kind, Reason::InvalidParameters, message.to_owned());
    }
    report.status("GatewayClass", class, Detail::GatewayClass(vec![condition]));
}

fn our_gateway<'a>(object: &'a Resource<GatewaySpec>, report: &mut Report) -> OurGateway<'a> {
    let spec = &object.spec;
    let unserved = [
        (&spec.infrastructure, "spec.infrastructure"),
        (&spec.allowed_listeners, "spec.allowedListeners"),
        (&spec.tls, "spec.tls"),
        (&spec.default_scope, "spec.defaultScope"),
    ];
    for (_, field) in unserved.iter().filter(|(value, _)| value.is_some()) {
        report.problem("Gateway", object, field, "is not supported");
    }
    let (addresses, fault) = match addresses(&spec.addresses) {
        Ok(addresses) => (addresses, None),
        Err(fault) => {
            report.fault("Gateway", object, &fault);
            (Vec::new(), Some(fault))
        }
    };
    let listeners =
        (0..).zip(&spec.listeners).map(|(n, spec)| our_listener(object, n, spec, report));
    let listeners = listeners.collect();
    OurGateway { object, listeners, addresses, fault }
}

/// None asked for is every address of the machine, of IPv4 and IPv6.
fn addresses(asked: &[GatewayAddress]) -> Result<Vec<IpAddr>, Fault> {
    if asked.is_empty() {
        return Ok(vec![IpAddr::V6(Ipv6Addr::UNSPECIFIED)]);
    }
    (0..).zip(asked).map(|(n, address)| parse_address(n, address)).collect()
}

fn parse_address(place: usize, asked: &GatewayAddress) -> Result<IpAddr, Fault> {
    let fault = |part: &str, message| {
        Err(Fault::new(
            Reason::UnsupportedAddress,
            format!("spec.addresses[{place}].{part}"),
            message,
        ))
    };
    let kind = asked.kind.as_deref().unwrap_or("IPAddress");
    if kind != "IPAddress" {
        return fault("type", format!("{kind} is not supported, only IPAddress"));
    }
    let Some(value) = asked.value.as_deref() else {
        return Ok(IpAddr::V6(Ipv6Addr::UNSPECIFIED));
    };
    value.parse().or_else(|_| fault("value", format!("{value} is not an IP address")))
}

fn our_listener<'a>(
    gateway: &Resource<GatewaySpec>,
    place: usize,
    spec: &'a objects::Listener,
    report: &mut Report,
) -> OurListener<'a> {
    let protocol = Protocol::parse(&spec.protocol);
    // What has no requests has no hosts, whatever is written.
    let hostname = spec.hostname.as_ref().filter(|_| protocol == Some(Protocol::Http));
    let listener = OurListener {
        spec,
        protocol: protocol.unwrap_or(Protocol::Http),
        hosts: hostname.map_or(HostPattern::Any, |hostname| hostname.0.clone()),
        attached_routes: 0,
        fault: listener_fault(gateway, place, spec),
        conflict: None,
        kinds_fault: kinds_fault(place, spec, protocol.unwrap_or(Protocol::Http)),
    };
    for fault in listener.fault.iter().chain(&listener.kinds_fault) {
        report.fault("Gateway", gateway, fault);
    }
    listener
}

fn listener_fault(
    gateway: &Resource<GatewaySpec>,
    place: usize,
    spec: &objects::Listener,
) -> Option<Fault> {
    let fault = |reason, part: &str, message: &str| {
        Some(Fault::new(reason, format!("spec.listeners[{place}].{part}"), message))
    };
    if gateway.spec.listeners[..place].iter().any(|earlier| earlier.name == spec.name) {
        return fault(Reason::Invalid, "name", "another listener of the Gateway has this name");
    }
    if Protocol::parse(&spec.protocol).is_none() {
        let message = format!("{} is not supported, only HTTP, TCP and UDP", spec.protocol);
        return fault(Reason::UnsupportedProtocol, "protocol", &message);
    }
    if spec.tls.is_some() {
        return fault(Reason::UnsupportedValue, "tls", "is not supported");
    }
    if spec.allowed_routes.namespaces.from == FromNamespaces::Selector {
        let message = "Selector is not supported, only Same, All and None";
        return fault(Reason::UnsupportedValue, "allowedRoutes.namespaces.from", message);
    }
    None
}

fn kinds_fault(place: usize, spec: &objects::Listener, protocol: Protocol) -> Option<Fault> {
    let ours = protocol.route_kind();
    let mut kinds = (0..).zip(&spec.allowed_routes.kinds);
    let (n, kind): (usize, _) = kinds.find(|(_, kind)| !is_kind(kind, ours))?;
    let field = format!("spec.listeners[{place}].allowedRoutes.kinds[{n}]");
    let message = format!("{} is not supported, only {ours}", kind.kind);
    Some(Fault::new(Reason::InvalidRouteKinds, field, message))
}

/// `namespace/gateway/listener`.
pub(super) fn label(gateway: &Resource<GatewaySpec>, listener: &objects::Listener) -> String {
    format!("{}/{}/{}", gateway.metadata.namespace, gateway.metadata.name, listener.name)
}

/// What became of each Gateway.
pub(super) fn statuses(gateways: &[OurGateway<'_>], report: &mut Report) {
    for gateway in gateways {
        let listeners = gateway.listeners.iter().map(|it| listener_status(gateway, it)).collect();
        let detail = Detail::Gateway(gateway_conditions(gateway), listeners);
        report.status("Gateway", gateway.object, detail);
    }
}

fn gateway_conditions(gateway: &OurGateway<'_>) -> Vec<Condition> {
    use ConditionType::{Accepted, Programmed};
    if let Some(Fault { reason, message, .. }) = &gateway.fault {
        let programmed = Condition::no(Programmed, Reason::Invalid, message.clone());
        return vec![Condition::no(Accepted, *reason, message.clone()), programmed];
    }
    let is_bad = |listener: &&OurListener<'_>| !listener.is_served();
    let bad: Vec<_> = gateway.listeners.iter().filter(is_bad).map(|it| &*it.spec.name).collect();
    if bad.is_empty() {
        return vec![
            Condition::yes(Accepted, Reason::Accepted),
            Condition::yes(Programmed, Reason::Programmed),
        ];
    }
    let some_served = bad.len() < gateway.listeners.len();
    let message = format!("listeners that are not served: {}", bad.join(", "));
    let programmed = if some_served { Reason::Programmed } else { Reason::Invalid };
    let condition =
        |kind, reason| Condition { kind, holds: some_served, reason, message: message.clone() };
    vec![condition(Accepted, Reason::ListenersNotValid), condition(Programmed, programmed)]
}

fn listener_status(gateway: &OurGateway<'_>, listener: &OurListener<'_>) -> ListenerStatus {
    use ConditionType::{Accepted, Conflicted, Programmed, ResolvedRefs};
    let refusal = listener.fault.as_ref().or(listener.conflict.as_ref());
    let accepted = condition(Accepted, Reason::Accepted, refusal);
    let invalid = refusal.or(gateway.fault.as_ref());
    let programmed = condition(Programmed, Reason::Programmed, invalid.map(programmed).as_ref());
    let resolved = condition(ResolvedRefs, Reason::ResolvedRefs, listener.kinds_fault.as_ref());
    let mut conflicted = condition(Conflicted, Reason::NoConflicts, listener.conflict.as_ref());
    // The one condition that holds when something is wrong.
    conflicted.holds = !conflicted.holds;
    ListenerStatus {
        name: listener.spec.name.clone(),
        supported_kinds: listener.supported_kinds(),
        attached_routes: listener.attached_routes,
        conditions: vec![accepted, programmed, resolved, conflicted],
    }
}

/// Not programmed has one reason, whatever the fault.
fn programmed(fault: &Fault) -> Fault {
    Fault { reason: Reason::Invalid, ..fault.clone() }
}
