//! Ejection of an endpoint: ejected for a time, then half-open with one request at a time, then
//! serving again.

use std::time::Duration;

use crate::health::counters::HealthCounters;
use crate::health::settings::PassiveSettings;
use crate::time::Time;

/// Ejection state of an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum EjectionState {
    /// It serves.
    #[default]
    Serving,
    /// It gets no requests for a time.
    Ejected {
        /// End of the ejection, when it becomes half-open.
        until: Time,
    },
    /// It gets one request at a time, until the result of one decides whether it serves again.
    HalfOpen,
}

/// Cause of an ejection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EjectionCause {
    /// This many failures in a row.
    ConsecutiveFailures(u32),
    /// It failed a much larger share of its requests than the others did.
    Outlier,
    /// It failed while it was half-open.
    HalfOpenFailure,
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct EjectionTracker {
    state: EjectionState,
    /// Number of ejections that still count for the ejection time.
    ejections: u32,
    /// Time since which it serves.
    serving_since: Time,
    /// Time of its last half-open request.
    half_open_at: Time,
}

/// A half-open period without a result for this long, because no request came, or it left or was
/// refused, is repeated.
const REPEAT_HALF_OPEN_AFTER: Duration = Duration::from_secs(1);

impl EjectionTracker {
    pub(crate) fn state(&self) -> EjectionState {
        self.state
    }

    pub(crate) fn is_serving(&self) -> bool {
        self.state == EjectionState::Serving
    }

    /// Ejects for twice as long as the last time. For each base ejection time of serving, one
    /// earlier ejection is forgotten. Returns the end of the ejection.
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

    /// Enters the half-open state if the ejection time is over; true if it did.
    pub(crate) fn enter_half_open(&mut self, health: &HealthCounters, now: Time) -> bool {
        let over = matches!(self.state, EjectionState::Ejected { until } if until <= now);
        if over {
            self.state = EjectionState::HalfOpen;
            self.half_open_at = now;
            health.count_from(now);
        }
        over
    }

    /// Permits another half-open request if the one before is gone without a result.
    pub(crate) fn repeat_half_open(&mut self, in_flight: u32, now: Time) {
        if in_flight == 0 && now.saturating_since(self.half_open_at) >= REPEAT_HALF_OPEN_AFTER {
            self.half_open_at = now;
        }
    }

    /// Returns the time of its half-open request, if it is half-open.
    pub(crate) fn half_open_since(&self) -> Option<Time> {
        (self.state == EjectionState::HalfOpen).then_some(self.half_open_at)
    }

    pub(crate) fn uneject(&mut self, now: Time) {
        self.state = EjectionState::Serving;
        self.serving_since = now;
    }
}

/// Returns the ejection time after this many remembered ejections.
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
        assert!(lengths(SECOND, 100).is_sorted(), "after any number of ejections");
    }

    #[test]
    fn successful_serving_resets_the_ejection_time() {
        assert_eq!(lengths(30 * SECOND, 3), [30, 30, 30]);
        assert_eq!(lengths(29 * SECOND, 3), [30, 60, 120]);
    }
}
