//! The bucket of one key at one replica.

use std::time::Duration;

use super::{BucketPart, HORIZON, RateLimit};
use crate::time::{Time, nanos};

/// Millionths of a token.
const MICROS: u128 = 1_000_000;

/// Tokens of one key, and how many requests it makes.
///
/// It counts in the units of [`RateLimit::token`].
#[derive(Clone, Debug)]
pub(super) struct RateBucket {
    units: u128,
    refilled_at: Time,
    /// Requests since `counted_from`, including those that were refused.
    arrivals: u32,
    counted_from: Time,
    /// Mean number of requests for each second, in thousandths.
    rate_milli: u32,
}

impl RateBucket {
    /// Returns a full bucket.
    pub(super) fn full(limit: &RateLimit, part: BucketPart, now: Time) -> Self {
        let units = most(limit, part);
        Self { units, refilled_at: now, arrivals: 0, counted_from: now, rate_milli: 0 }
    }

    /// Takes a token for a request. If there is none, returns the time until there is.
    pub(super) fn take(
        &mut self,
        limit: &RateLimit,
        part: BucketPart,
        now: Time,
    ) -> Result<(), Duration> {
        self.refill(limit, part, now);
        self.arrivals = self.arrivals.saturating_add(1);
        match self.units.checked_sub(limit.token()) {
            Some(left) => self.units = left,
            None => return Err(limit.time_to_token(self.units)),
        }
        Ok(())
    }

    /// Puts back the token of a request that was refused for another reason.
    pub(super) fn put_back(&mut self, limit: &RateLimit, part: BucketPart) {
        self.units = (self.units + limit.token()).min(most(limit, part));
    }

    /// True if less than half of the tokens are left, or none.
    pub(super) fn is_low(&self, limit: &RateLimit, part: BucketPart) -> bool {
        self.units < limit.token().max(most(limit, part) / 2)
    }

    /// Returns what is missing until the bucket is full, at `now`.
    pub(super) fn missing_units(&self, limit: &RateLimit, part: BucketPart, now: Time) -> u128 {
        most(limit, part).saturating_sub(self.refilled(limit, part, now))
    }

    /// Returns how many millionths of a token the replica should ask others for.
    pub(super) fn wanted_micros(&mut self, limit: &RateLimit, part: BucketPart, now: Time) -> u64 {
        self.refill(limit, part, now);
        let token = limit.token();
        let goal = 2 * self.units_in_advance(limit, now);
        let goal = goal.max(token).min(most(limit, part));
        to_micros(goal.saturating_sub(self.units), limit)
    }

    /// Removes up to `wanted` millionths of a token for another replica, and returns how many.
    /// What this replica's own requests need next stays, up to half of its part.
    pub(super) fn release(
        &mut self,
        limit: &RateLimit,
        part: BucketPart,
        wanted: u64,
        now: Time,
    ) -> u64 {
        self.refill(limit, part, now);
        let own = self.units_in_advance(limit, now);
        let own = if own == 0 { 0 } else { own + limit.token() };
        let spare = self.units.saturating_sub(own.min(most(limit, part) / 2));
        let micros = to_micros(spare, limit).min(wanted);
        let units = (u128::from(micros) * limit.token()).div_ceil(MICROS);
        self.units = self.units.saturating_sub(units);
        micros
    }

    /// Adds tokens of another replica. Those that exceed this replica's part are lost.
    pub(super) fn add(&mut self, limit: &RateLimit, part: BucketPart, micros: u64, now: Time) {
        self.refill(limit, part, now);
        let units = u128::from(micros) * limit.token() / MICROS;
        self.units = (self.units + units).min(most(limit, part));
    }

    fn refill(&mut self, limit: &RateLimit, part: BucketPart, now: Time) {
        self.units = self.refilled(limit, part, now);
        self.refilled_at = self.refilled_at.max(now);
    }

    fn refilled(&self, limit: &RateLimit, part: BucketPart, now: Time) -> u128 {
        let elapsed = u128::from(nanos(now.saturating_since(self.refilled_at)));
        let whole = elapsed * u128::from(limit.requests.get());
        let grown = whole * u128::from(part.tokens) / u128::from(part.whole);
        (self.units + grown).min(most(limit, part))
    }

    /// Returns the units that requests need within [`HORIZON`], if there are as many as lately.
    fn units_in_advance(&mut self, limit: &RateLimit, now: Time) -> u128 {
        let elapsed = now.saturating_since(self.counted_from);
        if elapsed >= HORIZON {
            let new = u128::from(self.arrivals) * 1_000_000_000_000 / elapsed.as_nanos();
            let mean = (new + u128::from(self.rate_milli)) / 2;
            self.rate_milli = u32::try_from(mean).unwrap_or(u32::MAX);
            (self.arrivals, self.counted_from) = (0, now);
        }
        let milli = u128::from(self.rate_milli) * HORIZON.as_millis() / 1000;
        milli * limit.token() / 1000
    }
}

/// Returns the units of a full bucket.
fn most(limit: &RateLimit, part: BucketPart) -> u128 {
    u128::from(part.tokens) * limit.token()
}

fn to_micros(units: u128, limit: &RateLimit) -> u64 {
    u64::try_from(units * MICROS / limit.token()).unwrap_or(u64::MAX)
}
