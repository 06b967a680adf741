//! Rates of requests: how fast counts rise, as a mean over the last [`WINDOW`].
//!
//! A rate is the difference of two readings of counts that exist anyway: no request does anything
//! for it.

use std::collections::VecDeque;
use std::iter::Sum;
use std::ops::Add;

use super::{INTERVAL, WINDOW, is_before};
use crate::time::Time;

/// Requests since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestCounts {
    /// All requests.
    pub requests: u64,
    /// Those of them that were rejected.
    pub rejected: u64,
}

/// Requests per second.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestRates {
    /// All requests.
    pub requests: f64,
    /// Those of them that were rejected.
    pub rejected: f64,
}

impl Add for RequestRates {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self { requests: self.requests + other.requests, rejected: self.rejected + other.rejected }
    }
}

impl Sum for RequestRates {
    fn sum<I: Iterator<Item = Self>>(rates: I) -> Self {
        rates.fold(Self::default(), Self::add)
    }
}

/// Computes rates from readings, which should arrive every quarter of an [`INTERVAL`].
#[derive(Debug)]
pub struct RateAverager {
    /// One reading for each interval of the window, the oldest first; never empty.
    readings: VecDeque<CountReading>,
    last: CountReading,
}

/// Counts at one moment.
#[derive(Clone, Copy, Debug)]
struct CountReading {
    at: Time,
    counts: RequestCounts,
}

impl RateAverager {
    /// Returns an averager without requests before `at`.
    pub fn new(at: Time) -> Self {
        let last = CountReading { at, counts: RequestCounts::default() };
        Self { readings: VecDeque::from([last]), last }
    }

    /// Records the counts at `at`. A reading older than the last one is ignored.
    pub fn record(&mut self, at: Time, counts: RequestCounts) {
        if at < self.last.at {
            return;
        }
        self.last = CountReading { at, counts };
        if self.readings.back().is_none_or(|kept| is_before(kept.at, at, INTERVAL)) {
            self.readings.push_back(self.last);
            // If two readings are old enough for the window, the older one is no longer needed.
            while self.readings.get(1).is_some_and(|next| is_before(next.at, at, WINDOW)) {
                self.readings.pop_front();
            }
        }
    }

    /// Returns the mean rates over the last [`WINDOW`] before the last reading, or over up to an
    /// interval and a quarter more. If there are not yet readings for the whole window, the mean is
    /// over all of them, and over an interval at least: one early request is no high rate.
    pub fn rates(&self) -> RequestRates {
        let is_old_enough = |kept: &&CountReading| is_before(kept.at, self.last.at, WINDOW);
        let from = self.readings.iter().rev().find(is_old_enough).or_else(|| self.readings.front());
        let from = from.unwrap_or(&self.last);
        let elapsed = self.last.at.saturating_since(from.at).max(INTERVAL).as_secs_f64();
        // A request that leaves the queue because its client disconnects no longer counts.
        let rate =
            |now: u64, before: u64| now.wrapping_sub(before).cast_signed().max(0) as f64 / elapsed;
        let (now, before) = (self.last.counts, from.counts);
        RequestRates {
            requests: rate(now.requests, before.requests),
            rejected: rate(now.rejected, before.rejected),
        }
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn ms(millis: u64) -> Time {
        Time::from_nanos(millis * 1_000_000)
    }

    const fn counts(requests: u64, rejected: u64) -> RequestCounts {
        RequestCounts { requests, rejected }
    }

    const fn rates(requests: f64, rejected: f64) -> RequestRates {
        RequestRates { requests, rejected }
    }

    #[test]
    fn rate_is_the_mean_over_the_window() {
        let mut averager = RateAverager::new(ms(0));
        // 40 requests per second, of which 10 are rejected, for a minute; then none.
        for quarter in 1..=240 {
            averager.record(ms(quarter * 250), counts(quarter * 10, quarter * 5 / 2));
        }
        let steady = averager.rates();
        assert!((steady.requests - 40.0).abs() < 0.1, "{steady:?}");
        assert!((steady.rejected - 10.0).abs() < 0.1, "{steady:?}");
        assert!(averager.readings.len() <= 18, "readings of the window alone are kept");
        for quarter in 241..=268 {
            averager.record(ms(quarter * 250), counts(2_400, 600));
        }
        // Seven seconds without a request: the rest of the window had 40 per second.
        let falling = averager.rates().requests;
        assert!((19.0..=23.0).contains(&falling), "{falling}");
        for quarter in 269..=310 {
            averager.record(ms(quarter * 250), counts(2_400, 600));
        }
        assert_eq!(averager.rates(), rates(0.0, 0.0));
    }

    #[test]
    fn first_request_is_no_high_rate() {
        let mut averager = RateAverager::new(ms(0));
        assert_eq!(averager.rates(), rates(0.0, 0.0));
        averager.record(ms(1), counts(1, 0));
        assert_eq!(averager.rates(), rates(1.0, 0.0));
        averager.record(ms(4_000), counts(8, 4));
        assert_eq!(averager.rates(), rates(2.0, 1.0));
    }

    #[test]
    fn older_reading_and_lower_count_are_no_negative_rate() {
        let mut averager = RateAverager::new(ms(0));
        averager.record(ms(5_000), counts(10, 0));
        averager.record(ms(4_000), counts(0, 0));
        assert_eq!(averager.rates(), rates(2.0, 0.0));
        for second in 6..60 {
            averager.record(ms(second * 1_000), counts(9, 0));
        }
        assert_eq!(averager.rates(), rates(0.0, 0.0));
    }
}
