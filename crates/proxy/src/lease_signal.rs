//! Signal from workers and the control side to the thread of the leases.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use balance::limit::LimitSharing;
use balance::peer_reports::{MAX_OUTAGE_REPORTS, MAX_REFUSAL_REPORTS};
use balance::{LeaseValidity, Time};
use tokio::sync::Notify;

use crate::mutex::lock;

/// State that workers and the thread of the leases share.
#[derive(Default)]
pub(crate) struct LeaseSignal {
    pub(crate) validity: LeaseValidity,
    /// Number of changes of backends, endpoints and caps so far.
    generation: AtomicU64,
    /// True if a backend has got demand since this was last taken.
    has_demand_risen: AtomicBool,
    /// Endpoints that have begun to refuse since these were last taken; at most [`MAX_REFUSAL_REPORTS`].
    refusing: Mutex<BTreeSet<SocketAddr>>,
    /// True if an endpoint has been marked unreachable, or ejected, since this was last taken.
    has_new_outage: AtomicBool,
    /// Endpoints that peers cannot reach, for the health thread to check.
    to_check: Mutex<Vec<SocketAddr>>,
    /// Endpoints that peers have ejected, and the times until which the health thread suspects them; at most
    /// [`MAX_OUTAGE_REPORTS`].
    suspected: Mutex<BTreeMap<SocketAddr, Time>>,
    notify: Notify,
    /// Learned limits of all replicas; set if they are shared.
    pub(crate) limit_sharing: OnceLock<Mutex<LimitSharing>>,
}

impl LeaseSignal {
    /// Wakes the thread: a request is queued, or a slot is free that a peer may get.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    /// Wakes the thread, because backends, endpoints or caps have changed.
    pub(crate) fn record_change(&self) {
        self.generation.fetch_add(1, Ordering::Release);
        self.wake();
    }

    /// Wakes the thread, because a backend without demand has got some.
    pub(crate) fn record_demand_rise(&self) {
        self.has_demand_risen.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn take_demand_rise(&self) -> bool {
        self.has_demand_risen.swap(false, Ordering::AcqRel)
    }

    /// Wakes the thread, because an endpoint has begun to refuse. If the thread does not run and too many wait for it,
    /// this one is dropped: a message would have no room for it.
    pub(crate) fn record_refusing(&self, endpoint: SocketAddr) {
        let mut refusing = lock(&self.refusing);
        if refusing.len() < MAX_REFUSAL_REPORTS {
            refusing.insert(endpoint);
        }
        drop(refusing);
        self.wake();
    }

    pub(crate) fn take_refusing(&self) -> BTreeSet<SocketAddr> {
        std::mem::take(&mut lock(&self.refusing))
    }

    /// Wakes the thread, because an endpoint has been marked unreachable, or ejected.
    pub(crate) fn record_outage(&self) {
        self.has_new_outage.store(true, Ordering::Release);
        self.wake();
    }

    pub(crate) fn take_new_outage(&self) -> bool {
        self.has_new_outage.swap(false, Ordering::AcqRel)
    }

    /// Has an endpoint checked; the caller wakes the health thread. If too many wait for a check, this one is dropped.
    pub(crate) fn request_check(&self, endpoint: SocketAddr) {
        let mut to_check = lock(&self.to_check);
        if to_check.len() < MAX_OUTAGE_REPORTS {
            to_check.push(endpoint);
        }
    }

    pub(crate) fn take_checks(&self) -> Vec<SocketAddr> {
        std::mem::take(&mut lock(&self.to_check))
    }

    /// Has an endpoint suspected; the caller wakes the health thread. If too many wait for it, this one is dropped.
    pub(crate) fn request_suspicion(&self, endpoint: SocketAddr, until: Time) {
        let mut suspected = lock(&self.suspected);
        if suspected.len() < MAX_OUTAGE_REPORTS {
            suspected.insert(endpoint, until);
        }
    }

    pub(crate) fn take_suspected(&self) -> BTreeMap<SocketAddr, Time> {
        std::mem::take(&mut lock(&self.suspected))
    }

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Waits for the next call of [`wake`](Self::wake); one since the last wait counts.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn endpoints_that_refuse_are_bounded_while_the_thread_does_not_run() {
        let signal = LeaseSignal::default();
        let address = |port| SocketAddr::from(([10, 0, 0, 1], port));
        for port in 0..2_000 {
            // An endpoint that begins to refuse again and again counts once.
            signal.record_refusing(address(port % 10));
        }
        assert_eq!(signal.take_refusing().len(), 10);
        (0..2_000).for_each(|port| signal.record_refusing(address(port)));
        assert_eq!(signal.take_refusing().len(), MAX_REFUSAL_REPORTS);
        assert!(signal.take_refusing().is_empty());
    }
}
