//! Which listeners serve HTTP/3 too: those whose policy asks for it, unless somebody has their UDP port already.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use super::address::sockets;
use super::listener::{OurGateway, Protocol};
use super::policy::ClientPolicies;
use super::{Fault, Report};
use crate::status::Reason;

/// Finds them, and reports each that asks in vain.
pub(super) fn find(
    gateways: &mut [OurGateway<'_>],
    policies: &ClientPolicies<'_>,
    report: &mut Report,
) {
    let taken = udp_sockets(gateways);
    for gateway in gateways {
        let found: Vec<_> = gateway
            .listeners
            .iter()
            .map(|listener| {
                if listener.protocol != Protocol::Https || !listener.is_served() {
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

/// What UDP listeners are served on, and whose it is. Any free port is nobody's before it is taken.
fn udp_sockets(gateways: &[OurGateway<'_>]) -> BTreeMap<SocketAddr, String> {
    let mut taken = BTreeMap::new();
    for gateway in gateways {
        let of_udp = gateway.listeners.iter().filter(|listener| {
            listener.protocol == Protocol::Udp && listener.is_served() && listener.spec.port != 0
        });
        for listener in of_udp {
            let name = listener.label();
            taken.extend(sockets(gateway, listener).map(|at| (at, name.clone())));
        }
    }
    taken
}

fn conflict(place: usize, owner: &str) -> Fault {
    let message = format!("cannot serve HTTP/3: {owner} has the UDP port");
    Fault::new(Reason::ProtocolConflict, format!("spec.listeners[{place}].port"), message)
}
