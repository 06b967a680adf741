//! Who is to carry an address, and until when: the decisions of one node about one address.
//!
//! Pure: what is seen goes in with the time, and what is to be done comes out. Nothing here knows how a Lease is written,
//! how a link is asked, or how an address comes to an interface.
//!
//! Two fences keep an address from being carried twice. The Lease: who holds it lets the kernel drop the address before
//! anybody else may take it. The link: nobody takes an address that somebody on the link still answers for. By the second
//! alone a holder goes on while the API server does not answer: nobody else could take over then, and all would lose.

use std::time::Duration;

use super::ranking::NodeRanking;

/// Time since the process began.
pub(super) type ElapsedTime = Duration;

/// After the last renewal that was seen, a Lease is another's to take. Whole seconds.
pub(super) const LEASE_DURATION: Duration = Duration::from_secs(4);
/// Between renewals.
const RENEW_INTERVAL: Duration = Duration::from_secs(1);
/// How long the kernel keeps an address that is not renewed: whole seconds.
const ADDRESS_LIFETIME_SECONDS: u32 = 3;
/// By how much the kernel may be late in dropping it: 0.2 s were measured.
const KERNEL_EXPIRY_SLACK: Duration = Duration::from_millis(500);
/// How long the answer of the link holds.
const PROBE_VALIDITY: Duration = Duration::from_millis(600);
/// So long before a Lease runs out the link is asked.
const PROBE_AHEAD: Duration = Duration::from_millis(300);
/// How long each that is preferred is given to be quicker, where a holder has died.
const TAKEOVER_STAGGER: Duration = Duration::from_millis(150);
/// The same where nobody had it: they learn that it is served at different times, half a second apart.
const INITIAL_STAGGER: Duration = Duration::from_millis(700);
/// However many are preferred.
const MAX_STAGGER_STEPS: u32 = 3;
/// Before what failed is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(1);
/// Before a write that another overtook.
const CONFLICT_RETRY_DELAY: Duration = Duration::from_millis(50);
/// How long a node has to have been the better place before the address moves, which cuts all connections.
pub(super) const HANDOVER_DELAY: Duration = Duration::from_secs(30);
/// How long who has it keeps it at least.
const MIN_TENURE: Duration = Duration::from_secs(60);
/// When it is told on the link that the address is here now: frames get lost.
const ANNOUNCE_SCHEDULE: [Duration; 4] =
    [Duration::ZERO, Duration::from_millis(100), Duration::from_secs(1), Duration::from_secs(2)];
/// Nothing is due.
pub(super) const NEVER: ElapsedTime = ElapsedTime::MAX;

/// What a Lease says.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct LeaseState {
    /// None: it is nobody's.
    pub(super) holder: Option<String>,
    /// Another one with each renewal.
    pub(super) renewal: String,
    /// Who would be a better place.
    pub(super) wanted_by: Option<String>,
}

/// What to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum OwnershipAction {
    /// Nothing before then, unless something is seen.
    Wait(ElapsedTime),
    /// Ask the link whether somebody has the address.
    Probe,
    /// Tell the link that it is here.
    Announce,
    /// Write the Lease.
    WriteLease(LeaseWrite),
}

/// What to write to the Lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LeaseWrite {
    /// It is ours: taken, or renewed.
    AcquireOrRenew,
    /// We would be a better place.
    RequestHandover,
    /// It is another's now. The address has to be dropped before.
    HandOver(String),
    /// It is nobody's. The address has to be dropped before.
    Release,
}

/// What came of a write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LeaseWriteOutcome {
    Done,
    /// Somebody else wrote first.
    Conflict,
    /// The API server did not answer, or not to the question.
    Unavailable,
    /// It does not let us.
    Rejected,
}

/// What is to become of the address on our interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterfaceAction {
    /// It is to be dropped if it is there.
    Remove,
    /// What the kernel was told last still holds.
    Keep,
    /// The kernel is to keep it for so many seconds from now.
    InstallFor(u32),
}

/// What one node knows of one address.
#[derive(Debug)]
pub(super) struct AddressOwnership {
    own_node: String,
    /// Whether it is served here, and who else serves it.
    ranking: Option<NodeRanking>,
    /// Since when it has been served here.
    served_since: ElapsedTime,
    /// What the Lease says; none: there is none.
    lease: Option<LeaseState>,
    /// Whether anything is known of the Lease.
    is_lease_known: bool,
    /// Since when we have seen no other renewal.
    renewal_seen_at: ElapsedTime,
    /// Since when it has been whose it is.
    holder_since: ElapsedTime,
    /// The Lease as far as it is ours.
    held_lease: Option<HeldLease>,
    /// When the link was asked last, and whether somebody answered.
    last_probe: Option<(ElapsedTime, bool)>,
    /// Nothing is written before.
    not_before: ElapsedTime,
    /// Since when we have been the better place.
    better_since: Option<ElapsedTime>,
    /// No more is asked for before.
    next_handover_request_at: ElapsedTime,
}

#[derive(Clone, Copy, Debug)]
struct HeldLease {
    /// When we asked for the last renewal that was granted.
    renewed_at: ElapsedTime,
    /// Until when the kernel keeps the address; none: we do not carry it.
    installed: Option<InstalledAddress>,
    /// Whether the API server has not answered since.
    is_cut_off: bool,
}

#[derive(Clone, Copy, Debug)]
struct InstalledAddress {
    since: ElapsedTime,
    until: ElapsedTime,
    /// How often the link has been told.
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

    /// Takes what the Lease says.
    pub(super) fn observe_lease(&mut self, said: Option<LeaseState>, now: ElapsedTime) {
        let holder = |said: &Option<LeaseState>| said.as_ref()?.holder.clone();
        let renewal = |said: &Option<LeaseState>| said.as_ref().map(|said| said.renewal.clone());
        let is_new = !self.is_lease_known || holder(&said) != holder(&self.lease);
        if is_new {
            self.holder_since = now;
            self.better_since = None;
        }
        if is_new || renewal(&said) != renewal(&self.lease) {
            self.renewal_seen_at = now;
        }
        self.is_lease_known = true;
        self.lease = said;
        if !self.is_holder() {
            self.held_lease = None;
        }
    }

    /// Takes who serves the address; none: nobody here.
    pub(super) fn set_ranking(&mut self, standing: Option<NodeRanking>, now: ElapsedTime) {
        if self.ranking.is_none() {
            self.served_since = now;
        }
        self.ranking = standing;
    }

    /// Takes what came of a write that was begun at `asked`.
    pub(super) fn record_write(
        &mut self,
        write: &LeaseWrite,
        outcome: LeaseWriteOutcome,
        asked: ElapsedTime,
        now: ElapsedTime,
    ) {
        self.not_before = match outcome {
            LeaseWriteOutcome::Done if *write == LeaseWrite::AcquireOrRenew => {
                asked + RENEW_INTERVAL
            }
            LeaseWriteOutcome::Done => now,
            LeaseWriteOutcome::Conflict => now + CONFLICT_RETRY_DELAY,
            LeaseWriteOutcome::Unavailable | LeaseWriteOutcome::Rejected => now + RETRY_DELAY,
        };
        match (write, outcome) {
            (LeaseWrite::AcquireOrRenew, LeaseWriteOutcome::Done) => {
                let carried = self.held_lease.and_then(|held| held.installed);
                self.held_lease =
                    Some(HeldLease { renewed_at: asked, installed: carried, is_cut_off: false });
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

    /// Takes whether somebody on the link has the address.
    pub(super) fn record_probe(&mut self, is_answered: bool, now: ElapsedTime) {
        self.last_probe = Some((now, is_answered));
        if is_answered {
            self.held_lease = None;
            self.not_before = now + RETRY_DELAY;
        }
    }

    /// What is to become of the address on our interface.
    pub(super) fn interface_action(&self, now: ElapsedTime) -> InterfaceAction {
        let Some(held) = self.held_lease.filter(|_| self.ranking.is_some()) else {
            return InterfaceAction::Remove;
        };
        let until = held.installed.map(|carried| carried.until).filter(|until| *until > now);
        let by_lease = (held.renewed_at + LEASE_DURATION).saturating_sub(now + KERNEL_EXPIRY_SLACK);
        let seconds = match until {
            // Who held it before goes by the link while cut off, and may have found it free when we did not carry it yet.
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

    /// Takes that the kernel keeps the address for so long from now on, or none of it.
    pub(super) fn record_installed(&mut self, seconds: u32, now: ElapsedTime) {
        let Some(held) = &mut self.held_lease else { return };
        let until = now + from_seconds(seconds);
        let before = held.installed.filter(|carried| carried.until > now);
        let carried =
            before.unwrap_or(InstalledAddress { since: now, until, announcements_sent: 0 });
        held.installed = (seconds > 0).then_some(InstalledAddress { until, ..carried });
    }

    /// Takes that the link was told that the address is here.
    pub(super) fn record_announcement(&mut self) {
        if let Some(carried) = self.held_lease.as_mut().and_then(|held| held.installed.as_mut()) {
            carried.announcements_sent += 1;
        }
    }

    /// What to do next.
    pub(super) fn next_action(&mut self, now: ElapsedTime) -> OwnershipAction {
        match (self.ranking.clone(), self.held_lease) {
            (Some(standing), Some(held)) => self.next_as_holder(&standing, held, now),
            (Some(standing), None) if self.is_lease_known => {
                let step = self.next_without_holder(&standing, now);
                step.unwrap_or_else(|| self.next_as_observer(&standing, now))
            }
            // Where it is no longer served here.
            (None, Some(_)) => OwnershipAction::WriteLease(LeaseWrite::Release),
            (Some(_) | None, None) => OwnershipAction::Wait(NEVER),
        }
    }

    /// As long as it is ours.
    fn next_as_holder(
        &self,
        standing: &NodeRanking,
        held: HeldLease,
        now: ElapsedTime,
    ) -> OwnershipAction {
        let carried = held.installed.filter(|carried| carried.until > now);
        let tell_at = carried.map_or(NEVER, |it| {
            ANNOUNCE_SCHEDULE.get(it.announcements_sent).map_or(NEVER, |after| it.since + *after)
        });
        if tell_at <= now {
            return OwnershipAction::Announce;
        }
        let wanted_by = self.lease.as_ref().and_then(|said| said.wanted_by.as_deref());
        if let Some(other) =
            wanted_by.filter(|other| standing.is_move_worthwhile(&self.own_node, other))
        {
            return OwnershipAction::WriteLease(LeaseWrite::HandOver(other.to_owned()));
        }
        if (held.is_cut_off || carried.is_none()) && !self.is_probe_fresh(now) {
            return OwnershipAction::Probe;
        }
        if self.not_before <= now {
            return OwnershipAction::WriteLease(LeaseWrite::AcquireOrRenew);
        }
        OwnershipAction::Wait(self.not_before.min(tell_at))
    }

    /// Where nobody has it, or whoever had it has let it run out.
    fn next_without_holder(
        &self,
        standing: &NodeRanking,
        now: ElapsedTime,
    ) -> Option<OwnershipAction> {
        let holder = self.lease.as_ref().and_then(|said| said.holder.as_deref());
        let holder = holder.filter(|holder| *holder != self.own_node);
        let (since, turn) = match holder {
            Some(_) => (self.renewal_seen_at + LEASE_DURATION, TAKEOVER_STAGGER),
            // It is ours already, be it that another has given it to us.
            None if self.is_holder() => (self.holder_since, TAKEOVER_STAGGER),
            // It has been given back, or there never was one. Everybody asks the link before turns begin.
            None => (self.holder_since.max(self.served_since) + PROBE_AHEAD, INITIAL_STAGGER),
        };
        let turns = if self.is_holder() { 0 } else { standing.rank(&self.own_node, holder) };
        let turns = u32::try_from(turns).unwrap_or(MAX_STAGGER_STEPS).min(MAX_STAGGER_STEPS);
        let due = since + turn * turns;
        let ask_at = due.saturating_sub(PROBE_AHEAD).max(self.not_before);
        if holder.is_some() && since > now + PROBE_AHEAD {
            return None;
        }
        Some(if ask_at > now {
            OwnershipAction::Wait(ask_at)
        } else if !self.is_probe_fresh(now) {
            OwnershipAction::Probe
        } else if due <= now {
            OwnershipAction::WriteLease(LeaseWrite::AcquireOrRenew)
        } else {
            OwnershipAction::Wait(due)
        })
    }

    /// While another has it: it may be worth moving.
    fn next_as_observer(&mut self, standing: &NodeRanking, now: ElapsedTime) -> OwnershipAction {
        let run_out = (self.renewal_seen_at + LEASE_DURATION)
            .saturating_sub(PROBE_AHEAD)
            .max(self.not_before);
        let holder =
            self.lease.as_ref().and_then(|said| said.holder.as_deref()).unwrap_or_default();
        let is_best = standing.rank(&self.own_node, None) == 0;
        if !is_best || !standing.is_move_worthwhile(holder, &self.own_node) {
            self.better_since = None;
            return OwnershipAction::Wait(run_out);
        }
        let since = *self.better_since.get_or_insert(now);
        let due = (since + HANDOVER_DELAY)
            .max(self.holder_since + MIN_TENURE)
            .max(self.next_handover_request_at)
            .max(self.not_before);
        if due > now {
            return OwnershipAction::Wait(due.min(run_out));
        }
        self.next_handover_request_at = now + HANDOVER_DELAY;
        OwnershipAction::WriteLease(LeaseWrite::RequestHandover)
    }

    fn is_holder(&self) -> bool {
        let holder = self.lease.as_ref().and_then(|said| said.holder.as_ref());
        holder == Some(&self.own_node)
    }

    /// Whether what the link said still holds.
    fn is_probe_fresh(&self, now: ElapsedTime) -> bool {
        self.last_probe.is_some_and(|(at, _)| now <= at + PROBE_VALIDITY)
    }

    /// Whether the link has just said that nobody else has the address.
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
