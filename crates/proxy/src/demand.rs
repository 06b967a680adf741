//! Demand for a backend, as the workers count it and the control side reads it.
//!
//! [`balance::demand`] defines the demand. This module stores the counts: each worker has a shard
//! of its own, and readers share a `DemandAverager` behind a lock that no request takes.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use balance::Time;
use balance::demand::{
    ASSUMED_SERVICE_TIME, DemandAverager, DemandShard, DemandTotals, ProxylessDemand,
    ProxylessRequests, RejectedDemand, RequestCounts, RequestDemand, RequestRates,
};
use balance::peer_reports::{DemandReport, PeerDemand};
use tokio::sync::watch;

use crate::clock;
use crate::lease_signal::LeaseSignal;
use crate::mutex::lock;

/// Rejected requests of one client connection.
pub(crate) mod refusal_history;
/// The task that averages the workers' counts.
pub(crate) mod averaging;
/// Rates of requests of one route.
pub(crate) mod route_rates;

/// Demand for a backend without the requests that clients report to this replica.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OtherDemand {
    /// Requests that pass through this replica.
    pub local: f64,
    /// All requests of other replicas, as far as they report them.
    pub peers: f64,
}

/// Demand for one backend.
pub(crate) struct DemandTracker {
    workers: Box<[WorkerDemand]>,
    averager: Mutex<DemandAverager>,
    /// Demand of requests that do not pass through this process, as their clients report it.
    proxyless: Mutex<ProxylessDemand>,
    /// Estimated time that a rejected request would have held a slot, in nanoseconds.
    service_time: AtomicU64,
    /// Demand at other replicas, as they report it.
    peers: Mutex<PeerDemand>,
    /// The [`RiseListener`]s that wait for the next request that does not get its slot at once, as bits.
    awaited_by: AtomicU8,
    rise_signal: watch::Sender<()>,
    /// Signal to the thread that tells other replicas; `None`: there are none.
    replicas: Option<Arc<LeaseSignal>>,
}

/// Listener for a rise of demand.
#[derive(Clone, Copy)]
#[repr(u8)]
pub(crate) enum RiseListener {
    /// Subscribers in this process.
    Subscribers = 1,
    /// The thread that tells other replicas.
    Replicas = 2,
}

/// Demand that one worker counts.
#[repr(align(64))]
struct WorkerDemand {
    shard: DemandShard,
    /// Locked when a request is rejected, and by readers.
    rejected: Mutex<RejectedDemand>,
}

impl DemandTracker {
    pub(crate) fn new(workers: usize, replicas: Option<Arc<LeaseSignal>>) -> Self {
        let worker_demand =
            |_| WorkerDemand { shard: DemandShard::new(), rejected: Mutex::default() };
        Self {
            workers: (0..workers).map(worker_demand).collect(),
            averager: Mutex::new(DemandAverager::new(clock::now())),
            proxyless: Mutex::default(),
            service_time: AtomicU64::new(ASSUMED_SERVICE_TIME.as_nanos() as u64),
            peers: Mutex::default(),
            awaited_by: AtomicU8::new(0),
            rise_signal: watch::Sender::new(()),
            replicas,
        }
    }

    /// Returns the worker's own shard, which no other worker writes.
    pub(crate) fn shard(&self, worker: usize) -> &DemandShard {
        &self.workers[worker].shard
    }

    /// Notifies the listeners that expect it, once, that a request is queued or has been rejected.
    pub(crate) fn signal_rise(&self) {
        // The fence orders this check after the count: at least one of the counting worker and the
        // listener sees the other.
        fence(Ordering::SeqCst);
        if self.awaited_by.load(Ordering::Relaxed) != 0 {
            self.notify_rise();
        }
    }

    #[cold]
    fn notify_rise(&self) {
        let awaited_by = self.awaited_by.swap(0, Ordering::Relaxed);
        if awaited_by & RiseListener::Subscribers as u8 != 0 {
            self.rise_signal.send_replace(());
        }
        if awaited_by & RiseListener::Replicas as u8 != 0
            && let Some(replicas) = &self.replicas
        {
            replicas.record_demand_rise();
        }
    }

    /// Returns a receiver that is notified when a request does not get its slot at once, here or at
    /// another replica, but only after [`expect_rise`](Self::expect_rise).
    pub(crate) fn subscribe_rises(&self) -> watch::Receiver<()> {
        self.rise_signal.subscribe()
    }

    /// Requests a notification for the next such request. A caller that reads the demand afterwards
    /// misses none.
    pub(crate) fn expect_rise(&self, listener: RiseListener) {
        self.awaited_by.fetch_or(listener as u8, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// Withdraws the request for a notification.
    pub(crate) fn ignore_rise(&self, listener: RiseListener) {
        self.awaited_by.fetch_and(!(listener as u8), Ordering::Relaxed);
    }

    /// Takes the requests that clients report to this process.
    pub(crate) fn record_proxyless(&self, requests: ProxylessRequests) {
        let now = clock::now();
        lock(&self.proxyless).record(requests, now);
    }

    /// Takes the report of another replica.
    pub(crate) fn record_peer(&self, peer: SocketAddr, report: DemandReport, now: Time) {
        let begins = lock(&self.peers).record(peer, report, now);
        fence(Ordering::SeqCst);
        let subscribers = RiseListener::Subscribers as u8;
        if begins && self.awaited_by.fetch_and(!subscribers, Ordering::Relaxed) & subscribers != 0 {
            self.rise_signal.send_replace(());
        }
    }

    /// Returns the mean over the last `window` at all replicas together.
    pub(crate) fn average_of_all(&self, window: Duration) -> RequestDemand {
        let own = self.read(|averager| averager.average(window));
        own + lock(&self.peers).average(window, clock::now())
    }

    /// Returns the mean over the last `window` without what clients report to this replica: of requests that pass through
    /// it, and of all at other replicas.
    pub(crate) fn average_of_others(&self, window: Duration) -> OtherDemand {
        let local = self
            .read(|averager| averager.average(window).total() - averager.average_proxyless(window));
        let peers = lock(&self.peers).average(window, clock::now()).total();
        OtherDemand { local: local.max(0.0), peers }
    }

    /// Returns the rates of requests at all replicas together.
    pub(crate) fn rates_of_all(&self) -> RequestRates {
        self.read(DemandAverager::rates) + lock(&self.peers).rates(clock::now())
    }

    /// True if there is demand now at any replica, for a threshold of 0, or if the average of all
    /// replicas together over the last `window` exceeds `threshold`.
    pub(crate) fn is_active(&self, window: Duration, threshold: f64) -> bool {
        let has_peer_demand =
            || lock(&self.peers).present(clock::now()) != RequestDemand::default();
        self.read(|averager| averager.is_active(window, threshold))
            || (threshold <= 0.0 && has_peer_demand())
            || self.average_of_all(window).total() > threshold
    }

    /// Counts a rejected request; returns until when it adds to the demand.
    pub(crate) fn refuse(&self, worker: usize, at: Time) -> Time {
        let service_time = Duration::from_nanos(self.service_time.load(Ordering::Relaxed));
        let until = lock(&self.workers[worker].rejected).reject(at, service_time);
        self.signal_rise();
        until
    }

    /// Returns the estimated time for which a request holds a slot, in nanoseconds.
    pub(crate) fn service_nanos(&self) -> u64 {
        self.service_time.load(Ordering::Relaxed)
    }

    fn take_back_refusal(&self, worker: usize, until: Time, at: Time) {
        lock(&self.workers[worker].rejected).record_retry(until, at);
    }

    /// Reads the averager, after it has taken in all current counts.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&DemandAverager) -> R) -> R {
        let mut averager = lock(&self.averager);
        self.take_in(&mut averager);
        read(&averager)
    }

    /// Returns the requests of this replica so far, and the mean time for which one holds a slot.
    pub(crate) fn counts(&self) -> (RequestCounts, Option<Duration>) {
        let mut averager = lock(&self.averager);
        let totals = self.take_in(&mut averager);
        (totals.counts(), averager.service_time())
    }

    /// Records all current counts with the averager, and returns them.
    fn take_in(&self, averager: &mut DemandAverager) -> DemandTotals {
        let now = clock::now();
        let mut totals = DemandTotals::default();
        for worker_demand in &self.workers {
            totals += read_shard(&worker_demand.shard);
            totals += lock(&worker_demand.rejected).read(now);
        }
        totals += lock(&self.proxyless).read();
        averager.record(now, totals);
        if let Some(service_time) = averager.service_time() {
            self.service_time.store(service_time.as_nanos() as u64, Ordering::Relaxed);
        }
        totals
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
