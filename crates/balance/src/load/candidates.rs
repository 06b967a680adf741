//! What one choice is among: the members, how much each may have, and who is left out.

use super::{LoadTable, PickCapacity, WeightedKey};
use crate::latency::{LatencyEstimate, MemberStats};
use crate::rng::Rng;
use crate::time::Time;

/// The members that one choice is among.
#[derive(Clone, Copy)]
pub(crate) struct PickCandidates<'a> {
    loads: &'a LoadTable,
    /// So many members, the first.
    len: usize,
    capacity: PickCapacity,
    exclusion: PickExclusion<'a>,
}

impl<'a> PickCandidates<'a> {
    /// All members.
    pub(crate) fn new(
        loads: &'a LoadTable,
        capacity: PickCapacity,
        exclusion: PickExclusion<'a>,
    ) -> Self {
        Self { loads, len: loads.entries.len(), capacity, exclusion }
    }

    /// The same members without a cap, whatever they say: where nobody can wait, the one that is asked had better refuse
    /// than we. `None`: there is a cap.
    pub(crate) fn ignoring_refusals(&self) -> Option<Self> {
        Some(Self { capacity: self.capacity.ignoring_refusals()?, ..*self })
    }

    /// The same members, also those that are marked unreachable.
    pub(crate) fn with_unreachable(&self) -> Self {
        Self { capacity: self.capacity.with_unreachable(), ..*self }
    }

    /// Whether these are the members that an address stands for: the address of the loads, and how many there are.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (std::ptr::from_ref(self.loads).addr(), self.loads.entries.len())
    }

    /// Counts one more request at a member, if it has room and is not left out.
    pub(crate) fn take(&self, member: usize) -> bool {
        !self.is_excluded(member) && self.loads.take(member, self.capacity)
    }

    /// Where zones differ, what to choose among first: the members in our zone, then all, in either case only those
    /// with less than three quarters of their cap in flight. So others are used before ours are full.
    #[inline]
    pub(crate) fn by_zone(&self) -> Option<[Self; 2]> {
        if self.loads.local == 0 {
            return None;
        }
        let roomy = Self { capacity: self.capacity.with_headroom(), ..*self };
        Some([Self { len: self.loads.local, ..roomy }, roomy])
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn shares(&self) -> &'a [WeightedKey] {
        &self.loads.shares
    }

    /// Looks at each member, beginning at `start`.
    #[inline]
    pub(crate) fn each(&self, start: usize, mut look: impl FnMut(usize, MemberLoad)) {
        let (before, from_start) = self.loads.entries[..self.len].split_at(start);
        for (first, seats) in [(start, from_start), (0, before)] {
            for (offset, seat) in seats.iter().enumerate() {
                look(first + offset, seat.load());
            }
        }
    }

    pub(crate) fn load(&self, member: usize) -> MemberLoad {
        self.loads.entries[member].load()
    }

    /// What is to be thought of a member.
    pub(crate) fn latency_estimate(&self, member: usize, now: Time) -> LatencyEstimate {
        let seat = &self.loads.entries[member];
        seat.block.latencies[seat.index as usize].estimate_at(now)
    }

    /// What a member has shown lately; `None` for one that cannot be chosen.
    pub(crate) fn member_stats(
        &self,
        now: Time,
    ) -> impl Iterator<Item = Option<(u32, MemberStats)>> {
        self.loads.entries.iter().map(move |seat| {
            let index = seat.index as usize;
            let is_open = seat.weight > 0 && seat.block.capacities[index].is_reachable();
            is_open.then(|| (seat.weight, seat.block.latencies[index].stats(now)))
        })
    }

    /// Whether a member of this load may be chosen.
    #[inline]
    pub(crate) fn is_open(&self, member: usize, load: MemberLoad) -> bool {
        load.in_flight < self.loads.entries[member].most(self.capacity) && !self.is_excluded(member)
    }

    /// Whether a member is left out, whatever its load.
    #[inline]
    pub(crate) fn is_excluded(&self, member: usize) -> bool {
        match self.exclusion {
            PickExclusion::None => false,
            PickExclusion::Matching(barred) => barred(member),
        }
    }

    /// The favourite that this call has taken a slot of, if there is one with room.
    pub(crate) fn take_preferred(&self) -> Option<usize> {
        if !self.capacity.is_learned() {
            return None;
        }
        let mut favourites = self.loads.preferred.all();
        favourites.find(|&member| self.loads.weight(member) > 0 && self.take(member))
    }

    /// The member on trial that this call began to try, if any was idle and untried.
    #[cold]
    pub(crate) fn take_half_open(&self) -> Option<usize> {
        let mut open = self.loads.half_open.iter().filter(|trial| !self.is_excluded(trial.member));
        open.find(|trial| self.loads.take_half_open(trial)).map(|trial| trial.member)
    }

    /// One member, each as likely as its weight says, open or not; `None` if nobody has a weight.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Option<usize> {
        let total = self.total();
        (total > 0).then(|| self.member_at(rng.below(total as usize) as u64))
    }

    /// Two different members, each as likely as its weight says, open or not.
    pub(crate) fn draw_two(&self, rng: &mut Rng) -> Option<(usize, usize)> {
        let one = self.draw(rng)?;
        let MemberLoad { weight, .. } = self.load(one);
        let others = self.total() - u64::from(weight);
        if others == 0 {
            return None;
        }
        let point = rng.below(others as usize) as u64;
        // The part of the first is cut out: what lies behind it moves up.
        let part = self.loads.cumulative_weights[one] - u64::from(weight);
        let other = if point < part { point } else { point + u64::from(weight) };
        Some((one, self.member_at(other)))
    }

    /// Whose part of the sum of weights this point is in.
    fn member_at(&self, point: u64) -> usize {
        self.loads.cumulative_weights[..self.len].partition_point(|&end| end <= point)
    }

    fn total(&self) -> u64 {
        self.len.checked_sub(1).map_or(0, |last| self.loads.cumulative_weights[last])
    }
}

/// Which members are left out.
#[derive(Clone, Copy)]
pub(crate) enum PickExclusion<'a> {
    /// None.
    None,
    /// Those of which this is true.
    Matching(&'a dyn Fn(usize) -> bool),
}

/// What choosing sees of a member.
#[derive(Clone, Copy)]
pub(crate) struct MemberLoad {
    pub(crate) in_flight: u32,
    pub(crate) weight: u32,
}
