//! The Services that should be in front of Gateways.

use std::collections::{BTreeMap, BTreeSet};

use super::index::ObjectIndex;
use super::listener::{AcceptedGateway, is_ours};
use crate::addresses::{GatewayName, RequestedAddress};
use crate::managed_services::DesiredService;
use crate::snapshot::TransportProtocol;

/// One for each Gateway that is accepted; and the Gateways that are ours and have none of these. What is wrong with those
/// may be mended in a moment, and a Service that goes takes its address with it.
pub(super) fn desired_services(
    index: &ObjectIndex<'_>,
    gateways: &[AcceptedGateway<'_>],
) -> (Vec<DesiredService>, BTreeSet<GatewayName>) {
    let fronts: Vec<_> = gateways.iter().filter_map(desired_service).collect();
    let is_fronted = |name: &GatewayName| fronts.iter().any(|front| front.gateway == *name);
    let refused = index.invalid_objects.iter().filter(|object| {
        let class = object.spec.class.as_deref().and_then(|it| index.classes.get(&("", it)));
        object.spec.kind == "Gateway" && class.is_some_and(|class| is_ours(class))
    });
    let refused = refused.map(|it| (it.metadata.namespace.clone(), it.metadata.name.clone()));
    let names = gateways.iter().map(AcceptedGateway::name).chain(refused);
    let kept = names.filter(|name| !is_fronted(name)).collect();
    (fronts, kept)
}

/// With the ports of all listeners, be it that one is not served just now.
fn desired_service(gateway: &AcceptedGateway<'_>) -> Option<DesiredService> {
    let targets = gateway.target_ports.as_ref().filter(|_| gateway.fault.is_none())?;
    let mut ports = BTreeMap::new();
    for listener in &gateway.listeners {
        let port = listener.spec.port;
        let Some(target) = targets.get(&port) else { continue };
        ports.insert((port, listener.protocol.transport()), *target);
        if matches!(listener.http3, Some(Ok(_))) {
            ports.insert((port, TransportProtocol::Udp), *target);
        }
    }
    let wishes = gateway.object.spec.addresses.iter();
    let wish =
        wishes.filter_map(|asked| RequestedAddress::parse(asked).ok()).find_map(
            |wish| match wish {
                RequestedAddress::Specific(address) => Some(address),
                RequestedAddress::Any => None,
            },
        );
    let infrastructure = gateway.object.spec.infrastructure.clone().unwrap_or_default();
    (!ports.is_empty()).then(|| DesiredService {
        gateway: gateway.name(),
        ports,
        infrastructure,
        requested_address: wish,
    })
}
