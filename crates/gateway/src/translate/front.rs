//! The Services that should be in front of Gateways.

use std::collections::{BTreeMap, BTreeSet};

use super::index::Index;
use super::listener::{OurGateway, is_ours};
use crate::addresses::{GatewayName, Wish};
use crate::fronts::Front;
use crate::snapshot::Transport;

/// One for each Gateway that is accepted; and the Gateways that are ours and have none of these. What is wrong with those
/// may be mended in a moment, and a Service that goes takes its address with it.
pub(super) fn fronts(
    index: &Index<'_>,
    gateways: &[OurGateway<'_>],
) -> (Vec<Front>, BTreeSet<GatewayName>) {
    let fronts: Vec<_> = gateways.iter().filter_map(front).collect();
    let is_fronted = |name: &GatewayName| fronts.iter().any(|front| front.gateway == *name);
    let refused = index.refused.iter().filter(|object| {
        let class = object.spec.class.as_deref().and_then(|it| index.classes.get(&("", it)));
        object.spec.kind == "Gateway" && class.is_some_and(|class| is_ours(class))
    });
    let refused = refused.map(|it| (it.metadata.namespace.clone(), it.metadata.name.clone()));
    let names = gateways.iter().map(OurGateway::name).chain(refused);
    let kept = names.filter(|name| !is_fronted(name)).collect();
    (fronts, kept)
}

/// With the ports of all listeners, be it that one is not served just now.
fn front(gateway: &OurGateway<'_>) -> Option<Front> {
    let targets = gateway.targets.as_ref().filter(|_| gateway.fault.is_none())?;
    let mut ports = BTreeMap::new();
    for listener in &gateway.listeners {
        let port = listener.spec.port;
        let Some(target) = targets.get(&port) else { continue };
        ports.insert((port, listener.protocol.transport()), *target);
        if matches!(listener.http3, Some(Ok(_))) {
            ports.insert((port, Transport::Udp), *target);
        }
    }
    let wishes = gateway.object.spec.addresses.iter();
    let wish = wishes.filter_map(|asked| Wish::parse(asked).ok()).find_map(|wish| match wish {
        Wish::Given(address) => Some(address),
        Wish::Any => None,
    });
    let infrastructure = gateway.object.spec.infrastructure.clone().unwrap_or_default();
    (!ports.is_empty()).then(|| Front { gateway: gateway.name(), ports, infrastructure, wish })
}
