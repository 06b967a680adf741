//! Fair-queueing flow: the queued requests of one priority and route, first come, first served
//! among those that may use a slot.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::mem;

use super::fifo::{EntryFifo, QueueEntry};
use super::parameters::{PriorityLevel, QueueParameters};
use crate::pick::EligibleEndpoints;
use crate::time::Time;

/// Key of a fair-queueing flow: priority and route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct QueueFlowKey {
    pub(super) priority: PriorityLevel,
    pub(super) route: u64,
}

impl QueueFlowKey {
    /// Number that no flow has.
    pub(crate) const NONE: u64 = u64::MAX;

    pub(crate) fn of(parameters: &QueueParameters, fair: bool) -> Self {
        Self { priority: parameters.priority, route: if fair { parameters.route } else { 0 } }
    }

    /// Returns the key as one number. Routes that are 2^56 apart would have the same number.
    pub(crate) fn as_number(self) -> u64 {
        u64::from(self.priority.number()) << 56 | (self.route & (u64::MAX >> 8))
    }
}

/// Queued requests of one flow.
pub(super) struct QueueFlow<T, N> {
    pub(super) key: QueueFlowKey,
    /// Virtual start time of its next request among the flows of its priority; each grant adds one
    /// (start-time fair queueing, Goyal, Vin and Cheng 1996, with a cost of one for each request).
    pub(super) virtual_time: u64,
    /// Requests that more than one endpoint can serve.
    pub(super) common: EntryFifo<T, N>,
    /// Requests that only this member can serve.
    pub(super) bound: BTreeMap<usize, EntryFifo<T, N>>,
}

/// Line of a flow that contains the next entry, and the entry's position in it.
#[derive(Clone, Copy)]
pub(super) enum EntryPosition {
    Common(usize),
    Bound(usize),
}

/// Next request of a flow for a member.
pub(super) struct NextEntry {
    pub(super) arrival: u64,
    pub(super) position: EntryPosition,
    /// Copy of the entry's count.
    pub(super) overtaken: u32,
}

impl NextEntry {
    fn of<T, N>(waiter: &QueueEntry<T, N>, position: EntryPosition) -> Self {
        Self { arrival: waiter.arrival, position, overtaken: waiter.overtaken }
    }
}

impl<T, N> QueueFlow<T, N> {
    pub(super) fn new(key: QueueFlowKey) -> Self {
        Self { key, virtual_time: 0, common: EntryFifo::default(), bound: BTreeMap::new() }
    }

    /// Returns the number of entries, cancelled ones included.
    pub(super) fn len(&self) -> usize {
        self.common.len() + self.bound.values().map(EntryFifo::len).sum::<usize>()
    }

    /// Returns the arrival time of the request that has waited longest.
    pub(super) fn waits_since(&mut self) -> Option<Time> {
        let lines = iter::once(&mut self.common).chain(self.bound.values_mut());
        lines.filter_map(|line| Some(line.first()?.since)).min()
    }

    /// Adds an entry at the end of its line.
    pub(super) fn enqueue(&mut self, waiter: QueueEntry<T, N>) {
        let line = match waiter.eligible {
            EligibleEndpoints::Only(member) => self.bound.entry(member).or_default(),
            EligibleEndpoints::Any | EligibleEndpoints::AllExcept(_) => &mut self.common,
        };
        line.push(waiter);
    }

    /// Returns the oldest entry that is not cancelled and may use the member.
    pub(super) fn next(&mut self, member: usize) -> Option<NextEntry> {
        let common = self.common.first_for(member);
        let common =
            common.map(|(position, waiter)| NextEntry::of(waiter, EntryPosition::Common(position)));
        let bound = self.bound.get_mut(&member).and_then(EntryFifo::first);
        let bound = bound.map(|waiter| NextEntry::of(waiter, EntryPosition::Bound(member)));
        match (common, bound) {
            (Some(common), Some(bound)) if bound.arrival < common.arrival => Some(bound),
            (None, bound) => bound,
            (common, _) => common,
        }
    }

    pub(super) fn remove(&mut self, position: EntryPosition) -> Option<QueueEntry<T, N>> {
        match position {
            EntryPosition::Common(position) => self.common.remove(position),
            EntryPosition::Bound(member) => self.bound.get_mut(&member)?.remove(0),
        }
    }

    /// Counts that a younger request of a higher priority has overtaken the entry at this position.
    pub(super) fn count_overtaken(&mut self, position: EntryPosition) {
        match position {
            EntryPosition::Common(position) => self.common.count_overtaken(position),
            EntryPosition::Bound(member) => {
                if let Some(line) = self.bound.get_mut(&member) {
                    line.count_overtaken(0);
                }
            }
        }
    }

    /// Removes and returns the entry that came last.
    pub(super) fn remove_last(&mut self) -> Option<QueueEntry<T, N>> {
        let mut last: Option<(u64, &mut EntryFifo<T, N>)> = None;
        for line in iter::once(&mut self.common).chain(self.bound.values_mut()) {
            let Some(arrival) = line.last().map(|waiter| waiter.arrival) else { continue };
            if last.as_ref().is_none_or(|(latest, _)| arrival > *latest) {
                last = Some((arrival, line));
            }
        }
        last.and_then(|(_, line)| line.remove_last())
    }

    pub(super) fn remove_cancelled(&mut self) {
        self.common.remove_cancelled();
        self.bound.values_mut().for_each(EntryFifo::remove_cancelled);
        self.bound.retain(|_, line| line.len() > 0);
    }

    /// Removes and returns all entries, in no order.
    pub(super) fn take_waiters(&mut self) -> Vec<QueueEntry<T, N>> {
        let bound = mem::take(&mut self.bound).into_values();
        let lines = iter::once(mem::take(&mut self.common)).chain(bound);
        lines.flat_map(EntryFifo::into_waiters).collect()
    }
}

impl<T, N> fmt::Debug for QueueFlow<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("QueueFlow")
            .field("key", &self.key)
            .field("common", &self.common)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}
