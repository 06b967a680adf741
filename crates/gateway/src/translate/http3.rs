//! HTTP/3 listeners: HTTPS listeners whose policy enables HTTP/3, unless their UDP port is in use.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::address::sockets;
use super::listener::{GatewayContext, ProtocolType};
use super::policy::ClientPolicies;
use super::report::{TranslationReport, ValidationFault};
use crate::status::ConditionReason;

/// Enables HTTP/3 on listeners, and reports each listener that cannot have it.
pub(super) fn find(
    gateways: &mut [GatewayContext<'_>],
    policies: &ClientPolicies<'_>,
    report: &mut TranslationReport,
) {
    let taken = udp_sockets(gateways);
    for gateway in gateways {
        let found: Vec<_> = gateway
            .listeners
            .iter()
            .map(|listener| {
                if listener.protocol != ProtocolType::Https || !listener.is_served() {
                    return None;
                }
                let http3 = policies.http3(gateway.object, listener.section())?;
                let mut owners = sockets(gateway, listener).filter_map(|at| taken.get(&at));
                Some(owners.next().map_or(Ok(http3), |owner| Err(conflict(listener.place, owner))))
            })
            .collect();
        for (listener, http3) in gateway.listeners.iter_mut().zip(found) {
            if let Some(Err(fault)) = &http3 {
                report.owner_fault(listener.owner, fault);
            }
            listener.http3 = http3;
        }
    }
}

/// Returns the sockets of UDP listeners and the listener of each. Port 0 is skipped: it becomes a free port when it is
/// bound.
fn udp_sockets(gateways: &[GatewayContext<'_>]) -> BTreeMap<SocketAddr, String> {
    let mut taken = BTreeMap::new();
    for gateway in gateways {
        let of_udp = gateway.listeners.iter().filter(|listener| {
            listener.protocol == ProtocolType::Udp
                && listener.is_served()
                && listener.spec.port != 0
        });
        for listener in of_udp {
            let name = listener.label();
            taken.extend(sockets(gateway, listener).map(|at| (at, name.clone())));
        }
    }
    taken
}

fn conflict(place: usize, owner: &str) -> ValidationFault {
    let message = format!("cannot serve HTTP/3: {owner} uses the UDP port");
    ValidationFault::new(
        ConditionReason::ProtocolConflict,
        format!("spec.listeners[{place}].port"),
        message,
    )
}
