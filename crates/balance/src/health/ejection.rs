//! An endpoint's way out and back: ejected for a time, then tried with one request at a time, then serving again.

use std::time::Duration;

use crate::health::counters::HealthCounters;
use crate::health::settings::PassiveSettings;
use crate::time::Time;

/// Where an endpoint stands on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EjectionState {
    /// It serves.
    #[default]
    Serving,
    /// It gets nothing until then.
    Ejected {
        /// When it is tried.
        until: Time,
    },
    /// It gets one request at a time, until one says whether it serves again.
    HalfOpen,
}

/// Why an endpoint is ejected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EjectionCause {
    /// So many failures in a row.
    ConsecutiveFailures(u32),
    /// It failed much more of its requests than the others did.
    Outlier,
    /// It failed while it was tried.
    HalfOpenFailure,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EjectionTracker {
    state: EjectionState,
    /// Ejections that are not yet forgotten.
    ejections: u32,
    /// Since when it serves.
    serving_since: Time,
    /// When it was given its last trial.
    half_open_at: Time,
}

/// A trial that has told nothing for so long, because nobody came, or left, or was refused, is repeated.
const REPEAT_HALF_OPEN_AFTER: Duration = Duration::from_secs(1);

impl EjectionTracker {
    pub(crate) fn state(&self) -> EjectionState {
        self.state
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.state == EjectionState::Serving
    }

    /// Ejects for twice as long as the last time; one time is forgotten for each first ejection's length of serving.
    /// Gives when it ends.
    pub(crate) fn eject(
        &mut self,
        health: &HealthCounters,
        settings: &PassiveSettings,
        now: Time,
    ) -> Time {
        if self.is_serving() {
            let served = now.saturating_since(self.serving_since).as_nanos();
            let forgotten = served / settings.base_ejection_time.as_nanos().max(1);
            self.ejections =
                self.ejections.saturating_sub(u32::try_from(forgotten).unwrap_or(u32::MAX));
        }
        let until = now + ejection_time(self.ejections, settings);
        self.ejections = self.ejections.saturating_add(1);
        self.state = EjectionState::Ejected { until };
        health.count_from(now);
        until
    }

    /// Begins the trial once the ejection's time is over; gives whether it did.
    pub(crate) fn enter_half_open(&mut self, health: &HealthCounters, now: Time) -> bool {
        let over = matches!(self.state, EjectionState::Ejected { until } if until <= now);
        if over {
            self.state = EjectionState::HalfOpen;
            self.half_open_at = now;
            health.count_from(now);
        }
        over
    }

    /// Another request may try it, if the one before has told nothing and is gone.
    pub(crate) fn repeat_half_open(&mut self, in_flight: u32, now: Time) {
        if in_flight == 0 && now.saturating_since(self.half_open_at) >= REPEAT_HALF_OPEN_AFTER {
            self.half_open_at = now;
        }
    }

    /// When it was given its trial, if it is on trial.
    pub(crate) fn half_open_since(&self) -> Option<Time> {
        (self.state == EjectionState::HalfOpen).then_some(self.half_open_at)
    }

    pub(crate) fn uneject(&mut self, now: Time) {
        self.state = EjectionState::Serving;
        self.serving_since = now;
    }
}

/// How long an ejection lasts, after so many that are remembered.
fn ejection_time(times: u32, settings: &PassiveSettings) -> Duration {
    let factor = 1_u32.checked_shl(times).unwrap_or(u32::MAX);
    settings.base_ejection_time.saturating_mul(factor).min(settings.max_ejection_time)
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn lengths(serves_between: Duration, ejections: usize) -> Vec<u64> {
        let (health, settings) = (HealthCounters::default(), PassiveSettings::default());
        let mut ejection = EjectionTracker::default();
        let mut now = Time::ZERO + SECOND;
        let mut eject = || {
            let until = ejection.eject(&health, &settings, now);
            let length = until.saturating_since(now);
            assert!(ejection.enter_half_open(&health, until));
            ejection.uneject(until);
            now = until + serves_between;
            length.as_secs()
        };
        (0..ejections).map(|_| eject()).collect()
    }

    #[test]
    fn ejection_time_doubles_up_to_the_maximum() {
        assert_eq!(lengths(SECOND, 7), [30, 60, 120, 240, 300, 300, 300]);
        assert!(lengths(SECOND, 100).is_sorted(), "however often");
    }

    #[test]
    fn successful_serving_resets_the_ejection_time() {
        assert_eq!(lengths(30 * SECOND, 3), [30, 30, 30]);
        assert_eq!(lengths(29 * SECOND, 3), [30, 60, 120]);
    }
}
