//! Waiters in the order in which they came.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::rank::Rank;
use super::ticket::Ticket;
use crate::pick::{Claim, Wants};
use crate::time::Time;

/// Who waits, for what, and how it is woken.
pub(super) struct Waiter<T, N> {
    /// Counts up with each who comes.
    pub(super) arrival: u64,
    /// When it came.
    pub(super) since: Time,
    pub(super) rank: Rank,
    pub(super) ticket: Arc<Ticket<T>>,
    pub(super) wants: Wants<T>,
    /// What it wants comes to this in the queue's set.
    pub(super) claim: Claim,
    pub(super) notify: N,
    /// How often younger ones of a higher priority have gone before it, though it was the first of its line.
    pub(super) passed: u32,
}

impl<T, N> Waiter<T, N> {
    fn has_left(&self) -> bool {
        !self.ticket.is_waiting()
    }
}

/// Waiters in order. Those who have given up stay until they are first or are cleared away.
pub(super) struct Line<T, N>(VecDeque<Waiter<T, N>>);

impl<T, N> Line<T, N> {
    /// So many of those who have given up included.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, waiter: Waiter<T, N>) {
        self.0.push_back(waiter);
    }

    pub(super) fn remove(&mut self, position: usize) -> Option<Waiter<T, N>> {
        self.0.remove(position)
    }

    /// A younger one of a higher priority goes before who has this place.
    pub(super) fn is_passed(&mut self, position: usize) {
        if let Some(waiter) = self.0.get_mut(position) {
            waiter.passed += 1;
        }
    }

    /// The first who still waits.
    pub(super) fn first(&mut self) -> Option<&Waiter<T, N>> {
        while self.0.front().is_some_and(Waiter::has_left) {
            self.0.pop_front();
        }
        self.0.front()
    }

    /// The last who still waits.
    pub(super) fn last(&mut self) -> Option<&Waiter<T, N>> {
        while self.0.back().is_some_and(Waiter::has_left) {
            self.0.pop_back();
        }
        self.0.back()
    }

    pub(super) fn remove_last(&mut self) -> Option<Waiter<T, N>> {
        self.0.pop_back()
    }

    /// The first who still waits and may use the member, and its place. The others are passed over, not in the way.
    pub(super) fn first_for(&mut self, member: usize) -> Option<(usize, &Waiter<T, N>)> {
        self.first();
        let mut waiters = self.0.iter().enumerate();
        waiters.find(|(_, waiter)| waiter.claim.allows(member) && !waiter.has_left())
    }

    pub(super) fn clear_left(&mut self) {
        self.0.retain(|waiter| !waiter.has_left());
    }

    pub(super) fn into_waiters(self) -> impl Iterator<Item = Waiter<T, N>> {
        self.0.into_iter()
    }
}

impl<T, N> Default for Line<T, N> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T, N> fmt::Debug for Line<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|waiter| &waiter.ticket)).finish()
    }
}
