//! The thread that reads what may take long: the kernel's table of connections, and the rules of other programs.
//! Nothing waits for it, the lease of the rules least of all.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, SocketAddr};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use intercept::{Conntrack, InterceptError, NodeFinding, TrackedConnection, node_findings};
use kube::EventRecorder;
use proxy::{Time, clock};

use super::adoption::{AdoptionSchedule, AdoptionStep};
use super::agent_status::{AgentStatus, KernelOperation};
use super::command_queue::{AgentStage, CommandQueue, RetryDelay};
use super::control_thread::AgentParts;
use super::events;
use super::random::JitterSource;
use crate::process;

/// Time between two looks at what is due.
const PASS_INTERVAL: Duration = Duration::from_millis(100);
/// Interval at which the node is surveyed.
const SURVEY_INTERVAL: Duration = Duration::from_secs(10);
/// Entries of the table of connections that one step deletes.
const MAX_DELETED: usize = 1_000;
/// Steps of a deletion of connections to dead agents, which have at most as many connections as the node has room for.
const MAX_STEPS: usize = 100;

/// The thread's state.
pub(super) struct SurveyThread {
    queue: Arc<CommandQueue>,
    status: Arc<AgentStatus>,
    node: String,
    events: EventRecorder,
    config: SurveyConfig,
    adoption: AdoptionSchedule,
    conntrack_retry: RetryDelay,
    random: JitterSource,
    findings: FindingsHistory,
    survey_due: Time,
    /// Looks in a row that did not find an own address.
    missing_addresses: u32,
}

/// Settings that do not change.
pub(super) struct SurveyConfig {
    /// Name of our table.
    pub(super) table: String,
    /// Addresses of this agent.
    pub(super) own: BTreeSet<SocketAddr>,
    /// Addresses that an agent of this node may have, this one or another during an upgrade.
    pub(super) agents: BTreeSet<SocketAddr>,
    /// Time for which two agents are on a node during an upgrade.
    pub(super) handover: Duration,
}

impl SurveyThread {
    pub(super) fn new(parts: AgentParts, config: SurveyConfig) -> Self {
        let AgentParts { queue, status, node, events, .. } = parts;
        Self {
            queue,
            status,
            node,
            events,
            config,
            adoption: AdoptionSchedule::default(),
            conntrack_retry: RetryDelay::new(Duration::from_secs(1), Duration::from_secs(60)),
            random: JitterSource::new(clock::now().as_nanos()),
            findings: FindingsHistory::default(),
            survey_due: Time::ZERO,
            missing_addresses: 0,
        }
    }

    /// Runs until the agent ends.
    pub(super) fn run(mut self) {
        while !self.queue.is_ended_within(PASS_INTERVAL) {
            self.adopt();
            if clock::now() >= self.survey_due {
                self.survey();
                self.check_addresses();
                self.survey_due = clock::now() + SURVEY_INTERVAL;
            }
        }
    }

    fn adopt(&mut self) {
        if self.queue.stage() > AgentStage::Serving || !self.conntrack_retry.is_due() {
            return;
        }
        let services = self.queue.services();
        let started = clock::now();
        let is_in_force = self.status.is_in_force(started);
        let random = || self.random.next();
        let now = started.saturating_since(Time::ZERO);
        let (addresses, resets) = (&services.addresses, &services.resets);
        let done = match self.adoption.next_step(now, addresses, resets, is_in_force, random) {
            AdoptionStep::Wait => return,
            AdoptionStep::Count => self.count(addresses, resets, started),
            AdoptionStep::Reset(limit) => self.reset(resets, limit, started),
        };
        match done {
            Ok(()) => self.conntrack_retry.record_success(),
            Err(error) => {
                self.conntrack_retry.record_failure();
                self.report_error(KernelOperation::Conntrack, error);
            }
        }
    }

    fn count(
        &mut self,
        addresses: &BTreeSet<SocketAddr>,
        resets: &BTreeSet<SocketAddr>,
        started: Time,
    ) -> Result<(), InterceptError> {
        let (mut count, mut resettable) = (0, 0);
        let agents = &self.config.agents;
        Conntrack::open()?.for_each(|connection: TrackedConnection| {
            if !agents.contains(&connection.endpoint) {
                count += u64::from(addresses.contains(&connection.destination));
                resettable += u64::from(resets.contains(&connection.destination));
            }
        })?;
        self.status.bypassing.store(count, Ordering::Relaxed);
        let (now, took) = time_since(started);
        self.adoption.record_count(now, took, resettable);
        Ok(())
    }

    fn reset(
        &mut self,
        resets: &BTreeSet<SocketAddr>,
        limit: usize,
        started: Time,
    ) -> Result<(), InterceptError> {
        let deleted = Conntrack::open()?.delete_bypassing(resets, &self.config.agents, limit)?;
        self.status.resets.fetch_add(deleted.count as u64, Ordering::Relaxed);
        if deleted.count > 0 {
            tracing::info!(
                connections = deleted.count,
                more = deleted.has_more,
                "reset connections that bypassed"
            );
        }
        let (now, took) = time_since(started);
        self.adoption.record_reset(now, took, deleted.count == 0 && !deleted.has_more);
        Ok(())
    }

    fn survey(&mut self) {
        let found = match node_findings(&self.config.table) {
            Ok(found) => found,
            Err(error) => return self.report_error(KernelOperation::Findings, error),
        };
        let (now, handover) = (clock::now(), self.config.handover);
        let holding = self.findings.update(found, now, handover);
        let mut conditions: BTreeMap<&'static str, Vec<String>> = BTreeMap::new();
        for finding in &holding {
            let reason = events::finding_reason(finding);
            conditions.entry(reason).or_default().push(finding.to_string());
        }
        let mut details = self.status.details();
        for (reason, messages) in &conditions {
            if details.node_conditions.get(reason) != Some(messages) {
                for message in messages {
                    tracing::warn!(reason, "{message}");
                }
            }
        }
        details.node_conditions.retain(|reason, _| events::is_of_rules(reason));
        details.node_conditions.extend(conditions.clone());
        drop(details);
        let standing = conditions.into_iter().flat_map(|(reason, messages)| {
            messages.into_iter().map(move |message| (reason, message))
        });
        let standing = standing.map(|(reason, it)| events::of_node(&self.node, reason, it));
        self.events.set_standing("node", standing.collect());
    }

    /// Looks whether the node still has the addresses at which taken connections arrive.
    fn check_addresses(&mut self) {
        let present: BTreeSet<IpAddr> = process::interface_addresses().into_iter().collect();
        let is_missing = self.config.own.iter().any(|own| !present.contains(&own.ip()));
        self.missing_addresses = if is_missing { self.missing_addresses + 1 } else { 0 };
        // An address that is changed is away for a moment.
        let is_lost = self.missing_addresses > 1;
        if is_lost && !self.status.has_lost_address.swap(true, Ordering::Relaxed) {
            let own: Vec<_> = self.config.own.iter().map(ToString::to_string).collect();
            tracing::error!(
                addresses = own.join(","),
                "the node has lost an address at which taken connections arrive: this process must be restarted"
            );
        }
    }

    fn report_error(&self, operation: KernelOperation, error: InterceptError) {
        self.status.count_error(operation);
        let error = format!("{:#}", anyhow::Error::from(error));
        tracing::warn!(
            operation = operation.label(),
            error,
            "cannot read the kernel's state: it is tried again"
        );
    }
}

/// Deletes the entries of connections to agents that are gone, at these addresses, in bounded steps: a client that uses
/// its port again would be refused. Returns the number of them.
pub(super) fn forget_dead_agents(dead: &BTreeSet<SocketAddr>) -> Result<u64, InterceptError> {
    let mut conntrack = Conntrack::open()?;
    let mut count = 0;
    for _ in 0..MAX_STEPS {
        let deleted = conntrack.delete_to_dead_proxies(dead, MAX_DELETED)?;
        count += deleted.count as u64;
        if !deleted.has_more {
            break;
        }
    }
    Ok(count)
}

fn time_since(started: Time) -> (Duration, Duration) {
    let now = clock::now();
    (now.saturating_since(Time::ZERO), now.saturating_since(started))
}

/// Findings and the time since which each holds.
#[derive(Debug, Default)]
struct FindingsHistory(BTreeMap<NodeFinding, Time>);

impl FindingsHistory {
    /// Returns the findings to report: another agent only if it stays longer than an upgrade takes.
    fn update(
        &mut self,
        found: Vec<NodeFinding>,
        now: Time,
        handover: Duration,
    ) -> Vec<NodeFinding> {
        let since = |finding: &NodeFinding| self.0.get(finding).copied().unwrap_or(now);
        self.0 = found.into_iter().map(|finding| (since(&finding), finding)).map(swap).collect();
        let is_reported = |(finding, since): (&NodeFinding, &Time)| match finding {
            NodeFinding::AnotherAgent { .. } => now.saturating_since(*since) > handover,
            NodeFinding::Cilium
            | NodeFinding::CalicoEbpf
            | NodeFinding::Ipvs
            | NodeFinding::NodeLocalDns
            | NodeFinding::InputFirewall { .. }
            | NodeFinding::BridgeFilteringOff => true,
        };
        let reported = self.0.iter().filter(|it| is_reported(*it));
        reported.map(|(finding, _)| finding.clone()).collect()
    }
}

fn swap((since, finding): (Time, NodeFinding)) -> (NodeFinding, Time) {
    (finding, since)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_agent_is_reported_only_if_it_stays() {
        let at = |seconds| Time::ZERO + Duration::from_secs(seconds);
        let other = || NodeFinding::AnotherAgent { table: "sheave_15101".to_owned() };
        let handover = Duration::from_secs(40);
        let mut history = FindingsHistory::default();
        let mut update = |found, seconds| history.update(found, at(seconds), handover);
        assert_eq!(update(vec![other(), NodeFinding::Ipvs], 0), [NodeFinding::Ipvs]);
        assert_eq!(update(vec![other()], 30), []);
        assert_eq!(update(vec![], 50), []);
        assert_eq!(update(vec![other()], 60), []);
        assert_eq!(update(vec![other()], 101), [other()]);
    }
}
