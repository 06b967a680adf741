//! Managed Services in front of Gateways.

use std::collections::{BTreeMap, BTreeSet};

use super::index::ObjectIndex;
use super::listener::{GatewayContext, is_ours};
use crate::addresses::RequestedAddress;
use crate::managed_services::DesiredService;
use crate::objects::GatewayName;
use crate::snapshot::TransportProtocol;

/// Returns a Service for each accepted Gateway, and the Gateways of our classes that get none now. The latter keep an
/// existing Service: their error may be fixed soon, and a deleted Service loses its address.
pub(super) fn desired_services(
    index: &ObjectIndex<'_>,
    gateways: &[GatewayContext<'_>],
) -> (Vec<DesiredService>, BTreeSet<GatewayName>) {
    let services: Vec<_> = gateways.iter().filter_map(desired_service).collect();
    let has_service = |name: &GatewayName| services.iter().any(|service| service.gateway == *name);
    let refused = index.invalid_objects.iter().filter(|object| {
        let class = object.spec.class.as_deref().and_then(|it| index.classes.get(&("", it)));
        object.spec.kind == "Gateway" && class.is_some_and(|class| is_ours(index, class))
    });
    let refused = refused.map(|it| (it.metadata.namespace.clone(), it.metadata.name.clone()));
    let names = gateways.iter().map(GatewayContext::name).chain(refused);
    let retained = names.filter(|name| !has_service(name)).collect();
    (services, retained)
}

/// Returns the Service of a Gateway, with the ports of all listeners, including those that are not served now.
fn desired_service(gateway: &GatewayContext<'_>) -> Option<DesiredService> {
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
    let requested = gateway.object.spec.addresses.iter();
    let requested_address =
        requested.filter_map(|asked| RequestedAddress::parse(asked).ok()).find_map(|it| match it {
            RequestedAddress::Specific(address) => Some(address),
            RequestedAddress::Any => None,
        });
    let infrastructure = gateway.object.spec.infrastructure.clone().unwrap_or_default();
    (!ports.is_empty()).then(|| DesiredService {
        gateway: gateway.name(),
        ports,
        infrastructure,
        requested_address,
    })
}
