//! Chooses the endpoint that would have the least load for its weight with one more request.
//!
//! All members are looked at: two random ones leave one endpoint idle while another has five (envoy#4481).

use std::num::NonZeroU32;

use crate::load::{Loads, Open};
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
        let start = self.start.checked_rem(loads.len())?;
        let mut best = None;
        for member in super::rotated(start, loads.len()) {
            let Some(open) = loads.open(member, cap).filter(|_| Some(member) != except) else {
                continue;
            };
            if best.is_none_or(|(_, than)| is_less(open, than)) {
                best = Some((member, open));
            }
        }
        let (member, _) = best?;
        self.start = member + 1;
        Some(member)
    }
}

/// Whether `(in flight + 1) / weight` is less, cross-multiplied: `2^32 * (2^32 - 1)` still fits.
fn is_less(one: Open, other: Open) -> bool {
    let after = |open: Open| u64::from(open.in_flight) + 1;
    after(one) * u64::from(other.weight) < after(other) * u64::from(one.weight)
}
