//! Limit of the events of one place in the code: a token bucket for each. A flood of one warning neither fills the log
//! nor displaces other events.
//!
//! Events of level DEBUG and below are not limited: they are off unless an operator asks for all of them.

use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use proxy::Time;
use tracing::callsite::Identifier;
use tracing::{Event, Level, Metadata, Subscriber};
use tracing_subscriber::Layer;
use tracing_subscriber::layer::Context;

use super::DroppedEvents;

/// Events that one place may log at once: more than a configuration with many errors has.
const BURST: u32 = 1000;
/// Time after which it may log one more.
const REFILL: Duration = Duration::from_millis(200);

/// Layer that drops events of places that log too often.
pub(super) struct EventLimiter {
    /// The number of places is that of the events in the program.
    buckets: Mutex<HashMap<Identifier, EventBucket>>,
    dropped: Arc<DroppedEvents>,
    now: fn() -> Time,
}

/// Events that one place may still log.
struct EventBucket {
    tokens: u32,
    refilled: Time,
}

impl EventLimiter {
    pub(super) fn new(dropped: Arc<DroppedEvents>, now: fn() -> Time) -> Self {
        Self { buckets: Mutex::default(), dropped, now }
    }

    fn admit(&self, metadata: &Metadata<'_>) -> bool {
        if *metadata.level() > Level::INFO {
            return true;
        }
        let now = (self.now)();
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || EventBucket { tokens: BURST, refilled: now };
        let is_admitted = buckets.entry(metadata.callsite()).or_insert_with(new).take(now);
        drop(buckets);
        if !is_admitted {
            self.dropped.repeated.fetch_add(1, Ordering::Relaxed);
        }
        is_admitted
    }
}

impl EventBucket {
    fn take(&mut self, now: Time) -> bool {
        let refills = now.saturating_since(self.refilled).as_millis() / REFILL.as_millis();
        let refills = u32::try_from(refills).unwrap_or(u32::MAX);
        if self.tokens.saturating_add(refills) >= BURST {
            (self.tokens, self.refilled) = (BURST, now);
        } else {
            self.tokens += refills;
            self.refilled = self.refilled + REFILL * refills;
        }
        let taken = self.tokens.checked_sub(1);
        self.tokens = taken.unwrap_or(0);
        taken.is_some()
    }
}

impl<S: Subscriber> Layer<S> for EventLimiter {
    fn event_enabled(&self, event: &Event<'_>, _context: Context<'_, S>) -> bool {
        self.admit(event.metadata())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_passes_then_one_event_for_each_refill() {
        let start = proxy::clock::now();
        let mut bucket = EventBucket { tokens: BURST, refilled: start };
        assert!((0..BURST).all(|_| bucket.take(start)));
        assert!(!bucket.take(start));
        assert!(!bucket.take(start + REFILL / 2));
        assert!(bucket.take(start + REFILL), "half a refill is not lost");
        assert!(!bucket.take(start + REFILL));
        let later = start + REFILL * (BURST * 2);
        assert!((0..BURST).all(|_| bucket.take(later)), "at most a burst is saved");
        assert!(!bucket.take(later));
    }
}
