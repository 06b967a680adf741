//! Estimates the grant rate of the queue from recent grants.

use std::time::Duration;

use crate::time::{Time, nanos};

/// Smoothed time between two grants while the queue is not empty.
///
/// Only times while the queue is not empty are evidence: an empty queue gives no information.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct GrantRateEstimator {
    gap_nanos: u64,
    /// Number of observed gaps; counts no further than `WEIGHT`.
    grants: u64,
    /// Time of the last grant, or of the first arrival at the empty queue.
    since: Time,
}

impl GrantRateEstimator {
    /// Divisor of the newest gap's weight in the mean.
    const WEIGHT: u64 = 32;
    /// Minimum number of grants for an estimate.
    const ENOUGH: u64 = 16;
    /// Idle time of the queue after which the estimate expires.
    const FRESH: Duration = Duration::from_secs(10);

    /// Records the arrival of a request at an empty queue.
    pub(super) fn begin_waiting(&mut self, now: Time) {
        if now.saturating_since(self.since) > Self::FRESH {
            *self = Self::default();
        }
        self.since = now;
    }

    /// Records a grant to a queued request.
    pub(super) fn record_grant(&mut self, now: Time) {
        let gap = nanos(now.saturating_since(self.since));
        self.grants = (self.grants + 1).min(Self::WEIGHT);
        self.gap_nanos = self.mean_with(gap, self.grants);
        self.since = self.since.max(now);
    }

    /// Discards the estimate, because the number of slots has changed.
    pub(super) fn reset(&mut self) {
        *self = Self { since: self.since, ..Self::default() };
    }

    /// Returns the rate.
    pub(super) fn rate(&self) -> GrantRate {
        let known = self.grants >= Self::ENOUGH;
        GrantRate {
            gap_nanos: if known { self.gap_nanos.max(1) } else { 0 },
            last_grant: self.since,
        }
    }

    /// Returns the mean with one more gap, which has a weight of one in `weight`.
    fn mean_with(&self, gap: u64, weight: u64) -> u64 {
        let mean = self.gap_nanos;
        if gap >= mean { mean + (gap - mean) / weight } else { mean - (mean - gap) / weight }
    }
}

/// Estimated grant rate of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct GrantRate {
    /// Mean time between two grants; 0 if unknown.
    pub(crate) gap_nanos: u64,
    /// Time of the last grant, or of the first arrival at the empty queue.
    pub(crate) last_grant: Time,
}

impl GrantRate {
    /// Returns the expected wait of a new request behind `ahead` others, if it is known.
    ///
    /// If there has been no grant for longer than usual, this counts as if there were one now. The
    /// wait is no longer than that behind all requests of all replicas, if they share slots.
    pub(crate) fn expected_wait(
        self,
        ahead: u64,
        backlog: SharedBacklog,
        now: Time,
    ) -> Option<Duration> {
        if self.gap_nanos == 0 {
            return None;
        }
        let stall = nanos(now.saturating_since(self.last_grant)).saturating_sub(self.gap_nanos);
        let gap = self.gap_nanos + stall / GrantRateEstimator::WEIGHT;
        let wait = Duration::from_nanos(gap.saturating_mul(ahead.saturating_add(1)));
        Some(backlog.wait(ahead).map_or(wait, |all| wait.min(all)))
    }
}

/// Backlog of all replicas that lease slots of the same endpoints to one another.
///
/// Slots go to the oldest requests, at whichever replica they are. So while a replica has older
/// requests than the others, these grant few slots or none, and soon many again: their own rates
/// tell nothing of the wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SharedBacklog {
    /// Requests that wait at other replicas.
    pub queued_elsewhere: u64,
    /// Mean time between two grants at all replicas together, in nanoseconds; 0: slots are not
    /// shared, or it is not known.
    pub gap_nanos: u64,
}

impl SharedBacklog {
    /// Returns the wait of a new request behind `ahead` others here and all those elsewhere.
    fn wait(self, ahead: u64) -> Option<Duration> {
        let before = ahead.saturating_add(self.queued_elsewhere).saturating_add(1);
        (self.gap_nanos > 0).then(|| Duration::from_nanos(self.gap_nanos.saturating_mul(before)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MILLISECOND: Duration = Duration::from_millis(1);
    const ALONE: SharedBacklog = SharedBacklog { queued_elsewhere: 0, gap_nanos: 0 };

    fn granted_every(gap: Duration, times: u32) -> (GrantRateEstimator, Time) {
        let mut estimator = GrantRateEstimator::default();
        let mut now = Time::ZERO;
        estimator.begin_waiting(now);
        for _ in 0..times {
            now = now + gap;
            estimator.record_grant(now);
        }
        (estimator, now)
    }

    #[test]
    fn expected_wait_needs_sixteen_grants() {
        let (estimator, now) = granted_every(MILLISECOND, 15);
        assert_eq!(estimator.rate().expected_wait(3, ALONE, now), None);
        let (mut estimator, now) = granted_every(MILLISECOND, 16);
        assert_eq!(estimator.rate().expected_wait(3, ALONE, now), Some(4 * MILLISECOND));
        estimator.reset();
        assert_eq!(estimator.rate().expected_wait(3, ALONE, now), None);
    }

    #[test]
    fn grant_rate_expires_after_ten_idle_seconds() {
        let (estimator, now) = granted_every(MILLISECOND, 50);
        let begun_after = |idle| {
            let mut estimator = estimator;
            estimator.begin_waiting(now + idle);
            estimator.rate().expected_wait(0, ALONE, now + idle)
        };
        assert_eq!(begun_after(Duration::from_secs(10)), Some(MILLISECOND));
        assert_eq!(begun_after(Duration::from_secs(11)), None);
    }

    #[test]
    fn ongoing_stall_raises_the_expected_wait_like_a_finished_one() {
        let (mut estimator, now) = granted_every(MILLISECOND, 32);
        let late = now + 33 * MILLISECOND;
        let during = estimator.rate().expected_wait(9, ALONE, late);
        assert_eq!(during, Some(20 * MILLISECOND));
        estimator.record_grant(late);
        assert_eq!(estimator.rate().expected_wait(9, ALONE, late), during);
    }

    #[test]
    fn earlier_timestamps_from_other_threads_are_tolerated() {
        let (mut estimator, now) = granted_every(MILLISECOND, 32);
        estimator.record_grant(Time::ZERO);
        assert_eq!(estimator.since, now);
        assert!(estimator.rate().expected_wait(0, ALONE, Time::ZERO).is_some());
    }

    #[test]
    fn wait_is_no_longer_than_behind_all_requests_of_all_replicas() {
        let (estimator, now) = granted_every(100 * MILLISECOND, 50);
        let backlog = SharedBacklog { queued_elsewhere: 600, gap_nanos: 2_500_000 };
        // Ten requests a second are granted here, four hundred at all replicas.
        let rate = estimator.rate();
        assert_eq!(rate.expected_wait(49, ALONE, now), Some(5000 * MILLISECOND));
        assert_eq!(rate.expected_wait(49, backlog, now), Some(1625 * MILLISECOND));
        let long = SharedBacklog { queued_elsewhere: 6000, ..backlog };
        assert_eq!(rate.expected_wait(49, long, now), Some(5000 * MILLISECOND));
        // Nothing is known without evidence of one's own.
        assert_eq!(GrantRateEstimator::default().rate().expected_wait(49, backlog, now), None);
    }
}
