//! Signals of workers that a key set should be fetched again, because a token names a key that is not in it.

use std::collections::BTreeSet;
use std::sync::{Arc, Mutex};

use gateway::jwks::JwksSubscription;
use tokio::sync::Notify;

use crate::mutex::lock;

/// Maximum number of key sets that wait to be fetched again.
const MAX_WAITING: usize = 1024;

/// Key sets that should be fetched again.
#[derive(Default)]
pub(crate) struct KeySetRefresh {
    waiting: Mutex<BTreeSet<Arc<JwksSubscription>>>,
    notify: Notify,
}

impl KeySetRefresh {
    /// Asks that a key set be fetched again.
    pub(super) fn ask(&self, subscription: &Arc<JwksSubscription>) {
        let mut waiting = lock(&self.waiting);
        if waiting.len() < MAX_WAITING {
            waiting.insert(Arc::clone(subscription));
        }
        drop(waiting);
        self.notify.notify_one();
    }

    /// Waits for key sets to fetch again, and returns them. Cancel-safe.
    pub(crate) async fn asked(&self) -> BTreeSet<Arc<JwksSubscription>> {
        loop {
            let asked = std::mem::take(&mut *lock(&self.waiting));
            if !asked.is_empty() {
                return asked;
            }
            self.notify.notified().await;
        }
    }
}
