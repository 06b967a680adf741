//! Retry budget of a backend: a share of the requests of a window of time, and a floor.
//!
//! Each worker counts requests for itself, with a load and a store. A retry, which is rare, adds
//! all of them up. So a request that succeeds writes no shared memory, and the bound is exact
//! nevertheless.

use std::ops::RangeInclusive;
use std::time::Duration;

use crate::atomic::{AtomicU64, Ordering};
use crate::retry::RetrySettings;
use crate::time::{Time, nanos};

/// Number of ticks of a window: the current one and those before it.
const WINDOW: u32 = 10;
/// Number of places: a power of two above the window.
const PLACES: usize = 16;

/// Time in which requests and retries count in a budget, in ticks of a tenth each.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryWindow {
    tick_nanos: u64,
}

impl RetryWindow {
    /// Shortest and longest window.
    pub const BOUNDS: RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

    /// Returns a window of this length, kept within the bounds.
    pub fn new(length: Duration) -> Self {
        let length = length.clamp(*Self::BOUNDS.start(), *Self::BOUNDS.end());
        Self { tick_nanos: nanos(length) / u64::from(WINDOW) }
    }

    /// Returns the length of the window.
    pub const fn duration(self) -> Duration {
        Duration::from_nanos(self.tick_nanos * WINDOW as u64)
    }

    /// Returns the tick of a time, counted from 1, because an unused place contains 0.
    fn tick(self, now: Time) -> u32 {
        (now.as_nanos() / self.tick_nanos) as u32 + 1
    }
}

impl Default for RetryWindow {
    fn default() -> Self {
        Self::new(Duration::from_secs(10))
    }
}

/// Retry budget of one backend, shared by its workers.
#[derive(Debug)]
pub struct RetryBudget {
    /// Requests by worker, each written by its worker alone.
    requests: Box<[TickCounters]>,
    retries: TickCounters,
}

impl RetryBudget {
    /// Returns a budget for this number of workers.
    pub fn new(workers: usize) -> Self {
        let requests = (0..workers).map(|_| TickCounters::default()).collect();
        Self { requests, retries: TickCounters::default() }
    }

    /// Counts a request of this worker. Its retries are not counted here.
    pub fn request(&self, window: RetryWindow, worker: usize, now: Time) {
        self.requests[worker].count_unshared(window.tick(now));
    }

    /// True if one more retry, or hedge, is within the budget; then it is counted.
    ///
    /// In any window there are never more retries than the share of its requests and the floor
    /// allow. If several workers ask for the last one at the same moment, all of them may be
    /// refused. If the length of the window changes, all counts begin anew.
    pub fn allows(&self, settings: &RetrySettings, now: Time) -> bool {
        let tick = settings.budget_window.tick(now);
        let requests: u64 = self.requests.iter().map(|worker| worker.sum(tick)).sum();
        let share = requests.saturating_mul(settings.budget_percent.into()) / 100;
        let floor = u64::from(settings.budget_floor);
        self.retries.count(tick);
        let within = self.retries.sum(tick) <= share.saturating_add(floor);
        if !within {
            self.retries.take_back(tick);
        }
        within
    }
}

/// Counters by tick. Each place is a tick and its count, packed: the tick shows whether the count is
/// out of date.
#[derive(Debug)]
#[repr(align(64))]
struct TickCounters([AtomicU64; PLACES]);

impl TickCounters {
    /// Counts one; only one thread may write.
    fn count_unshared(&self, tick: u32) {
        let place = self.place(tick);
        place.store(one_more(place.load(Ordering::Relaxed), tick), Ordering::Relaxed);
    }

    /// Counts one; other threads may count too.
    fn count(&self, tick: u32) {
        let one_more = |packed| Some(one_more(packed, tick));
        let counted = self.place(tick).fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        debug_assert!(counted.is_ok(), "the update always succeeds");
    }

    fn take_back(&self, tick: u32) {
        let one_less = |packed| (unpack(packed).0 == tick).then(|| packed - 1);
        // A worker that was delayed for a whole window may find its tick gone, and then nothing
        // is to be taken back.
        self.place(tick).fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).ok();
    }

    /// Returns the count of the window that ends with this tick.
    fn sum(&self, tick: u32) -> u64 {
        let packed = self.0.iter().map(|place| unpack(place.load(Ordering::SeqCst)));
        let recent = packed.filter(|(counted, _)| tick.abs_diff(*counted) < WINDOW);
        recent.map(|(_, count)| u64::from(count)).sum()
    }

    fn place(&self, tick: u32) -> &AtomicU64 {
        &self.0[tick as usize % PLACES]
    }
}

impl Default for TickCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

fn one_more(packed: u64, tick: u32) -> u64 {
    let (counted, count) = unpack(packed);
    let count = if counted == tick { count.saturating_add(1) } else { 1 };
    u64::from(tick) << 32 | u64::from(count)
}

fn unpack(packed: u64) -> (u32, u32) {
    ((packed >> 32) as u32, packed as u32)
}

#[cfg(all(test, not(loom)))]
mod tests;
