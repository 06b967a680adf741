//! Cold start of a backend: the time from the first request that finds no endpoint until there is one.
//!
//! An autoscaler starts the first pod meanwhile. The duration of the last cold start is the best prediction of this one.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use balance::Time;

/// Time without a request after which a cold start is over without an endpoint: nothing was waited for.
const MAX_GAP: Duration = Duration::from_secs(60);

/// Cold starts of one backend. No request with an endpoint touches it.
#[derive(Debug, Default)]
pub(crate) struct ColdStart {
    /// Time of the first request of the present one, in nanoseconds; 0: there is none.
    begun: AtomicU64,
    /// Time of the last request without an endpoint.
    asked: AtomicU64,
    /// Duration of the last one in nanoseconds.
    last: AtomicU64,
    count: AtomicU64,
}

impl ColdStart {
    /// Records a request that finds no endpoint.
    pub(crate) fn record_request(&self, now: Time) {
        let now = now.as_nanos().max(1);
        let asked = self.asked.swap(now, Ordering::Relaxed);
        if is_over(asked, now) {
            self.begun.store(now, Ordering::Relaxed);
        } else {
            // Fails if a cold start has begun already.
            self.begun.compare_exchange(0, now, Ordering::Relaxed, Ordering::Relaxed).ok();
        }
    }

    /// Records that there is an endpoint.
    pub(crate) fn record_endpoint(&self, now: Time) {
        if self.begun.load(Ordering::Relaxed) == 0 {
            return;
        }
        let begun = self.begun.swap(0, Ordering::Relaxed);
        let now = now.as_nanos();
        if begun == 0 || is_over(self.asked.load(Ordering::Relaxed), now) {
            return;
        }
        self.last.store(now.saturating_sub(begun), Ordering::Relaxed);
        self.count.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the expected rest of the present cold start, if there is one and there was one before.
    pub(crate) fn expected_rest(&self, now: Time) -> Option<Duration> {
        let (begun, last) = (self.begun.load(Ordering::Relaxed), self.last()?);
        (begun != 0).then(|| last.saturating_sub(now.saturating_since(Time::from_nanos(begun))))
    }

    /// Returns the duration of the last cold start.
    pub(crate) fn last(&self) -> Option<Duration> {
        (self.count() > 0).then(|| Duration::from_nanos(self.last.load(Ordering::Relaxed)))
    }

    /// Returns the number of cold starts that have ended with an endpoint.
    pub(crate) fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

/// True if no request has asked for so long that a cold start is over.
fn is_over(asked: u64, now: u64) -> bool {
    u128::from(now.saturating_sub(asked)) > MAX_GAP.as_nanos()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    #[test]
    fn cold_start_lasts_from_the_first_request_to_the_first_endpoint() {
        let start = ColdStart::default();
        start.record_endpoint(at(90));
        assert_eq!((start.count(), start.last(), start.expected_rest(at(90))), (0, None, None));
        for seconds in [100, 101, 107] {
            start.record_request(at(seconds));
            assert_eq!(start.expected_rest(at(seconds)), None);
        }
        start.record_endpoint(at(108));
        start.record_endpoint(at(109));
        assert_eq!((start.count(), start.last()), (1, Some(Duration::from_secs(8))));
        assert_eq!(start.expected_rest(at(110)), None);
    }

    #[test]
    fn last_cold_start_predicts_the_rest_of_the_next() {
        let start = ColdStart::default();
        start.record_request(at(100));
        start.record_endpoint(at(108));
        start.record_request(at(200));
        assert_eq!(start.expected_rest(at(203)), Some(Duration::from_secs(5)));
        assert_eq!(start.expected_rest(at(250)), Some(Duration::ZERO));
    }

    #[test]
    fn cold_start_is_forgotten_when_no_request_asks() {
        let start = ColdStart::default();
        start.record_request(at(100));
        start.record_endpoint(at(161));
        assert_eq!(start.count(), 0);
        start.record_request(at(200));
        // The requests of a while ago have given up.
        start.record_request(at(300));
        start.record_endpoint(at(305));
        assert_eq!(start.last(), Some(Duration::from_secs(5)));
    }
}
