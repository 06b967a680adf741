//! Those who wait with one priority and by one route: first come, first served, among those that may use a slot.

use std::collections::BTreeMap;
use std::fmt;
use std::iter;
use std::mem;

use super::line::{Line, Waiter};
use super::rank::{Priority, Rank};
use crate::pick::Claim;

/// Whose requests share one share of the queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Party {
    pub(super) priority: Priority,
    pub(super) route: u64,
}

impl Party {
    /// Nobody's.
    pub(crate) const NOBODY: u64 = u64::MAX;

    pub(crate) fn of(rank: &Rank, fair: bool) -> Self {
        Self { priority: rank.priority, route: if fair { rank.route } else { 0 } }
    }

    /// One number for it. Routes that are 2^56 apart would be taken for one another.
    pub(crate) fn number(self) -> u64 {
        u64::from(self.priority.number()) << 56 | (self.route & (u64::MAX >> 8))
    }
}

/// Those of one party who wait.
pub(super) struct Flow<T, N> {
    pub(super) party: Party,
    /// Its next turn among the flows of its priority: counts up with each who goes (start-time fair queueing, Goyal, Vin
    /// and Cheng 1996, with a cost of one for each request).
    pub(super) turn: u64,
    /// Those whom more than one endpoint can serve.
    pub(super) common: Line<T, N>,
    /// Those whom this member alone can serve.
    pub(super) bound: BTreeMap<usize, Line<T, N>>,
}

/// In which line of a flow the next to be served stands, and where.
#[derive(Clone, Copy)]
pub(super) enum Place {
    Common(usize),
    Bound(usize),
}

/// Who of a flow is next for a member.
pub(super) struct Candidate {
    pub(super) arrival: u64,
    pub(super) place: Place,
    /// As of the waiter.
    pub(super) passed: u32,
}

impl Candidate {
    fn of<T, N>(waiter: &Waiter<T, N>, place: Place) -> Self {
        Self { arrival: waiter.arrival, place, passed: waiter.passed }
    }
}

impl<T, N> Flow<T, N> {
    pub(super) fn new(party: Party) -> Self {
        Self { party, turn: 0, common: Line::default(), bound: BTreeMap::new() }
    }

    /// How many are in it, those who have given up included.
    pub(super) fn len(&self) -> usize {
        self.common.len() + self.bound.values().map(Line::len).sum::<usize>()
    }

    /// Puts a waiter at the end of the line that it belongs to.
    pub(super) fn stand(&mut self, waiter: Waiter<T, N>) {
        let line = match waiter.claim {
            Claim::Only(member) => self.bound.entry(member).or_default(),
            Claim::Any | Claim::But(_) => &mut self.common,
        };
        line.push(waiter);
    }

    /// Who came first of those who still wait and may use the member.
    pub(super) fn next(&mut self, member: usize) -> Option<Candidate> {
        let common = self.common.first_for(member);
        let common = common.map(|(place, waiter)| Candidate::of(waiter, Place::Common(place)));
        let bound = self.bound.get_mut(&member).and_then(Line::first);
        let bound = bound.map(|waiter| Candidate::of(waiter, Place::Bound(member)));
        match (common, bound) {
            (Some(common), Some(bound)) if bound.arrival < common.arrival => Some(bound),
            (None, bound) => bound,
            (common, _) => common,
        }
    }

    pub(super) fn remove(&mut self, place: Place) -> Option<Waiter<T, N>> {
        match place {
            Place::Common(place) => self.common.remove(place),
            Place::Bound(member) => self.bound.get_mut(&member)?.remove(0),
        }
    }

    /// A younger one of a higher priority goes before who stands there.
    pub(super) fn is_passed(&mut self, place: Place) {
        match place {
            Place::Common(place) => self.common.is_passed(place),
            Place::Bound(member) => {
                if let Some(line) = self.bound.get_mut(&member) {
                    line.is_passed(0);
                }
            }
        }
    }

    /// Takes out who came last.
    pub(super) fn remove_last(&mut self) -> Option<Waiter<T, N>> {
        let mut last: Option<(u64, &mut Line<T, N>)> = None;
        for line in iter::once(&mut self.common).chain(self.bound.values_mut()) {
            let Some(arrival) = line.last().map(|waiter| waiter.arrival) else { continue };
            if last.as_ref().is_none_or(|(latest, _)| arrival > *latest) {
                last = Some((arrival, line));
            }
        }
        last.and_then(|(_, line)| line.remove_last())
    }

    pub(super) fn clear_left(&mut self) {
        self.common.clear_left();
        self.bound.values_mut().for_each(Line::clear_left);
        self.bound.retain(|_, line| line.len() > 0);
    }

    /// Everybody, in no order. Nobody is left.
    pub(super) fn take_waiters(&mut self) -> Vec<Waiter<T, N>> {
        let bound = mem::take(&mut self.bound).into_values();
        let lines = iter::once(mem::take(&mut self.common)).chain(bound);
        lines.flat_map(Line::into_waiters).collect()
    }
}

impl<T, N> fmt::Debug for Flow<T, N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Flow")
            .field("party", &self.party)
            .field("common", &self.common)
            .field("bound", &self.bound)
            .finish_non_exhaustive()
    }
}
