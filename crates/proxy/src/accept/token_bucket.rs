//! What a client may do for nothing: bounds on what makes work and leads nowhere, such as streams that are reset.

use balance::Time;

use crate::clock;

/// Streams that may be reset at once, beyond what is earned; a tenth of it each second.
const RESET_BURST: u32 = 1000;
/// A stream that is opened earns half a reset: who resets more than every other stream does it for a while only.
pub(super) const RESET_PRICE: u32 = 2;

/// What may be spent, which grows with what is earned, and slowly by itself.
pub(super) struct TokenBucket {
    left: u32,
    capacity: u32,
    refill_per_second: u32,
    refilled_at: Time,
}

impl TokenBucket {
    pub(super) fn new(capacity: u32, now: Time) -> Self {
        Self { left: capacity, capacity, refill_per_second: capacity / 10, refilled_at: now }
    }

    /// Of the resets of a connection of which so many streams may be open, each at [`RESET_PRICE`].
    pub(super) fn of_resets(open: u32, now: Time) -> Self {
        Self::new(most_resets(open).saturating_mul(RESET_PRICE), now)
    }

    pub(super) fn earn(&mut self, count: u32) {
        self.left = self.left.saturating_add(count).min(self.capacity);
    }

    /// False: there is not so much left.
    pub(super) fn spend(&mut self, count: u32) -> bool {
        if self.left < count {
            let now = clock::now();
            let grown = now.saturating_since(self.refilled_at).as_millis()
                * u128::from(self.refill_per_second);
            self.earn(u32::try_from(grown / 1000).unwrap_or(u32::MAX));
            self.refilled_at = now;
        }
        let left = self.left.checked_sub(count);
        self.left = left.unwrap_or(0);
        left.is_some()
    }
}

/// How many streams a client may reset at once of which `open` may be open: an application whose calls all reach their
/// deadline together is no attacker.
pub(super) fn most_resets(open: u32) -> u32 {
    RESET_BURST.max(open)
}
