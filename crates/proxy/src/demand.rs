//! How much a backend is asked for, as its workers count it and the control side reads it.
//!
//! What it comes to is [`balance::demand`]'s affair. Here is who counts where: each worker in a part of its own, whoever
//! wants to know in a `FloodDetector` behind a lock that no request takes.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use balance::Time;
use balance::demand::{
    ASSUMED_SERVICE_TIME, DemandAverager, DemandShard, DemandTotals, RejectedDemand,
};
use tokio::sync::watch;

use crate::backend::Backend;
use crate::clock;
use crate::dial::pool::lock;
use crate::worker::ProxyState;

/// How often what workers count is taken in.
const TICK: Duration = Duration::from_millis(250);
/// Refused requests of one client's connection that can be taken back; what is beyond counts in full.
const MAX_REMEMBERED: usize = 128;

/// The demand for one backend.
pub(crate) struct DemandTracker {
    workers: Box<[WorkerDemand]>,
    averager: Mutex<DemandAverager>,
    /// How long a refused request would have held a slot, in nanoseconds.
    service_time: AtomicU64,
    /// Somebody wants to be told of the next request that does not get its slot at once.
    is_awaited: AtomicBool,
    rise_signal: watch::Sender<()>,
}

/// One worker's part.
#[repr(align(64))]
struct WorkerDemand {
    shard: DemandShard,
    /// Taken when a request is refused, and by who reads.
    rejected: Mutex<RejectedDemand>,
}

impl DemandTracker {
    pub(crate) fn new(workers: usize) -> Self {
        let own = |_| WorkerDemand { shard: DemandShard::new(), rejected: Mutex::default() };
        Self {
            workers: (0..workers).map(own).collect(),
            averager: Mutex::new(DemandAverager::new(clock::now())),
            service_time: AtomicU64::new(ASSUMED_SERVICE_TIME.as_nanos() as u64),
            is_awaited: AtomicBool::new(false),
            rise_signal: watch::Sender::new(()),
        }
    }

    /// The worker's own part: nobody else writes there.
    pub(crate) fn shard(&self, worker: usize) -> &DemandShard {
        &self.workers[worker].shard
    }

    /// A request waits, or has been refused: who awaits that is told, once.
    pub(crate) fn signal_rise(&self) {
        // Behind what has been counted: of who counts and who asks to be told, one sees the other.
        fence(Ordering::SeqCst);
        if self.is_awaited.load(Ordering::Relaxed) && self.is_awaited.swap(false, Ordering::Relaxed)
        {
            self.rise_signal.send_replace(());
        }
    }

    /// Is told when a request does not get its slot at once, and after [`expect_rise`](Self::expect_rise) only.
    pub(crate) fn subscribe_rises(&self) -> watch::Receiver<()> {
        self.rise_signal.subscribe()
    }

    /// From now on the next such request is told of. Who looks after that at what there is misses none.
    pub(crate) fn expect_rise(&self) {
        self.is_awaited.store(true, Ordering::Relaxed);
        fence(Ordering::SeqCst);
    }

    /// A request has been refused; gives until when it counts.
    pub(crate) fn refuse(&self, worker: usize, at: Time) -> Time {
        let service_time = Duration::from_nanos(self.service_time.load(Ordering::Relaxed));
        let until = lock(&self.workers[worker].rejected).reject(at, service_time);
        self.signal_rise();
        until
    }

    fn take_back_refusal(&self, worker: usize, until: Time, at: Time) {
        lock(&self.workers[worker].rejected).record_retry(until, at);
    }

    /// What the meter says, once it has taken in all that there is now.
    pub(crate) fn read<R>(&self, read: impl FnOnce(&DemandAverager) -> R) -> R {
        let mut meter = lock(&self.averager);
        let now = clock::now();
        let mut totals = DemandTotals::default();
        for own in &self.workers {
            totals += read_shard(&own.shard);
            totals += lock(&own.rejected).read(now);
        }
        meter.record(now, totals);
        if let Some(service_time) = meter.service_time() {
            self.service_time.store(service_time.as_nanos() as u64, Ordering::Relaxed);
        }
        read(&meter)
    }
}

/// A worker writes for some nanoseconds; if it loses its processor meanwhile, others need theirs less.
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

/// Takes in what workers count, for ever.
pub(crate) async fn run_averaging(shared: Arc<ProxyState>) {
    let mut ticks = tokio::time::interval(TICK);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        for backend in &shared.config.load().backends {
            backend.demand.read(|_| ());
        }
    }
}

/// What one client's connection has been refused and not asked for again.
#[derive(Default)]
pub(crate) struct RefusalHistory(VecDeque<RefusedRequest>);

/// A request that was turned away.
struct RefusedRequest {
    backend: Arc<Backend>,
    worker: usize,
    until: Time,
}

impl RefusalHistory {
    /// The client asks the backend: if it was refused before, that counts no longer.
    pub(crate) fn take_back(&mut self, backend: &Arc<Backend>, at: Time) {
        if !self.0.is_empty() {
            self.take_back_one(backend, at);
        }
    }

    #[cold]
    fn take_back_one(&mut self, backend: &Arc<Backend>, at: Time) {
        self.0.retain(|turned| turned.until > at);
        let place = self.0.iter().position(|turned| Arc::ptr_eq(&turned.backend, backend));
        if let Some(turned) = place.and_then(|place| self.0.remove(place)) {
            turned.backend.demand.take_back_refusal(turned.worker, turned.until, at);
        }
    }

    /// The client got no slot of the backend's.
    pub(crate) fn record_refusal(&mut self, backend: &Arc<Backend>, worker: usize, at: Time) {
        let until = backend.demand.refuse(worker, at);
        if self.0.len() == MAX_REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(RefusedRequest { backend: Arc::clone(backend), worker, until });
    }
}

#[cfg(test)]
mod tests;
