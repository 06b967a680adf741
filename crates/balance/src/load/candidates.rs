//! Candidates of one pick: the members, the capacity of each, and the excluded ones.

use super::{CapacityLimits, LoadTable, WeightedKey};
use crate::latency::{LatencyEstimate, MemberStats};
use crate::rng::Rng;
use crate::time::Time;

/// Candidates of one pick.
#[derive(Clone, Copy)]
pub(crate) struct PickCandidates<'a> {
    loads: &'a LoadTable,
    /// Number of members to choose from, which come first.
    len: usize,
    capacity: CapacityLimits,
    exclusion: PickExclusion<'a>,
}

impl<'a> PickCandidates<'a> {
    /// Returns all members as candidates.
    pub(crate) fn new(
        loads: &'a LoadTable,
        capacity: CapacityLimits,
        exclusion: PickExclusion<'a>,
    ) -> Self {
        Self { loads, len: loads.entries.len(), capacity, exclusion }
    }

    /// Returns the same candidates without their refusal backoff: if a request cannot wait, it is
    /// better that the endpoint refuses it than that we reject it. `None` if there is a cap.
    pub(crate) fn ignoring_refusals(&self) -> Option<Self> {
        Some(Self { capacity: self.capacity.ignoring_refusals()?, ..*self })
    }

    /// Returns the same candidates, including those that are marked unreachable.
    pub(crate) fn with_unreachable(&self) -> Self {
        Self { capacity: self.capacity.with_unreachable(), ..*self }
    }

    /// Returns the identity of the set: the address of the load table and the number of its
    /// members.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (std::ptr::from_ref(self.loads).addr(), self.loads.entries.len())
    }

    /// Takes a slot of a member, if it has capacity and is not excluded.
    pub(crate) fn take(&self, member: usize) -> bool {
        !self.is_excluded(member) && self.loads.take(member, self.capacity)
    }

    /// Returns the candidates to try first if the set has local and other members: the local
    /// members, then all. In either case only those with less than three quarters of their cap in
    /// flight, so that others are used before the local ones are full.
    #[inline]
    pub(crate) fn by_zone(&self) -> Option<[Self; 2]> {
        if self.loads.local == 0 {
            return None;
        }
        let spare = Self { capacity: self.capacity.with_headroom(), ..*self };
        Some([Self { len: self.loads.local, ..spare }, spare])
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn shares(&self) -> &'a [WeightedKey] {
        &self.loads.shares
    }

    /// Calls `look` for each member, beginning at `start`.
    #[inline]
    pub(crate) fn each(&self, start: usize, mut look: impl FnMut(usize, MemberLoad)) {
        let (before, from_start) = self.loads.entries[..self.len].split_at(start);
        for (first, entries) in [(start, from_start), (0, before)] {
            for (offset, entry) in entries.iter().enumerate() {
                look(first + offset, entry.load());
            }
        }
    }

    pub(crate) fn load(&self, member: usize) -> MemberLoad {
        self.loads.entries[member].load()
    }

    /// Returns the latency estimate of a member.
    pub(crate) fn latency_estimate(&self, member: usize, now: Time) -> LatencyEstimate {
        let entry = &self.loads.entries[member];
        entry.block.latencies[entry.index as usize].estimate_at(now)
    }

    /// Returns the figures that pickers compare, for each member; `None` for one that cannot be
    /// chosen.
    pub(crate) fn member_stats(
        &self,
        now: Time,
    ) -> impl Iterator<Item = Option<(u32, MemberStats)>> {
        self.loads.entries.iter().map(move |entry| {
            let index = entry.index as usize;
            let is_open = entry.weight > 0 && entry.block.capacities[index].is_reachable();
            is_open.then(|| (entry.weight, entry.block.latencies[index].stats(now)))
        })
    }

    /// True if a member of this load may be chosen.
    #[inline]
    pub(crate) fn is_open(&self, member: usize, load: MemberLoad) -> bool {
        load.in_flight < self.loads.entries[member].most(self.capacity) && !self.is_excluded(member)
    }

    /// True if a member is excluded, whatever its load.
    #[inline]
    pub(crate) fn is_excluded(&self, member: usize) -> bool {
        match self.exclusion {
            PickExclusion::None => false,
            PickExclusion::Matching(is_barred) => is_barred(member),
        }
    }

    /// Takes a slot of a preferred member and returns the member, if one has capacity.
    pub(crate) fn take_preferred(&self) -> Option<usize> {
        if !self.capacity.is_learned() {
            return None;
        }
        let mut preferred = self.loads.preferred.all();
        preferred.find(|&member| self.loads.weight(member) > 0 && self.take(member))
    }

    /// Starts the half-open request of a member and returns the member, if one is idle and untried.
    #[cold]
    pub(crate) fn take_half_open(&self) -> Option<usize> {
        let mut open = self.loads.half_open.iter().filter(|trial| !self.is_excluded(trial.member));
        open.find(|trial| self.loads.take_half_open(trial, self.capacity)).map(|trial| trial.member)
    }

    /// Draws one member at random by weight, open or not; `None` if none has a weight.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Option<usize> {
        let total = self.total();
        (total > 0).then(|| self.member_at(rng.below(total as usize) as u64))
    }

    /// Draws two different members at random by weight, open or not.
    pub(crate) fn draw_two(&self, rng: &mut Rng) -> Option<(usize, usize)> {
        let one = self.draw(rng)?;
        let MemberLoad { weight, .. } = self.load(one);
        let others = self.total() - u64::from(weight);
        if others == 0 {
            return None;
        }
        let point = rng.below(others as usize) as u64;
        // The weight range of the first is cut out: the ranges behind it move up.
        let part = self.loads.cumulative_weights[one] - u64::from(weight);
        let other = if point < part { point } else { point + u64::from(weight) };
        Some((one, self.member_at(other)))
    }

    /// Returns the member whose weight range contains this point.
    fn member_at(&self, point: u64) -> usize {
        self.loads.cumulative_weights[..self.len].partition_point(|&end| end <= point)
    }

    fn total(&self) -> u64 {
        self.len.checked_sub(1).map_or(0, |last| self.loads.cumulative_weights[last])
    }
}

/// Members that are excluded from a pick.
#[derive(Clone, Copy)]
pub(crate) enum PickExclusion<'a> {
    /// None.
    None,
    /// Members for which this function returns true.
    Matching(&'a dyn Fn(usize) -> bool),
}

/// Load of a member, as a picker sees it.
#[derive(Clone, Copy)]
pub(crate) struct MemberLoad {
    pub(crate) in_flight: u32,
    pub(crate) weight: u32,
}
