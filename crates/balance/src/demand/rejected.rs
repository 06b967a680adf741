//! Demand of rejected requests.
//!
//! A rejected request would have had a slot for about as long as other requests have. So it counts
//! for that long from its rejection on, or until its client retries, whichever is first. After that
//! the client counts by its next request: 36 clients that are rejected and retry at once are a
//! demand of 36, not of thousands.
//!
//! The time at which each request ceases to count is kept in buckets of a quarter of a second, so
//! memory is bounded and time is constant however many requests are rejected. Expired buckets are
//! exact. Requests of the bucket that contains the current time may count for up to one bucket
//! width too long.

use std::time::Duration;

use super::{DemandTotals, RequestTimeIntegral};
use crate::time::Time;

/// Rejected requests of one worker. Not shared between threads.
#[derive(Debug)]
pub struct RejectedDemand {
    rejected_requests: u64,
    /// Sum over all rejected requests of the end of their counting, for those whose counting has
    /// ended, minus its begin. Nanoseconds, modulo 2^64.
    sum: u64,
    /// Requests that still count, by the time at which they cease to. Allocated at the first
    /// rejection.
    buckets: Option<Box<[ExpiryBucket; Self::BUCKETS as usize]>>,
    /// First bucket that has not expired: the number of bucket widths since the origin of time.
    first: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ExpiryBucket {
    count: u64,
    /// Sum over its requests of the time from the bucket's begin until each ceases to count.
    nanos: u64,
}

impl RejectedDemand {
    /// Longest time that a rejected request counts: about the patience of clients, not the lifetime
    /// of a tunnel.
    pub const LONGEST: Duration = Duration::from_secs(60);

    const WIDTH: u64 = 250_000_000;
    const BUCKETS: u64 = 256;

    /// Returns an instance without rejected requests.
    pub const fn new() -> Self {
        Self { rejected_requests: 0, sum: 0, buckets: None, first: 0 }
    }

    /// Records the rejection of a request that would have taken about `service_time`. Returns the
    /// time until which it counts, unless its client [retries](Self::record_retry) before.
    pub fn reject(&mut self, at: Time, service_time: Duration) -> Time {
        self.expire_until(at);
        let until = at + service_time.min(Self::LONGEST);
        self.rejected_requests = self.rejected_requests.wrapping_add(1);
        self.sum = self.sum.wrapping_sub(at.as_nanos());
        match self.bucket(until) {
            Some((bucket, offset)) => {
                bucket.count += 1;
                bucket.nanos += offset;
            }
            None => self.sum = self.sum.wrapping_add(until.as_nanos()),
        }
        until
    }

    /// Records the retry of a client whose rejected request counts until `until`. To be called at
    /// most once for each rejection.
    pub fn record_retry(&mut self, until: Time, at: Time) {
        if at >= until {
            return;
        }
        if let Some((bucket, offset)) = self.bucket(until) {
            debug_assert!(bucket.count > 0 && bucket.nanos >= offset, "it was refused here");
            bucket.count -= 1;
            bucket.nanos -= offset;
            self.sum = self.sum.wrapping_add(at.as_nanos());
        }
    }

    /// Returns the totals at `at`, which are valid for that moment only.
    pub fn read(&mut self, at: Time) -> DemandTotals {
        self.expire_until(at);
        let mut shed = RequestTimeIntegral { count: 0, sum: self.sum };
        for number in self.first..self.first + Self::BUCKETS {
            let Some(buckets) = &self.buckets else { break };
            let bucket = buckets[bucket_index(number)];
            let begin = number * Self::WIDTH;
            // Before the bucket's time all of it counts; during it, as many requests as cannot have
            // expired yet.
            let in_bucket = bucket.count.wrapping_mul(at.as_nanos().wrapping_sub(begin));
            if at.as_nanos() >= begin && in_bucket >= bucket.nanos {
                shed.sum = shed.sum.wrapping_add(bucket.expired_sum(number));
            } else {
                shed.count += bucket.count;
            }
        }
        DemandTotals {
            rejected: shed,
            rejected_requests: self.rejected_requests,
            ..DemandTotals::default()
        }
    }

    /// Adds the expired buckets to the sum.
    fn expire_until(&mut self, at: Time) {
        let now = at.as_nanos() / Self::WIDTH;
        if let Some(buckets) = &mut self.buckets {
            for number in self.first..now.min(self.first + Self::BUCKETS) {
                let bucket = std::mem::take(&mut buckets[bucket_index(number)]);
                self.sum = self.sum.wrapping_add(bucket.expired_sum(number));
            }
        }
        self.first = self.first.max(now);
    }

    /// Returns the bucket of a request that ceases to count at `until`, and the offset of that time
    /// in the bucket. `None` if the time is over.
    fn bucket(&mut self, until: Time) -> Option<(&mut ExpiryBucket, u64)> {
        let number = until.as_nanos() / Self::WIDTH;
        let is_kept = (self.first..self.first + Self::BUCKETS).contains(&number);
        if !is_kept {
            return None;
        }
        let empty = || Box::new([ExpiryBucket::default(); Self::BUCKETS as usize]);
        let buckets = self.buckets.get_or_insert_with(empty);
        Some((&mut buckets[bucket_index(number)], until.as_nanos() % Self::WIDTH))
    }
}

impl Default for RejectedDemand {
    fn default() -> Self {
        Self::new()
    }
}

impl ExpiryBucket {
    /// Returns the sum of the times at which its requests ceased to count, modulo 2^64.
    fn expired_sum(self, number: u64) -> u64 {
        self.count.wrapping_mul(number * RejectedDemand::WIDTH).wrapping_add(self.nanos)
    }
}

fn bucket_index(number: u64) -> usize {
    (number % RejectedDemand::BUCKETS) as usize
}

const _: () = assert!(
    RejectedDemand::LONGEST.as_nanos() as u64 / RejectedDemand::WIDTH + 1 < RejectedDemand::BUCKETS,
    "a request that is rejected now has a bucket"
);
