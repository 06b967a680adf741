//! Waiters in the order in which they came.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::ticket::Ticket;
use crate::pick::{Claim, Wants};

/// Who waits, for what, and how it is woken.
pub(super) struct Waiter<T, N> {
    /// Counts up with each who comes.
    pub(super) arrival: u64,
    pub(super) ticket: Arc<Ticket<T>>,
    pub(super) wants: Wants<T>,
    /// What it wants comes to this in the queue's set.
    pub(super) claim: Claim,
    pub(super) notify: N,
}

impl<T, N> Waiter<T, N> {
    fn is_cancelled(&self) -> bool {
        self.ticket.is_cancelled()
    }
}

/// Waiters in order. Those who have given up stay until they are first or are cleared away.
pub(super) struct Line<T, N>(VecDeque<Waiter<T, N>>);

impl<T, N> Line<T, N> {
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, waiter: Waiter<T, N>) {
        self.0.push_back(waiter);
    }

    pub(super) fn remove(&mut self, position: usize) -> Option<Waiter<T, N>> {
        self.0.remove(position)
    }

    /// The first who still waits.
    pub(super) fn first(&mut self) -> Option<&Waiter<T, N>> {
        while self.0.front().is_some_and(Waiter::is_cancelled) {
            self.0.pop_front();
        }
        self.0.front()
    }

    /// The first who still waits and may use the member, and its place. The others are passed over, not in the way.
    pub(super) fn first_for(&mut self, member: usize) -> Option<(usize, &Waiter<T, N>)> {
        self.first();
        let mut waiters = self.0.iter().enumerate();
        waiters.find(|(_, waiter)| waiter.claim.allows(member) && !waiter.is_cancelled())
    }

    pub(super) fn clear_cancelled(&mut self) {
        self.0.retain(|waiter| !waiter.is_cancelled());
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
