//! Schedule and results of active probes. The caller sends the probes.
//!
//! A probe takes a slot of a capped endpoint like any request. If no slot is free, the endpoint is
//! busy, which does not mean unhealthy: the probe has no result. While requests succeed, a probe
//! would tell nothing new, so it is skipped.

use std::time::Duration;

use crate::health::outlier::AttemptTotals;
use crate::health::settings::ActiveSettings;
use crate::rng::Rng;
use crate::time::{Time, nanos};

/// Result of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The endpoint answered as expected.
    Good,
    /// The endpoint did not answer as expected, or not in time.
    Bad,
    /// No slot was free for the probe, or it was abandoned: no result.
    Unknown,
}

/// Probe state of one endpoint. It begins as healthy: the source of the endpoint has said that it
/// is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeState {
    is_passing: bool,
    /// Consecutive results that contradict `is_passing`.
    contrary_results: u32,
    /// `None` while a probe is under way.
    due: Option<Time>,
    /// Attempt totals when it was last probed.
    last_totals: AttemptTotals,
}

impl ProbeState {
    /// Schedules the first probe at a random moment within one interval, so that not all endpoints
    /// are probed at once after a start.
    pub(crate) fn new(settings: &ActiveSettings, now: Time, rng: &mut Rng) -> Self {
        let due = now + scaled(settings.interval, fraction(rng));
        Self {
            is_passing: true,
            contrary_results: 0,
            due: Some(due),
            last_totals: AttemptTotals::default(),
        }
    }

    /// True if the endpoint is healthy, according to probes.
    pub(crate) fn passes(&self) -> bool {
        self.is_passing
    }

    /// True if a probe is to be sent now; the caller must then call `report`. `totals` is the
    /// attempt totals of the endpoint until now.
    pub(crate) fn should_send(
        &mut self,
        totals: AttemptTotals,
        settings: &ActiveSettings,
        now: Time,
        rng: &mut Rng,
    ) -> bool {
        if self.due.is_none_or(|due| now < due) {
            return false;
        }
        let news = totals.since(self.last_totals);
        self.last_totals = totals;
        let skipped = self.is_passing && news.successes > 0 && news.failures == 0;
        if skipped {
            self.contrary_results = 0;
        }
        self.due = skipped.then(|| now + jittered(settings.interval, rng));
        !skipped
    }

    /// Makes the next probe due, unless one is under way.
    pub(crate) fn hasten(&mut self, now: Time) {
        self.due = self.due.map(|due| due.min(now));
    }

    /// Records the result of the probe. True if the endpoint has become healthy or unhealthy by it.
    pub(crate) fn report(
        &mut self,
        result: ProbeResult,
        settings: &ActiveSettings,
        now: Time,
        rng: &mut Rng,
    ) -> bool {
        self.due = Some(now + jittered(settings.interval, rng));
        let agrees = match result {
            ProbeResult::Good => self.is_passing,
            ProbeResult::Bad => !self.is_passing,
            ProbeResult::Unknown => return false,
        };
        self.contrary_results = if agrees { 0 } else { self.contrary_results + 1 };
        let needed = if self.is_passing { settings.fall } else { settings.rise };
        let changes = self.contrary_results >= needed.get();
        if changes {
            self.is_passing = !self.is_passing;
            self.contrary_results = 0;
        }
        changes
    }
}

/// Returns the interval plus or minus a tenth, so that probes of many endpoints and balancers do
/// not synchronise.
fn jittered(interval: Duration, rng: &mut Rng) -> Duration {
    scaled(interval, 0.9 + 0.2 * fraction(rng))
}

/// Returns the product; saturates, unlike the standard library's.
fn scaled(interval: Duration, factor: f64) -> Duration {
    Duration::from_nanos((nanos(interval) as f64 * factor) as u64)
}

/// Returns a random number from 0 to 1.
fn fraction(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use ProbeResult::{Bad, Good, Unknown};

    /// Sends these results one after another; returns whether the endpoint is healthy after each.
    fn fit_after(results: &[ProbeResult]) -> Vec<bool> {
        let (settings, mut rng) = (ActiveSettings::default(), Rng::new(1));
        let mut probe = ProbeState::new(&settings, Time::ZERO, &mut rng);
        let mut now = Time::ZERO;
        let mut send = |result: &ProbeResult| {
            now = now + settings.interval * 2;
            assert!(probe.should_send(AttemptTotals::default(), &settings, now, &mut rng));
            assert!(
                !probe.should_send(AttemptTotals::default(), &settings, now, &mut rng),
                "one at a time"
            );
            probe.report(*result, &settings, now, &mut rng);
            probe.passes()
        };
        results.iter().map(&mut send).collect()
    }

    #[test]
    fn three_failed_probes_mark_unhealthy_and_two_passed_mark_healthy() {
        let results = [Bad, Bad, Bad, Good, Good, Bad];
        assert_eq!(fit_after(&results), [true, true, false, false, true, true]);
    }

    #[test]
    fn only_consecutive_probe_results_count() {
        assert!(fit_after(&[Bad, Bad, Good, Bad, Bad, Good]).iter().all(|fit| *fit));
    }

    #[test]
    fn probe_without_a_slot_is_ignored() {
        assert_eq!(fit_after(&[Bad, Bad, Unknown, Bad]), [true, true, true, false]);
    }

    #[test]
    fn probes_are_skipped_while_requests_succeed() {
        let (settings, mut rng) = (ActiveSettings::default(), Rng::new(1));
        let mut probe = ProbeState::new(&settings, Time::ZERO, &mut rng);
        let mut totals = AttemptTotals::default();
        let mut begins = |totals| {
            let now = probe.due.expect("none is under way");
            probe.should_send(totals, &settings, now, &mut rng)
        };
        for _ in 0..3 {
            totals.successes += 1;
            assert!(!begins(totals));
        }
        totals.successes += 1;
        totals.failures += 1;
        assert!(begins(totals), "a failure causes a probe");
    }

    #[test]
    fn probe_interval_jitter_is_ten_percent() {
        let (second, mut rng) = (Duration::from_secs(1), Rng::new(3));
        let drawn: Vec<_> = (0..1000).map(|_| jittered(second, &mut rng).as_millis()).collect();
        assert!(drawn.iter().all(|millis| (900..=1100).contains(millis)));
        assert!(
            drawn.iter().any(|millis| *millis < 920) && drawn.iter().any(|millis| *millis > 1080)
        );
    }
}
