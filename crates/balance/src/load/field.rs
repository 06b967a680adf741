//! What one choice is among: the members, how much each may have, and who is left out.

use super::{Loads, Room, Share};
use crate::latency::{Impression, Showing};
use crate::rng::Rng;
use crate::time::Time;

/// The members that one choice is among.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    loads: &'a Loads,
    /// So many members, the first.
    len: usize,
    room: Room,
    bars: Bars<'a>,
}

impl<'a> Field<'a> {
    /// All members.
    pub(crate) fn new(loads: &'a Loads, room: Room, bars: Bars<'a>) -> Self {
        Self { loads, len: loads.seats.len(), room, bars }
    }

    /// The same members without a cap, whatever they say: where nobody can wait, the one that is asked had better refuse
    /// than we. `None`: there is a cap.
    pub(crate) fn unheeding(&self) -> Option<Self> {
        Some(Self { room: self.room.unheeding()?, ..*self })
    }

    /// The same members, also those that are marked unreachable.
    pub(crate) fn with_unreachable(&self) -> Self {
        Self { room: self.room.with_unreachable(), ..*self }
    }

    /// Whether these are the members that an address stands for: the address of the loads, and how many there are.
    pub(crate) fn identity(&self) -> (usize, usize) {
        (std::ptr::from_ref(self.loads).addr(), self.loads.seats.len())
    }

    /// Counts one more request at a member, if it has room and is not left out.
    pub(crate) fn take(&self, member: usize) -> bool {
        !self.bars(member) && self.loads.take(member, self.room)
    }

    /// Where zones differ, what to choose among first: the members in our zone, then all, in either case only those
    /// with less than three quarters of their cap in flight. So others are used before ours are full.
    #[inline]
    pub(crate) fn by_zone(&self) -> Option<[Self; 2]> {
        if self.loads.local == 0 {
            return None;
        }
        let roomy = Self { room: self.room.with_some_to_spare(), ..*self };
        Some([Self { len: self.loads.local, ..roomy }, roomy])
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    pub(crate) fn shares(&self) -> &'a [Share] {
        &self.loads.shares
    }

    /// Looks at each member, beginning at `start`.
    #[inline]
    pub(crate) fn each(&self, start: usize, mut look: impl FnMut(usize, Load)) {
        let (before, from_start) = self.loads.seats[..self.len].split_at(start);
        for (first, seats) in [(start, from_start), (0, before)] {
            for (offset, seat) in seats.iter().enumerate() {
                look(first + offset, seat.load());
            }
        }
    }

    pub(crate) fn load(&self, member: usize) -> Load {
        self.loads.seats[member].load()
    }

    /// What is to be thought of a member.
    pub(crate) fn impression(&self, member: usize, now: Time) -> Impression {
        let seat = &self.loads.seats[member];
        seat.page.latencies[seat.index as usize].at(now)
    }

    /// What a member has shown lately; `None` for one that cannot be chosen.
    pub(crate) fn showings(&self, now: Time) -> impl Iterator<Item = Option<(u32, Showing)>> {
        self.loads.seats.iter().map(move |seat| {
            let index = seat.index as usize;
            let is_open = seat.weight > 0 && seat.page.ceilings[index].is_reachable();
            is_open.then(|| (seat.weight, seat.page.latencies[index].showing(now)))
        })
    }

    /// Whether a member of this load may be chosen.
    #[inline]
    pub(crate) fn is_open(&self, member: usize, load: Load) -> bool {
        load.in_flight < self.loads.seats[member].most(self.room) && !self.bars(member)
    }

    /// Whether a member is left out, whatever its load.
    #[inline]
    pub(crate) fn bars(&self, member: usize) -> bool {
        match self.bars {
            Bars::Nobody => false,
            Bars::Those(barred) => barred(member),
        }
    }

    /// The favourite that this call has taken a slot of, if there is one with room.
    pub(crate) fn take_favourite(&self) -> Option<usize> {
        if !self.room.is_learned() {
            return None;
        }
        let mut favourites = self.loads.favourites.all();
        favourites.find(|&member| self.loads.weight(member) > 0 && self.take(member))
    }

    /// The member on trial that this call began to try, if any was idle and untried.
    #[cold]
    pub(crate) fn take_trial(&self) -> Option<usize> {
        let mut open = self.loads.trials.iter().filter(|trial| !self.bars(trial.member));
        open.find(|trial| self.loads.try_out(trial)).map(|trial| trial.member)
    }

    /// One member, each as likely as its weight says, open or not; `None` if nobody has a weight.
    pub(crate) fn draw(&self, rng: &mut Rng) -> Option<usize> {
        let total = self.total();
        (total > 0).then(|| self.holder(rng.below(total as usize) as u64))
    }

    /// Two different members, each as likely as its weight says, open or not.
    pub(crate) fn draw_two(&self, rng: &mut Rng) -> Option<(usize, usize)> {
        let one = self.draw(rng)?;
        let Load { weight, .. } = self.load(one);
        let others = self.total() - u64::from(weight);
        if others == 0 {
            return None;
        }
        let point = rng.below(others as usize) as u64;
        // The part of the first is cut out: what lies behind it moves up.
        let part = self.loads.ends[one] - u64::from(weight);
        let other = if point < part { point } else { point + u64::from(weight) };
        Some((one, self.holder(other)))
    }

    /// Whose part of the sum of weights this point is in.
    fn holder(&self, point: u64) -> usize {
        self.loads.ends[..self.len].partition_point(|&end| end <= point)
    }

    fn total(&self) -> u64 {
        self.len.checked_sub(1).map_or(0, |last| self.loads.ends[last])
    }
}

/// Which members are left out.
#[derive(Clone, Copy)]
pub(crate) enum Bars<'a> {
    /// None.
    Nobody,
    /// Those of which this is true.
    Those(&'a dyn Fn(usize) -> bool),
}

/// What choosing sees of a member.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) in_flight: u32,
    pub(crate) weight: u32,
}
