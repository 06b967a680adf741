//! The buckets of a limit by key, of bounded number.

use std::collections::BTreeMap;
use std::time::Duration;

use super::bucket::RateBucket;
use super::{RateLimit, ReplicaPart};
use crate::time::Time;

/// Buckets that are looked at to find the one to evict.
const CANDIDATES: usize = 16;
/// Maximum number of keys for which tokens of other replicas are wanted.
const MAX_WANTING: usize = 64;
/// Time after its last request for which tokens are wanted for a key.
const WANTING_TIME: Duration = Duration::from_secs(10);

/// Buckets by key. If the table is full, the bucket that misses the fewest tokens makes room.
///
/// A full bucket loses nothing by that: a key without a bucket gets a full one. A tree is used
/// because clients choose the keys: no choice makes it slow.
#[derive(Debug)]
pub struct BucketTable {
    capacity: usize,
    buckets: BTreeMap<u128, RateBucket>,
    /// Key at which the next search for a bucket to evict begins.
    cursor: u128,
    /// Keys for which tokens are wanted, with the time of their last request.
    wanting: BTreeMap<u128, Time>,
    forgotten: u64,
}

impl BucketTable {
    /// Returns an empty table with room for `capacity` buckets, at least one.
    pub fn new(capacity: usize) -> Self {
        Self {
            capacity: capacity.max(1),
            buckets: BTreeMap::new(),
            cursor: 0,
            wanting: BTreeMap::new(),
            forgotten: 0,
        }
    }

    /// Takes a token for a request.
    ///
    /// # Errors
    ///
    /// If there is none, returns the time until there is.
    pub fn take(
        &mut self,
        limit: &RateLimit,
        part: ReplicaPart,
        key: u128,
        now: Time,
    ) -> Result<(), Duration> {
        let (bucket, of_bucket) = self.bucket(limit, part, key, now);
        let taken = bucket.take(limit, of_bucket, now);
        let is_low = bucket.is_low(limit, of_bucket);
        if is_low
            && !part.is_whole()
            && (self.wanting.len() < MAX_WANTING || self.wanting.contains_key(&key))
        {
            self.wanting.insert(key, now);
        }
        taken
    }

    /// Puts back the token of a request that was refused for another reason.
    pub fn put_back(&mut self, limit: &RateLimit, part: ReplicaPart, key: u128) {
        if let Some(bucket) = self.buckets.get_mut(&key) {
            bucket.put_back(limit, part.of(limit, key));
        }
    }

    /// Calls `each` with the keys for which tokens of other replicas are wanted, and how many
    /// millionths of a token.
    pub fn wanted(
        &mut self,
        limit: &RateLimit,
        part: ReplicaPart,
        now: Time,
        mut each: impl FnMut(u128, u64),
    ) {
        let buckets = &mut self.buckets;
        self.wanting.retain(|&key, last| {
            let Some(bucket) = buckets.get_mut(&key) else { return false };
            let micros = bucket.wanted_micros(limit, part.of(limit, key), now);
            if micros > 0 {
                each(key, micros);
            }
            micros > 0 && now.saturating_since(*last) < WANTING_TIME
        });
    }

    /// Removes up to `wanted` millionths of a token for another replica, and returns how many.
    pub fn release(
        &mut self,
        limit: &RateLimit,
        part: ReplicaPart,
        key: u128,
        wanted: u64,
        now: Time,
    ) -> u64 {
        let (bucket, of_bucket) = self.bucket(limit, part, key, now);
        bucket.release(limit, of_bucket, wanted, now)
    }

    /// Adds millionths of tokens that another replica has released.
    pub fn add(&mut self, limit: &RateLimit, part: ReplicaPart, key: u128, micros: u64, now: Time) {
        let (bucket, of_bucket) = self.bucket(limit, part, key, now);
        bucket.add(limit, of_bucket, micros, now);
    }

    /// Returns the number of buckets.
    pub fn len(&self) -> usize {
        self.buckets.len()
    }

    /// True if there is no bucket.
    pub fn is_empty(&self) -> bool {
        self.buckets.is_empty()
    }

    /// Returns how many buckets were evicted although tokens were missing in them.
    pub fn forgotten(&self) -> u64 {
        self.forgotten
    }

    fn bucket(
        &mut self,
        limit: &RateLimit,
        part: ReplicaPart,
        key: u128,
        now: Time,
    ) -> (&mut RateBucket, super::BucketPart) {
        if self.buckets.len() >= self.capacity && !self.buckets.contains_key(&key) {
            self.evict(limit, part, now);
        }
        let of_bucket = part.of(limit, key);
        let new = || RateBucket::full(limit, of_bucket, now);
        (self.buckets.entry(key).or_insert_with(new), of_bucket)
    }

    /// Evicts the fullest of some buckets.
    fn evict(&mut self, limit: &RateLimit, part: ReplicaPart, now: Time) {
        let after = self.buckets.range(self.cursor..);
        let candidates = after.chain(self.buckets.range(..self.cursor)).take(CANDIDATES);
        let mut fullest: Option<(u128, u128)> = None;
        let mut last = self.cursor;
        for (&key, bucket) in candidates {
            last = key;
            let missing = bucket.missing_units(limit, part.of(limit, key), now);
            if fullest.is_none_or(|(_, least)| missing < least) {
                fullest = Some((key, missing));
            }
            if missing == 0 {
                break;
            }
        }
        self.cursor = last.wrapping_add(1);
        if let Some((key, missing)) = fullest {
            self.buckets.remove(&key);
            self.forgotten += u64::from(missing > 0);
        }
    }
}
