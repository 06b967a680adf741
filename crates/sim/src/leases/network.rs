//! Network between replicas: it loses, repeats, delays and reorders messages, and it is cut, in one
//! direction or both. And clocks that run at different rates.

use std::time::Duration;

use balance::Time;

use crate::random::RandomSource;

/// Faults of all connections.
#[derive(Clone, Copy, Debug)]
pub(super) struct NetworkQuality {
    pub(super) loss_percent: u32,
    pub(super) repeat_percent: u32,
    /// Mean of the exponentially distributed delay.
    pub(super) delay: Duration,
    /// Percentage of messages that are late, and their maximum delay.
    pub(super) late_percent: u32,
    pub(super) latest: Duration,
}

impl NetworkQuality {
    /// Network without faults.
    pub(super) const GOOD: Self = Self {
        loss_percent: 0,
        repeat_percent: 0,
        delay: Duration::from_millis(1),
        late_percent: 0,
        latest: Duration::ZERO,
    };

    pub(super) fn draw(dice: &mut RandomSource) -> Self {
        Self {
            loss_percent: [0, 5, 30, 60][dice.below(4)],
            repeat_percent: [0, 10, 50][dice.below(3)],
            delay: Duration::from_micros(u64::from(dice.between(100, 20_000))),
            late_percent: [0, 5, 20][dice.below(3)],
            latest: Duration::from_millis(u64::from(dice.between(10, 3_000))),
        }
    }

    /// Draws a network in which leases do not expire.
    pub(super) fn draw_mild(dice: &mut RandomSource) -> Self {
        Self {
            loss_percent: dice.between(0, 5),
            repeat_percent: dice.between(0, 20),
            delay: Duration::from_micros(u64::from(dice.between(100, 5_000))),
            late_percent: dice.between(0, 20),
            latest: Duration::from_millis(u64::from(dice.between(10, 100))),
        }
    }

    /// Draws the delays of a message's copies: none if it is lost.
    pub(super) fn delays(&self, dice: &mut RandomSource) -> Vec<Duration> {
        if dice.percent(self.loss_percent) {
            return Vec::new();
        }
        let copies = if dice.percent(self.repeat_percent) { 2 } else { 1 };
        (0..copies).map(|_| self.delay(dice)).collect()
    }

    fn delay(&self, dice: &mut RandomSource) -> Duration {
        let usual = dice.exponential(self.delay);
        if dice.percent(self.late_percent) {
            usual + self.latest * dice.between(0, 100) / 100
        } else {
            usual
        }
    }
}

/// Clock of one run of a replica: it has an origin and a rate of its own.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReplicaClock {
    offset: u64,
    /// Deviation of the rate, in parts per million.
    drift_ppm: i64,
}

impl ReplicaClock {
    pub(super) fn draw(dice: &mut RandomSource, max_drift_ppm: u32) -> Self {
        let drift = [-1, 1, 0][dice.below(3)] * i64::from(max_drift_ppm);
        Self { offset: u64::from(dice.between(1, 1_000_000)) * 1_000_000, drift_ppm: drift }
    }

    /// Returns the time by this clock.
    pub(super) fn at(&self, time: Time) -> Time {
        let nanos = i128::from(time.as_nanos());
        let local = nanos + nanos * i128::from(self.drift_ppm) / 1_000_000;
        Time::from_nanos(self.offset + u64::try_from(local).expect("time is positive"))
    }

    /// Returns the first time at which this clock shows `local` or later.
    pub(super) fn when(&self, local: Time) -> Time {
        let since = i128::from(local.as_nanos().saturating_sub(self.offset));
        let nanos = since * 1_000_000 / (1_000_000 + i128::from(self.drift_ppm));
        Time::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX)) + Duration::from_nanos(2)
    }
}
