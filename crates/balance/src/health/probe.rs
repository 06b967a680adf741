//! When an endpoint is probed, and what the results mean. Sending is the caller's.
//!
//! A probe takes a slot of a capped endpoint like any request. Where there is none the endpoint is busy, which is not
//! ill: the probe says nothing. And while requests succeed, a probe could say nothing new: it is skipped.

use std::time::Duration;

use crate::health::outlier::AttemptTotals;
use crate::health::settings::ActiveSettings;
use crate::rng::Rng;
use crate::time::{Time, nanos};

/// What came of one probe.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProbeResult {
    /// The endpoint answered as it should.
    Good,
    /// It did not, or not in time.
    Bad,
    /// There was no free slot for it, or it was given up: it says nothing.
    Unknown,
}

/// The probing of one endpoint. It begins as fit: who made it an endpoint has said that it is ready.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ProbeState {
    is_passing: bool,
    /// Results in a row that speak against what it is taken for.
    contrary_results: u32,
    /// `None` while a probe is under way.
    due: Option<Time>,
    /// What requests had said when it was last probed.
    last_totals: AttemptTotals,
}

impl ProbeState {
    /// Probes an endpoint first within one interval, at a random moment: not all at once after a start.
    pub(crate) fn new(settings: &ActiveSettings, now: Time, rng: &mut Rng) -> Self {
        let due = now + scaled(settings.interval, fraction(rng));
        Self {
            is_passing: true,
            contrary_results: 0,
            due: Some(due),
            last_totals: AttemptTotals::default(),
        }
    }

    /// Whether the endpoint is fit to serve, as far as probes tell.
    pub(crate) fn passes(&self) -> bool {
        self.is_passing
    }

    /// Whether a probe is to be sent now; the caller then owes a `report`. `totals` is what came of the
    /// endpoint's requests until now.
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

    /// What came of the probe. Gives whether the endpoint's fitness has changed by it.
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

/// Give or take a tenth, so that probes of many endpoints and balancers do not fall into step.
fn jittered(interval: Duration, rng: &mut Rng) -> Duration {
    scaled(interval, 0.9 + 0.2 * fraction(rng))
}

/// Saturates, unlike the standard library's product.
fn scaled(interval: Duration, factor: f64) -> Duration {
    Duration::from_nanos((nanos(interval) as f64 * factor) as u64)
}

/// From 0 to 1.
fn fraction(rng: &mut Rng) -> f64 {
    (rng.next_u64() >> 11) as f64 / (1_u64 << 53) as f64
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use ProbeResult::{Bad, Good, Unknown};

    /// Sends these results one after another; gives whether the endpoint is fit after each.
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
        assert!(begins(totals), "a failure is a reason to look");
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
