//! Picks at random, by weight.

use super::penalty::MemberPenalty;
use crate::load::PickCandidates;
use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct Random(Rng);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(Rng::new(seed))
    }

    #[inline(never)]
    pub(super) fn choose(&mut self, candidates: &PickCandidates<'_>) -> Option<usize> {
        let drawn = candidates.draw(&mut self.0)?;
        if candidates.is_open(drawn, candidates.load(drawn)) {
            return Some(drawn);
        }
        self.draw_open(candidates, |_| 1.0)
    }

    /// Picks while some members fail: each is drawn less often by its failure penalty.
    pub(super) fn choose_with(
        &mut self,
        candidates: &PickCandidates<'_>,
        penalty: impl Fn(usize) -> Option<MemberPenalty>,
    ) -> Option<usize> {
        self.draw_open(candidates, |member| penalty(member).map_or(f32::INFINITY, |it| it.failures))
    }

    /// Draws among the members that can take a request (reservoir sampling): each replaces the one
    /// drawn before with a probability by its weight, divided by its failure penalty.
    fn draw_open(
        &mut self,
        candidates: &PickCandidates<'_>,
        failing: impl Fn(usize) -> f32,
    ) -> Option<usize> {
        /// Units of a weight of one: enough that a fraction of it is a whole number.
        const UNIT: f32 = 256.0;
        let (mut drawn, mut total) = (None, 0);
        candidates.each(0, |member, load| {
            if load.weight == 0 || !candidates.is_open(member, load) {
                return;
            }
            let weight = (load.weight as f32 * UNIT / failing(member)) as usize;
            total += weight;
            if weight > 0 && self.0.below(total) < weight {
                drawn = Some(member);
            }
        });
        drawn
    }
}
