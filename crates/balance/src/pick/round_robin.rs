//! Smooth weighted round robin, as in nginx: picks each endpoint in turn, by weight and evenly
//! spread.
//!
//! At each pick, every endpoint that can take a request earns its weight, and the one with the
//! highest credit pays the sum of what all have earned. One that is at its cap earns nothing, so it
//! does not return with a burst. One that fails earns less.

use std::collections::BTreeMap;

use super::penalty::MemberPenalty;
use crate::load::{PickCandidates, WeightedKey};
use crate::rng::Rng;

/// Credit that a weight of one earns: enough that a fraction of it is a whole number.
const UNIT: i64 = 256;

#[derive(Debug)]
pub(super) struct RoundRobin {
    /// Position at which a tie is decided first; differs between workers, so that they do not begin
    /// at the same endpoint.
    offset: usize,
    /// Members to which the credits belong.
    shares: Vec<WeightedKey>,
    credits: Vec<i64>,
}

impl RoundRobin {
    pub(super) fn new(seed: u64) -> Self {
        let offset = Rng::new(seed).next_u64() as usize;
        Self { offset, shares: Vec::new(), credits: Vec::new() }
    }

    #[inline(never)]
    pub(super) fn choose(
        &mut self,
        candidates: &PickCandidates<'_>,
        penalty: impl Fn(usize) -> Option<MemberPenalty>,
    ) -> Option<usize> {
        if self.shares != candidates.shares() {
            self.adopt_set(candidates.shares());
        }
        let start = self.offset.checked_rem(candidates.len())?;
        let mut best = None;
        let mut earned = 0;
        candidates.each(start, |member, load| {
            let Some(MemberPenalty { failures: failing, .. }) = penalty(member) else { return };
            if load.weight == 0 || !candidates.is_open(member, load) {
                return;
            }
            let weight = (i64::from(load.weight) * UNIT) as f32 / failing;
            let weight = (weight as i64).max(1);
            earned += weight;
            self.credits[member] += weight;
            let credit = self.credits[member];
            if best.is_none_or(|(_, most)| credit > most) {
                best = Some((member, credit));
            }
        });
        let (member, _) = best?;
        self.credits[member] -= earned;
        Some(member)
    }

    /// Takes the credits over to a changed set. A new member begins in the middle. No member keeps
    /// more than one round of the new weights, or it would burst or starve.
    fn adopt_set(&mut self, shares: &[WeightedKey]) {
        let before = self.shares.drain(..).map(|share| share.key);
        let known: BTreeMap<u64, i64> = before.zip(self.credits.drain(..)).collect();
        let round: i64 = shares.iter().map(|share| i64::from(share.weight) * UNIT).sum();
        let credit = |share: &WeightedKey| {
            let credit = known.get(&share.key).copied().unwrap_or_default();
            credit.clamp(-round, round)
        };
        self.credits.extend(shares.iter().map(credit));
        self.shares.extend(shares);
    }
}
