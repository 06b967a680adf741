//! Notes what workers see of an endpoint. Decides nothing.

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::health::settings::HealthSettings;
use crate::outcome::{Outcome, Testimony};
use crate::time::Time;

/// What all workers and backends have seen of an endpoint since it was last ejected or tried.
///
/// Each figure is an atomic of its own: they are evidence, not a balance, so that a report may fall between two others.
#[derive(Debug)]
pub struct Health {
    /// What began earlier says nothing any more: requests that hung in an endpoint fail long after its ejection.
    heed_from_nanos: AtomicU64,
    /// Since the last success.
    failures: AtomicU32,
    /// It has served a request since `heed_from`; an endpoint that was never ejected counts as proven.
    proven: AtomicBool,
}

impl Health {
    /// What came of one attempt. `true`: the control thread had better judge now and not at its next round.
    ///
    /// To be told of every attempt, also of a backend that ejects nobody: it may be what acquits an endpoint that
    /// another backend has ejected. A success at a healthy endpoint reads three numbers and writes none.
    pub fn learn(&self, outcome: &Outcome, settings: &HealthSettings) -> bool {
        if outcome.started.as_nanos() < self.heed_from_nanos.load(Ordering::Relaxed) {
            return false;
        }
        let news = match outcome.end.testimony() {
            Testimony::Against if settings.passive.is_some_and(|it| it.forgives(outcome.end)) => {
                self.served()
            }
            Testimony::For => self.served(),
            Testimony::Against => self.failed(settings),
            Testimony::Neither => false,
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
    pub(crate) fn heed_from(&self, now: Time) {
        self.heed_from_nanos.store(now.as_nanos(), Ordering::Relaxed);
        self.failures.store(0, Ordering::Relaxed);
        self.proven.store(false, Ordering::Relaxed);
    }

    fn served(&self) -> bool {
        if self.failures.load(Ordering::Relaxed) > 0 {
            self.failures.store(0, Ordering::Relaxed);
        }
        let on_trial = !self.is_proven();
        if on_trial {
            self.proven.store(true, Ordering::Relaxed);
        }
        on_trial
    }

    fn failed(&self, settings: &HealthSettings) -> bool {
        let failures = self.failures.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let limit = settings.passive.map(|passive| passive.consecutive_failures.get());
        limit == Some(failures) || !self.is_proven()
    }
}

impl Default for Health {
    fn default() -> Self {
        Self {
            heed_from_nanos: AtomicU64::new(0),
            failures: AtomicU32::new(0),
            proven: AtomicBool::new(true),
        }
    }
}
