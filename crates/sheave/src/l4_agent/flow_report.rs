//! The endpoint that a connection gets, and why: `sheave l4 --explain`.

use std::io::{self, Write};
use std::net::SocketAddr;
use std::str::FromStr;

use anyhow::Context;
use l4::{
    DeliveryMode, EndpointPlace, EndpointValue, FlowKey, NO_TABLE, TransportProtocol, flow_slot,
};
use serde::{Deserialize, Serialize};

use super::agent::L4Agent;
use crate::admin;
use crate::failure::Failure;
use crate::flags::AdminAddress;

/// A connection of a client to a virtual address.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub(super) struct FlowQuestion {
    protocol: TransportProtocol,
    client: SocketAddr,
    service: SocketAddr,
}

impl FromStr for FlowQuestion {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let form = || format!("{text:?} is not PROTOCOL,CLIENT:PORT,ADDRESS:PORT");
        let [protocol, client, service] = text.split(',').collect::<Vec<_>>()[..] else {
            return Err(form());
        };
        let protocol = match protocol.to_ascii_lowercase().as_str() {
            "tcp" => TransportProtocol::Tcp,
            "udp" => TransportProtocol::Udp,
            _ => return Err(form()),
        };
        let address = |text: &str| text.parse::<SocketAddr>().map_err(|_invalid| form());
        Ok(Self { protocol, client: address(client)?, service: address(service)? })
    }
}

/// The answer.
#[derive(Debug, Default, Deserialize, Serialize)]
pub(super) struct FlowReport {
    /// `namespace/service`; empty if there is none.
    service: String,
    /// The endpoint; empty if there is none.
    endpoint: String,
    /// The place of the endpoint: `this node`, or the name of another one.
    node: String,
    /// `local`, `layer2`, `vxlan` or `full-nat`.
    mode: String,
    /// The reason for the choice.
    reason: String,
}

/// Returns the endpoint that the data path of this node chooses for a connection.
pub(super) fn of_agent(agent: &L4Agent, question: &FlowQuestion) -> FlowReport {
    let FlowQuestion { protocol, client, service: address } = *question;
    let mut report = FlowReport::default();
    let Some(service) = agent.table.service(address, protocol) else {
        report.reason = "the data path has no such service: the packet goes to the node's stack, \
                         or is dropped if the address has other services"
            .to_owned();
        return report;
    };
    report.service = agent.service_name(address, protocol).to_owned();
    let flow = FlowKey::new(client, address, protocol);
    let endpoints = &agent.table.contents().endpoints;
    let usable = |id: &u32| endpoints.get(id).filter(|it| it.mode != DeliveryMode::None as u8);
    let kept = agent.data_path.connection(&flow).ok().flatten().and_then(|it| {
        usable(&it.endpoint).filter(|endpoint| endpoint.generation == it.generation)
    });
    let has_affinity = agent.has_client_affinity(address, protocol);
    let (endpoint, reason) = if kept.is_some() {
        (kept, "the connection table has it".to_owned())
    } else if service.table == NO_TABLE {
        (usable(&service.endpoint), "it is the only endpoint for new connections".to_owned())
    } else {
        let slot = flow_slot(&flow, has_affinity);
        let table = agent.table.contents().tables.get(&service.table);
        let id = table.and_then(|slots| slots.get(slot)).map(|id| u32::from(*id));
        (id.as_ref().and_then(usable), format!("slot {slot} of the Maglev table"))
    };
    match endpoint {
        Some(endpoint) => report.set_endpoint(agent, endpoint, reason),
        None => report.reason = "the service has no endpoint".to_owned(),
    }
    report
}

impl FlowReport {
    fn set_endpoint(&mut self, agent: &L4Agent, endpoint: &EndpointValue, reason: String) {
        let address = SocketAddr::new(endpoint.address.into(), endpoint.port.into());
        self.endpoint = address.to_string();
        self.reason = reason;
        self.mode = mode_label(endpoint.mode).to_owned();
        self.node = match agent.place_of(address) {
            Some(EndpointPlace::Node(name)) => name.clone(),
            Some(EndpointPlace::Local(_) | EndpointPlace::HostNetwork) => "this node".to_owned(),
            None => String::new(),
        };
    }
}

fn mode_label(mode: u8) -> &'static str {
    const MODES: [(DeliveryMode, &str); 4] = [
        (DeliveryMode::Local, "local"),
        (DeliveryMode::Layer2, "layer2"),
        (DeliveryMode::Vxlan, "vxlan"),
        (DeliveryMode::FullNat, "full-nat"),
    ];
    MODES.iter().find(|(it, _)| *it as u8 == mode).map_or("none", |(_, label)| label)
}

pub(super) fn protocol_label(protocol: TransportProtocol) -> &'static str {
    match protocol {
        TransportProtocol::Tcp => "TCP",
        TransportProtocol::Udp => "UDP",
    }
}

/// Asks the agent of this node, and prints its answer.
pub(super) fn print(admin: AdminAddress, flow: &str) -> Result<(), Failure> {
    flow.parse::<FlowQuestion>().map_err(Failure::input)?;
    let AdminAddress::At(address) = admin else {
        return Err(Failure::input("--explain asks the agent: name its address with --admin"));
    };
    let report: FlowReport = admin::query(address, &format!("/api/v1/l4/explain/{flow}"))
        .map_err(|reason| Failure::input(format_args!("{address} (--admin): {reason}")))?;
    let mut out = io::stdout().lock();
    let lines = [
        ("service", &report.service),
        ("endpoint", &report.endpoint),
        ("node", &report.node),
        ("mode", &report.mode),
        ("because", &report.reason),
    ];
    for (name, value) in lines.into_iter().filter(|(_, value)| !value.is_empty()) {
        writeln!(out, "{name:<9} {value}").context("cannot write")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flows_of_both_ip_versions_are_read() {
        for text in ["tcp,10.0.0.1:4242,192.0.2.65:80", "UDP,[2001:db8::1]:4242,[2001:db8::2]:53"] {
            assert!(text.parse::<FlowQuestion>().is_ok(), "{text}");
        }
        for text in ["", "tcp,10.0.0.1:4242", "sctp,10.0.0.1:1,10.0.0.2:2", "tcp,a:1,b:2"] {
            assert!(text.parse::<FlowQuestion>().is_err(), "{text}");
        }
    }
}
