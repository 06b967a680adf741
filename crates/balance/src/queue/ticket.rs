//! Ticket of a queued request. The race of a grant and a cancellation is decided by one
//! compare-and-swap on it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::atomic::{AtomicU8, Ordering};
use crate::endpoint::Endpoint;
use crate::slots::AdmissionRejection;

/// Ticket of a queued request, shared by the queue and the waiting request.
///
/// Dropping a granted ticket would leak a slot. A request that stops waiting calls
/// [`Admission::cancel`](crate::Admission::cancel) first. If that returns `false`, the request
/// releases the slot that [`granted`](Self::granted) still returns.
pub struct Ticket<T> {
    state: AtomicU8,
    /// Endpoint of the slot. It is set before the state becomes `GRANTED`, under the queue's lock,
    /// so no `set` ever waits for another.
    endpoint: OnceLock<Arc<Endpoint<T>>>,
}

const WAITING: u8 = 0;
const GRANTED: u8 = 1;
const TAKEN: u8 = 2;
const CANCELLED: u8 = 3;
const EVICTED: u8 = 4;
const SHED: u8 = 5;

impl<T> Ticket<T> {
    pub(super) fn new() -> Self {
        Self { state: AtomicU8::new(WAITING), endpoint: OnceLock::new() }
    }

    /// Returns the slot, once granted. A request calls this when it is woken. The slot is returned
    /// once, and the caller has to release it.
    pub fn granted(&self) -> Option<Arc<Endpoint<T>>> {
        self.transition(GRANTED, TAKEN)
            .then(|| self.endpoint.get().expect("a granted ticket names its endpoint").clone())
    }

    /// Returns the rejection of a request that no longer waits and has no slot. A request calls
    /// this too when it is woken.
    pub fn refused(&self) -> Option<AdmissionRejection> {
        match self.state() {
            EVICTED => Some(AdmissionRejection::Evicted),
            SHED => Some(AdmissionRejection::Shed),
            _ => None,
        }
    }

    /// Cancels the wait; true if this call ended it.
    pub(crate) fn cancel(&self) -> bool {
        self.transition(WAITING, CANCELLED)
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state() == WAITING
    }

    /// True if it no longer waits and was not granted.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state(), CANCELLED | EVICTED | SHED)
    }

    /// Ends the wait without a slot; true unless it was over already.
    pub(super) fn refuse(&self, refusal: AdmissionRejection) -> bool {
        self.transition(WAITING, if refusal == AdmissionRejection::Shed { SHED } else { EVICTED })
    }

    pub(super) fn grant(&self, endpoint: Arc<Endpoint<T>>) -> bool {
        if self.endpoint.set(endpoint).is_err() {
            unreachable!(
                "only a ticket in the queue is granted, and the grant removes it from the queue"
            );
        }
        self.transition(WAITING, GRANTED)
    }

    fn state(&self) -> u8 {
        self.state.load(Ordering::Acquire)
    }

    fn transition(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["waiting", "granted", "taken", "cancelled", "evicted", "shed"];
        write!(f, "Ticket({})", names[usize::from(self.state())])
    }
}
