//! Reachability of an endpoint over QUIC, and the protocol of the fallback to TCP.
//!
//! All workers share the result. After a failure QUIC is not used for a backoff time, which doubles with each further
//! failure; then a single request triggers a new attempt, without waiting for it (half-open).

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use balance::Time;

/// Backoff after the first failure, and its maximum.
const INITIAL_BACKOFF: Duration = Duration::from_secs(5);
const MAX_BACKOFF: Duration = Duration::from_secs(300);

/// Known reachability of one endpoint. Each field is useful alone, so their memory order among threads does not
/// matter.
#[derive(Default)]
pub(crate) struct Http3Reachability {
    /// The time at which QUIC may be tried again, in nanoseconds; 0: it has not failed.
    retry_at: AtomicU64,
    /// Consecutive failures.
    failures: AtomicU32,
    /// True if the endpoint has chosen HTTP/1.1 over TCP, though HTTP/2 was offered.
    http1: AtomicBool,
}

impl Http3Reachability {
    /// True if QUIC works, as far as is known.
    pub(crate) fn is_available(&self) -> bool {
        self.retry_at.load(Ordering::Relaxed) == 0
    }

    /// True if the caller is the one that has to try QUIC again.
    pub(super) fn claim_retry(&self, now: Time) -> bool {
        let until = self.retry_at.load(Ordering::Relaxed);
        if until == 0 || now.as_nanos() < until {
            return false;
        }
        let next = (now + self.backoff()).as_nanos();
        self.retry_at.compare_exchange(until, next, Ordering::Relaxed, Ordering::Relaxed).is_ok()
    }

    /// Records a failure of QUIC.
    pub(super) fn record_failure(&self, now: Time) {
        // The counter saturates far beyond the maximum backoff.
        let failures = self.failures.load(Ordering::Relaxed).saturating_add(1);
        self.failures.store(failures, Ordering::Relaxed);
        self.retry_at.store((now + self.backoff()).as_nanos(), Ordering::Relaxed);
    }

    /// Records that QUIC works.
    pub(super) fn record_success(&self) {
        self.failures.store(0, Ordering::Relaxed);
        self.retry_at.store(0, Ordering::Relaxed);
    }

    /// Ends the backoff: the next request may try QUIC again.
    pub(super) fn end_backoff(&self, now: Time) {
        if !self.is_available() {
            self.retry_at.fetch_min(now.as_nanos(), Ordering::Relaxed);
        }
    }

    /// Records that the endpoint has chosen HTTP/1.1 over TCP.
    pub(crate) fn record_http1(&self) {
        self.http1.store(true, Ordering::Relaxed);
    }

    pub(super) fn speaks_http1(&self) -> bool {
        self.http1.load(Ordering::Relaxed)
    }

    fn backoff(&self) -> Duration {
        let doublings = self.failures.load(Ordering::Relaxed).saturating_sub(1).min(16);
        (INITIAL_BACKOFF * (1 << doublings)).min(MAX_BACKOFF)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const START: Time = Time::from_nanos(1_000);

    #[test]
    fn http3_is_allowed_before_any_failure() {
        let reachability = Http3Reachability::default();
        assert!(reachability.is_available());
        assert!(!reachability.claim_retry(START));
    }

    #[test]
    fn only_one_request_retries_http3_after_the_backoff() {
        let reachability = Http3Reachability::default();
        reachability.record_failure(START);
        assert!(!reachability.is_available());
        assert!(!reachability.claim_retry(START + (INITIAL_BACKOFF - Duration::from_nanos(1))));
        assert!(reachability.claim_retry(START + INITIAL_BACKOFF));
        assert!(
            !reachability.claim_retry(START + INITIAL_BACKOFF),
            "another request tries it already"
        );
        assert!(
            reachability.claim_retry(START + INITIAL_BACKOFF * 2),
            "an attempt without a result does not block the next one"
        );
        reachability.record_success();
        assert!(reachability.is_available());
    }

    #[test]
    fn http3_backoff_doubles_up_to_the_maximum() {
        let reachability = Http3Reachability::default();
        let mut pauses = Vec::new();
        for _ in 0..8 {
            reachability.record_failure(START);
            let until = Time::from_nanos(reachability.retry_at.load(Ordering::Relaxed));
            pauses.push(until.saturating_since(START).as_secs());
        }
        assert_eq!(pauses, [5, 10, 20, 40, 80, 160, 300, 300]);
        reachability.record_success();
        reachability.record_failure(START);
        assert!(reachability.claim_retry(START + INITIAL_BACKOFF));
    }

    #[test]
    fn http3_backoff_ends_early_without_an_alternative() {
        let reachability = Http3Reachability::default();
        reachability.end_backoff(START);
        assert!(reachability.is_available());
        reachability.record_failure(START);
        reachability.end_backoff(START);
        assert!(!reachability.is_available());
        assert!(reachability.claim_retry(START));
    }
}
