//! Decides whether and when a request is retried.
//!
//! Retries are limited by a budget for the whole backend: a share of its requests, and a floor for
//! times with few requests. A limit for each request alone would multiply the load just when an
//! endpoint fails. The model is Finagle's.

use std::num::NonZeroU32;
use std::time::Duration;

use crate::rng::Rng;
use crate::time::{Time, nanos};

/// Retry budget of a backend.
mod budget;
/// Resends of requests that were in flight at a dying endpoint.
mod resend;

pub use budget::{RetryBudget, RetryWindow};
pub use resend::ResendAllowance;

/// Settings for retries. The caller decides which failures may be retried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// Maximum of attempts for one request, the first included; 3 by default.
    pub attempts: NonZeroU32,
    /// Retries of a backend as a percentage of its requests in the window; 20 by default.
    pub budget_percent: u32,
    /// Time in which requests and retries count; ten seconds by default.
    pub budget_window: RetryWindow,
    /// Additional retries of a backend allowed in any window; 100 by default.
    pub budget_floor: u32,
    /// Upper bound of the random backoff before the first retry; it doubles for each further retry.
    /// 25 ms by default.
    pub backoff_base: Duration,
    /// Maximum backoff before a retry; 250 ms by default.
    pub backoff_max: Duration,
    /// Hedging: sends the request to a second endpoint while the first has not answered; off by
    /// default.
    pub hedge: Option<HedgeSettings>,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts: NonZeroU32::new(3).expect("3 is not 0"),
            budget_percent: 20,
            budget_window: RetryWindow::default(),
            budget_floor: 100,
            backoff_base: Duration::from_millis(25),
            backoff_max: Duration::from_millis(250),
            hedge: None,
        }
    }
}

impl RetrySettings {
    /// Returns the additional retries allowed on average each second, rounded up.
    pub fn budget_floor_per_second(&self) -> u32 {
        let window = self.budget_window.duration().as_millis().max(1);
        let floor = (u128::from(self.budget_floor) * 1000).div_ceil(window);
        u32::try_from(floor).unwrap_or(u32::MAX)
    }

    /// Returns the backoff before a request's retry of this number, counted from 1. It is random,
    /// so that requests that failed together do not return together (AWS Architecture Blog:
    /// Exponential Backoff and Jitter, 2015).
    pub fn backoff(&self, retry: u32, rng: &mut Rng) -> Duration {
        let factor = 1_u32.checked_shl(retry.saturating_sub(1)).unwrap_or(u32::MAX);
        let longest = nanos(self.backoff_base.saturating_mul(factor).min(self.backoff_max));
        Duration::from_nanos(rng.below(longest.max(1) as usize) as u64)
    }

    /// Returns the time at which a request that began at `started` is also sent to a second
    /// endpoint, if it has not been answered by then and the budget allows a retry; `None` if
    /// hedging is off.
    pub fn hedge_at(&self, started: Time) -> Option<Time> {
        self.hedge.map(|hedge| started + hedge.after)
    }
}

/// Settings for hedging: sending an unanswered request also to a second endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeSettings {
    /// Time that the first endpoint has for the head of its response.
    pub after: Duration,
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn backoff_has_full_jitter_below_a_doubling_bound() {
        let (settings, mut rng) = (RetrySettings::default(), Rng::new(5));
        for (retry, millis) in [(1, 25), (2, 50), (3, 100), (4, 200), (5, 250), (99, 250)] {
            let waits: Vec<_> = (0..1000).map(|_| settings.backoff(retry, &mut rng)).collect();
            let bound = Duration::from_millis(millis);
            assert!(waits.iter().all(|wait| *wait <= bound));
            assert!(waits.iter().any(|wait| *wait > bound * 9 / 10));
            assert!(waits.iter().any(|wait| *wait < bound / 10));
        }
    }

    #[test]
    fn hedging_is_disabled_by_default() {
        assert_eq!(RetrySettings::default().hedge_at(Time::ZERO), None);
    }
}
