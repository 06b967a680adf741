//! Counts what workers observe of an endpoint. Decides nothing.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::health::settings::HealthSettings;
use crate::outcome::{HealthSignal, Outcome};
use crate::time::Time;

/// Observations of all workers and backends since the endpoint was last ejected or became
/// half-open.
///
/// Each figure is an atomic of its own: they are evidence and need not be consistent with each
/// other, so a report may fall between two others.
#[derive(Debug)]
pub struct HealthCounters {
    /// Attempts that began earlier are ignored: requests that hung in an endpoint fail long after
    /// its ejection.
    counted_from_nanos: AtomicU64,
    /// Failures since the last success.
    failures: AtomicU32,
    /// True if it has served a request since `count_from`; true for an endpoint that was never
    /// ejected.
    proven: AtomicBool,
}

impl HealthCounters {
    /// Records the outcome of one attempt. True if the control thread should evaluate now and not
    /// at its next pass.
    ///
    /// To be called for every attempt, also for a backend that never ejects: the attempt may prove
    /// an endpoint that another backend has ejected. A success at a healthy endpoint reads three
    /// numbers and writes none.
    pub fn learn(&self, outcome: &Outcome, settings: &HealthSettings) -> bool {
        if outcome.started.as_nanos() < self.counted_from_nanos.load(Ordering::Relaxed) {
            return false;
        }
        let news = match outcome.result.health_signal() {
            HealthSignal::Negative
                if settings.passive.is_some_and(|it| it.ignores(outcome.result)) =>
            {
                self.record_success()
            }
            HealthSignal::Positive => self.record_success(),
            HealthSignal::Negative => self.record_failure(settings),
            HealthSignal::Neutral => false,
        };
        news && settings.passive.is_some()
    }

    /// Returns the failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// True if it has served a request since the last `count_from`.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// Ignores attempts that began before `now`, and requires the endpoint to prove itself.
    pub(crate) fn count_from(&self, now: Time) {
        self.counted_from_nanos.store(now.as_nanos(), Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        self.proven.store(false, Ordering::Relaxed);
    }

    fn record_success(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        let was_unproven = !self.is_proven();
        if was_unproven {
            self.proven.store(true, Ordering::Relaxed);
        }
        was_unproven
    }

    fn record_failure(&self, settings: &HealthSettings) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let limit = settings.passive.map(|passive| passive.consecutive_failures.get());
        limit == Some(failures) || !self.is_proven()
    }
}

impl Default for HealthCounters {
    fn default() -> Self {
        Self {
            counted_from_nanos: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            proven: AtomicBool::new(true),
        }
    }
}
