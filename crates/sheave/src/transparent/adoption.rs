//! When connections that bypass are counted, and when some are reset. Pure: time and randomness are handed in.
//!
//! Both read the kernel's table of connections, which can have a million entries, so what a reading takes decides when
//! the next one comes.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use intercept::ResetPacer;

/// Connections that are reset a second: clients come back over some time, not at once.
const RESETS_PER_SECOND: u32 = 100;
/// Interval of resets, and of counts, if reading the table is quick.
const RESET_INTERVAL: Duration = Duration::from_millis(250);
const COUNT_INTERVAL: Duration = Duration::from_secs(30);
/// Time from a change of addresses to the count after it.
const FIRST_COUNT: Duration = Duration::from_secs(1);
/// Parts of a CPU that resets, and counts, may take.
const RESET_SHARE: u32 = 20;
const COUNT_SHARE: u32 = 200;

/// The step that is due.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AdoptionStep {
    Wait,
    /// Count the connections that bypass.
    Count,
    /// Reset up to so many of them.
    Reset(usize),
}

/// Decides on the steps.
#[derive(Debug)]
pub(super) struct AdoptionSchedule {
    pacer: ResetPacer,
    /// Addresses of the last call.
    addresses: BTreeSet<SocketAddr>,
    resets: BTreeSet<SocketAddr>,
    was_in_force: bool,
    /// True while there may be connections to reset.
    is_resetting: bool,
    next_reset: Duration,
    next_count: Duration,
}

impl Default for AdoptionSchedule {
    fn default() -> Self {
        Self {
            pacer: ResetPacer::new(Duration::ZERO, RESETS_PER_SECOND),
            addresses: BTreeSet::new(),
            resets: BTreeSet::new(),
            was_in_force: false,
            is_resetting: false,
            next_reset: Duration::ZERO,
            next_count: Duration::ZERO,
        }
    }
}

impl AdoptionSchedule {
    /// Returns the step that is due. `addresses` are those whose connections are taken, `resets` those of Services
    /// whose older connections are reset. While the rules are not in force, a reset would lead back to kube-proxy.
    pub(super) fn next_step(
        &mut self,
        now: Duration,
        addresses: &BTreeSet<SocketAddr>,
        resets: &BTreeSet<SocketAddr>,
        is_in_force: bool,
        random: impl FnMut() -> u64,
    ) -> AdoptionStep {
        if *addresses != self.addresses {
            self.next_count = now + FIRST_COUNT;
            addresses.clone_into(&mut self.addresses);
        }
        // In a gap without rules, connections were made that bypass.
        let was_in_force = std::mem::replace(&mut self.was_in_force, is_in_force);
        let is_back = is_in_force && !was_in_force;
        if is_back || !resets.is_subset(&self.resets) {
            self.is_resetting = !resets.is_empty();
            self.next_reset = self.next_reset.max(now);
            self.pacer = ResetPacer::new(now, RESETS_PER_SECOND);
        }
        if *resets != self.resets {
            resets.clone_into(&mut self.resets);
        }
        if is_in_force && self.is_resetting && !resets.is_empty() && now >= self.next_reset {
            let due = self.pacer.due(now, random);
            if due > 0 {
                return AdoptionStep::Reset(due);
            }
        }
        if !addresses.is_empty() && now >= self.next_count {
            return AdoptionStep::Count;
        }
        AdoptionStep::Wait
    }

    /// Records a reset that took so long; `is_clean`: there was nothing left to reset.
    pub(super) fn record_reset(&mut self, now: Duration, took: Duration, is_clean: bool) {
        self.next_reset = now + RESET_INTERVAL.max(took * RESET_SHARE);
        self.is_resetting &= !is_clean;
    }

    /// Records a count that took so long; `resettable`: connections among them that are to be reset.
    pub(super) fn record_count(&mut self, now: Duration, took: Duration, resettable: u64) {
        self.next_count = now + COUNT_INTERVAL.max(took * COUNT_SHARE);
        self.is_resetting |= resettable > 0;
    }
}

#[cfg(test)]
mod tests {
    use AdoptionStep::{Count, Reset, Wait};

    use super::*;

    const MS: Duration = Duration::from_millis(1);

    fn addresses(ports: &[u16]) -> BTreeSet<SocketAddr> {
        ports.iter().map(|port| SocketAddr::from(([10, 96, 0, 1], *port))).collect()
    }

    fn step(
        schedule: &mut AdoptionSchedule,
        ms: u32,
        all: &[u16],
        resets: &[u16],
        is_in_force: bool,
    ) -> AdoptionStep {
        let (all, resets) = (addresses(all), addresses(resets));
        schedule.next_step(MS * ms, &all, &resets, is_in_force, || u64::MAX / 2)
    }

    #[test]
    fn connections_are_counted_soon_and_then_seldom() {
        let mut schedule = AdoptionSchedule::default();
        assert_eq!(step(&mut schedule, 0, &[], &[], true), Wait);
        assert_eq!(step(&mut schedule, 100, &[1], &[], true), Wait);
        assert_eq!(step(&mut schedule, 1100, &[1], &[], true), Count);
        schedule.record_count(MS * 1100, MS, 5);
        assert_eq!(step(&mut schedule, 31_000, &[1], &[], true), Wait);
        assert_eq!(step(&mut schedule, 31_100, &[1], &[], true), Count);
        // A large table is read less often.
        schedule.record_count(MS * 31_100, MS * 500, 0);
        assert_eq!(step(&mut schedule, 131_000, &[1], &[], true), Wait);
        assert_eq!(step(&mut schedule, 131_100, &[1], &[], true), Count);
    }

    #[test]
    fn resets_begin_with_the_annotation_and_end_when_none_is_left() {
        let mut schedule = AdoptionSchedule::default();
        assert_eq!(step(&mut schedule, 10, &[1, 2], &[2], false), Wait, "not in force");
        assert!(matches!(step(&mut schedule, 20, &[1, 2], &[2], true), Reset(_)));
        schedule.record_reset(MS * 20, MS, false);
        assert_eq!(step(&mut schedule, 250, &[1, 2], &[2], true), Wait);
        let Reset(due) = step(&mut schedule, 270, &[1, 2], &[2], true) else { panic!() };
        assert!((20..30).contains(&due), "{due} in 250 ms at 100/s");
        schedule.record_reset(MS * 270, MS, true);
        assert_eq!(step(&mut schedule, 600, &[1, 2], &[2], true), Wait);
        // Another Service is annotated.
        assert!(matches!(step(&mut schedule, 700, &[1, 2], &[1, 2], true), Reset(_)));
        schedule.record_reset(MS * 700, MS, true);
        // A count finds some, or the rules were away.
        schedule.record_count(MS * 800, MS, 1);
        assert!(matches!(step(&mut schedule, 1000, &[1, 2], &[1, 2], true), Reset(_)));
        schedule.record_reset(MS * 1000, MS, true);
        assert_eq!(step(&mut schedule, 1300, &[1, 2], &[1, 2], false), Wait);
        assert!(matches!(step(&mut schedule, 1400, &[1, 2], &[1, 2], true), Reset(_)));
    }
}
