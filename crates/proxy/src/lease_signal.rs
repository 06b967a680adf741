//! Signal from workers and the control side to the thread of the leases.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, OnceLock};

use balance::LeaseValidity;
use balance::limit::LimitSharing;
use tokio::sync::Notify;

/// State that workers and the thread of the leases share.
#[derive(Debug, Default)]
pub(crate) struct LeaseSignal {
    pub(crate) validity: LeaseValidity,
    /// Number of changes of backends, endpoints and caps so far.
    generation: AtomicU64,
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

    pub(crate) fn generation(&self) -> u64 {
        self.generation.load(Ordering::Acquire)
    }

    /// Waits for the next call of [`wake`](Self::wake); one since the last wait counts.
    pub(crate) async fn woken(&self) {
        self.notify.notified().await;
    }
}
