//! Token bucket for work that leads nowhere, such as stream resets, per client connection.

use balance::Time;

use crate::clock;

/// Stream resets allowed at once, in addition to those that are earned; a tenth of it is refilled
/// each second.
const RESET_BURST: u32 = 1000;
/// Tokens that one reset costs. A new stream earns one token, so a client that resets more than
/// every other stream exhausts its bucket.
pub(super) const RESET_PRICE: u32 = 2;

/// Token bucket: refilled by useful work, and slowly by time.
pub(crate) struct TokenBucket {
    left: u32,
    capacity: u32,
    refill_per_second: u32,
    refilled_at: Time,
}

impl TokenBucket {
    pub(crate) fn new(capacity: u32, now: Time) -> Self {
        Self { left: capacity, capacity, refill_per_second: capacity / 10, refilled_at: now }
    }

    /// Returns the bucket for stream resets, each at [`RESET_PRICE`], on a connection with up to
    /// `open` concurrent streams.
    pub(super) fn of_resets(open: u32, now: Time) -> Self {
        Self::new(most_resets(open).saturating_mul(RESET_PRICE), now)
    }

    pub(crate) fn earn(&mut self, count: u32) {
        self.left = self.left.saturating_add(count).min(self.capacity);
    }

    /// Spends `count` tokens. Returns false if fewer are left.
    pub(crate) fn spend(&mut self, count: u32) -> bool {
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

/// Returns the number of streams that a client may reset at once if `open` may be open: an
/// application whose calls all reach their deadline together is not an attacker.
pub(super) fn most_resets(open: u32) -> u32 {
    RESET_BURST.max(open)
}
