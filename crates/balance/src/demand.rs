//! Demand for a backend, in concurrent requests: the input of autoscalers.
//!
//! Demand is the number of requests that have a slot, wait for one, or would have one had they not been rejected;
//! requests of clients without a proxy count as these report them. It is averaged over time. The average is exact
//! because it comes from integrals and not from samples: a request adds the time it lasts, whenever a reading is taken.
//! By Little's law this is arrivals per second times the duration of a request, independent of the number of endpoints.
//! Divided by the load that one endpoint should carry, it gives the number of endpoints.
//!
//! Each worker has its own `DemandShard` and `RejectedDemand`. A `DemandAverager` computes averages from the sum of
//! their `DemandTotals`.

use std::collections::VecDeque;
use std::iter::Sum;
use std::ops::{Add, AddAssign};
use std::time::Duration;

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::time::{Time, nanos};

/// Demand of rejected requests.
mod rejected;
/// Rates of requests.
mod rates;
/// Demand of requests that clients report.
mod proxyless;

pub use proxyless::{ProxylessDemand, ProxylessRequests};
pub use rates::{RateAverager, RequestCounts, RequestRates};
pub use rejected::RejectedDemand;

/// Default averaging window: the sync period of Kubernetes' HorizontalPodAutoscaler
/// (`--horizontal-pod-autoscaler-sync-period`), so that it sees every request once.
pub const WINDOW: Duration = Duration::from_secs(15);

/// Longest averaging window; readings are kept for this long.
pub const LONGEST_WINDOW: Duration = Duration::from_secs(60);

/// Assumed duration of a request until the first one has been served.
pub const ASSUMED_SERVICE_TIME: Duration = Duration::from_secs(1);

/// Interval at which to give a [`DemandAverager`] readings; it keeps no two readings closer than
/// this.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// Serving time after which older observations of the service time have half their weight.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// One worker's part of a backend's demand: written by that worker alone, readable by any thread.
///
/// A request that begins at `t` adds one to a count and subtracts `t` from a sum; a request that
/// ends adds its end time to the sum. At any time `now`, the sum plus the count times `now` is the
/// time that all of them have taken. Beginning and ending cost a few loads and stores and no locked
/// instruction. A version number surrounds each change and is odd during it, so a reader can tell
/// that it has seen half of a change.
#[derive(Debug)]
#[repr(align(64))]
pub struct DemandShard {
    version: AtomicU64,
    in_flight: ActiveRequests,
    queued: ActiveRequests,
    served: AtomicU64,
    served_nanos: AtomicU64,
}

/// Requests in progress, and the time that they and earlier requests have taken.
#[derive(Debug)]
struct ActiveRequests {
    count: AtomicU64,
    /// Nanoseconds, modulo 2^64.
    sum: AtomicU64,
}

impl ActiveRequests {
    fn new() -> Self {
        Self { count: AtomicU64::new(0), sum: AtomicU64::new(0) }
    }

    fn begin(&self, at: Time) {
        add_unshared(&self.count, 1);
        add_unshared(&self.sum, at.as_nanos().wrapping_neg());
    }

    fn end(&self, at: Time) {
        add_unshared(&self.count, u64::MAX);
        add_unshared(&self.sum, at.as_nanos());
    }

    fn read(&self) -> RequestTimeIntegral {
        RequestTimeIntegral {
            count: self.count.load(Ordering::Relaxed),
            sum: self.sum.load(Ordering::Relaxed),
        }
    }
}

/// Adds without a locked instruction. Only the one thread that writes may call it.
fn add_unshared(to: &AtomicU64, count: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

impl DemandShard {
    /// Returns a shard without requests.
    pub fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            in_flight: ActiveRequests::new(),
            queued: ActiveRequests::new(),
            served: AtomicU64::new(0),
            served_nanos: AtomicU64::new(0),
        }
    }

    /// Records a request that gets a slot at once.
    pub fn take(&self, at: Time) {
        self.change(|| self.in_flight.begin(at));
    }

    /// Records the release of a slot that was taken at `taken`.
    pub fn give_back(&self, taken: Time, at: Time) {
        self.change(|| {
            self.in_flight.end(at);
            add_unshared(&self.served, 1);
            add_unshared(&self.served_nanos, nanos(at.saturating_since(taken)));
        });
    }

    /// Records a request that begins to wait for a slot.
    pub fn wait(&self, at: Time) {
        self.change(|| self.queued.begin(at));
    }

    /// Records that a queued request has a slot.
    pub fn grant(&self, at: Time) {
        self.change(|| {
            self.queued.end(at);
            self.in_flight.begin(at);
        });
    }

    /// Records that a queued request leaves without a slot.
    pub fn abandon(&self, at: Time) {
        self.change(|| self.queued.end(at));
    }

    /// Returns the totals so far; `None` if a change is in progress: read again.
    pub fn read(&self) -> Option<DemandTotals> {
        let version = self.version.load(Ordering::Acquire);
        let totals = DemandTotals {
            in_flight: self.in_flight.read(),
            queued: self.queued.read(),
            served: self.served.load(Ordering::Relaxed),
            served_nanos: self.served_nanos.load(Ordering::Relaxed),
            ..DemandTotals::default()
        };
        // A reader that has seen part of a change sees its odd version now, or a later version.
        fence(Ordering::Acquire);
        let is_whole = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        is_whole.then_some(totals)
    }

    fn change(&self, change: impl FnOnce()) {
        let version = self.version.load(Ordering::Relaxed);
        self.version.store(version.wrapping_add(1), Ordering::Relaxed);
        fence(Ordering::Release);
        change();
        self.version.store(version.wrapping_add(2), Ordering::Release);
    }
}

impl Default for DemandShard {
    fn default() -> Self {
        Self::new()
    }
}

/// Requests in progress and the time that all have taken, as a linear function of time: `sum +
/// count * now`, modulo 2^64.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct RequestTimeIntegral {
    count: u64,
    sum: u64,
}

impl RequestTimeIntegral {
    fn at(self, now: Time) -> u64 {
        self.sum.wrapping_add(self.count.wrapping_mul(now.as_nanos()))
    }
}

impl AddAssign for RequestTimeIntegral {
    fn add_assign(&mut self, other: Self) {
        self.count = self.count.wrapping_add(other.count);
        self.sum = self.sum.wrapping_add(other.sum);
    }
}

/// Demand totals of one worker, or the sum over all workers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandTotals {
    in_flight: RequestTimeIntegral,
    queued: RequestTimeIntegral,
    rejected: RequestTimeIntegral,
    rejected_requests: u64,
    /// Requests that clients report, which have no slot of this process.
    proxyless: RequestTimeIntegral,
    proxyless_requests: u64,
    served: u64,
    served_nanos: u64,
}

impl DemandTotals {
    /// Returns the number of requests that have a slot, wait for one, were rejected and still
    /// count, or are in progress as clients report.
    pub fn present(&self) -> u64 {
        let [in_flight, queued, rejected, _] = self.integrals();
        [in_flight.count, queued.count, rejected.count].into_iter().fold(0, u64::wrapping_add)
    }

    /// Returns the number of requests that have asked for a slot so far, and of those that were
    /// rejected. A request that is retried counts for each slot that it asks for; a queued request
    /// whose client disconnects no longer counts.
    pub fn counts(&self) -> RequestCounts {
        let ended = [self.served, self.rejected_requests, self.proxyless_requests];
        let ended = ended.into_iter().fold(0, u64::wrapping_add);
        let requests = [self.in_flight.count, self.queued.count].into_iter();
        RequestCounts {
            requests: requests.fold(ended, u64::wrapping_add),
            rejected: self.rejected_requests,
        }
    }

    /// Returns the integrals of requests in flight, queued and rejected, and of those in flight that clients report.
    fn integrals(&self) -> [RequestTimeIntegral; 4] {
        let mut in_flight = self.in_flight;
        in_flight += self.proxyless;
        [in_flight, self.queued, self.rejected, self.proxyless]
    }
}

impl AddAssign for DemandTotals {
    fn add_assign(&mut self, other: Self) {
        self.in_flight += other.in_flight;
        self.queued += other.queued;
        self.rejected += other.rejected;
        self.rejected_requests = self.rejected_requests.wrapping_add(other.rejected_requests);
        self.proxyless += other.proxyless;
        self.proxyless_requests = self.proxyless_requests.wrapping_add(other.proxyless_requests);
        self.served = self.served.wrapping_add(other.served);
        self.served_nanos = self.served_nanos.wrapping_add(other.served_nanos);
    }
}

/// Demand by kind, in requests: an average or the value at one moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestDemand {
    /// Requests that have a slot, or are in progress as clients report.
    pub in_flight: f64,
    /// Requests that wait for a slot.
    pub queued: f64,
    /// Rejected requests.
    pub rejected: f64,
}

impl RequestDemand {
    /// Returns the total demand. An autoscaler divides it by the load that one endpoint should
    /// carry.
    pub fn total(&self) -> f64 {
        self.in_flight + self.queued + self.rejected
    }
}

impl Add for RequestDemand {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            in_flight: self.in_flight + other.in_flight,
            queued: self.queued + other.queued,
            rejected: self.rejected + other.rejected,
        }
    }
}

impl Sum for RequestDemand {
    fn sum<I: Iterator<Item = Self>>(demands: I) -> Self {
        demands.fold(Self::default(), Self::add)
    }
}

/// Computes averages from readings, which should arrive every quarter of an [`INTERVAL`].
#[derive(Debug)]
pub struct DemandAverager {
    /// One reading for each interval of the longest window, the oldest first; never empty.
    readings: VecDeque<DemandReading>,
    last: DemandReading,
    totals: DemandTotals,
    rates: RateAverager,
    /// Requests served and the time that they took, in nanoseconds; older requests count less.
    served: (f64, f64),
}

/// Totals at one moment.
#[derive(Clone, Copy, Debug)]
struct DemandReading {
    at: Time,
    /// Request-nanoseconds in flight, queued and rejected since the beginning, and in flight as clients report.
    request_nanos: [i128; 4],
}

impl DemandAverager {
    /// Returns an averager without demand before `at`.
    pub fn new(at: Time) -> Self {
        let last = DemandReading { at, request_nanos: [0; 4] };
        let readings = VecDeque::from([last]);
        let rates = RateAverager::new(at);
        Self { readings, last, totals: DemandTotals::default(), rates, served: (0.0, 0.0) }
    }

    /// Records the totals at `at`: the sum over all workers. A reading older than the last one is
    /// ignored.
    pub fn record(&mut self, at: Time, totals: DemandTotals) {
        if at < self.last.at {
            return;
        }
        let before = self.totals.integrals().map(|integral| integral.at(self.last.at));
        let now = totals.integrals().map(|integral| integral.at(at));
        for kind in 0..4 {
            // A request that ended before the last reading may still have been part of it: then a
            // little is subtracted.
            let more = now[kind].wrapping_sub(before[kind]).cast_signed();
            self.last.request_nanos[kind] += i128::from(more);
        }
        self.learn_service_time(at, &totals);
        self.rates.record(at, totals.counts());
        self.totals = totals;
        self.last.at = at;
        if self.readings.back().is_none_or(|kept| is_before(kept.at, at, INTERVAL)) {
            self.readings.push_back(self.last);
            // If two readings are old enough for every window, the older one is no longer needed.
            while self.readings.get(1).is_some_and(|next| is_before(next.at, at, LONGEST_WINDOW)) {
                self.readings.pop_front();
            }
        }
    }

    /// Returns the mean over the last `window` before the last reading, or over up to an interval
    /// and a quarter more. If there are not yet readings for the whole window, the mean is over all
    /// of them.
    pub fn average(&self, window: Duration) -> RequestDemand {
        let [in_flight, queued, rejected, _] = self.averages(window);
        RequestDemand { in_flight, queued, rejected }
    }

    /// Returns the part of [`average`](Self::average) that clients report: they are in flight, and have no slot.
    pub fn average_proxyless(&self, window: Duration) -> f64 {
        let [.., proxyless] = self.averages(window);
        proxyless
    }

    fn averages(&self, window: Duration) -> [f64; 4] {
        let is_old_enough = |kept: &&DemandReading| is_before(kept.at, self.last.at, window);
        let from = self.readings.iter().rev().find(is_old_enough).or_else(|| self.readings.front());
        let from = from.unwrap_or(&self.last);
        let elapsed = self.last.at.saturating_since(from.at);
        if elapsed.is_zero() {
            return self.totals.integrals().map(|it| it.count as f64);
        }
        let mean = |kind: usize| {
            (self.last.request_nanos[kind] - from.request_nanos[kind]).max(0) as f64
                / nanos(elapsed) as f64
        };
        [mean(0), mean(1), mean(2), mean(3)]
    }

    /// Returns the mean rates of requests over the last [`WINDOW`] before the last reading.
    pub fn rates(&self) -> RequestRates {
        self.rates.rates()
    }

    /// Returns the demand at the last reading.
    pub fn present(&self) -> RequestDemand {
        let [in_flight, queued, shed, _] = self.totals.integrals().map(|it| it.count as f64);
        RequestDemand { in_flight, queued, rejected: shed }
    }

    /// True if there is demand now, for a threshold of 0, or if the average over the last `window`
    /// exceeds `threshold`.
    pub fn is_active(&self, window: Duration, threshold: f64) -> bool {
        let is_wanted = threshold <= 0.0 && self.totals.present() > 0;
        is_wanted || self.average(window).total() > threshold
    }

    /// Returns the request-seconds of each kind up to the last reading: their rate is the average.
    pub fn request_seconds(&self) -> RequestDemand {
        let [in_flight, queued, shed, _] =
            self.last.request_nanos.map(|spent| spent.max(0) as f64 / 1e9);
        RequestDemand { in_flight, queued, rejected: shed }
    }

    /// Returns the number of requests rejected up to the last reading.
    pub fn rejected_requests(&self) -> u64 {
        self.totals.rejected_requests
    }

    /// Returns the average time that a slot is held, over released slots. Observations of the last
    /// half a minute of serving count as much as all earlier ones. `None` if no slot has been
    /// released yet.
    pub fn service_time(&self) -> Option<Duration> {
        let (count, nanos) = self.served;
        (count > 0.0).then(|| Duration::from_nanos((nanos / count) as u64))
    }

    fn learn_service_time(&mut self, at: Time, totals: &DemandTotals) {
        let count = totals.served.wrapping_sub(self.totals.served);
        if count == 0 {
            return;
        }
        let took = totals.served_nanos.wrapping_sub(self.totals.served_nanos);
        let passed = at.saturating_since(self.last.at).as_secs_f64();
        let decay = 0.5_f64.powf(passed / HALF_LIFE.as_secs_f64());
        let (served, nanos) = self.served;
        self.served = (served.mul_add(decay, count as f64), nanos.mul_add(decay, took as f64));
    }
}

/// True if `at` is at least `by` before `now`.
fn is_before(at: Time, now: Time, by: Duration) -> bool {
    now.saturating_since(at) >= by
}

#[cfg(test)]
mod tests;
