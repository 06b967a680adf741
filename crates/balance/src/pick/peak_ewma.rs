//! Peak EWMA: picks the endpoint that is likely to answer first, with the least latency x (in
//! flight + 1) / weight.
//!
//! This is Finagle's peak EWMA, with blame for failures ([`crate::latency`]). An endpoint that has
//! not answered yet counts as fast as the others on average, so it is neither flooded nor starved
//! while its latency is unknown. Of more than [`SCAN`] members, the better of two random, different
//! ones is picked.

use super::penalty::MemberPenalty;
use super::{SCAN, better_of_two};
use crate::load::{MemberLoad, PickCandidates};
use crate::rng::Rng;
use crate::time::Time;

#[derive(Debug)]
pub(super) struct PeakEwma {
    /// Member after the one chosen last: the first to win a tie.
    start: usize,
    rng: Rng,
}

impl PeakEwma {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self { start: rng.next_u64() as usize, rng }
    }

    #[inline(never)]
    pub(super) fn choose(
        &mut self,
        candidates: &PickCandidates<'_>,
        now: Time,
        penalty: impl Fn(usize) -> Option<MemberPenalty>,
    ) -> Option<usize> {
        if candidates.len() > SCAN
            && let Some(member) = better_of_two(candidates, &mut self.rng, |one, other| {
                let (one, other) = (
                    MemberCost::of_member(candidates, one, now),
                    MemberCost::of_member(candidates, other, now),
                );
                one.cost(other.latency.unwrap_or(1.0)) < other.cost(one.latency.unwrap_or(1.0))
            })
            && penalty(member).is_some()
        {
            return Some(member);
        }
        self.choose_of_all(candidates, now, penalty)
    }

    /// Compares all members. Latencies and failures are part of the cost here, so of a penalty only
    /// its share limit counts.
    fn choose_of_all(
        &mut self,
        candidates: &PickCandidates<'_>,
        now: Time,
        penalty: impl Fn(usize) -> Option<MemberPenalty>,
    ) -> Option<usize> {
        let start = self.start.checked_rem(candidates.len())?;
        let (mut known, mut cold) = (CheapestMember::default(), CheapestMember::default());
        let (mut sum, mut count) = (0.0, 0_u32);
        candidates.each(start, |member, load| {
            if load.weight == 0 {
                return;
            }
            let cost = MemberCost::of_member(candidates, (member, load), now);
            if let Some(latency) = cost.latency {
                sum += latency;
                count += 1;
            }
            if penalty(member).is_some() && candidates.is_open(member, load) {
                let group = if cost.latency.is_some() { &mut known } else { &mut cold };
                group.consider(member, cost.cost(1.0));
            }
        });
        let mean = if count > 0 { sum / count as f32 } else { 1.0 };
        cold.cost *= mean;
        let best = if cold.cost < known.cost { cold } else { known }.member?;
        self.start = best + 1;
        Some(best)
    }
}

/// Cost of one member.
#[derive(Clone, Copy)]
struct MemberCost {
    latency: Option<f32>,
    /// Factor from its load, its weight and its failures.
    factor: f32,
}

impl MemberCost {
    fn of_member(
        candidates: &PickCandidates<'_>,
        (member, load): (usize, MemberLoad),
        now: Time,
    ) -> Self {
        let estimate = candidates.latency_estimate(member, now);
        let load = (load.in_flight as f32 + 1.0) / load.weight as f32;
        Self { latency: estimate.latency, factor: load * estimate.penalty }
    }

    /// Returns the cost; `otherwise` is the latency of a member without responses.
    fn cost(self, otherwise: f32) -> f32 {
        self.latency.unwrap_or(otherwise) * self.factor
    }
}

/// Member with the least cost so far.
struct CheapestMember {
    member: Option<usize>,
    cost: f32,
}

impl CheapestMember {
    fn consider(&mut self, member: usize, cost: f32) {
        if cost < self.cost {
            *self = Self { member: Some(member), cost };
        }
    }
}

impl Default for CheapestMember {
    fn default() -> Self {
        Self { member: None, cost: f32::INFINITY }
    }
}
