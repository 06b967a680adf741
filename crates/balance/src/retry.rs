//! Decides whether and when a request is tried again.

use std::num::NonZeroU32;
use std::time::Duration;

/// How often requests are tried again. Which failures may be repaired by that is the caller's to know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetrySettings {
    /// Tries of one request, the first included; 3 by default.
    pub attempts: NonZeroU32,
    /// Retries of a backend in a hundred of its requests, over ten seconds; 20 by default.
    pub budget_percent: u32,
    /// Retries of a backend that are allowed on top, each second; 10 by default.
    pub budget_floor_per_second: u32,
    /// The first retry waits a random time up to this, each further one up to twice as long; 25 ms by default.
    pub backoff_base: Duration,
    /// The longest wait before a retry; 250 ms by default.
    pub backoff_max: Duration,
    /// Tries a second endpoint while the first has not answered; off by default.
    pub hedge: Option<HedgeSettings>,
}

impl Default for RetrySettings {
    fn default() -> Self {
        Self {
            attempts: NonZeroU32::new(3).expect("3 is not 0"),
            budget_percent: 20,
            budget_floor_per_second: 10,
            backoff_base: Duration::from_millis(25),
            backoff_max: Duration::from_millis(250),
            hedge: None,
        }
    }
}

/// When a request that has not been answered is also sent to a second endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct HedgeSettings {
    /// How long the first endpoint has for the head of its response.
    pub after: Duration,
}
