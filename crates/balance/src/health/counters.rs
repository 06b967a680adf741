//! Notes what workers see of an endpoint. Decides nothing.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::health::settings::HealthSettings;
use crate::outcome::{HealthSignal, Outcome};
use crate::time::Time;

/// What all workers and backends have seen of an endpoint since it was last ejected or tried.
///
/// Each figure is an atomic of its own: they are evidence, not a balance, so that a report may fall between two others.
#[derive(Debug)]
pub struct HealthCounters {
    /// What began earlier says nothing any more: requests that hung in an endpoint fail long after its ejection.
    counted_from_nanos: AtomicU64,
    /// Since the last success.
    failures: AtomicU32,
    /// It has served a request since `heed_from`; an endpoint that was never ejected counts as proven.
    proven: AtomicBool,
}

impl HealthCounters {
    /// What came of one attempt. `true`: the control thread had better judge now and not at its next round.
    ///
    /// To be told of every attempt, also of a backend that ejects nobody: it may be what acquits an endpoint that
    /// another backend has ejected. A success at a healthy endpoint reads three numbers and writes none.
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

    /// Failures since the last success.
    pub fn failures(&self) -> u32 {
        self.failures.load(Ordering::Relaxed)
    }

    /// Whether it has served a request since evidence was last heeded anew.
    pub(crate) fn is_proven(&self) -> bool {
        self.proven.load(Ordering::Relaxed)
    }

    /// From now on only what begins after this counts, and the endpoint has to prove itself.
    pub(crate) fn count_from(&self, now: Time) {
        self.counted_from_nanos.store(now.as_nanos(), Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        self.proven.store(false, Ordering::Relaxed);
    }

    fn record_success(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        let on_trial = !self.is_proven();
        if on_trial {
            self.proven.store(true, Ordering::Relaxed);
        }
        on_trial
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
