//! State of transparent mode: written by its threads, read by probes, metrics and the admin API.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use intercept::LEASE_TIMEOUT;
use proxy::Time;

/// Time without a sign of life of a worker, or of the thread of the lease, after which the process counts as wedged.
/// They wait for nothing.
const WEDGED_AFTER: Duration = Duration::from_secs(15);
/// The same for the thread of the rules, which waits while another program holds the kernel's lock for changes. A new
/// process would wait for the same lock before it can take anything, and this one still takes connections, so it is
/// replaced only after more time than any change takes.
const RULES_WEDGED_AFTER: Duration = Duration::from_secs(300);

/// An operation of the kernel that can fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum KernelOperation {
    Addresses,
    Lease,
    Withdrawal,
    ClientMark,
    ClientRoute,
    Counters,
    Conntrack,
    Findings,
}

impl KernelOperation {
    pub(crate) const ALL: [Self; 8] = [
        Self::Addresses,
        Self::Lease,
        Self::Withdrawal,
        Self::ClientMark,
        Self::ClientRoute,
        Self::Counters,
        Self::Conntrack,
        Self::Findings,
    ];

    /// Returns the label value for metrics.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Addresses => "addresses",
            Self::Lease => "lease",
            Self::Withdrawal => "withdrawal",
            Self::ClientMark => "client_mark",
            Self::ClientRoute => "client_route",
            Self::Counters => "counters",
            Self::Conntrack => "conntrack",
            Self::Findings => "findings",
        }
    }
}

/// Counts since the start, and values of now.
#[derive(Debug, Default)]
pub(crate) struct AgentStatus {
    /// Times, in nanoseconds: the last pass of the thread of the rules and of that of the lease, the last time at which
    /// each worker was seen to tick, the last renewal of the lease.
    pub(crate) rules_passed_at: AtomicU64,
    pub(crate) lease_passed_at: AtomicU64,
    pub(crate) workers_ticked_at: AtomicU64,
    pub(crate) renewed_at: AtomicU64,
    /// True while the rules are withdrawn because nothing arrives.
    pub(crate) is_withdrawn: AtomicBool,
    /// True from the start of the shutdown on.
    pub(crate) is_leaving: AtomicBool,
    /// True if the node has lost an address at which the agent accepts connections.
    pub(crate) has_lost_address: AtomicBool,
    pub(crate) withdrawals: AtomicU64,
    /// Addresses of Services that the kernel's rules have.
    pub(crate) addresses: AtomicU64,
    pub(crate) taken: AtomicU64,
    pub(crate) refused: AtomicU64,
    /// Connections that bypass, when they were counted last.
    pub(crate) bypassing: AtomicU64,
    pub(crate) resets: AtomicU64,
    /// Entries of connections to agents that are gone, deleted.
    pub(crate) dead_entries: AtomicU64,
    pub(crate) marks_in_use: AtomicU64,
    /// Requests for a mark by clients that are not on this node.
    pub(crate) remote_clients: AtomicU64,
    pub(crate) errors: [AtomicU64; KernelOperation::ALL.len()],
    details: Mutex<AgentDetails>,
}

/// State in words.
#[derive(Clone, Debug, Default)]
pub(crate) struct AgentDetails {
    pub(crate) node: String,
    pub(crate) proxy_addresses: Vec<SocketAddr>,
    /// Findings on the node, by the reason of its Event.
    pub(crate) node_conditions: BTreeMap<&'static str, Vec<String>>,
    /// Findings of Services, by the reason of their Events.
    pub(crate) service_findings: ServiceFindings,
}

/// Services and sentences about them, by the reason of their Events.
pub(crate) type ServiceFindings = BTreeMap<&'static str, BTreeSet<(String, String)>>;

impl AgentDetails {
    /// Replaces the findings of Services, and logs those that are new.
    pub(super) fn set_service_findings(&mut self, findings: ServiceFindings) {
        for (reason, of_reason) in &findings {
            let logged = self.service_findings.get(reason);
            for (service, message) in of_reason {
                if !logged.is_some_and(|it| it.contains(&(service.clone(), message.clone()))) {
                    tracing::warn!(service, reason, "{message}");
                }
            }
        }
        self.service_findings = findings;
    }
}

impl AgentStatus {
    pub(crate) fn details(&self) -> MutexGuard<'_, AgentDetails> {
        self.details.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn count_error(&self, operation: KernelOperation) {
        self.errors[operation as usize].fetch_add(1, Ordering::Relaxed);
    }

    /// True if the rules take connections now.
    pub(crate) fn is_in_force(&self, now: Time) -> bool {
        let renewed = time(&self.renewed_at);
        let is_ended =
            self.is_withdrawn.load(Ordering::Relaxed) || self.is_leaving.load(Ordering::Relaxed);
        renewed > Time::ZERO && now.saturating_since(renewed) < LEASE_TIMEOUT && !is_ended
    }

    /// Returns the time since the last pass of the thread of the rules; zero before the first.
    pub(crate) fn rules_delay(&self, now: Time) -> Duration {
        delay(&self.rules_passed_at, now)
    }

    /// Returns the reason why the process should be replaced: it hangs, or nothing can reach it.
    pub(crate) fn wedged_reason(&self, now: Time) -> Option<&'static str> {
        // The last stages of a shutdown have no passes.
        if self.is_leaving.load(Ordering::Relaxed) {
            None
        } else if delay(&self.lease_passed_at, now) > WEDGED_AFTER {
            Some("the thread of the rules' lease hangs")
        } else if self.rules_delay(now) > RULES_WEDGED_AFTER {
            Some("the thread of the kernel's rules hangs")
        } else if delay(&self.workers_ticked_at, now) > WEDGED_AFTER {
            Some("a worker hangs")
        } else if self.has_lost_address.load(Ordering::Relaxed) {
            Some("the node has lost an address at which taken connections arrive")
        } else {
            None
        }
    }

    /// Returns the reason why the agent is not ready: the rules are neither in force nor withdrawn for a good reason.
    pub(crate) fn unready_reason(&self, now: Time) -> Option<&'static str> {
        if self.is_in_force(now) || self.is_withdrawn.load(Ordering::Relaxed) {
            return None;
        }
        Some("the kernel's rules are not in force")
    }
}

/// Sets a time.
pub(super) fn set_time(at: &AtomicU64, time: Time) {
    at.store(time.as_nanos(), Ordering::Relaxed);
}

/// Returns the time since then; zero if it was never set.
fn delay(at: &AtomicU64, now: Time) -> Duration {
    let at = time(at);
    if at == Time::ZERO { Duration::ZERO } else { now.saturating_since(at) }
}

fn time(at: &AtomicU64) -> Time {
    Time::from_nanos(at.load(Ordering::Relaxed))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::ZERO + Duration::from_secs(seconds)
    }

    #[test]
    fn agent_is_ready_while_its_lease_lasts_or_if_it_withdrew() {
        let status = AgentStatus::default();
        assert!(status.unready_reason(at(1)).is_some(), "before the first renewal");
        set_time(&status.renewed_at, at(10));
        assert!(status.unready_reason(at(11)).is_none() && status.is_in_force(at(11)));
        assert!(status.unready_reason(at(12)).is_some(), "not renewed");
        status.is_withdrawn.store(true, Ordering::Relaxed);
        assert!(status.unready_reason(at(12)).is_none() && !status.is_in_force(at(10)));
    }

    #[test]
    fn agent_that_hangs_is_wedged() {
        let status = AgentStatus::default();
        assert_eq!(status.wedged_reason(at(1000)), None, "not started");
        set_time(&status.rules_passed_at, at(1000));
        set_time(&status.lease_passed_at, at(1000));
        set_time(&status.workers_ticked_at, at(1000));
        assert_eq!(status.wedged_reason(at(1001)), None);
        set_time(&status.lease_passed_at, at(1020));
        assert_eq!(status.wedged_reason(at(1020)), Some("a worker hangs"));
        set_time(&status.workers_ticked_at, at(1020));
        assert!(status.wedged_reason(at(1040)).unwrap().contains("lease hangs"));
        set_time(&status.lease_passed_at, at(1300));
        set_time(&status.workers_ticked_at, at(1300));
        assert_eq!(status.wedged_reason(at(1300)), None, "another program may hold the lock");
        assert!(status.wedged_reason(at(1301)).unwrap().contains("kernel's rules hangs"));
        status.is_leaving.store(true, Ordering::Relaxed);
        assert_eq!(status.wedged_reason(at(1040)), None);
    }
}
