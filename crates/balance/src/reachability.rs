//! Schedule of the background connection attempts to an unreachable endpoint.
//!
//! A connection attempt that is refused, reset or times out marks the endpoint unreachable for all
//! workers and backends at once, and pickers skip it
//! ([`Endpoint::mark_unreachable`](crate::Endpoint::mark_unreachable)). From then on the endpoint
//! is *half-open*: the control thread makes one background attempt at a time, and a successful one
//! makes the endpoint reachable again. No request serves as the probe while another endpoint can
//! serve.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use crate::time::Time;

/// Time from the mark to the first background attempt; each further pause is twice as long.
pub const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// Longest pause between two background attempts: an endpoint that returns has its share within a
/// second.
pub const LONGEST_PAUSE: Duration = Duration::from_millis(800);

/// Schedule of one endpoint. Written when the mark is set, and then by the control thread alone.
/// Each figure is useful by itself, so the atomics order no other memory.
#[derive(Debug, Default)]
pub(crate) struct ReconnectSchedule {
    since: AtomicU64,
    due_at: AtomicU64,
    failed_attempts: AtomicU32,
}

impl ReconnectSchedule {
    /// Begins the schedule when the endpoint is marked unreachable.
    pub(crate) fn begin(&self, now: Time) {
        self.since.store(now.as_nanos(), Ordering::Relaxed);
        self.failed_attempts.store(0, Ordering::Relaxed);
        self.due_at.store((now + FIRST_PAUSE).as_nanos(), Ordering::Relaxed);
    }

    /// Records a failed background attempt.
    pub(crate) fn failed(&self, now: Time) {
        let failed = self.failed_attempts.load(Ordering::Relaxed).saturating_add(1);
        self.failed_attempts.store(failed, Ordering::Relaxed);
        let pause = FIRST_PAUSE.saturating_mul(1 << failed.min(16)).min(LONGEST_PAUSE);
        self.due_at.store((now + pause).as_nanos(), Ordering::Relaxed);
    }

    /// Makes the next background attempt due now.
    pub(crate) fn attempt_now(&self, now: Time) {
        self.due_at.fetch_min(now.as_nanos(), Ordering::Relaxed);
    }

    pub(crate) fn since(&self) -> Time {
        Time::from_nanos(self.since.load(Ordering::Relaxed))
    }

    pub(crate) fn due_at(&self) -> Time {
        Time::from_nanos(self.due_at.load(Ordering::Relaxed))
    }
}

/// Time for which an endpoint that owes responses may be silent before its reachability is checked.
pub const SILENCE: Duration = Duration::from_millis(250);

/// Detector of endpoints that send nothing any more, as after a power failure of the node: packets
/// vanish, and no connection breaks. It belongs to the control thread, which calls it several times
/// a second.
///
/// Silence alone proves nothing, for a request may take long. So it only causes one connection
/// attempt to the endpoint. While these succeed, the time to the next check doubles.
#[derive(Debug, Default)]
pub struct SilenceDetector {
    /// Number of responses at the last check at which there were more than before, or none was
    /// owed.
    answers: u64,
    since: Time,
    checks: u32,
}

impl SilenceDetector {
    /// Maximum number of doublings of the time between two checks.
    const DOUBLINGS: u32 = 6;

    /// True if the endpoint should be checked now: it owes `owed` responses and has sent none for
    /// long. `usual` is the usual time of a response.
    pub fn should_check(&mut self, owed: u64, answers: u64, usual: Duration, now: Time) -> bool {
        if owed == 0 || answers != self.answers {
            *self = Self { answers, since: now, checks: 0 };
            return false;
        }
        let patience = SILENCE.max(usual * 2).saturating_mul(1 << self.checks);
        let is_suspicious = now.saturating_since(self.since) >= patience;
        if is_suspicious {
            self.checks = (self.checks + 1).min(Self::DOUBLINGS);
            self.since = now;
        }
        is_suspicious
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn silent_endpoint_is_checked_after_250_ms_and_then_less_often() {
        let at = |millis| Time::ZERO + Duration::from_millis(millis);
        let check = |usual: u64, owed| {
            let mut silence = SilenceDetector::default();
            let usual = Duration::from_millis(usual);
            let looks = (0..40).map(|look| at(look * 50));
            let suspicious = looks.filter(|now| silence.should_check(owed, 7, usual, *now));
            suspicious.map(|now| now.as_nanos() / 1_000_000).collect::<Vec<_>>()
        };
        assert_eq!(check(10, 3), [250, 750, 1750]);
        assert_eq!(check(400, 3), [800], "a slow endpoint is checked later");
        assert_eq!(check(10, 0), [0; 0], "nothing is owed");
        let mut silence = SilenceDetector::default();
        let answering = (0..40)
            .any(|look| silence.should_check(3, look, Duration::from_millis(10), at(look * 200)));
        assert!(!answering, "an endpoint that answers now and then is not checked");
    }

    #[test]
    fn reconnect_backoff_doubles_up_to_the_maximum() {
        let (schedule, mut now) = (ReconnectSchedule::default(), Time::ZERO);
        schedule.begin(now);
        let mut pauses = Vec::new();
        for _ in 0..6 {
            pauses.push(schedule.due_at().saturating_since(now).as_millis());
            now = schedule.due_at();
            schedule.failed(now);
        }
        assert_eq!(pauses, [100, 200, 400, 800, 800, 800]);
        schedule.begin(now);
        assert_eq!(schedule.due_at(), now + FIRST_PAUSE, "another outage restarts the schedule");
    }
}
