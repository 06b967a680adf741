//! Token buckets for rate limits, which several replicas keep together.
//!
//! A bucket holds tokens. A request takes one; if there is none, it is refused. Each of several
//! replicas has a part of every bucket: a part of its refill and of its burst, and the parts add up
//! to the whole. So together they never admit more than the limit. Tokens that a replica does not
//! need go to replicas that refuse requests (`TokenExchange`). A token is taken out of one bucket
//! before it is put into another, so that no delay, loss or repetition of messages, and no crash,
//! makes a second token of it.
//!
//! All numbers are integers. Rounding only ever removes a part of a token.

/// The bucket of one key.
mod bucket;
/// The buckets of a limit by key, of bounded number.
mod bucket_table;
/// Messages with which tokens move.
mod message;
/// Movement of tokens between replicas.
mod exchange;

use std::num::NonZeroU32;
use std::time::Duration;

pub use bucket_table::BucketTable;
pub use exchange::{TokenExchange, TokenWish, by_bucket, divide};
pub use message::{
    LimitId, MAX_TOKEN_ENTRIES, TOKENS_VERSION, TokenAmount, TokenMessage, TokenRefusal,
};

use crate::rng::mix;

/// Time for which a replica keeps or asks for tokens in advance.
pub(crate) const HORIZON: Duration = Duration::from_millis(200);

/// Number of requests that a key may make.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimit {
    /// Requests in each period.
    pub requests: NonZeroU32,
    /// Period. Zero counts as one nanosecond.
    pub period: Duration,
    /// Requests at once.
    pub burst: NonZeroU32,
}

/// Part of every bucket that a replica has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaPart {
    /// Number of replicas, at least 1.
    replicas: u32,
    /// Position of this replica among them.
    position: u32,
}

/// The part of one bucket: so many tokens of `whole`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BucketPart {
    tokens: u32,
    whole: u32,
}

impl RateLimit {
    /// Returns the units of a token: as many as the period has nanoseconds, so that each nanosecond
    /// adds a whole number of them.
    fn token(&self) -> u128 {
        self.period.as_nanos().max(1)
    }

    /// Returns the time in which a bucket with this many units gets its next whole token, if all
    /// replicas together refill it.
    fn time_to_token(&self, units: u128) -> Duration {
        let missing = self.token().saturating_sub(units);
        let nanos = missing.div_ceil(u128::from(self.requests.get()));
        Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
    }
}

impl ReplicaPart {
    /// The part of a replica that is alone.
    pub const WHOLE: Self = Self { replicas: 1, position: 0 };

    /// Returns the part of the replica at this position of `replicas` in all. A position that is
    /// not among them counts as the last.
    pub fn new(position: u32, replicas: NonZeroU32) -> Self {
        let replicas = replicas.get();
        Self { replicas, position: position.min(replicas - 1) }
    }

    /// Returns the position of the replica, and the number of all.
    pub const fn position_and_count(self) -> (u32, u32) {
        (self.position, self.replicas)
    }

    /// True if the replica is alone.
    pub const fn is_whole(self) -> bool {
        self.replicas == 1
    }

    /// Returns the part of the bucket of a key. The parts of all replicas differ by one token at
    /// most, and add up to the burst; each has one token at least. Tokens that cannot be divided
    /// evenly go to other replicas for each key.
    fn of(self, limit: &RateLimit, key: u128) -> BucketPart {
        let Self { replicas, position } = self;
        let whole = limit.burst.get().max(replicas);
        let (each, rest) = (whole / replicas, whole % replicas);
        let first = if rest == 0 { 0 } else { (mix(fold(key)) % u64::from(replicas)) as u32 };
        let rank = (position + replicas - first) % replicas;
        BucketPart { tokens: each + u32::from(rank < rest), whole }
    }
}

/// Returns the bits of a key as half as many.
fn fold(key: u128) -> u64 {
    (key as u64) ^ ((key >> 64) as u64)
}

#[cfg(test)]
mod tests;
