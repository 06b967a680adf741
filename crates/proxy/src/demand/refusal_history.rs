//! Rejected requests of one client connection, until they are retried or forgotten.

use std::collections::VecDeque;
use std::sync::Arc;

use balance::Time;

use crate::backend::Backend;

/// Number of rejected requests of one client connection that a retry can withdraw; the rest count
/// in full.
pub(super) const MAX_REMEMBERED: usize = 128;

/// Rejected requests of one client connection that have not been retried yet.
#[derive(Default)]
pub(crate) struct RefusalHistory(pub(super) VecDeque<RefusedRequest>);

/// Request that was rejected.
pub(super) struct RefusedRequest {
    backend: Arc<Backend>,
    worker: usize,
    until: Time,
}

impl RefusalHistory {
    /// Withdraws one earlier rejection of this client's by the backend, as the client retries it
    /// now.
    pub(crate) fn take_back(&mut self, backend: &Arc<Backend>, at: Time) {
        if !self.0.is_empty() {
            self.take_back_one(backend, at);
        }
    }

    #[cold]
    fn take_back_one(&mut self, backend: &Arc<Backend>, at: Time) {
        self.0.retain(|refused| refused.until > at);
        let place = self.0.iter().position(|refused| Arc::ptr_eq(&refused.backend, backend));
        if let Some(refused) = place.and_then(|place| self.0.remove(place)) {
            refused.backend.demand.take_back_refusal(refused.worker, refused.until, at);
        }
    }

    /// Records that the client got no slot of the backend.
    pub(crate) fn record_refusal(&mut self, backend: &Arc<Backend>, worker: usize, at: Time) {
        let until = backend.demand.refuse(worker, at);
        if self.0.len() == MAX_REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(RefusedRequest { backend: Arc::clone(backend), worker, until });
    }
}
