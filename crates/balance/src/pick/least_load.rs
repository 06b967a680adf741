//! Picks the endpoint that would have the least load for its weight with one more request.
//!
//! Up to [`SCAN`] members, all are compared: two random ones leave one endpoint idle while another
//! has five requests (envoy#4481). Of more members, the better of two random, different ones is
//! picked, which is nearly as good and reads no more. If neither has capacity, all are compared
//! here too.

use super::penalty::MemberPenalty;
use super::{SCAN, better_of_two};
use crate::load::{MemberLoad, PickCandidates};
use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct LeastLoad {
    /// Member after the one chosen last: the first to win a tie, so that equal members alternate.
    start: usize,
    rng: Rng,
}

impl LeastLoad {
    pub(super) fn new(seed: u64) -> Self {
        let mut rng = Rng::new(seed);
        Self { start: rng.next_u64() as usize, rng }
    }

    #[inline]
    pub(super) fn choose(&mut self, candidates: &PickCandidates<'_>) -> Option<usize> {
        if candidates.len() > SCAN
            && let Some(member) = better_of_two(candidates, &mut self.rng, is_less_busy)
        {
            return Some(member);
        }
        self.choose_of_all(candidates)
    }

    /// Picks while some members are slower than others or fail: their load is multiplied by their
    /// penalty.
    pub(super) fn choose_with(
        &mut self,
        candidates: &PickCandidates<'_>,
        penalty: impl Fn(usize) -> Option<MemberPenalty>,
    ) -> Option<usize> {
        let cost = |member: usize, load: MemberLoad| match penalty(member) {
            Some(MemberPenalty { slowness: slow, failures: failing }) if load.weight > 0 => {
                (load.in_flight as f32 + 1.0) * slow * failing / load.weight as f32
            }
            Some(_) | None => f32::INFINITY,
        };
        if candidates.len() > SCAN {
            // The two were drawn by weight already.
            let busy = |(member, load): (usize, MemberLoad)| {
                cost(member, MemberLoad { weight: 1, ..load })
            };
            let better =
                better_of_two(candidates, &mut self.rng, |one, other| busy(one) < busy(other));
            if let Some(member) = better.filter(|&member| penalty(member).is_some()) {
                return Some(member);
            }
        }
        let start = self.start.checked_rem(candidates.len())?;
        let (mut best, mut least) = (None, f32::INFINITY);
        candidates.each(start, |member, load| {
            let cost = cost(member, load);
            if cost < least && candidates.is_open(member, load) {
                (best, least) = (Some(member), cost);
            }
        });
        self.start = best? + 1;
        best
    }

    /// Compares all members. A function of its own: within its caller the loop costs a third more
    /// instructions.
    #[inline(never)]
    fn choose_of_all(&mut self, candidates: &PickCandidates<'_>) -> Option<usize> {
        let start = self.start.checked_rem(candidates.len())?;
        let (mut best, mut least) = (None, WORST);
        // Most members lose by their load, so that is compared first.
        candidates.each(start, |member, load| {
            if !is_less(load, least) {
                return;
            }
            if candidates.is_open(member, load) {
                (best, least) = (Some(member), load);
            }
        });
        self.start = best? + 1;
        best
    }
}

/// Load that is more than any endpoint with a weight has, and not more than one without.
const WORST: MemberLoad = MemberLoad { in_flight: u32::MAX, weight: 1 };

/// True if `in flight / weight` is less. The two were drawn by weight already: with one more
/// request counted, the lighter of two idle ones would always lose.
fn is_less_busy((_, one): (usize, MemberLoad), (_, other): (usize, MemberLoad)) -> bool {
    let busy =
        |one: MemberLoad, other: MemberLoad| u64::from(one.in_flight) * u64::from(other.weight);
    busy(one, other) < busy(other, one)
}

/// True if `(in flight + 1) / weight` is less, cross-multiplied: `2^32 * (2^32 - 1)` still fits.
fn is_less(one: MemberLoad, other: MemberLoad) -> bool {
    let after = |load: MemberLoad| u64::from(load.in_flight) + 1;
    after(one) * u64::from(other.weight) < after(other) * u64::from(one.weight)
}
