//! Endpoints that say that they are full: 429, 503 with `Retry-After`, or what a protocol has in its place.
//!
//! Until it wants to be asked again, such an endpoint gets no more than one less than it had when the refused request was
//! picked, and never less than one: somebody has to notice that it is well again.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Time;

/// How long an endpoint that does not say how long is given less.
const DEFAULT_BACKOFF: Duration = Duration::from_secs(1);
/// The longest that is heeded.
const MAX_BACKOFF: Duration = Duration::from_secs(60);

/// What became of what an endpoint asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RetryAfterHandling {
    /// It has it.
    Honored,
    /// It asked for longer than is heeded.
    Capped,
}

/// Until when one endpoint is given less; 0: it is not.
#[derive(Debug, Default)]
pub(crate) struct RefusalBackoff(AtomicU64);

impl RefusalBackoff {
    /// It is given less from now on, at least for this long.
    pub(crate) fn extend(&self, retry_after: Option<Duration>, now: Time) -> RetryAfterHandling {
        let asked = retry_after.unwrap_or(DEFAULT_BACKOFF);
        self.0.fetch_max((now + asked.min(MAX_BACKOFF)).as_nanos(), Ordering::Relaxed);
        if asked > MAX_BACKOFF { RetryAfterHandling::Capped } else { RetryAfterHandling::Honored }
    }

    /// Until when it is given less; `None`: it is not, or not any longer.
    pub(crate) fn until(&self, now: Time) -> Option<Time> {
        let until = Time::from_nanos(self.0.load(Ordering::Relaxed));
        (now < until).then_some(until)
    }
}
