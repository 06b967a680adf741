//! The lease of the rules: when it is renewed, and when the rules are withdrawn. A pure state machine: time and counts
//! are handed in.

use std::time::Duration;

/// Time for which a renewal keeps the rules in force.
pub const LEASE_TIMEOUT: Duration = Duration::from_millis(1500);
/// Time between renewals: one can fail without an effect.
pub const RENEWAL_INTERVAL: Duration = Duration::from_millis(250);
/// Time for which connections are taken and none arrives before the rules are withdrawn.
const MAX_SILENCE: Duration = Duration::from_secs(1);
/// Time until the rules are tried again after the first withdrawal, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(60);
const LONGEST_PAUSE: Duration = Duration::from_secs(3600);

/// Counts of the node at one time.
#[derive(Clone, Copy, Debug)]
pub struct NodeObservation<'o> {
    /// Ticks of each worker: a worker adds one at least each [`RENEWAL_INTERVAL`] while it works.
    pub worker_ticks: &'o [u64],
    /// SYNs that the rules have taken ([`TableLease::taken`](crate::TableLease::taken)).
    pub taken: u64,
    /// Connections that all workers have accepted on the proxy's port.
    pub accepted: u64,
}

/// The step that is due.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum LeaseAction {
    /// Renew the lease.
    Renew,
    /// Do nothing.
    Wait,
    /// Withdraw the rules now.
    Withdraw(WithdrawalCause),
}

/// Reason why the rules are withdrawn.
#[derive(Clone, Copy, Debug, Eq, PartialEq)]
pub enum WithdrawalCause {
    /// SYNs were taken for a second and no connection was accepted: a firewall of the node drops them.
    NothingArrives,
}

impl std::fmt::Display for WithdrawalCause {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::NothingArrives => out.write_str(
                "connections were taken for a second and none arrived at the proxy: a firewall of this node drops \
                 them",
            ),
        }
    }
}

/// Decides on renewals. Times are those since any fixed point, such as the start of the process.
#[derive(Clone, Debug)]
pub struct LeaseKeeper {
    renewed_at: Option<Duration>,
    ticks_at_renewal: Vec<u64>,
    accepted: u64,
    /// SYNs taken when the last connection was accepted.
    taken: u64,
    /// Time since which SYNs are taken and nothing is accepted.
    silent_since: Option<Duration>,
    paused_until: Option<Duration>,
    pause: Duration,
}

impl Default for LeaseKeeper {
    fn default() -> Self {
        Self {
            renewed_at: None,
            ticks_at_renewal: Vec::new(),
            accepted: 0,
            taken: 0,
            silent_since: None,
            paused_until: None,
            pause: FIRST_PAUSE,
        }
    }
}

impl LeaseKeeper {
    /// Returns the step that is due now. Call it a few times in each [`RENEWAL_INTERVAL`].
    ///
    /// After a withdrawal the rules are tried again, first after a minute, then after twice that, up to an hour.
    pub fn next_action(&mut self, now: Duration, observation: &NodeObservation<'_>) -> LeaseAction {
        if self.is_paused(now, observation) {
            return LeaseAction::Wait;
        }
        let is_due = self.is_renewal_due(now);
        if is_due && !self.every_worker_has_ticked(observation) {
            // Nothing is accepted because of us, and the lease ends by itself.
            self.silent_since = None;
            return LeaseAction::Wait;
        }
        if self.nothing_arrives(now, observation) {
            self.paused_until = Some(now + self.pause);
            self.pause = (self.pause * 2).min(LONGEST_PAUSE);
            self.silent_since = None;
            return LeaseAction::Withdraw(WithdrawalCause::NothingArrives);
        }
        if !is_due {
            return LeaseAction::Wait;
        }
        self.renewed_at = Some(now);
        observation.worker_ticks.clone_into(&mut self.ticks_at_renewal);
        LeaseAction::Renew
    }

    /// True if the rules were withdrawn and are not yet tried again.
    pub fn is_withdrawn(&self) -> bool {
        self.paused_until.is_some()
    }

    fn is_paused(&mut self, now: Duration, observation: &NodeObservation<'_>) -> bool {
        let Some(until) = self.paused_until else { return false };
        if now < until {
            return true;
        }
        self.paused_until = None;
        (self.accepted, self.taken) = (observation.accepted, observation.taken);
        false
    }

    fn nothing_arrives(&mut self, now: Duration, observation: &NodeObservation<'_>) -> bool {
        if observation.accepted != self.accepted {
            // What was taken arrives: a later withdrawal is a new one.
            self.pause = FIRST_PAUSE;
            (self.accepted, self.taken) = (observation.accepted, observation.taken);
            self.silent_since = None;
        } else if observation.taken != self.taken {
            let since = *self.silent_since.get_or_insert(now);
            return now.saturating_sub(since) >= MAX_SILENCE;
        }
        false
    }

    fn is_renewal_due(&self, now: Duration) -> bool {
        self.renewed_at.is_none_or(|at| now.saturating_sub(at) >= RENEWAL_INTERVAL)
    }

    fn every_worker_has_ticked(&self, observation: &NodeObservation<'_>) -> bool {
        let ticks = observation.worker_ticks;
        let before = &self.ticks_at_renewal;
        // Before the first renewal, a worker has ticked if it has begun.
        let has_ticked =
            |(worker, ticks): (usize, &u64)| *ticks > before.get(worker).copied().unwrap_or(0);
        !ticks.is_empty() && ticks.iter().enumerate().all(has_ticked)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use LeaseAction::{Renew, Wait, Withdraw};

    const MS: Duration = Duration::from_millis(1);

    /// Feeds rows of milliseconds, ticks of two workers, SYNs taken, connections accepted.
    fn check(rows: &[(u32, [u64; 2], u64, u64, LeaseAction)]) {
        let mut keeper = LeaseKeeper::default();
        for (ms, worker_ticks, taken, accepted, expected) in rows {
            let observation = NodeObservation { worker_ticks, taken: *taken, accepted: *accepted };
            let action = keeper.next_action(MS * *ms, &observation);
            assert_eq!(action, *expected, "at {ms} ms");
        }
    }

    #[test]
    fn lease_is_renewed_while_every_worker_ticks() {
        check(&[
            (0, [0, 1], 0, 0, Wait),
            (50, [1, 1], 0, 0, Renew),
            (100, [2, 2], 0, 0, Wait),
            (300, [2, 2], 0, 0, Renew),
            (550, [3, 2], 0, 0, Wait),
            (1550, [9, 2], 0, 0, Wait),
            (1600, [9, 3], 0, 0, Renew),
        ]);
    }

    #[test]
    fn rules_are_withdrawn_when_nothing_taken_arrives() {
        let withdraw = Withdraw(WithdrawalCause::NothingArrives);
        check(&[
            (0, [1, 1], 5, 5, Renew),
            (250, [2, 2], 6, 5, Renew),
            (500, [3, 3], 6, 6, Renew),
            (750, [4, 4], 7, 6, Renew),
            (1000, [5, 5], 8, 6, Renew),
            (1749, [6, 6], 9, 6, Renew),
            (1750, [7, 7], 9, 6, withdraw),
            (2500, [8, 8], 9, 6, Wait),
            // Tried again after a minute, then after two.
            (61_750, [9, 9], 9, 6, Renew),
            (62_000, [10, 10], 10, 6, Renew),
            (63_000, [11, 11], 11, 6, withdraw),
            (182_999, [12, 12], 11, 6, Wait),
            (183_000, [12, 12], 11, 6, Renew),
            // It works again: the next pause is short.
            (183_250, [13, 13], 12, 7, Renew),
            (184_000, [14, 14], 13, 7, Renew),
            (185_000, [15, 15], 13, 7, withdraw),
            (245_000, [16, 16], 13, 7, Renew),
        ]);
    }

    #[test]
    fn worker_that_hangs_is_no_firewall() {
        check(&[
            (0, [1, 1], 5, 5, Renew),
            (250, [2, 2], 6, 5, Renew),
            (500, [3, 2], 7, 5, Wait),
            (1500, [9, 2], 9, 5, Wait),
            (1550, [9, 3], 9, 5, Renew),
            (1700, [9, 4], 9, 8, Wait),
            (1800, [10, 4], 9, 8, Renew),
        ]);
    }

    #[test]
    fn idle_node_keeps_its_rules() {
        let mut keeper = LeaseKeeper::default();
        for step in 1..1000 {
            let observation = NodeObservation { worker_ticks: &[step], taken: 100, accepted: 99 };
            // The difference of a past refusal counts once at the start, when both counts are new.
            let action = keeper.next_action(RENEWAL_INTERVAL * step as u32, &observation);
            assert_eq!(action, Renew);
        }
    }
}
