//! Transparent mode as JSON: what is taken on this node, what is not, and why.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::atomic::Ordering;

use gateway::transparent::{AdoptMode, TransparentService};
use proxy::clock;
use serde::Serialize;

use crate::report::ProcessReport;
use crate::transparent::AgentStatus;

/// Response of `/api/v1/transparent`.
#[derive(Serialize)]
pub(super) struct TransparentResponse {
    node: String,
    /// Addresses at which taken connections arrive.
    proxy_addresses: Vec<SocketAddr>,
    /// True if the rules take connections now.
    in_force: bool,
    /// True if the rules were withdrawn, because nothing arrived.
    withdrawn: bool,
    /// Open connections that bypass, when they were counted last.
    bypassing_connections: u64,
    services: Vec<ServiceInfo>,
    /// Findings on this node, by the reason of its Event.
    node_findings: BTreeMap<&'static str, Vec<String>>,
}

#[derive(Serialize)]
struct ServiceInfo {
    namespace: String,
    name: String,
    /// ClusterIP and port of each port that is taken.
    addresses: Vec<SocketAddr>,
    /// `new` or `reset`.
    adopt: &'static str,
    findings: Vec<FindingInfo>,
}

#[derive(Serialize)]
struct FindingInfo {
    reason: &'static str,
    message: String,
}

pub(super) fn response(agent: &AgentStatus, report: &ProcessReport) -> TransparentResponse {
    let details = agent.details().clone();
    TransparentResponse {
        node: details.node,
        proxy_addresses: details.proxy_addresses,
        in_force: agent.is_in_force(clock::now()),
        withdrawn: agent.is_withdrawn.load(Ordering::Relaxed),
        bypassing_connections: agent.bypassing.load(Ordering::Relaxed),
        services: report.transparent_services.iter().map(service).collect(),
        node_findings: details.node_conditions,
    }
}

fn service(service: &TransparentService) -> ServiceInfo {
    let TransparentService { namespace, name, addresses, adopt, findings, .. } = service;
    let finding = |it: &gateway::transparent::TransparentFinding| FindingInfo {
        reason: it.reason,
        message: it.message.clone(),
    };
    ServiceInfo {
        namespace: namespace.to_string(),
        name: name.to_string(),
        addresses: addresses.clone(),
        adopt: match adopt {
            AdoptMode::New => "new",
            AdoptMode::Reset => "reset",
        },
        findings: findings.iter().map(finding).collect(),
    }
}
