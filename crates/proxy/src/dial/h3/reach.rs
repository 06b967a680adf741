//! Whether an endpoint can be reached by QUIC, and what it speaks where it cannot.
//!
//! What one worker learns holds for all. After a failure QUIC is left alone for a while, which doubles with each further
//! one; then one request in all tries it again, without waiting for it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use balance::Time;

/// How long QUIC is left alone after its first failure, and at most.
const FIRST_PAUSE: Duration = Duration::from_secs(5);
const LONGEST_PAUSE: Duration = Duration::from_secs(300);

/// What is known of the ways to one endpoint. Each field is of use alone, so their order among threads is of no matter.
#[derive(Default)]
pub(crate) struct Reach {
    /// When QUIC may be tried again, in nanoseconds; 0: it has not failed.
    until: AtomicU64,
    /// Failures in a row.
    failures: AtomicU32,
    /// Over TCP it has chosen HTTP/1.1, though HTTP/2 was offered.
    http1: AtomicBool,
}

impl Reach {
    /// QUIC works, as far as is known.
    pub(crate) fn is_open(&self) -> bool {
        self.until.load(Ordering::Relaxed) == 0
    }

    /// Whether the caller is to try QUIC again, for all.
    pub(super) fn claim(&self, now: Time) -> bool {
        let until = self.until.load(Ordering::Relaxed);
        if until == 0 || now.as_nanos() < until {
            return false;
        }
        let next = (now + self.pause()).as_nanos();
        self.until.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// QUIC has failed.
    pub(super) fn failed(&self, now: Time) {
        // Far beyond what doubles the pause.
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        self.failures.store(failures, Ordering::Relaxed);
        self.until.store((now + self.pause()).as_nanos(), Ordering::Relaxed);
    }

    /// QUIC works.
    pub(super) fn succeeded(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.until.store(0, Ordering::Relaxed);
    }

    /// The next request may try again.
    pub(super) fn expire(&self, now: Time) {
        if !self.is_open() {
            self.until.fetch_min(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Over TCP the endpoint has chosen HTTP/1.1.
    pub(crate) fn found_http1(&self) {
        self.http1.store(true, Ordering::Relaxed);
    }

    pub(super) fn speaks_http1(&self) -> bool {
        self.http1.load(Ordering::Relaxed)
    }

    fn pause(&self) -> Duration {
        let doublings = self.failures.load(Ordering::Relaxed).saturating_sub(1).min(16);
        (FIRST_PAUSE * (1 << doublings)).min(LONGEST_PAUSE)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1_000);

    #[test]
    fn http3_is_allowed_before_any_failure() {
        let reach = Reach::default();
        assert!(reach.is_open());
        assert!(!reach.claim(START));
    }

    #[test]
    fn only_one_request_retries_http3_after_the_backoff() {
        let reach = Reach::default();
        reach.failed(START);
        assert!(!reach.is_open());
        assert!(!reach.claim(START + (FIRST_PAUSE - Duration::from_nanos(1))));
        assert!(reach.claim(START + FIRST_PAUSE));
        assert!(!reach.claim(START + FIRST_PAUSE), "another does already");
        assert!(reach.claim(START + FIRST_PAUSE * 2), "who has not come back is not waited for");
        reach.succeeded();
        assert!(reach.is_open());
    }

    #[test]
    fn http3_backoff_doubles_up_to_the_maximum() {
        let reach = Reach::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            reach.failed(START);
            let until = Time::from_nanos(reach.until.load(Ordering::Relaxed));
            pauses.push(until.saturating_since(START).as_secs());
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        reach.succeeded();
        reach.failed(START);
        assert!(reach.claim(START + FIRST_PAUSE));
    }

    #[test]
    fn http3_backoff_ends_early_without_an_alternative() {
        let reach = Reach::default();
        reach.expire(START);
        assert!(reach.is_open());
        reach.failed(START);
        reach.expire(START);
        assert!(!reach.is_open());
        assert!(reach.claim(START));
    }
}
