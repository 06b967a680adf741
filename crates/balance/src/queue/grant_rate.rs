//! How fast the queue moves, from the grants of late.

use std::time::Duration;

use crate::time::{Time, nanos};

/// The time between two grants while somebody waits, smoothed.
///
/// Only what happened while somebody waited is evidence: of a queue that is empty nothing can be said.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantRateEstimator {
    gap_nanos: u64,
    /// So many have been seen; counts no further than `WEIGHT`.
    grants: u64,
    /// The last grant, or when the first came who waits now.
    since: Time,
}

impl GrantRateEstimator {
    /// The newest gap counts for one in so many.
    const WEIGHT: u64 = 32;
    /// With fewer grants nothing is known.
    const ENOUGH: u64 = 16;
    /// What was seen so long before an empty queue fills again is no evidence any more.
    const FRESH: Duration = Duration::from_secs(10);

    /// Somebody comes to wait, and nobody did.
    pub(super) fn begin_waiting(&mut self, now: Time) {
        if now.saturating_since(self.since) > Self::FRESH {
            *self = Self::default();
        }
        self.since = now;
    }

    /// Somebody who waited has a slot.
    pub(super) fn record_grant(&mut self, now: Time) {
        let gap = nanos(now.saturating_since(self.since));
        self.grants = (self.grants + 1).min(Self::WEIGHT);
        self.gap_nanos = self.mean_with(gap, self.grants);
        self.since = self.since.max(now);
    }

    /// Slots have become more: what was seen says nothing of what comes.
    pub(super) fn reset(&mut self) {
        *self = Self { since: self.since, ..Self::default() };
    }

    /// What anybody may look at.
    pub(super) fn rate(&self) -> GrantRate {
        let known = self.grants >= Self::ENOUGH;
        GrantRate {
            gap_nanos: if known { self.gap_nanos.max(1) } else { 0 },
            last_grant: self.since,
        }
    }

    /// The mean with one more gap, which counts for one in `weight`.
    fn mean_with(&self, gap: u64, weight: u64) -> u64 {
        let mean = self.gap_nanos;
        if gap >= mean { mean + (gap - mean) / weight } else { mean - (mean - gap) / weight }
    }
}

/// What is known of the pace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantRate {
    /// The mean time between two grants; 0: not known.
    pub(crate) gap_nanos: u64,
    /// The last grant, or when the first came who waits now.
    pub(crate) last_grant: Time,
}

impl GrantRate {
    /// How long a newcomer will wait behind so many, if that is known.
    ///
    /// That there has been no grant for longer than usual counts as if there were one now.
    pub(crate) fn expected_wait(self, ahead: u64, now: Time) -> Option<Duration> {
        if self.gap_nanos == 0 {
            return None;
        }
        let stall = nanos(now.saturating_since(self.last_grant)).saturating_sub(self.gap_nanos);
        let gap = self.gap_nanos + stall / GrantRateEstimator::WEIGHT;
        Some(Duration::from_nanos(gap.saturating_mul(ahead.saturating_add(1))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);

    fn granted_every(gap: Duration, times: u32) -> (GrantRateEstimator, Time) {
        let mut pace = GrantRateEstimator::default();
        let mut now = Time::ZERO;
        pace.begin_waiting(now);
        for _ in 0..times {
            now = now + gap;
            pace.record_grant(now);
        }
        (pace, now)
    }

    #[test]
    fn expected_wait_needs_sixteen_grants() {
        let (pace, now) = granted_every(MILLISECOND, 15);
        assert_eq!(pace.rate().expected_wait(3, now), None);
        let (mut pace, now) = granted_every(MILLISECOND, 16);
        assert_eq!(pace.rate().expected_wait(3, now), Some(4 * MILLISECOND));
        pace.reset();
        assert_eq!(pace.rate().expected_wait(3, now), None);
    }

    #[test]
    fn grant_rate_expires_after_ten_idle_seconds() {
        let (pace, now) = granted_every(MILLISECOND, 50);
        let begun_after = |idle| {
            let mut pace = pace;
            pace.begin_waiting(now + idle);
            pace.rate().expected_wait(0, now + idle)
        };
        assert_eq!(begun_after(Duration::from_secs(10)), Some(MILLISECOND));
        assert_eq!(begun_after(Duration::from_secs(11)), None);
    }

    #[test]
    fn ongoing_stall_raises_the_expected_wait_like_a_finished_one() {
        let (mut pace, now) = granted_every(MILLISECOND, 32);
        let late = now + 33 * MILLISECOND;
        let during = pace.rate().expected_wait(9, late);
        assert_eq!(during, Some(20 * MILLISECOND));
        pace.record_grant(late);
        assert_eq!(pace.rate().expected_wait(9, late), during);
    }

    #[test]
    fn earlier_timestamps_from_other_threads_are_tolerated() {
        let (mut pace, now) = granted_every(MILLISECOND, 32);
        pace.record_grant(Time::ZERO);
        assert_eq!(pace.since, now);
        assert!(pace.rate().expected_wait(0, Time::ZERO).is_some());
    }
}
