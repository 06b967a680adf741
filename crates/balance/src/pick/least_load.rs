//! Chooses the endpoint that would have the least load for its weight with one more request.
//!
//! All members are looked at: two random ones leave one endpoint idle while another has five (envoy#4481).

use std::num::NonZeroU32;

use crate::load::{Load, Loads};
use crate::rng::Rng;

#[derive(Debug)]
pub(super) struct LeastLoad {
    /// The member after the one chosen last: the first to win a tie, so that equals take turns.
    start: usize,
}

impl LeastLoad {
    pub(super) fn new(seed: u64) -> Self {
        Self { start: Rng::new(seed).next_u64() as usize }
    }

    pub(super) fn choose(
        &mut self,
        loads: &Loads,
        cap: Option<NonZeroU32>,
        except: Option<usize>,
    ) -> Option<usize> {
        let start = self.start.checked_rem(loads.shares().len())?;
        let (mut best, mut least) = (None, WORST);
        // Most members lose by their load, so that is compared first.
        loads.each(start, |member, load| {
            if is_less(load, least) && load.has_room(cap) && Some(member) != except {
                (best, least) = (Some(member), load);
            }
        });
        self.start = best? + 1;
        best
    }
}

/// More than any endpoint with a weight has, and not more than one without.
const WORST: Load = Load { in_flight: u32::MAX, weight: 1 };

/// Whether `(in flight + 1) / weight` is less, cross-multiplied: `2^32 * (2^32 - 1)` still fits.
fn is_less(one: Load, other: Load) -> bool {
    let after = |load: Load| u64::from(load.in_flight) + 1;
    after(one) * u64::from(other.weight) < after(other) * u64::from(one.weight)
}
