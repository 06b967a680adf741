//! When an endpoint that cannot be reached is tried again: the schedule of the background attempts at it.
//!
//! A connection attempt that is refused, reset or times out marks the endpoint unreachable for all workers and backends
//! at once, and pickers pass over it ([`Endpoint::mark_unreachable`](crate::Endpoint::mark_unreachable)). From then on
//! the endpoint is *half-open*: one background attempt at a time, by the control thread, readmits it. No request serves
//! as the probe while another endpoint can serve.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Time;

/// How long after the mark the first background attempt is made; each further pause is twice as long.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The longest pause between two background attempts: an endpoint that returns has its share within a second.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(800);

/// The schedule of one endpoint. Written when the mark is set, and then by the control thread alone; each figure is of
/// use by itself, so the atomics order no other memory.
#[derive(Debug, Default)]
pub(crate) struct Schedule {
    since: AtomicU64,
    due_at: AtomicU64,
    failed_attempts: AtomicU32,
}

impl Schedule {
    /// The endpoint has been marked unreachable.
    pub(crate) fn begin(&self, now: Time) {
        self.since.store(now.as_nanos(), Ordering::Relaxed);
        self.failed_attempts.store(0, Ordering::Relaxed);
        self.due_at.store((now + FIRST_PAUSE).as_nanos(), Ordering::Relaxed);
    }

    /// A background attempt has failed.
    pub(crate) fn failed(&self, now: Time) {
        let failed = self.failed_attempts.load(Ordering::Relaxed).saturating_add(1);
        self.failed_attempts.store(failed, Ordering::Relaxed);
        let pause = FIRST_PAUSE.saturating_mul(1 << failed.min(16)).min(LONGEST_PAUSE);
        self.due_at.store((now + pause).as_nanos(), Ordering::Relaxed);
    }

    /// The next background attempt is due now.
    pub(crate) fn hasten(&self, now: Time) {
        self.due_at.fetch_min(now.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn since(&self) -> Time {
        Time::from_nanos(self.since.load(Ordering::Relaxed))
    }

    pub(crate) fn due_at(&self) -> Time {
        Time::from_nanos(self.due_at.load(Ordering::Relaxed))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_the_longest() {
        let (schedule, mut now) = (Schedule::default(), Time::ZERO);
        schedule.begin(now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pauses.push(schedule.due_at().saturating_since(now).as_millis());
            now = schedule.due_at();
            schedule.failed(now);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 800, 800]);
        schedule.begin(now);
        assert_eq!(schedule.due_at(), now + FIRST_PAUSE, "another outage begins anew");
    }
}
