//! Counts requests in flight, packed so that choosing among 64 endpoints reads four cache lines.
//!
//! A count rises when an endpoint is picked and falls when the endpoint has finished. Under a cap it rises by
//! compare-and-swap only, so it is never above the cap, whatever the interleaving. Every access is `SeqCst`: the
//! queue's protocol (see [`crate::slots`]) rests on the order of a count's fall and the number of those who wait.

use std::sync::Arc;

use crate::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::latency::LatencyTracker;

/// The members that one choice is among.
mod candidates;
/// Who is preferred for a while.
mod preferred;
/// How much one endpoint may have.
mod capacity;

pub(crate) use candidates::{MemberLoad, PickCandidates, PickExclusion};
pub use capacity::ConcurrencyCap;
pub(crate) use capacity::{EndpointCapacity, PickCapacity};
use preferred::PreferredMembers;

/// Counts in one page. Loom follows each atomic, so a model gets a page as small as its endpoints need.
const BLOCK_SIZE: usize = if cfg!(loom) { 4 } else { 64 };

/// A block of counts, what belongs to them, and which of them belong to an endpoint.
#[repr(align(64))]
pub(crate) struct CounterBlock {
    counts: [AtomicU32; BLOCK_SIZE],
    /// What the endpoints have shown, apart from the counts: most pickers do not look at it.
    latencies: [LatencyTracker; BLOCK_SIZE],
    /// What each endpoint can bear, as far as that is its own affair.
    capacities: [EndpointCapacity; BLOCK_SIZE],
    /// One bit for each count in use.
    used: AtomicU64,
}

impl CounterBlock {
    fn new() -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU32::new(0)),
            latencies: std::array::from_fn(|_| LatencyTracker::default()),
            capacities: std::array::from_fn(|_| EndpointCapacity::default()),
            used: AtomicU64::new(0),
        }
    }

    /// Marks a count as used and says which; `None` when all are.
    fn reserve(&self) -> Option<usize> {
        let index = self.used.load(Ordering::Acquire).trailing_ones() as usize;
        if index >= BLOCK_SIZE {
            return None;
        }
        self.used.fetch_or(1 << index, Ordering::Relaxed);
        Some(index)
    }

    fn is_unused(&self) -> bool {
        self.used.load(Ordering::Acquire) == 0
    }

    /// Counts one more, unless that would be more than `most`; `u32::MAX`: any number.
    fn take(&self, index: usize, most: u32) -> bool {
        let count = &self.counts[index];
        if most == u32::MAX {
            count.fetch_add(1, Ordering::SeqCst);
            return true;
        }
        let one_more = |count| (count < most).then(|| count + 1);
        count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).is_ok()
    }

    fn give_back(&self, index: usize) {
        let before = self.counts[index].fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a slot was given back twice");
    }
}

/// One endpoint's count. The place in its page is free again when this is dropped.
pub(crate) struct InFlightCounter {
    block: Arc<CounterBlock>,
    index: usize,
}

impl InFlightCounter {
    pub(crate) fn in_flight(&self) -> u32 {
        self.block.counts[self.index].load(Ordering::SeqCst)
    }

    /// Counts one more request, if there is room.
    pub(crate) fn take(&self, room: PickCapacity) -> bool {
        self.block.take(self.index, self.most(room))
    }

    /// How many requests it may have, at most; `u32::MAX`: any number.
    pub(crate) fn most(&self, room: PickCapacity) -> u32 {
        self.capacity().most(room)
    }

    pub(crate) fn capacity(&self) -> &EndpointCapacity {
        &self.block.capacities[self.index]
    }

    pub(crate) fn latency(&self) -> &LatencyTracker {
        &self.block.latencies[self.index]
    }

    /// Counts one request less.
    pub(crate) fn give_back(&self) {
        self.block.give_back(self.index);
    }
}

impl Drop for InFlightCounter {
    fn drop(&mut self) {
        self.block.counts[self.index].store(0, Ordering::Relaxed);
        self.latency().forget();
        self.capacity().forget();
        // Releases the zeros above to whoever reserves this place next.
        self.block.used.fetch_and(!(1 << self.index), Ordering::Release);
    }
}

/// Where cells come from.
#[derive(Default)]
pub(crate) struct CounterPool(Vec<Arc<CounterBlock>>);

impl CounterPool {
    pub(crate) fn counter(&mut self) -> InFlightCounter {
        for page in &self.0 {
            if let Some(index) = page.reserve() {
                return InFlightCounter { block: page.clone(), index };
            }
        }
        let page = Arc::new(CounterBlock::new());
        let index = page.reserve().expect("a new page has room");
        self.0.push(page.clone());
        InFlightCounter { block: page, index }
    }

    /// Forgets pages that hold no cell, so that memory follows the number of endpoints.
    pub(crate) fn shrink(&mut self) {
        self.0.retain(|page| !page.is_unused());
    }
}

/// The counts of an endpoint set in the order of its members: all that a picker looks at.
#[derive(Default)]
pub(crate) struct LoadTable {
    entries: Vec<LoadEntry>,
    shares: Vec<WeightedKey>,
    /// Where each member's part of the sum of weights ends.
    cumulative_weights: Vec<u64>,
    /// So many members, the first, are in our zone; 0 where nobody is or nobody else is.
    local: usize,
    half_open: Vec<HalfOpenMember>,
    preferred: PreferredMembers,
}

/// Where a member's count is, its weight, and how many requests it may have of ours: what choosing reads for each.
struct LoadEntry {
    block: Arc<CounterBlock>,
    index: u32,
    weight: u32,
    most: u32,
}

/// Who a member is over the life of its ledger, and its weight: what a picker with a memory compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightedKey {
    pub(crate) key: u64,
    pub(crate) weight: u32,
}

/// A member that one request may try.
struct HalfOpenMember {
    member: usize,
    is_spent: AtomicBool,
}

impl LoadTable {
    /// The next member. Weight 0 is never chosen.
    pub(crate) fn push(&mut self, cell: &InFlightCounter, key: u64, weight: u32, most: u32) {
        self.entries.push(LoadEntry {
            block: cell.block.clone(),
            index: cell.index as u32,
            weight,
            most,
        });
        self.shares.push(WeightedKey { key, weight });
        self.cumulative_weights.push(self.total() + u64::from(weight));
    }

    /// The next member, which has no weight but takes one request.
    pub(crate) fn push_half_open(&mut self, cell: &InFlightCounter, key: u64, most: u32) {
        self.half_open
            .push(HalfOpenMember { member: self.entries.len(), is_spent: AtomicBool::new(false) });
        self.push(cell, key, 0, most);
    }

    /// The members so far are in our zone, those to come are not.
    pub(crate) fn end_of_zone(&mut self) {
        self.local = self.entries.len();
    }

    /// From now on these are preferred.
    pub(crate) fn prefer(&self, members: impl Iterator<Item = usize>) {
        self.preferred.set(members);
    }

    /// Whether a member is on trial.
    pub(crate) fn has_half_open(&self) -> bool {
        !self.half_open.is_empty()
    }

    pub(crate) fn weight(&self, member: usize) -> u32 {
        self.entries[member].weight
    }

    /// True unless the member is marked unreachable.
    pub(crate) fn is_reachable(&self, member: usize) -> bool {
        let seat = &self.entries[member];
        seat.block.capacities[seat.index as usize].is_reachable()
    }

    /// Counts one more request at a member, unless there is no room, or it is not to have any.
    pub(crate) fn take(&self, member: usize, room: PickCapacity) -> bool {
        let seat = &self.entries[member];
        if seat.weight == 0 {
            return self
                .half_open
                .iter()
                .any(|trial| trial.member == member && self.take_half_open(trial));
        }
        seat.block.take(seat.index as usize, seat.most(room))
    }

    fn take_half_open(&self, trial: &HalfOpenMember) -> bool {
        let seat = &self.entries[trial.member];
        let index = seat.index as usize;
        let is_untried = !trial.is_spent.load(Ordering::Relaxed);
        if !is_untried || !seat.block.capacities[index].is_reachable() || !seat.block.take(index, 1)
        {
            return false;
        }
        let first = !trial.is_spent.swap(true, Ordering::Relaxed);
        if !first {
            // Another has begun and ended between the two looks.
            seat.block.give_back(index);
        }
        first
    }

    fn total(&self) -> u64 {
        self.cumulative_weights.last().copied().unwrap_or_default()
    }
}

impl LoadEntry {
    fn load(&self) -> MemberLoad {
        // The remainder changes nothing; it spares the bounds check.
        let count = &self.block.counts[self.index as usize % BLOCK_SIZE];
        MemberLoad { in_flight: count.load(Ordering::SeqCst), weight: self.weight }
    }

    /// How many requests it may have, at most.
    #[inline]
    fn most(&self, room: PickCapacity) -> u32 {
        self.block.capacities[self.index as usize % BLOCK_SIZE].most(room.at_most(self.most))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn freed_in_flight_counter_is_reused_and_starts_at_zero() {
        let mut pages = CounterPool::default();
        let cells: Vec<InFlightCounter> = (0..BLOCK_SIZE).map(|_| pages.counter()).collect();
        let extra = pages.counter();
        assert_eq!(pages.0.len(), 2);
        assert!(cells[7].take(PickCapacity::within(ConcurrencyCap::None)));
        drop(cells);
        let again = pages.counter();
        assert_eq!((again.index, again.in_flight()), (0, 0));
        drop((again, extra));
        pages.shrink();
        assert!(pages.0.is_empty());
    }

    #[test]
    fn in_flight_drains_to_a_lowered_cap() {
        let cell = CounterPool::default().counter();
        let two = PickCapacity::within(ConcurrencyCap::of(2));
        assert!((0..4).all(|_| cell.take(PickCapacity::within(ConcurrencyCap::None))));
        for left in [3, 2] {
            cell.give_back();
            assert!(!cell.take(two), "{left} in flight");
        }
        cell.give_back();
        assert!(cell.take(two));
        assert_eq!(cell.in_flight(), 2);
    }
}
