//! Queue entries in the order of arrival.

use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;

use super::parameters::QueueParameters;
use super::ticket::Ticket;
use crate::pick::{EligibleEndpoints, PickConstraints};
use crate::time::Time;

/// Queued request: its constraints, its ticket and its waker.
pub(super) struct QueueEntry<T, N> {
    /// Arrival number.
    pub(super) arrival: u64,
    /// Arrival time.
    pub(super) since: Time,
    pub(super) parameters: QueueParameters,
    pub(super) ticket: Arc<Ticket<T>>,
    pub(super) constraints: PickConstraints<T>,
    /// Members of the queue's set that satisfy the constraints.
    pub(super) eligible: EligibleEndpoints,
    pub(super) notify: N,
    /// Number of times that younger requests of a higher priority have overtaken it, though it was
    /// the first of its line.
    pub(super) overtaken: u32,
}

impl<T, N> QueueEntry<T, N> {
    fn is_cancelled(&self) -> bool {
        !self.ticket.is_waiting()
    }
}

/// Queue entries in order. Cancelled ones stay until they are first or are removed.
pub(super) struct EntryFifo<T, N>(VecDeque<QueueEntry<T, N>>);

impl<T, N> EntryFifo<T, N> {
    /// Returns the number of entries, cancelled ones included.
    pub(super) fn len(&self) -> usize {
        self.0.len()
    }

    pub(super) fn push(&mut self, waiter: QueueEntry<T, N>) {
        self.0.push_back(waiter);
    }

    pub(super) fn remove(&mut self, position: usize) -> Option<QueueEntry<T, N>> {
        self.0.remove(position)
    }

    /// Counts that a younger request of a higher priority has overtaken the entry at this position.
    pub(super) fn count_overtaken(&mut self, position: usize) {
        if let Some(waiter) = self.0.get_mut(position) {
            waiter.overtaken += 1;
        }
    }

    /// Returns the first entry that is not cancelled.
    pub(super) fn first(&mut self) -> Option<&QueueEntry<T, N>> {
        while self.0.front().is_some_and(QueueEntry::is_cancelled) {
            self.0.pop_front();
        }
        self.0.front()
    }

    /// Returns the last entry that is not cancelled.
    pub(super) fn last(&mut self) -> Option<&QueueEntry<T, N>> {
        while self.0.back().is_some_and(QueueEntry::is_cancelled) {
            self.0.pop_back();
        }
        self.0.back()
    }

    pub(super) fn remove_last(&mut self) -> Option<QueueEntry<T, N>> {
        self.0.pop_back()
    }

    /// Returns the first entry that is not cancelled and may use the member, and its position. The
    /// entries before it are skipped and do not block it.
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
