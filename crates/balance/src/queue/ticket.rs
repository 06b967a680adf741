//! A place in the queue. A grant and a cancel meet in one compare-and-swap on it.

use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::atomic::{AtomicU8, Ordering};
use crate::endpoint::Endpoint;
use crate::slots::AdmissionRejection;

/// A place in the queue, shared by the queue and the one who waits.
///
/// A ticket that is dropped while granted would leak a slot. Whoever stops waiting calls
/// [`Admission::cancel`](crate::Admission::cancel) first and, if that says `false`, releases what
/// [`granted`](Self::granted) still gives.
pub struct Ticket<T> {
    state: AtomicU8,
    /// Set before the state becomes `GRANTED`, under the queue's lock, so that no `set` ever waits for another.
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

    /// The slot, once granted: the waiter looks here when woken. Gives it once; it is the caller's to release.
    pub fn granted(&self) -> Option<Arc<Endpoint<T>>> {
        self.transition(GRANTED, TAKEN)
            .then(|| self.endpoint.get().expect("a granted ticket names its endpoint").clone())
    }

    /// Why it waits no longer though it has no slot: the waiter looks here too when woken.
    pub fn refused(&self) -> Option<AdmissionRejection> {
        match self.state() {
            EVICTED => Some(AdmissionRejection::Evicted),
            SHED => Some(AdmissionRejection::Shed),
            _ => None,
        }
    }

    /// Whether this call ended the waiting.
    pub(crate) fn cancel(&self) -> bool {
        self.transition(WAITING, CANCELLED)
    }

    pub(super) fn is_waiting(&self) -> bool {
        self.state() == WAITING
    }

    /// It waits no longer and was not granted.
    pub(crate) fn is_over(&self) -> bool {
        matches!(self.state(), CANCELLED | EVICTED | SHED)
    }

    /// Ends the waiting without a slot, unless it is over.
    pub(super) fn refuse(&self, refusal: AdmissionRejection) -> bool {
        self.transition(WAITING, if refusal == AdmissionRejection::Shed { SHED } else { EVICTED })
    }

    pub(super) fn grant(&self, endpoint: Arc<Endpoint<T>>) -> bool {
        if self.endpoint.set(endpoint).is_err() {
            unreachable!("only a ticket in the queue is granted, and it leaves the queue by that");
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
        let names = ["waiting", "granted", "taken", "cancelled", "turned out", "let go"];
        write!(f, "Ticket({})", names[usize::from(self.state())])
    }
}
