//! Backoff for endpoints that refuse requests because they are full: 503 with `Retry-After`, or the
//! equivalent of a protocol.
//!
//! Until the backoff ends, such an endpoint gets at most one request less than it had when the
//! refused request was picked. It always gets at least one, so that its recovery is noticed.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Time;

/// Backoff for an endpoint that does not give a time.
pub(super) const DEFAULT_BACKOFF: Duration = Duration::from_secs(1);
/// Longest backoff that is honoured.
pub(crate) const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// Treatment of the time that an endpoint asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfterHandling {
    /// The backoff lasts as long as the endpoint asked.
    Honored,
    /// The endpoint asked for a longer time than the maximum.
    Capped,
}

/// End of one endpoint's backoff; 0 if there is none.
#[derive(Debug, Default)]
pub(crate) struct RefusalBackoff(AtomicU64);

impl RefusalBackoff {
    /// Extends the backoff to at least this long from now.
    pub(crate) fn extend(&self, retry_after: Option<Duration>, now: Time) -> RetryAfterHandling {
        let asked = retry_after.unwrap_or(DEFAULT_BACKOFF);
        self.0.fetch_max((now + asked.min(MAX_BACKOFF)).as_nanos(), Ordering::Relaxed);
        if asked > MAX_BACKOFF { RetryAfterHandling::Capped } else { RetryAfterHandling::Honored }
    }

    /// Returns the end of the backoff; `None` if there is none, or if it is over.
    pub(crate) fn until(&self, now: Time) -> Option<Time> {
        let until = Time::from_nanos(self.0.load(Ordering::Relaxed));
        (now < until).then_some(until)
    }
}
