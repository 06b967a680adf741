//! Ownership of an address: the decisions of one node about whether, and until when, it holds the
//! address.
//!
//! Pure: observations go in with the time, and actions come out. It does not know how a Lease is written, how the link
//! is probed, or how an address is installed on an interface.
//!
//! Two fences prevent two nodes from holding an address at the same time. The Lease: the holder lets the kernel drop
//! the address before another node may take it. The link: no node takes an address for which another machine on the
//! link still answers. By the second fence alone, a holder keeps the address while the API server does not answer: no
//! other node could take it over then, and otherwise all nodes would lose their addresses.

use std::time::Duration;

use super::ranking::NodeRanking;

/// Time since the start of the process.
pub(super) type ElapsedTime = Duration;

/// Time after the last observed renewal at which another node may take the Lease. Whole seconds.
pub(super) const LEASE_DURATION: Duration = Duration::from_secs(4);
/// Interval of renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// Lifetime of an address in the kernel if it is not renewed: whole seconds.
const ADDRESS_LIFETIME_SECONDS: u32 = 3;
/// Delay with which the kernel may drop the address: 0.2 s were measured.
const KERNEL_EXPIRY_SLACK: Duration = Duration::from_millis(500);
/// Time for which the result of a probe is valid.
const PROBE_VALIDITY: Duration = Duration::from_millis(600);
/// Time before the expiry of a Lease at which the link is probed.
const PROBE_AHEAD: Duration = Duration::from_millis(300);
/// Head start of each node that is preferred, after a holder has failed.
const TAKEOVER_STAGGER: Duration = Duration::from_millis(150);
/// Head start if no node held the address: nodes learn at different times, up to half a second apart, that it is
/// served.
const INITIAL_STAGGER: Duration = Duration::from_millis(700);
/// Upper bound of the number of head starts.
const MAX_STAGGER_STEPS: u32 = 3;
/// Delay before a failed write is retried.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Delay before a write is retried after a conflict.
const CONFLICT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// Time for which another node must be preferred before the address moves, because a move cuts all connections.
pub(super) const HANDOVER_DELAY: Duration = Duration::from_secs(30);
/// Shortest time between two moves of an address.
const MIN_TENURE: Duration = Duration::from_secs(60);
/// Times of the announcements on the link after the installation: frames may be lost.
const ANNOUNCE_SCHEDULE: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(2)];
/// No action is due.
pub(super) const NEVER: ElapsedTime = ElapsedTime::MAX;

/// State of a Lease.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseState {
    /// Node that holds it; `None`: no node does.
    pub(super) holder: Option<String>,
    /// Value that changes with each renewal.
    pub(super) renewal: String,
    /// Node that requests a handover, because it is preferred.
    pub(super) wanted_by: Option<String>,
}

/// Next action.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnershipAction {
    /// Wait until this time, or until a new observation.
    Wait(ElapsedTime),
    /// Probe the link for another machine that has the address.
    Probe,
    /// Announce on the link that the address is here.
    Announce,
    /// Write the Lease.
    WriteLease(LeaseWrite),
}

/// Write to the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseWrite {
    /// Acquire the Lease, or renew it.
    AcquireOrRenew,
    /// Request a handover to this node, because it is preferred.
    RequestHandover,
    /// Hand the Lease over to another node. The address has to be removed before.
    HandOver(String),
    /// Release the Lease. The address has to be removed before.
    Release,
}

/// Outcome of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseWriteOutcome {
    Done,
    /// Another node wrote first.
    Conflict,
    /// The API server did not answer, or failed.
    Unavailable,
    /// The API server rejected the write.
    Rejected,
}

/// Action on our interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterfaceAction {
    /// Remove the address, if it is installed.
    Remove,
    /// Leave the address as it is.
    Keep,
    /// Install the address, or extend its lifetime, for this number of seconds from now.
    InstallFor(u32),
}

/// State of one address, from the view of one node.
#[derive(Debug)]
pub(super) struct AddressOwnership {
    own_node: String,
    /// Nodes that serve the address; `None`: it is not served here.
    ranking: Option<NodeRanking>,
    /// Time since which it has been served here.
    served_since: ElapsedTime,
    /// State of the Lease; `None`: it does not exist.
    lease: Option<LeaseState>,
    /// True if the state of the Lease is known.
    is_lease_known: bool,
    /// Time at which the last new renewal was observed.
    renewal_seen_at: ElapsedTime,
    /// Time since which the holder has been the same.
    holder_since: ElapsedTime,
    /// The Lease, if this node holds it.
    held_lease: Option<HeldLease>,
    /// Time of the last probe, and whether another machine answered.
    last_probe: Option<(ElapsedTime, bool)>,
    /// Time before which nothing is written.
    not_before: ElapsedTime,
    /// Time since which this node has been preferred to the holder.
    better_since: Option<ElapsedTime>,
    /// Time before which no further handover is requested.
    next_handover_request_at: ElapsedTime,
}

#[derive(Clone, Copy, Debug)]
struct HeldLease {
    /// Time at which the last successful renewal was sent.
    renewed_at: ElapsedTime,
    /// The address in the kernel; `None`: it is not installed.
    installed: Option<InstalledAddress>,
    /// True if the API server has not answered since the last renewal.
    is_cut_off: bool,
}

#[derive(Clone, Copy, Debug)]
struct InstalledAddress {
    since: ElapsedTime,
    until: ElapsedTime,
    /// Number of announcements sent on the link.
    announcements_sent: usize,
}

impl AddressOwnership {
    pub(super) fn new(own_node: String) -> Self {
        Self {
            own_node,
            ranking: None,
            served_since: ElapsedTime::ZERO,
            lease: None,
            is_lease_known: false,
            renewal_seen_at: ElapsedTime::ZERO,
            holder_since: ElapsedTime::ZERO,
            held_lease: None,
            last_probe: None,
            not_before: ElapsedTime::ZERO,
            better_since: None,
            next_handover_request_at: ElapsedTime::ZERO,
        }
    }

    /// Records the observed state of the Lease.
    pub(super) fn observe_lease(&mut self, state: Option<LeaseState>, now: ElapsedTime) {
        let holder = |state: &Option<LeaseState>| state.as_ref()?.holder.clone();
        let renewal =
            |state: &Option<LeaseState>| state.as_ref().map(|state| state.renewal.clone());
        let is_new = !self.is_lease_known || holder(&state) != holder(&self.lease);
        if is_new {
            self.holder_since = now;
            self.better_since = None;
        }
        if is_new || renewal(&state) != renewal(&self.lease) {
            self.renewal_seen_at = now;
        }
        self.is_lease_known = true;
        self.lease = state;
        if !self.is_holder() {
            self.held_lease = None;
        }
    }

    /// Sets the nodes that serve the address; `None`: it is not served here.
    pub(super) fn set_ranking(&mut self, ranking: Option<NodeRanking>, now: ElapsedTime) {
        if self.ranking.is_none() {
            self.served_since = now;
        }
        self.ranking = ranking;
    }

    /// Records the outcome of a write that was started at `started`.
    pub(super) fn record_write(
        &mut self,
        write: &LeaseWrite,
        outcome: LeaseWriteOutcome,
        started: ElapsedTime,
        now: ElapsedTime,
    ) {
        self.not_before = match outcome {
            LeaseWriteOutcome::Done if *write == LeaseWrite::AcquireOrRenew => {
                started + RENEW_INTERVAL
            }
            LeaseWriteOutcome::Done => now,
            LeaseWriteOutcome::Conflict => now + CONFLICT_RETRY_DELAY,
            LeaseWriteOutcome::Unavailable | LeaseWriteOutcome::Rejected => now + RETRY_DELAY,
        };
        match (write, outcome) {
            (LeaseWrite::AcquireOrRenew, LeaseWriteOutcome::Done) => {
                let installed = self.held_lease.and_then(|held| held.installed);
                self.held_lease =
                    Some(HeldLease { renewed_at: started, installed, is_cut_off: false });
            }
            (LeaseWrite::HandOver(_) | LeaseWrite::Release, _) => self.held_lease = None,
            (
                LeaseWrite::AcquireOrRenew | LeaseWrite::RequestHandover,
                LeaseWriteOutcome::Unavailable,
            ) => {
                if let Some(held) = &mut self.held_lease {
                    held.is_cut_off = true;
                }
            }
            (LeaseWrite::AcquireOrRenew | LeaseWrite::RequestHandover, _) => {}
        }
    }

    /// Records the result of a probe: true if another machine on the link has the address.
    pub(super) fn record_probe(&mut self, is_answered: bool, now: ElapsedTime) {
        self.last_probe = Some((now, is_answered));
        if is_answered {
            self.held_lease = None;
            self.not_before = now + RETRY_DELAY;
        }
    }

    /// Returns the action on our interface.
    pub(super) fn interface_action(&self, now: ElapsedTime) -> InterfaceAction {
        let Some(held) = self.held_lease.filter(|_| self.ranking.is_some()) else {
            return InterfaceAction::Remove;
        };
        let until = held.installed.map(|installed| installed.until).filter(|until| *until > now);
        let by_lease = (held.renewed_at + LEASE_DURATION).saturating_sub(now + KERNEL_EXPIRY_SLACK);
        let seconds = match until {
            // A previous holder that is cut off relies on the link, and may have found the address free before we
            // installed it.
            None if !self.is_probed_free(now) => 0,
            Some(_) if held.is_cut_off && self.is_probed_free(now) => ADDRESS_LIFETIME_SECONDS,
            Some(_) | None => whole_seconds(by_lease),
        };
        let is_longer = until.is_none_or(|until| now + from_seconds(seconds) > until);
        match until {
            _ if seconds > 0 && is_longer => InterfaceAction::InstallFor(seconds),
            Some(_) => InterfaceAction::Keep,
            None => InterfaceAction::Remove,
        }
    }

    /// Records that the kernel keeps the address for this number of seconds from now; 0: it was
    /// removed.
    pub(super) fn record_installed(&mut self, seconds: u32, now: ElapsedTime) {
        let Some(held) = &mut self.held_lease else { return };
        let until = now + from_seconds(seconds);
        let before = held.installed.filter(|installed| installed.until > now);
        let installed =
            before.unwrap_or(InstalledAddress { since: now, until, announcements_sent: 0 });
        held.installed = (seconds > 0).then_some(InstalledAddress { until, ..installed });
    }

    /// Records an announcement on the link.
    pub(super) fn record_announcement(&mut self) {
        if let Some(installed) = self.held_lease.as_mut().and_then(|held| held.installed.as_mut()) {
            installed.announcements_sent += 1;
        }
    }

    /// Returns the next action.
    pub(super) fn next_action(&mut self, now: ElapsedTime) -> OwnershipAction {
        match (self.ranking.clone(), self.held_lease) {
            (Some(ranking), Some(held)) => self.next_as_holder(&ranking, held, now),
            (Some(ranking), None) if self.is_lease_known => {
                let step = self.next_without_holder(&ranking, now);
                step.unwrap_or_else(|| self.next_as_observer(&ranking, now))
            }
            // The address is no longer served here.
            (None, Some(_)) => OwnershipAction::WriteLease(LeaseWrite::Release),
            (Some(_) | None, None) => OwnershipAction::Wait(NEVER),
        }
    }

    /// Returns the next action while this node holds the Lease.
    fn next_as_holder(
        &self,
        ranking: &NodeRanking,
        held: HeldLease,
        now: ElapsedTime,
    ) -> OwnershipAction {
        let installed = held.installed.filter(|installed| installed.until > now);
        let announce_at = installed.map_or(NEVER, |it| {
            ANNOUNCE_SCHEDULE.get(it.announcements_sent).map_or(NEVER, |after| it.since + *after)
        });
        if announce_at <= now {
            return OwnershipAction::Announce;
        }
        let wanted_by = self.lease.as_ref().and_then(|state| state.wanted_by.as_deref());
        if let Some(other) =
            wanted_by.filter(|other| ranking.is_move_worthwhile(&self.own_node, other))
        {
            return OwnershipAction::WriteLease(LeaseWrite::HandOver(other.to_owned()));
        }
        if (held.is_cut_off || installed.is_none()) && !self.is_probe_fresh(now) {
            return OwnershipAction::Probe;
        }
        if self.not_before <= now {
            return OwnershipAction::WriteLease(LeaseWrite::AcquireOrRenew);
        }
        OwnershipAction::Wait(self.not_before.min(announce_at))
    }

    /// Returns the next action if no node holds the Lease, or its holder has let it expire.
    fn next_without_holder(
        &self,
        ranking: &NodeRanking,
        now: ElapsedTime,
    ) -> Option<OwnershipAction> {
        let holder = self.lease.as_ref().and_then(|state| state.holder.as_deref());
        let holder = holder.filter(|holder| *holder != self.own_node);
        let (since, stagger) = match holder {
            Some(_) => (self.renewal_seen_at + LEASE_DURATION, TAKEOVER_STAGGER),
            // This node holds it already, for example after a handover.
            None if self.is_holder() => (self.holder_since, TAKEOVER_STAGGER),
            // The Lease was released, or never existed. All nodes probe the link before the first one may write.
            None => (self.holder_since.max(self.served_since) + PROBE_AHEAD, INITIAL_STAGGER),
        };
        let steps = if self.is_holder() { 0 } else { ranking.rank(&self.own_node, holder) };
        let steps = u32::try_from(steps).unwrap_or(MAX_STAGGER_STEPS).min(MAX_STAGGER_STEPS);
        let due = since + stagger * steps;
        let probe_at = due.saturating_sub(PROBE_AHEAD).max(self.not_before);
        if holder.is_some() && since > now + PROBE_AHEAD {
            return None;
        }
        Some(if probe_at > now {
            OwnershipAction::Wait(probe_at)
        } else if !self.is_probe_fresh(now) {
            OwnershipAction::Probe
        } else if due <= now {
            OwnershipAction::WriteLease(LeaseWrite::AcquireOrRenew)
        } else {
            OwnershipAction::Wait(due)
        })
    }

    /// Returns the next action while another node holds the Lease: a move may be worthwhile.
    fn next_as_observer(&mut self, ranking: &NodeRanking, now: ElapsedTime) -> OwnershipAction {
        let expires_at = (self.renewal_seen_at + LEASE_DURATION)
            .saturating_sub(PROBE_AHEAD)
            .max(self.not_before);
        let holder =
            self.lease.as_ref().and_then(|state| state.holder.as_deref()).unwrap_or_default();
        let is_best = ranking.rank(&self.own_node, None) == 0;
        if !is_best || !ranking.is_move_worthwhile(holder, &self.own_node) {
            self.better_since = None;
            return OwnershipAction::Wait(expires_at);
        }
        let since = *self.better_since.get_or_insert(now);
        let due = (since + HANDOVER_DELAY)
            .max(self.holder_since + MIN_TENURE)
            .max(self.next_handover_request_at)
            .max(self.not_before);
        if due > now {
            return OwnershipAction::Wait(due.min(expires_at));
        }
        self.next_handover_request_at = now + HANDOVER_DELAY;
        OwnershipAction::WriteLease(LeaseWrite::RequestHandover)
    }

    fn is_holder(&self) -> bool {
        let holder = self.lease.as_ref().and_then(|state| state.holder.as_ref());
        holder == Some(&self.own_node)
    }

    /// True if the result of the last probe is still valid.
    fn is_probe_fresh(&self, now: ElapsedTime) -> bool {
        self.last_probe.is_some_and(|(at, _)| now <= at + PROBE_VALIDITY)
    }

    /// True if a valid probe found no other machine with the address.
    fn is_probed_free(&self, now: ElapsedTime) -> bool {
        self.last_probe.is_some_and(|(at, is_answered)| now <= at + PROBE_VALIDITY && !is_answered)
    }
}

fn whole_seconds(left: Duration) -> u32 {
    u32::try_from(left.as_secs()).unwrap_or(u32::MAX).min(ADDRESS_LIFETIME_SECONDS)
}

const fn from_seconds(seconds: u32) -> Duration {
    Duration::from_secs(seconds as u64)
}

#[cfg(test)]
mod tests;
