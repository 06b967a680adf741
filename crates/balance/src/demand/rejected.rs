//! What refused requests would have asked for.
//!
//! A refused request would have had a slot for about as long as others have. So it counts for that long, from its
//! refusal on, or until its client asks again, whichever is first: then the client counts by its next request, and 36
//! clients that are refused and try again at once are a demand of 36, not of thousands.
//!
//! When each of them ceases to count is kept in buckets of a quarter of a second, so that it takes a bounded room and
//! constant time however many are refused. What is over is exact; of the bucket whose time it is now, requests may
//! count for a part of a bucket more.

use std::time::Duration;

use super::{DemandTotals, RequestTimeIntegral};
use crate::time::Time;

/// Refused requests of one worker. Not shared: whoever holds it has it alone.
#[derive(Debug)]
pub struct RejectedDemand {
    rejected_requests: u64,
    /// Of all that have been refused: when they began to count, taken from when they ceased to, as far as they have.
    /// In nanoseconds, modulo 2^64.
    sum: u64,
    /// Those that count still, by when they will cease to. Made with the first refusal.
    buckets: Option<Box<[ExpiryBucket; Self::BUCKETS as usize]>>,
    /// The first bucket whose time is not over: the number of widths since the origin of time.
    first: u64,
}

#[derive(Clone, Copy, Debug, Default)]
struct ExpiryBucket {
    count: u64,
    /// From the bucket's begin to when each ceases to count.
    nanos: u64,
}

impl RejectedDemand {
    /// For as long as this a refused request counts at most: about what clients have patience for, not how long a
    /// tunnel would have been open.
    pub const LONGEST: Duration = Duration::from_secs(60);

    const WIDTH: u64 = 250_000_000;
    const BUCKETS: u64 = 256;

    /// Nobody has been refused.
    pub const fn new() -> Self {
        Self { rejected_requests: 0, sum: 0, buckets: None, first: 0 }
    }

    /// A request is refused that would have taken about `service_time`; gives until when it counts, unless its client
    /// [asks again](Self::ask_again) before.
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

    /// The client whose refused request would count `until` then asks again, once for each refusal.
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

    /// What it comes to at `at`; good for that moment only.
    pub fn read(&mut self, at: Time) -> DemandTotals {
        self.expire_until(at);
        let mut shed = RequestTimeIntegral { count: 0, sum: self.sum };
        for number in self.first..self.first + Self::BUCKETS {
            let Some(buckets) = &self.buckets else { break };
            let bucket = buckets[place(number)];
            let begin = number * Self::WIDTH;
            // Before the bucket's time all of it counts; in its time, what cannot have ceased yet.
            let in_it = bucket.count.wrapping_mul(at.as_nanos().wrapping_sub(begin));
            if at.as_nanos() >= begin && in_it >= bucket.nanos {
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

    /// Time has passed: what is over is added up.
    fn expire_until(&mut self, at: Time) {
        let now = at.as_nanos() / Self::WIDTH;
        if let Some(buckets) = &mut self.buckets {
            for number in self.first..now.min(self.first + Self::BUCKETS) {
                let bucket = std::mem::take(&mut buckets[place(number)]);
                self.sum = self.sum.wrapping_add(bucket.expired_sum(number));
            }
        }
        self.first = self.first.max(now);
    }

    /// Where a request stands that ceases to count at `until`, and how far into the bucket's time that is; `None`: that
    /// time is over.
    fn bucket(&mut self, until: Time) -> Option<(&mut ExpiryBucket, u64)> {
        let number = until.as_nanos() / Self::WIDTH;
        let is_kept = (self.first..self.first + Self::BUCKETS).contains(&number);
        if !is_kept {
            return None;
        }
        let empty = || Box::new([ExpiryBucket::default(); Self::BUCKETS as usize]);
        let buckets = self.buckets.get_or_insert_with(empty);
        Some((&mut buckets[place(number)], until.as_nanos() % Self::WIDTH))
    }
}

impl Default for RejectedDemand {
    fn default() -> Self {
        Self::new()
    }
}

impl ExpiryBucket {
    /// When its requests ceased to count, added up, modulo 2^64.
    fn expired_sum(self, number: u64) -> u64 {
        self.count.wrapping_mul(number * RejectedDemand::WIDTH).wrapping_add(self.nanos)
    }
}

fn place(number: u64) -> usize {
    (number % RejectedDemand::BUCKETS) as usize
}

const _: () = assert!(
    RejectedDemand::LONGEST.as_nanos() as u64 / RejectedDemand::WIDTH + 1 < RejectedDemand::BUCKETS,
    "who is refused now has a bucket"
);
