//! Demand for a backend, as the workers count it and the control side reads it.
//!
//! [`balance::demand`] defines the demand. This module stores the counts: each worker has a shard
//! of its own, and readers share a `DemandAverager` behind a lock that no request takes.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::time::Duration;

use balance::Time;
use balance::demand::{
    ASSUMED_SERVICE_TIME, DemandAverager, DemandShard, DemandTotals, RejectedDemand,
};
use tokio::sync::watch;

use crate::clock;
use crate::mutex::lock;

/// Rejected requests of one client connection.
pub(crate) mod refusal_history;
/// The task that averages the workers' counts.
pub(crate) mod averaging;

/// Demand for one backend.
pub(crate) struct DemandTracker {
    workers: Box<[WorkerDemand]>,
    averager: Mutex<DemandAverager>,
    /// Estimated time that a rejected request would have held a slot, in nanoseconds.
    service_time: AtomicU64,
    /// True if a subscriber waits for the next request that does not get its slot at once.
    is_awaited: AtomicBool,
    rise_signal: watch::Sender<()>,
}

/// Demand that one worker counts.
#[repr(align(64))]
struct WorkerDemand {
    shard: DemandShard,
    /// Locked when a request is rejected, and by readers.
    rejected: Mutex<RejectedDemand>,
}

impl DemandTracker {
    pub(crate) fn new(workers: usize) -> Self {
        let worker_demand =
            |_| WorkerDemand { shard: DemandShard::new(), rejected: Mutex::default() };
        Self {
            workers: (0..workers).map(worker_demand).collect(),
            averager: Mutex::new(DemandAverager::new(clock::now())),
            service_time: AtomicU64::new(ASSUMED_SERVICE_TIME.as_nanos() as u64),
            is_awaited: AtomicBool::new(false),
            rise_signal: watch::Sender::new(()),
        }
    }

    /// Returns the worker's own shard, which no other worker writes.
    pub(crate) fn shard(&self, worker: usize) -> &DemandShard {
        &self.workers[worker].shard
    }

    /// Notifies the subscribers, once, that a request is queued or has been rejected.
    pub(crate) fn signal_rise(&self) {
        // The fence orders this check after the count: at least one of the counting worker and the
        // subscriber sees the other.
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed)
        {
            self.rise_signal.send_replace(());
        }
    }

    /// Returns a receiver that is notified when a request does not get its slot at once, but only
    /// after [`expect_rise`](Self::expect_rise).
    pub(crate) fn subscribe_rises(&self) -> watch::Receiver<()> {
        self.rise_signal.subscribe()
    }

    /// Requests a notification for the next such request. A caller that reads the demand afterwards
    /// misses none.
    pub(crate) fn expect_rise(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Counts a rejected request; returns until when it adds to the demand.
    pub(crate) fn refuse(&self, worker: usize, at: Time) -> Time {
        let service_time = Duration::from_nanos(self.service_time.load(Ordering::Relaxed));
        let until = lock(&self.workers[worker].rejected).reject(at, service_time);
        self.signal_rise();
        until
    }

    fn take_back_refusal(&self, worker: usize, until: Time, at: Time) {
        lock(&self.workers[worker].rejected).record_retry(until, at);
    }

    /// Reads the averager, after it has taken in all current counts.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&DemandAverager) -> R) -> R {
        let mut averager = lock(&self.averager);
        let now = clock::now();
        let mut totals = DemandTotals::default();
        for worker_demand in &self.workers {
            totals += read_shard(&worker_demand.shard);
            totals += lock(&worker_demand.rejected).read(now);
        }
        averager.record(now, totals);
        if let Some(service_time) = averager.service_time() {
            self.service_time.store(service_time.as_nanos() as u64, Ordering::Relaxed);
        }
        read(&averager)
    }
}

/// Reads a consistent total. A worker's write takes some nanoseconds, so the reader spins; if the
/// worker is preempted in the middle of it, the reader yields.
fn read_shard(shard: &DemandShard) -> DemandTotals {
    loop {
        for _ in 0..64 {
            if let Some(totals) = shard.read() {
                return totals;
            }
            std::hint::spin_loop();
        }
        std::thread::yield_now();
    }
}

#[cfg(test)]
mod tests;
