//! Events of transparent mode: about Services, which all agents know, and about nodes, which each agent knows alone.
//! Pure.

use gateway::transparent::TransparentService;
use intercept::NodeFinding;
use kube::{EventObject, EventReporter, ObjectEvent};

use super::agent_status::KernelOperation;

/// Reason of the Event of an agent that cannot start.
pub(super) const NOT_STARTED: &str = "TransparentModeNotStarted";

/// Reason of the Event of rules that are withdrawn because nothing arrives.
pub(super) const RULES_WITHDRAWN: &str = "RulesWithdrawn";
/// Reason of the Event of changes of the rules that wait for a long time.
pub(super) const CHANGES_DELAYED: &str = "ChangesDelayed";

/// Returns the Events of what is not taken of Services, and why.
pub(super) fn of_services(services: &[TransparentService]) -> Vec<ObjectEvent> {
    let of_service = |service: &TransparentService| {
        let object = EventObject {
            api_version: "v1",
            kind: "Service",
            namespace: service.namespace.to_string(),
            name: service.name.to_string(),
            uid: service.uid.as_deref().map(str::to_owned),
        };
        let event = move |finding: &gateway::transparent::TransparentFinding| ObjectEvent {
            object: object.clone(),
            is_warning: true,
            reason: finding.reason,
            action: "Balance",
            message: finding.message.clone(),
            reporter: EventReporter::Leader,
        };
        service.findings.iter().map(event).collect::<Vec<_>>()
    };
    services.iter().flat_map(of_service).collect()
}

/// Returns an Event of the node.
pub(super) fn of_node(node: &str, reason: &'static str, message: String) -> ObjectEvent {
    ObjectEvent {
        object: EventObject::node(node),
        is_warning: true,
        reason,
        action: "TakeConnections",
        message,
        reporter: EventReporter::Process,
    }
}

/// Returns the reason of the Event of a finding.
pub(super) const fn finding_reason(finding: &NodeFinding) -> &'static str {
    match finding {
        NodeFinding::Cilium => "CiliumFound",
        NodeFinding::CalicoEbpf => "CalicoEbpfFound",
        NodeFinding::Ipvs => "IpvsFound",
        NodeFinding::NodeLocalDns => "NodeLocalDnsFound",
        NodeFinding::InputFirewall { .. } => "HostFirewallFound",
        NodeFinding::BridgeFilteringOff => "BridgeFilteringOff",
        NodeFinding::AnotherAgent { .. } => "AnotherAgentFound",
    }
}

/// Returns the reason of the Event of a failure that goes on.
pub(super) const fn failure_reason(operation: KernelOperation) -> &'static str {
    match operation {
        KernelOperation::Addresses => "AddressesNotChanged",
        KernelOperation::Lease => "LeaseNotRenewed",
        KernelOperation::Withdrawal => "RulesNotWithdrawn",
        KernelOperation::ClientMark => "ClientAddressesNotKept",
        KernelOperation::ClientRoute => "RoutesNotRead",
        KernelOperation::Counters => "RulesNotRead",
        KernelOperation::Conntrack => "ConnectionsNotRead",
        KernelOperation::Findings => "NodeNotRead",
    }
}

/// True if the threads of the rules and of their lease report this reason.
pub(super) fn is_of_rules(reason: &str) -> bool {
    use KernelOperation::{Addresses, ClientMark, ClientRoute, Counters, Lease, Withdrawal};
    [RULES_WITHDRAWN, CHANGES_DELAYED].contains(&reason)
        || [Addresses, Lease, Withdrawal, ClientMark, ClientRoute, Counters]
            .map(failure_reason)
            .contains(&reason)
}
