//! Retry budget of a backend: a share of the requests of the last ten seconds, and a floor.
//!
//! Each worker counts requests for itself, with a load and a store. A retry, which is rare, adds
//! all of them up. So a request that succeeds writes no shared memory, and the bound is exact
//! nevertheless.

use crate::atomic::{AtomicU64, Ordering};
use crate::retry::RetrySettings;
use crate::time::Time;

/// Window in which a request counts, in seconds: the current one and those before it.
const WINDOW: u32 = 10;
/// Number of places: a power of two above the window.
const PLACES: usize = 16;

/// Retry budget of one backend, shared by its workers.
#[derive(Debug)]
pub struct RetryBudget {
    /// Requests by worker, each written by its worker alone.
    requests: Box<[PerSecondCounters]>,
    retries: PerSecondCounters,
}

impl RetryBudget {
    /// Returns a budget for this number of workers.
    pub fn new(workers: usize) -> Self {
        let requests = (0..workers).map(|_| PerSecondCounters::default()).collect();
        Self { requests, retries: PerSecondCounters::default() }
    }

    /// Counts a request of this worker. Its retries are not counted here.
    pub fn request(&self, worker: usize, now: Time) {
        self.requests[worker].count_unshared(second(now));
    }

    /// True if one more retry, or hedge, is within the budget; then it is counted.
    ///
    /// In any ten seconds there are never more retries than the share of their requests and the
    /// floor allow. If several workers ask for the last one at the same moment, all of them may be
    /// refused.
    pub fn allows(&self, settings: &RetrySettings, now: Time) -> bool {
        let second = second(now);
        let requests: u64 = self.requests.iter().map(|worker| worker.sum(second)).sum();
        let share = requests.saturating_mul(settings.budget_percent.into()) / 100;
        let floor = u64::from(settings.budget_floor_per_second) * u64::from(WINDOW);
        self.retries.count(second);
        let within = self.retries.sum(second) <= share.saturating_add(floor);
        if !within {
            self.retries.take_back(second);
        }
        within
    }
}

/// Counters by second. Each place is a second and its count, packed: the second shows whether the
/// count is out of date.
#[derive(Debug)]
#[repr(align(64))]
struct PerSecondCounters([AtomicU64; PLACES]);

impl PerSecondCounters {
    /// Counts one; only one thread may write.
    fn count_unshared(&self, second: u32) {
        let place = self.place(second);
        place.store(one_more(place.load(Ordering::Relaxed), second), Ordering::Relaxed);
    }

    /// Counts one; other threads may count too.
    fn count(&self, second: u32) {
        let one_more = |packed| Some(one_more(packed, second));
        let counted = self.place(second).fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more);
        debug_assert!(counted.is_ok(), "the update always succeeds");
    }

    fn take_back(&self, second: u32) {
        let one_less = |packed| (unpack(packed).0 == second).then(|| packed - 1);
        // A worker that was delayed for a whole window may find its second gone, and then nothing
        // is to be taken back.
        self.place(second).fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_less).ok();
    }

    /// Returns the count of the window that ends with this second.
    fn sum(&self, second: u32) -> u64 {
        let packed = self.0.iter().map(|place| unpack(place.load(Ordering::SeqCst)));
        let recent = packed.filter(|(counted, _)| second.abs_diff(*counted) < WINDOW);
        recent.map(|(_, count)| u64::from(count)).sum()
    }

    fn place(&self, second: u32) -> &AtomicU64 {
        &self.0[second as usize % PLACES]
    }
}

impl Default for PerSecondCounters {
    fn default() -> Self {
        Self(std::array::from_fn(|_| AtomicU64::new(0)))
    }
}

/// Returns the second, counted from 1, because an unused place contains 0.
fn second(now: Time) -> u32 {
    (now.as_nanos() / 1_000_000_000) as u32 + 1
}

fn one_more(packed: u64, second: u32) -> u64 {
    let (counted, count) = unpack(packed);
    let count = if counted == second { count.saturating_add(1) } else { 1 };
    u64::from(second) << 32 | u64::from(count)
}

fn unpack(packed: u64) -> (u32, u32) {
    ((packed >> 32) as u32, packed as u32)
}

#[cfg(all(test, not(loom)))]
mod tests;
