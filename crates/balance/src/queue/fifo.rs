//! Waiters in the order in which they came.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::parameters::QueueParameters;
use super::ticket::Ticket;
use crate::pick::{EligibleEndpoints, PickConstraints};
use crate::time::Time;

/// Who waits, for what, and how it is woken.
pub(super) struct QueueEntry<T, N> {
    /// Counts up with each who comes.
    pub(super) arrival: u64,
    /// When it came.
    pub(super) since: Time,
    pub(super) parameters: QueueParameters,
    pub(super) ticket: Arc<Ticket<T>>,
    pub(super) constraints: PickConstraints<T>,
    /// What it wants comes to this in the queue's set.
    pub(super) eligible: EligibleEndpoints,
    pub(super) notify: N,
    /// How often younger ones of a higher priority have gone before it, though it was the first of its line.
    pub(super) overtaken: u32,
}

impl<T, N> QueueEntry<T, N> {
    fn is_cancelled(&self) -> bool {
        !self.ticket.is_waiting()
    }
}

/// Waiters in order. Those who have given up stay until they are first or are cleared away.
pub(super) struct EntryFifo<T, N>(VecDeque<QueueEntry<T, N>>);

impl<T, N> EntryFifo<T, N> {
    /// So many of those who have given up included.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, waiter: QueueEntry<T, N>) {
        self.0.push_back(waiter);
    }

    pub(super) fn remove(&mut self, position: usize) -> Option<QueueEntry<T, N>> {
        self.0.remove(position)
    }

    /// A younger one of a higher priority goes before who has this place.
    pub(super) fn count_overtaken(&mut self, position: usize) {
        if let Some(waiter) = self.0.get_mut(position) {
            waiter.overtaken += 1;
        }
    }

    /// The first who still waits.
    pub(super) fn first(&mut self) -> Option<&QueueEntry<T, N>> {
        while self.0.front().is_some_and(QueueEntry::is_cancelled) {
            self.0.pop_front();
        }
        self.0.front()
    }

    /// The last who still waits.
    pub(super) fn last(&mut self) -> Option<&QueueEntry<T, N>> {
        while self.0.back().is_some_and(QueueEntry::is_cancelled) {
            self.0.pop_back();
        }
        self.0.back()
    }

    pub(super) fn remove_last(&mut self) -> Option<QueueEntry<T, N>> {
        self.0.pop_back()
    }

    /// The first who still waits and may use the member, and its place. The others are passed over, not in the way.
    pub(super) fn first_for(&mut self, member: usize) -> Option<(usize, &QueueEntry<T, N>)> {
        self.first();
        let mut waiters = self.0.iter().enumerate();
        waiters.find(|(_, waiter)| waiter.eligible.allows(member) && !waiter.is_cancelled())
    }

    pub(super) fn remove_cancelled(&mut self) {
        self.0.retain(|waiter| !waiter.is_cancelled());
    }

    pub(super) fn into_waiters(self) -> impl Iterator<Item = QueueEntry<T, N>> {
        self.0.into_iter()
    }
}

impl<T, N> Default for EntryFifo<T, N> {
    fn default() -> Self {
        Self(VecDeque::new())
    }
}

impl<T, N> fmt::Debug for EntryFifo<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(self.0.iter().map(|waiter| &waiter.ticket)).finish()
    }
}
