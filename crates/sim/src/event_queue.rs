//! Queue of future events, by time; events at the same moment happen in the order of scheduling.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use balance::Time;

pub(crate) struct EventQueue<E> {
    entries: BinaryHeap<ScheduledEvent<E>>,
    sequence: u64,
}

struct ScheduledEvent<E> {
    at: Time,
    sequence: u64,
    event: E,
}

impl<E> EventQueue<E> {
    pub(crate) fn new() -> Self {
        Self { entries: BinaryHeap::new(), sequence: 0 }
    }

    pub(crate) fn schedule(&mut self, at: Time, event: E) {
        self.entries.push(ScheduledEvent { at, sequence: self.sequence, event });
        self.sequence += 1;
    }

    /// Removes the events for which `keep` is false.
    pub(crate) fn retain(&mut self, keep: impl Fn(&E) -> bool) {
        self.entries.retain(|entry| keep(&entry.event));
    }

    /// Returns the next event, if its time has come.
    pub(crate) fn next_until(&mut self, now: Time) -> Option<(Time, E)> {
        self.entries.peek().filter(|entry| entry.at <= now)?;
        self.next()
    }

    pub(crate) fn next(&mut self) -> Option<(Time, E)> {
        self.entries.pop().map(|entry| (entry.at, entry.event))
    }
}

impl<E> Ord for ScheduledEvent<E> {
    /// Compares in reverse: the heap returns the greatest entry first, so the earliest is the
    /// greatest.
    fn cmp(&self, other: &Self) -> Ordering {
        (other.at, other.sequence).cmp(&(self.at, self.sequence))
    }
}

impl<E> PartialOrd for ScheduledEvent<E> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<E> PartialEq for ScheduledEvent<E> {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other).is_eq()
    }
}

impl<E> Eq for ScheduledEvent<E> {}
