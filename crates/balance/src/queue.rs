//! Keeps those who wait in order, and hands them slots: first come, first served among those that may use one.
//!
//! It lies behind one lock per backend, which the caller brings. What happens without that lock is in
//! [`crate::slots`]. The one race here is a grant against a cancel; they meet in one compare-and-swap on the ticket.

use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, OnceLock};

use crate::atomic::{AtomicU8, Ordering};
use crate::endpoint::{Endpoint, EndpointSet};
use crate::pick::{Algorithm, Picker};
use crate::slots::Limits;

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

impl<T> Ticket<T> {
    fn new() -> Self {
        Self { state: AtomicU8::new(WAITING), endpoint: OnceLock::new() }
    }

    /// The slot, once granted: the waiter looks here when woken. Gives it once; it is the caller's to release.
    pub fn granted(&self) -> Option<Arc<Endpoint<T>>> {
        self.moves(GRANTED, TAKEN)
            .then(|| self.endpoint.get().expect("a granted ticket names its endpoint").clone())
    }

    /// Whether this call ended the waiting.
    pub(crate) fn cancel(&self) -> bool {
        self.moves(WAITING, CANCELLED)
    }

    pub(crate) fn is_cancelled(&self) -> bool {
        self.state.load(Ordering::Acquire) == CANCELLED
    }

    fn grant(&self, endpoint: Arc<Endpoint<T>>) -> bool {
        if self.endpoint.set(endpoint).is_err() {
            unreachable!("only a ticket in the queue is granted, and it leaves the queue by that");
        }
        self.moves(WAITING, GRANTED)
    }

    fn moves(&self, from: u8, to: u8) -> bool {
        self.state.compare_exchange(from, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}

impl<T> fmt::Debug for Ticket<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["waiting", "granted", "taken", "cancelled"];
        write!(f, "Ticket({})", names[usize::from(self.state.load(Ordering::Acquire))])
    }
}

/// Those who wait for a slot of one backend. `N` wakes one of them.
pub struct Queue<T, N> {
    pub(crate) set: Arc<EndpointSet<T>>,
    pub(crate) limits: Limits,
    waiters: VecDeque<Waiter<T, N>>,
    /// Chooses when several endpoints have room at once; whatever the backend's algorithm, that is the least loaded.
    picker: Picker,
    /// How long the queue may get before the cancelled are cleared out.
    clear_at: usize,
}

struct Waiter<T, N> {
    ticket: Arc<Ticket<T>>,
    except: Option<Arc<Endpoint<T>>>,
    notify: N,
}

impl<T, N> Queue<T, N> {
    const CLEAR_AT_LEAST: usize = 32;

    /// An empty queue for slots of these endpoints.
    pub fn new(set: Arc<EndpointSet<T>>, limits: Limits) -> Self {
        Self {
            set,
            limits,
            waiters: VecDeque::new(),
            picker: Picker::new(Algorithm::LeastLoad, 0),
            clear_at: Self::CLEAR_AT_LEAST,
        }
    }

    /// Adds a waiter at the end.
    pub(crate) fn push(&mut self, except: Option<Arc<Endpoint<T>>>, notify: N) -> Arc<Ticket<T>> {
        self.clear_cancelled();
        let ticket = Arc::new(Ticket::new());
        self.waiters.push_back(Waiter { ticket: ticket.clone(), except, notify });
        ticket
    }

    /// A slot for a newcomer, unless somebody who waits could use it.
    pub(crate) fn spare_slot(
        &mut self,
        picker: &mut Picker,
        except: Option<&Endpoint<T>>,
    ) -> Option<Arc<Endpoint<T>>> {
        let cap = self.limits.cap;
        self.drop_cancelled_front();
        let Some(first) = self.waiters.front() else {
            return picker.take(&self.set, cap, except);
        };
        // What a waiter may use and is free has its releaser on the way to the lock: it is not for newcomers. That
        // leaves the endpoint that all of them have failed at.
        let shunned = self.set.usable(first.except.as_deref()?)?;
        if cap.is_some_and(|cap| shunned.in_flight() >= cap.get()) {
            return None;
        }
        let nobody_else = self.first_for(shunned).is_none();
        let spare = nobody_else && !self.set.avoids(except, shunned) && shunned.take(cap);
        spare.then(|| shunned.clone())
    }

    /// Offers one slot of an endpoint; gives whom to wake. An endpoint that has left the set grants nothing.
    pub(crate) fn offer(&mut self, endpoint: &Endpoint<T>) -> Option<N> {
        let endpoint = self.set.usable(endpoint)?.clone();
        self.drop_cancelled_front();
        while let Some(position) = self.first_for(&endpoint) {
            if !endpoint.take(self.limits.cap) {
                return None;
            }
            if let Some(notify) = self.grant(position, endpoint.clone()) {
                return Some(notify);
            }
        }
        None
    }

    /// Hands out every slot that somebody who waits may use; gives whom to wake.
    pub(crate) fn offer_all(&mut self) -> Vec<N> {
        let mut woken = Vec::new();
        self.drop_cancelled_front();
        while let Some(first) = self.waiters.front() {
            let except = first.except.as_deref();
            let Some(endpoint) = self.picker.take(&self.set, self.limits.cap, except) else {
                break;
            };
            woken.extend(self.grant(0, endpoint));
            self.drop_cancelled_front();
        }
        // The first finds nothing, so what is free, if anything, is the one it has failed at. Others may use that.
        if let Some(shunned) = self.waiters.front().and_then(|first| first.except.clone()) {
            woken.extend(std::iter::from_fn(|| self.offer(&shunned)));
        }
        woken
    }

    /// Hands a slot, already taken, to a waiter, who leaves the queue. If it has been cancelled the slot goes back.
    fn grant(&mut self, position: usize, endpoint: Arc<Endpoint<T>>) -> Option<N> {
        let waiter = self.waiters.remove(position)?;
        if waiter.ticket.grant(endpoint.clone()) {
            return Some(waiter.notify);
        }
        endpoint.give_back();
        None
    }

    /// The first who still waits and may use the endpoint. The others are passed over, not in the way.
    fn first_for(&self, endpoint: &Endpoint<T>) -> Option<usize> {
        self.waiters.iter().position(|waiter| {
            !waiter.ticket.is_cancelled() && !self.set.avoids(waiter.except.as_deref(), endpoint)
        })
    }

    fn drop_cancelled_front(&mut self) {
        while self.waiters.front().is_some_and(|waiter| waiter.ticket.is_cancelled()) {
            self.waiters.pop_front();
        }
    }

    /// Clears out the cancelled once they could be as many as the others: constant work for each newcomer.
    fn clear_cancelled(&mut self) {
        if self.waiters.len() < self.clear_at {
            return;
        }
        self.waiters.retain(|waiter| !waiter.ticket.is_cancelled());
        self.clear_at = (2 * self.waiters.len()).max(Self::CLEAR_AT_LEAST);
    }
}

impl<T, N> fmt::Debug for Queue<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let tickets: Vec<_> = self.waiters.iter().map(|waiter| &waiter.ticket).collect();
        f.debug_struct("Queue")
            .field("set", &self.set)
            .field("limits", &self.limits)
            .field("tickets", &tickets)
            .finish()
    }
}
