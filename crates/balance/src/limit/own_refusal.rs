//! Refusals of an endpoint that this replica has seen itself, apart from those that others report:
//! only these are reported.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use super::backoff::{DEFAULT_BACKOFF, MAX_BACKOFF};
use crate::time::Time;

/// Reduced limit of an endpoint that refuses requests of this replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnRefusal {
    /// Limit on requests in flight, at least 1.
    pub limit: u32,
    /// Time for which it still holds.
    pub remaining: Duration,
}

/// The figures of one endpoint. Each is useful by itself, so they order no other memory.
#[derive(Debug, Default)]
pub(crate) struct OwnRefusals {
    limit: AtomicU32,
    until: AtomicU64,
    last_at: AtomicU64,
}

impl OwnRefusals {
    pub(crate) fn record(&self, limit: u32, retry_after: Option<Duration>, now: Time) {
        if self.current(now).is_some() {
            self.limit.fetch_min(limit, Ordering::Relaxed);
        } else {
            self.limit.store(limit, Ordering::Relaxed);
        }
        let until = now + retry_after.unwrap_or(DEFAULT_BACKOFF).min(MAX_BACKOFF);
        self.until.fetch_max(until.as_nanos(), Ordering::Relaxed);
        self.last_at.store(now.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn current(&self, now: Time) -> Option<OwnRefusal> {
        let until = Time::from_nanos(self.until.load(Ordering::Relaxed));
        let (limit, remaining) = (self.limit.load(Ordering::Relaxed), until.saturating_since(now));
        (!remaining.is_zero()).then_some(OwnRefusal { limit: limit.max(1), remaining })
    }

    /// Returns the time of the last refusal.
    pub(crate) fn last_at(&self) -> Option<Time> {
        let at = self.last_at.load(Ordering::Relaxed);
        (at > 0).then(|| Time::from_nanos(at))
    }
}
