//! Counts requests in flight, packed so that a choice among 64 endpoints reads four cache lines.
//!
//! A count is incremented when an endpoint is picked and decremented when the endpoint has
//! finished. Under a cap it is incremented by compare-and-swap only, so it never exceeds the cap,
//! whatever the interleaving. Every access is `SeqCst`: the queue's protocol (see [`crate::slots`])
//! relies on the order of a decrement and of the number of waiting requests.

use std::sync::Arc;

use crate::atomic::{self, AtomicBool, AtomicU32, AtomicU64, Ordering};
use crate::latency::LatencyTracker;

/// Candidates of one pick.
mod candidates;
/// Members that are preferred for a while.
mod preferred;
/// Capacity of one endpoint.
mod capacity;
/// Share of its slots.
mod leased_share;

pub(crate) use candidates::{MemberLoad, PickCandidates, PickExclusion};
pub use capacity::ConcurrencyCap;
pub(crate) use capacity::{CapacityLimits, EndpointCapacity};
pub use leased_share::LeaseValidity;
use preferred::PreferredMembers;

/// Counters in one block. Loom follows each atomic, so a model gets a block as small as its
/// endpoints need.
const BLOCK_SIZE: usize = if cfg!(loom) { 4 } else { 64 };

/// Block of counters with the state that belongs to them, and the set of counters in use.
#[repr(align(64))]
pub(crate) struct CounterBlock {
    counts: [AtomicU32; BLOCK_SIZE],
    /// Latency estimates. They are apart from the counts because most pickers do not read them.
    latencies: [LatencyTracker; BLOCK_SIZE],
    /// Capacity of each endpoint, as far as it does not depend on the backend.
    capacities: [EndpointCapacity; BLOCK_SIZE],
    /// `None`: slots are not leased.
    validity: Option<LeaseValidity>,
    /// One bit for each counter in use.
    used: AtomicU64,
}

impl CounterBlock {
    fn new(validity: Option<LeaseValidity>) -> Self {
        Self {
            counts: std::array::from_fn(|_| AtomicU32::new(0)),
            latencies: std::array::from_fn(|_| LatencyTracker::default()),
            capacities: std::array::from_fn(|_| EndpointCapacity::default()),
            validity,
            used: AtomicU64::new(0),
        }
    }

    /// Reserves a counter and returns its index; `None` if all are in use.
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

    /// Increments a count, if the capacity permits. A share that is lowered at the same moment
    /// counts: either its thread sees the new count, or the count is given back.
    ///
    /// Another thread may have found no free slot because of a count that is given back: one that
    /// raised the share, or ended a request, and then looked for a queued request to grant it to.
    /// So the capacity is read once more, and the slot is taken after all if it is free by then.
    fn take(&self, index: usize, capacity: CapacityLimits) -> bool {
        loop {
            let most = self.most(index, capacity);
            let Some(taken) = self.increment(index, most) else { return false };
            let Some(share) = self.share(index, capacity) else { return true };
            if taken <= share {
                return true;
            }
            self.give_back(index);
            atomic::total_order();
        }
    }

    /// Returns our share of the slots, if they are leased; read after what was written before.
    fn share(&self, index: usize, capacity: CapacityLimits) -> Option<u32> {
        let validity = self.validity.as_ref().filter(|_| capacity.is_fixed())?;
        atomic::total_order();
        Some(self.capacities[index].share().most(validity, capacity.now()))
    }

    /// Increments a count unless it would exceed `most`; `u32::MAX` means no limit. Returns the new
    /// count.
    fn increment(&self, index: usize, most: u32) -> Option<u32> {
        let count = &self.counts[index];
        if most == u32::MAX {
            return Some(count.fetch_add(1, Ordering::SeqCst) + 1);
        }
        let one_more = |count| (count < most).then(|| count + 1);
        let before = count.fetch_update(Ordering::SeqCst, Ordering::SeqCst, one_more).ok()?;
        Some(before + 1)
    }

    #[inline]
    fn most(&self, index: usize, capacity: CapacityLimits) -> u32 {
        // The remainder changes nothing; it avoids the bounds check.
        self.capacities[index % BLOCK_SIZE].most(capacity, self.validity.as_ref())
    }

    fn give_back(&self, index: usize) {
        let before = self.counts[index].fetch_sub(1, Ordering::SeqCst);
        debug_assert!(before > 0, "a slot was released twice");
    }
}

/// In-flight counter of one endpoint. Its place in the block is free again when this is dropped.
pub(crate) struct InFlightCounter {
    block: Arc<CounterBlock>,
    index: usize,
}

impl InFlightCounter {
    pub(crate) fn in_flight(&self) -> u32 {
        self.block.counts[self.index].load(Ordering::SeqCst)
    }

    /// Increments the count, if the capacity permits.
    pub(crate) fn take(&self, capacity: CapacityLimits) -> bool {
        self.block.take(self.index, capacity)
    }

    /// Returns the limit on its requests in flight; `u32::MAX` if there is none.
    pub(crate) fn most(&self, capacity: CapacityLimits) -> u32 {
        self.block.most(self.index, capacity)
    }

    pub(crate) fn capacity(&self) -> &EndpointCapacity {
        &self.block.capacities[self.index]
    }

    pub(crate) fn latency(&self) -> &LatencyTracker {
        &self.block.latencies[self.index]
    }

    /// Decrements the count.
    pub(crate) fn give_back(&self) {
        self.block.give_back(self.index);
    }
}

impl Drop for InFlightCounter {
    fn drop(&mut self) {
        self.block.counts[self.index].store(0, Ordering::Relaxed);
        self.latency().forget();
        self.capacity().forget();
        // Releases the zeros above to the thread that reserves this place next.
        self.block.used.fetch_and(!(1 << self.index), Ordering::Release);
    }
}

/// Allocator of in-flight counters.
#[derive(Default)]
pub(crate) struct CounterPool {
    blocks: Vec<Arc<CounterBlock>>,
    /// `None`: slots are not leased.
    validity: Option<LeaseValidity>,
}

impl CounterPool {
    pub(crate) fn with_leases(validity: LeaseValidity) -> Self {
        Self { blocks: Vec::new(), validity: Some(validity) }
    }

    /// Returns a counter at 0. If slots are leased, its endpoint has none until its share is set.
    pub(crate) fn counter(&mut self) -> InFlightCounter {
        let counter = self.reserve();
        if self.validity.is_some() {
            counter.capacity().share().withhold();
        }
        counter
    }

    fn reserve(&mut self) -> InFlightCounter {
        for block in &self.blocks {
            if let Some(index) = block.reserve() {
                return InFlightCounter { block: block.clone(), index };
            }
        }
        let block = Arc::new(CounterBlock::new(self.validity.clone()));
        let index = block.reserve().expect("a new block has a free counter");
        self.blocks.push(block.clone());
        InFlightCounter { block, index }
    }

    /// Frees blocks without a counter in use, so that memory follows the number of endpoints.
    pub(crate) fn shrink(&mut self) {
        self.blocks.retain(|block| !block.is_unused());
    }
}

/// Load of an endpoint set in the order of its members: all that a picker reads.
#[derive(Default)]
pub(crate) struct LoadTable {
    entries: Vec<LoadEntry>,
    shares: Vec<WeightedKey>,
    /// Cumulative sum of the weights at each member, the member included.
    cumulative_weights: Vec<u64>,
    /// Number of local members, which come first; 0 if no member is local or all are.
    local: usize,
    half_open: Vec<HalfOpenMember>,
    preferred: PreferredMembers,
}

/// Counter, weight and assigned slots of a member: the data that a picker reads for each.
struct LoadEntry {
    block: Arc<CounterBlock>,
    index: u32,
    weight: u32,
    most: u32,
}

/// Identity of a member over the life of its registry, and its weight: the data that a picker with
/// state compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct WeightedKey {
    pub(crate) key: u64,
    pub(crate) weight: u32,
}

/// Member that one request may try.
struct HalfOpenMember {
    member: usize,
    is_spent: AtomicBool,
}

impl LoadTable {
    /// Adds the next member. Weight 0 is never chosen.
    pub(crate) fn push(&mut self, counter: &InFlightCounter, key: u64, weight: u32, most: u32) {
        self.entries.push(LoadEntry {
            block: counter.block.clone(),
            index: counter.index as u32,
            weight,
            most,
        });
        self.shares.push(WeightedKey { key, weight });
        self.cumulative_weights.push(self.total() + u64::from(weight));
    }

    /// Adds the next member as a half-open one, which has no weight but takes one request.
    pub(crate) fn push_half_open(&mut self, counter: &InFlightCounter, key: u64, most: u32) {
        self.half_open
            .push(HalfOpenMember { member: self.entries.len(), is_spent: AtomicBool::new(false) });
        self.push(counter, key, 0, most);
    }

    /// Ends the local members: those so far are in our zone, those that follow are not.
    pub(crate) fn end_of_zone(&mut self) {
        self.local = self.entries.len();
    }

    /// Prefers these members from now on.
    pub(crate) fn prefer(&self, members: impl Iterator<Item = usize>) {
        self.preferred.set(members);
    }

    /// True if a member is half-open.
    pub(crate) fn has_half_open(&self) -> bool {
        !self.half_open.is_empty()
    }

    pub(crate) fn weight(&self, member: usize) -> u32 {
        self.entries[member].weight
    }

    /// True unless the member is marked unreachable.
    pub(crate) fn is_reachable(&self, member: usize) -> bool {
        let entry = &self.entries[member];
        entry.block.capacities[entry.index as usize].is_reachable()
    }

    /// Increments the count of a member, unless it has no capacity or no weight.
    pub(crate) fn take(&self, member: usize, capacity: CapacityLimits) -> bool {
        let entry = &self.entries[member];
        if entry.weight == 0 {
            return self
                .half_open
                .iter()
                .any(|trial| trial.member == member && self.take_half_open(trial, capacity));
        }
        entry.block.take(entry.index as usize, capacity.at_most(entry.most))
    }

    fn take_half_open(&self, trial: &HalfOpenMember, capacity: CapacityLimits) -> bool {
        let entry = &self.entries[trial.member];
        let index = entry.index as usize;
        let is_untried = !trial.is_spent.load(Ordering::Relaxed);
        if !is_untried
            || !entry.block.capacities[index].is_reachable()
            || !entry.block.take(index, capacity.of_trial())
        {
            return false;
        }
        let first = !trial.is_spent.swap(true, Ordering::Relaxed);
        if !first {
            // Another request has begun and ended between the two reads.
            entry.block.give_back(index);
        }
        first
    }

    fn total(&self) -> u64 {
        self.cumulative_weights.last().copied().unwrap_or_default()
    }
}

impl LoadEntry {
    fn load(&self) -> MemberLoad {
        // The remainder changes nothing; it avoids the bounds check.
        let count = &self.block.counts[self.index as usize % BLOCK_SIZE];
        MemberLoad { in_flight: count.load(Ordering::SeqCst), weight: self.weight }
    }

    /// Returns the limit on its requests in flight.
    #[inline]
    fn most(&self, capacity: CapacityLimits) -> u32 {
        self.block.most(self.index as usize, capacity.at_most(self.most))
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::time::Time;

    const UNCAPPED: CapacityLimits = CapacityLimits::within(ConcurrencyCap::None, Time::ZERO);

    #[test]
    fn freed_in_flight_counter_is_reused_and_starts_at_zero() {
        let mut pool = CounterPool::default();
        let counters: Vec<InFlightCounter> = (0..BLOCK_SIZE).map(|_| pool.counter()).collect();
        let extra = pool.counter();
        assert_eq!(pool.blocks.len(), 2);
        assert!(counters[7].take(UNCAPPED));
        drop(counters);
        let again = pool.counter();
        assert_eq!((again.index, again.in_flight()), (0, 0));
        drop((again, extra));
        pool.shrink();
        assert!(pool.blocks.is_empty());
    }

    #[test]
    fn in_flight_drains_to_a_lowered_cap() {
        let counter = CounterPool::default().counter();
        let two = CapacityLimits::within(ConcurrencyCap::of(2), Time::ZERO);
        assert!((0..4).all(|_| counter.take(UNCAPPED)));
        for left in [3, 2] {
            counter.give_back();
            assert!(!counter.take(two), "{left} in flight");
        }
        counter.give_back();
        assert!(counter.take(two));
        assert_eq!(counter.in_flight(), 2);
    }
}
