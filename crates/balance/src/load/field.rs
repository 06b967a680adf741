//! What one choice is among: the members, how much each may have, and who is left out.

use std::num::NonZeroU32;

use super::{Loads, Share};
use crate::latency::Impression;
use crate::rng::Rng;
use crate::time::Time;

/// The members that one choice is among.
#[derive(Clone, Copy)]
pub(crate) struct Field<'a> {
    loads: &'a Loads,
    /// So many members, the first.
    len: usize,
    /// Requests in flight at each member, at most.
    limit: Option<NonZeroU32>,
    bars: Bars<'a>,
}

impl<'a> Field<'a> {
    /// What an uncapped endpoint of our zone may have in flight before others are looked at.
    const LOCAL_ROOM: u32 = 4;

    /// All members.
    pub(crate) fn new(loads: &'a Loads, limit: Option<NonZeroU32>, bars: Bars<'a>) -> Self {
        Self { loads, len: loads.seats.len(), limit, bars }
    }

    /// Where zones differ, what to choose among first: the members in our zone, then all, in either case only those
    /// with less than three quarters of their cap in flight. So others are used before ours are full.
    pub(crate) fn by_zone(&self) -> Option<(Self, Self)> {
        if self.loads.local == 0 {
            return None;
        }
        let room = self.limit.map_or(Self::LOCAL_ROOM, |cap| cap.get() - cap.get().div_ceil(4));
        let roomy = Self { limit: NonZeroU32::new(room.max(1)), ..*self };
        Some((Self { len: self.loads.local, ..roomy }, roomy))
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

    /// Whether a member of this load may be chosen.
    #[inline]
    pub(crate) fn is_open(&self, member: usize, load: Load) -> bool {
        load.has_room(self.limit) && !self.bars.keep_from(member)
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

/// Which members a request is to be kept from.
#[derive(Clone, Copy)]
pub(crate) enum Bars<'a> {
    /// None.
    Nobody,
    /// This one.
    One(usize),
    /// Those of which this is true.
    Those(&'a dyn Fn(usize) -> bool),
}

impl Bars<'_> {
    pub(crate) fn keep_from(self, member: usize) -> bool {
        match self {
            Self::Nobody => false,
            Self::One(barred) => member == barred,
            Self::Those(barred) => barred(member),
        }
    }
}

/// What choosing sees of a member.
#[derive(Clone, Copy)]
pub(crate) struct Load {
    pub(crate) in_flight: u32,
    pub(crate) weight: u32,
}

impl Load {
    /// Whether one more request is within the cap.
    pub(crate) fn has_room(self, cap: Option<NonZeroU32>) -> bool {
        cap.is_none_or(|cap| self.in_flight < cap.get())
    }
}
