//! Keeps those who wait in order, and hands them slots: first come, first served among those that may use one.
//!
//! It lies behind one lock per backend, which the caller brings. What happens without that lock is in
//! [`crate::slots`]. The one race here is a grant against a cancel; they meet in one compare-and-swap on the ticket.
//!
//! Who can be served by one endpoint only stands in that endpoint's line, all others in the common one. So nobody is
//! in the way of those whom another endpoint can serve, however long the line of one endpoint is.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::mem;
use std::sync::Arc;

use crate::endpoint::{Endpoint, EndpointSet};
use crate::load::Room;
use crate::pick::{Algorithm, Claim, Picker, Wants, Wish};
use crate::slots::Limits;

/// A place in the queue.
mod ticket;
/// Waiters in order.
mod line;

use line::{Line, Waiter};
pub use ticket::Ticket;

/// Those who wait for a slot of one backend. `N` wakes one of them.
pub struct Queue<T, N> {
    set: Arc<EndpointSet<T>>,
    limits: Limits,
    /// Those whom more than one endpoint can serve.
    common: Line<T, N>,
    /// Those whom this member alone can serve.
    bound: BTreeMap<usize, Line<T, N>>,
    arrivals: u64,
    /// Chooses when several endpoints have room at once; whatever the backend's algorithm, that is the least loaded.
    picker: Picker,
    /// How long the queue may get before the cancelled are cleared out.
    clear_at: usize,
}

/// In which line the next to be served stands, and where.
enum Place {
    Common(usize),
    Bound(usize),
}

impl<T, N> Queue<T, N> {
    const CLEAR_AT_LEAST: usize = 32;

    /// An empty queue for slots of these endpoints.
    pub fn new(set: Arc<EndpointSet<T>>, limits: Limits) -> Self {
        Self {
            set,
            limits,
            common: Line::default(),
            bound: BTreeMap::new(),
            arrivals: 0,
            picker: Picker::new(Algorithm::LeastLoad, 0),
            clear_at: Self::CLEAR_AT_LEAST,
        }
    }

    pub(crate) fn set(&self) -> &EndpointSet<T> {
        &self.set
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Whether each who waits can be served by one endpoint only.
    pub(crate) fn is_bound(&self) -> bool {
        self.common.len() == 0
    }

    /// Adds a waiter at the end.
    pub(crate) fn push(&mut self, wants: Wants<T>, notify: N) -> Arc<Ticket<T>> {
        self.clear_cancelled();
        let ticket = Arc::new(Ticket::new());
        let claim = wants.claim(&self.set);
        self.stand(Waiter { arrival: self.arrivals, ticket: ticket.clone(), wants, claim, notify });
        self.arrivals += 1;
        ticket
    }

    /// From now on these are in force. Each who waits stands where it belongs in the new set, in the old order.
    pub(crate) fn replace(&mut self, set: Arc<EndpointSet<T>>, limits: Limits) {
        (self.set, self.limits) = (set, limits);
        let lines =
            iter::once(mem::take(&mut self.common)).chain(mem::take(&mut self.bound).into_values());
        let mut waiters: Vec<_> = lines.flat_map(Line::into_waiters).collect();
        waiters.sort_unstable_by_key(|waiter| waiter.arrival);
        for waiter in waiters {
            let claim = waiter.wants.claim(&self.set);
            self.stand(Waiter { claim, ..waiter });
        }
    }

    /// A slot for a newcomer, unless somebody who waits could use it.
    ///
    /// What a waiter may use and is free has its releaser on the way to the lock: it is not for newcomers.
    pub(crate) fn spare_slot(
        &mut self,
        picker: &mut Picker,
        wish: &Wish<'_, T>,
    ) -> Option<Arc<Endpoint<T>>> {
        let cap = self.limits.cap;
        let Some(first) = self.common.first() else {
            self.bound.retain(|_, line| line.first().is_some());
            let barred = |member| self.bound.contains_key(&member);
            return picker.take_beside(&self.set, cap, wish, &barred);
        };
        // That leaves the endpoint that all of them have failed at.
        let Claim::But(shunned) = first.claim else { return None };
        let spare = picker.claim(&self.set, wish).allows(shunned) && self.next(shunned).is_none();
        if spare { self.set.take(shunned, Room::within(cap)) } else { None }
    }

    /// Offers one slot of an endpoint; gives whom to wake. An endpoint that has left the set grants nothing.
    pub(crate) fn offer(&mut self, endpoint: &Endpoint<T>) -> Option<N> {
        let member = self.set.position(endpoint)?;
        self.offer_member(member)
    }

    /// Hands out every slot that somebody who waits may use; gives whom to wake.
    pub(crate) fn offer_all(&mut self) -> Vec<N> {
        let mut woken = Vec::new();
        while let Some(first) = self.common.first() {
            let wish = first.wants.wish();
            let Some(endpoint) = self.picker.take(&self.set, self.limits.cap, &wish) else {
                break;
            };
            woken.extend(self.grant(endpoint));
        }
        // The first finds nothing, so what is free, if anything, is the one it has failed at. Others may use that, or
        // are bound to it. Without a first, each who is bound is asked.
        let members: Vec<usize> = match self.common.first().map(|first| first.claim) {
            Some(Claim::But(shunned)) => vec![shunned],
            Some(Claim::Any | Claim::Only(_)) => Vec::new(),
            None => self.bound.keys().copied().collect(),
        };
        for member in members {
            woken.extend(iter::from_fn(|| self.offer_member(member)));
        }
        woken
    }

    fn offer_member(&mut self, member: usize) -> Option<N> {
        while self.next(member).is_some() {
            let endpoint = self.set.take(member, Room::within(self.limits.cap))?;
            if let Some(notify) = self.grant(endpoint) {
                return Some(notify);
            }
        }
        None
    }

    /// Hands a slot, already taken, to the next who may use it, who leaves the queue. If there is none any more, or it
    /// has given up, the slot goes back.
    fn grant(&mut self, endpoint: Arc<Endpoint<T>>) -> Option<N> {
        let waiter = self.set.position(&endpoint).and_then(|member| self.remove_next(member));
        if let Some(waiter) = waiter
            && waiter.ticket.grant(endpoint.clone())
        {
            return Some(waiter.notify);
        }
        endpoint.give_back();
        None
    }

    /// Who came first of those who still wait and may use the member.
    fn next(&mut self, member: usize) -> Option<Place> {
        let common = self.common.first_for(member);
        let common = common.map(|(place, waiter)| (waiter.arrival, Place::Common(place)));
        let bound = self.bound.get_mut(&member).and_then(Line::first);
        let bound = bound.map(|waiter| (waiter.arrival, Place::Bound(member)));
        let first = common.into_iter().chain(bound).min_by_key(|&(arrival, _)| arrival);
        first.map(|(_, place)| place)
    }

    fn remove_next(&mut self, member: usize) -> Option<Waiter<T, N>> {
        match self.next(member)? {
            Place::Common(place) => self.common.remove(place),
            Place::Bound(member) => self.bound.get_mut(&member)?.remove(0),
        }
    }

    /// Puts a waiter at the end of the line that it belongs to.
    fn stand(&mut self, waiter: Waiter<T, N>) {
        let line = match waiter.claim {
            Claim::Only(member) => self.bound.entry(member).or_default(),
            Claim::Any | Claim::But(_) => &mut self.common,
        };
        line.push(waiter);
    }

    /// Clears out the cancelled once they could be as many as the others: constant work for each newcomer.
    fn clear_cancelled(&mut self) {
        if self.len() < self.clear_at {
            return;
        }
        self.common.clear_cancelled();
        self.bound.values_mut().for_each(Line::clear_cancelled);
        self.bound.retain(|_, line| line.len() > 0);
        self.clear_at = (2 * self.len()).max(Self::CLEAR_AT_LEAST);
    }

    /// How many are in it, those who have given up included.
    fn len(&self) -> usize {
        self.common.len() + self.bound.values().map(Line::len).sum::<usize>()
    }
}

impl<T, N> fmt::Debug for Queue<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Queue")
            .field("set", &self.set)
            .field("limits", &self.limits)
            .field("common", &self.common)
            .field("bound", &self.bound)
            .finish()
    }
}
