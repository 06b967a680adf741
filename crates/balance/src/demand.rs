//! How much a backend is asked for: what an autoscaler goes by.
//!
//! Demand is how many requests have a slot, wait for one, or would have one had they not been refused. It is averaged
//! over time, and exactly so, for it comes of integrals and not of samples: a request adds the time it lasts, whenever
//! somebody looks. By Little's law that is arrivals per second times the time a request takes, whatever the number of
//! endpoints; divided by what one endpoint is to bear, it is the number of endpoints.
//!
//! Each worker has a `DemandShard` and a `RejectedDemand` of its own. Their `DemandTotals`, added up, are what a `DemandAverager` makes
//! averages of.

use std::collections::VecDeque;
use std::ops::AddAssign;
use std::time::Duration;

use crate::atomic::{AtomicU64, Ordering, fence};
use crate::time::{Time, nanos};

/// What refused requests would have asked for.
mod rejected;

pub use rejected::RejectedDemand;

/// Over how long an average is taken where nobody says otherwise: the time between two looks of Kubernetes'
/// HorizontalPodAutoscaler (`--horizontal-pod-autoscaler-sync-period`), so that it sees every request once.
pub const WINDOW: Duration = Duration::from_secs(15);

/// Over how long an average can be taken at most; the readings of so long are kept.
pub const LONGEST_WINDOW: Duration = Duration::from_secs(60);

/// How long a request is assumed to take until one has been served.
pub const ASSUMED_SERVICE_TIME: Duration = Duration::from_secs(1);

/// How often a [`DemandAverager`] had better be shown a reading; it keeps no two that are closer.
pub const INTERVAL: Duration = Duration::from_secs(1);

/// After how long of serving what was learned of the service time counts half.
const HALF_LIFE: Duration = Duration::from_secs(30);

/// One worker's part of a backend's demand: written by that worker alone, read by anybody.
///
/// A request that begins at `t` adds one to a count and takes `t` from a sum, and one that ends gives its `t` back: at
/// any time `now` the sum plus the count times `now` is the time that all of them have taken. To begin and to end cost
/// a few loads and stores, no locked instruction. A version around them, odd while they change, tells a reader that it
/// has seen half of a change.
#[derive(Debug)]
#[repr(align(64))]
pub struct DemandShard {
    version: AtomicU64,
    in_flight: ActiveRequests,
    queued: ActiveRequests,
    served: AtomicU64,
    served_nanos: AtomicU64,
}

/// Requests that are under way, and the time that they and those before them have taken.
#[derive(Debug)]
struct ActiveRequests {
    count: AtomicU64,
    /// In nanoseconds, modulo 2^64.
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

/// For the one thread that writes.
fn add_unshared(to: &AtomicU64, count: u64) {
    to.store(to.load(Ordering::Relaxed).wrapping_add(count), Ordering::Relaxed);
}

impl DemandShard {
    /// No request yet.
    pub fn new() -> Self {
        Self {
            version: AtomicU64::new(0),
            in_flight: ActiveRequests::new(),
            queued: ActiveRequests::new(),
            served: AtomicU64::new(0),
            served_nanos: AtomicU64::new(0),
        }
    }

    /// A request has a slot at once.
    pub fn take(&self, at: Time) {
        self.change(|| self.in_flight.begin(at));
    }

    /// The slot that was taken at `taken` is free.
    pub fn give_back(&self, taken: Time, at: Time) {
        self.change(|| {
            self.in_flight.end(at);
            add_unshared(&self.served, 1);
            add_unshared(&self.served_nanos, nanos(at.saturating_since(taken)));
        });
    }

    /// A request waits for a slot.
    pub fn wait(&self, at: Time) {
        self.change(|| self.queued.begin(at));
    }

    /// One that has waited has a slot.
    pub fn grant(&self, at: Time) {
        self.change(|| {
            self.queued.end(at);
            self.in_flight.begin(at);
        });
    }

    /// One that has waited goes without a slot.
    pub fn abandon(&self, at: Time) {
        self.change(|| self.queued.end(at));
    }

    /// What it comes to so far; `None`: it is changing just now, so look again.
    pub fn read(&self) -> Option<DemandTotals> {
        let version = self.version.load(Ordering::Acquire);
        let totals = DemandTotals {
            in_flight: self.in_flight.read(),
            queued: self.queued.read(),
            served: self.served.load(Ordering::Relaxed),
            served_nanos: self.served_nanos.load(Ordering::Relaxed),
            ..DemandTotals::default()
        };
        // Who has seen something of a change sees its odd version now, or a later one.
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

/// Requests under way and the time that all have taken, as a line over time: `sum + count * now`, modulo 2^64.
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

/// What some requests come to: of one worker, or of all, added up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DemandTotals {
    in_flight: RequestTimeIntegral,
    queued: RequestTimeIntegral,
    rejected: RequestTimeIntegral,
    rejected_requests: u64,
    served: u64,
    served_nanos: u64,
}

impl DemandTotals {
    /// Requests that have a slot, wait for one, or were refused and count still.
    pub fn present(&self) -> u64 {
        let counts = [self.in_flight.count, self.queued.count, self.rejected.count];
        counts.into_iter().fold(0, u64::wrapping_add)
    }

    fn integrals(&self, now: Time) -> [u64; 3] {
        [self.in_flight, self.queued, self.rejected].map(|integral| integral.at(now))
    }
}

impl AddAssign for DemandTotals {
    fn add_assign(&mut self, other: Self) {
        self.in_flight += other.in_flight;
        self.queued += other.queued;
        self.rejected += other.rejected;
        self.rejected_requests = self.rejected_requests.wrapping_add(other.rejected_requests);
        self.served = self.served.wrapping_add(other.served);
        self.served_nanos = self.served_nanos.wrapping_add(other.served_nanos);
    }
}

/// Of each kind of demand, a number of requests: on average, or at a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct RequestDemand {
    /// They have a slot.
    pub in_flight: f64,
    /// They wait for one.
    pub queued: f64,
    /// They were refused.
    pub rejected: f64,
}

impl RequestDemand {
    /// All of it: what an autoscaler divides by what one endpoint is to bear.
    pub fn total(&self) -> f64 {
        self.in_flight + self.queued + self.rejected
    }
}

/// Makes averages of what it is shown, which had better be every quarter of an [`INTERVAL`].
#[derive(Debug)]
pub struct DemandAverager {
    /// One each interval, for as long as the longest window; never empty, the oldest first.
    readings: VecDeque<DemandReading>,
    last: DemandReading,
    totals: DemandTotals,
    /// Requests served and the time that they took, in nanoseconds; what is old counts less.
    served: (f64, f64),
}

/// What had come together at one moment.
#[derive(Clone, Copy, Debug)]
struct DemandReading {
    at: Time,
    /// Request-nanoseconds in flight, queued and shed since the beginning.
    request_nanos: [i128; 3],
}

impl DemandAverager {
    /// Nothing has been asked for before `at`.
    pub fn new(at: Time) -> Self {
        let last = DemandReading { at, request_nanos: [0; 3] };
        let readings = VecDeque::from([last]);
        Self { readings, last, totals: DemandTotals::default(), served: (0.0, 0.0) }
    }

    /// Takes in what there is at `at`: the totals of every worker, added up. What is older than before is left out.
    pub fn record(&mut self, at: Time, totals: DemandTotals) {
        if at < self.last.at {
            return;
        }
        let before = self.totals.integrals(self.last.at);
        let now = totals.integrals(at);
        for kind in 0..3 {
            // A request that ended before the last reading may have been in it still: a little comes back then.
            let more = now[kind].wrapping_sub(before[kind]).cast_signed();
            self.last.request_nanos[kind] += i128::from(more);
        }
        self.learn_service_time(at, &totals);
        self.totals = totals;
        self.last.at = at;
        if self.readings.back().is_none_or(|kept| is_before(kept.at, at, INTERVAL)) {
            self.readings.push_back(self.last);
            // Where two are old enough for every window, the older one is needed no more.
            while self.readings.get(1).is_some_and(|next| is_before(next.at, at, LONGEST_WINDOW)) {
                self.readings.pop_front();
            }
        }
    }

    /// The mean over the last `window` before the reading noted last, or up to an interval and a quarter more; over all
    /// there is while that is less.
    pub fn average(&self, window: Duration) -> RequestDemand {
        let is_old_enough = |kept: &&DemandReading| is_before(kept.at, self.last.at, window);
        let from = self.readings.iter().rev().find(is_old_enough).or_else(|| self.readings.front());
        let from = from.unwrap_or(&self.last);
        let elapsed = self.last.at.saturating_since(from.at);
        if elapsed.is_zero() {
            return self.present();
        }
        let mean = |kind: usize| {
            (self.last.request_nanos[kind] - from.request_nanos[kind]).max(0) as f64
                / nanos(elapsed) as f64
        };
        RequestDemand { in_flight: mean(0), queued: mean(1), rejected: mean(2) }
    }

    /// What there was at the reading noted last.
    pub fn present(&self) -> RequestDemand {
        let DemandTotals { in_flight, queued, rejected: shed, .. } = self.totals;
        let [in_flight, queued, shed] = [in_flight, queued, shed].map(|it| it.count as f64);
        RequestDemand { in_flight, queued, rejected: shed }
    }

    /// Whether there is or was more than `threshold` on average over the last `window`; with a threshold of 0, whether
    /// there was any at all.
    pub fn is_active(&self, window: Duration, threshold: f64) -> bool {
        let is_wanted = threshold <= 0.0 && self.totals.present() > 0;
        is_wanted || self.average(window).total() > threshold
    }

    /// Request-seconds of each kind up to the reading noted last: their rate is the average.
    pub fn request_seconds(&self) -> RequestDemand {
        let [in_flight, queued, shed] =
            self.last.request_nanos.map(|spent| spent.max(0) as f64 / 1e9);
        RequestDemand { in_flight, queued, rejected: shed }
    }

    /// Requests refused up to the reading noted last.
    pub fn rejected_requests(&self) -> u64 {
        self.totals.rejected_requests
    }

    /// How long a slot is held, on average over those given back: what was learned in the last half a minute of serving
    /// counts as much as all before. `None`: none has been given back yet.
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

/// Whether `at` is at least `by` before `now`.
fn is_before(at: Time, now: Time, by: Duration) -> bool {
    now.saturating_since(at) >= by
}

#[cfg(test)]
mod tests;
