//! Rate limits of requests: the buckets of each limit, and the rejection of requests that find no token.
//!
//! The rules of the buckets are in [`balance::rate_limit`]. A request takes one lock for each limit, for the time of a
//! look-up in a tree; requests of different keys seldom meet at it. No request waits for another replica.

use std::net::IpAddr;
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use balance::Time;
use balance::hash::hash;
use balance::rate_limit::{BucketTable, LimitId, ReplicaPart};
use codec::head::{KnownFieldName, RequestHead, ResponseHead};
use gateway::snapshot::{KeyedRateLimit, RateLimitKey, RateLimitSettings};

use crate::mutex::lock;
use crate::observe::SingleWriterCounter;

/// Exchange of tokens with other replicas.
mod sharing;

pub use sharing::RateLimitSharing;

/// Maximum number of keys of a limit.
const MAX_KEYS: usize = 65_536;
/// Number of tables of a limit with keys, so that workers seldom meet at a lock.
const TABLES: usize = 16;
/// Maximum of the time until the next token that is reported to clients.
const LATEST: Duration = Duration::from_hours(24);

/// The limits of one target of a policy.
pub(crate) struct RateLimiter {
    pub(crate) settings: Arc<RateLimitSettings>,
    limits: Box<[Arc<LimitBuckets>]>,
    part: Arc<SharedPart>,
    /// One per worker.
    pub(crate) counters: Arc<[RateLimitCounters]>,
}

/// Requests of one worker.
#[derive(Default)]
pub(crate) struct RateLimitCounters {
    pub(crate) admitted: SingleWriterCounter,
    pub(crate) rejected: SingleWriterCounter,
}

/// One limit and its buckets.
struct LimitBuckets {
    keyed: KeyedRateLimit,
    id: LimitId,
    tables: Box<[Mutex<BucketTable>]>,
}

/// This replica's part of every bucket, which workers read.
pub(crate) struct SharedPart(AtomicU64);

impl Default for SharedPart {
    fn default() -> Self {
        let part = Self(AtomicU64::new(0));
        part.set(ReplicaPart::WHOLE);
        part
    }
}

impl SharedPart {
    pub(crate) fn set(&self, part: ReplicaPart) {
        let (position, replicas) = part.position_and_count();
        self.0.store(u64::from(position) << 32 | u64::from(replicas), Ordering::Relaxed);
    }

    fn get(&self) -> ReplicaPart {
        let bits = self.0.load(Ordering::Relaxed);
        let replicas = NonZeroU32::new(bits as u32).unwrap_or(NonZeroU32::MIN);
        ReplicaPart::new((bits >> 32) as u32, replicas)
    }
}

/// The reason why a request is rejected, for its response.
pub(crate) struct RateLimitRejection {
    settings: Arc<RateLimitSettings>,
    /// Index of the limit that has no token.
    limit: usize,
    /// Time until it has one.
    wait: Duration,
}

impl RateLimiter {
    /// Returns the limiter of these settings. Limits that `known` has too keep their buckets, and the counters stay.
    pub(crate) fn new(
        settings: &Arc<RateLimitSettings>,
        known: Option<&Self>,
        part: &Arc<SharedPart>,
        workers: usize,
    ) -> Self {
        let limits = settings.limits.iter().enumerate().map(|(number, keyed)| {
            let same = known.and_then(|known| known.limits.get(number));
            match same.filter(|same| same.keyed == *keyed) {
                Some(same) => Arc::clone(same),
                None => Arc::new(LimitBuckets::new(settings, number)),
            }
        });
        let counters = known.map_or_else(
            || (0..workers).map(|_| RateLimitCounters::default()).collect(),
            |known| Arc::clone(&known.counters),
        );
        Self {
            settings: Arc::clone(settings),
            limits: limits.collect(),
            part: Arc::clone(part),
            counters,
        }
    }

    /// True if a key is the value of one of these header fields; their names are in lower case.
    pub(crate) fn has_key_of(&self, fields: &[Box<str>]) -> bool {
        self.limits.iter().any(|limit| match &limit.keyed.key {
            RateLimitKey::Header(name) => fields.contains(name),
            RateLimitKey::All | RateLimitKey::ClientAddress { .. } => false,
        })
    }

    /// Takes a token of each limit for a request. If one has none, no token is taken.
    pub(crate) fn admit(
        &self,
        worker: usize,
        request: &RequestHead,
        client: impl Fn() -> IpAddr,
        now: Time,
    ) -> Result<(), Box<RateLimitRejection>> {
        let part = self.part.get();
        for (number, limit) in self.limits.iter().enumerate() {
            if let Err(wait) = limit.take(part, request, &client, now) {
                for taken in &self.limits[..number] {
                    taken.put_back(part, request, &client);
                }
                self.counters[worker].rejected.add(1);
                let settings = Arc::clone(&self.settings);
                return Err(Box::new(RateLimitRejection { settings, limit: number, wait }));
            }
        }
        self.counters[worker].admitted.add(1);
        Ok(())
    }

    /// Returns the policy and the target, as labels of metrics.
    pub(crate) fn labels(&self) -> [String; 2] {
        [self.settings.policy.to_string(), self.settings.target.to_string()]
    }

    /// Returns the number of buckets.
    pub(crate) fn keys(&self) -> usize {
        self.tables().map(|table| lock(table).len()).sum()
    }

    /// Returns how many buckets were evicted although tokens were missing in them.
    pub(crate) fn forgotten(&self) -> u64 {
        self.tables().map(|table| lock(table).forgotten()).sum()
    }

    fn tables(&self) -> impl Iterator<Item = &Mutex<BucketTable>> {
        self.limits.iter().flat_map(|limit| &limit.tables)
    }
}

impl LimitBuckets {
    fn new(settings: &RateLimitSettings, number: usize) -> Self {
        let keyed = settings.limits[number].clone();
        let (tables, capacity) = match keyed.key {
            RateLimitKey::All => (1, 1),
            RateLimitKey::ClientAddress { .. } | RateLimitKey::Header(_) => {
                (TABLES, MAX_KEYS / TABLES)
            }
        };
        let name = format!("{} {} {number}", settings.policy, settings.target);
        let tables = (0..tables).map(|_| Mutex::new(BucketTable::new(capacity))).collect();
        Self { keyed, id: LimitId(hash(name.as_bytes())), tables }
    }

    fn take(
        &self,
        part: ReplicaPart,
        request: &RequestHead,
        client: impl Fn() -> IpAddr,
        now: Time,
    ) -> Result<(), Duration> {
        let key = self.key(request, client);
        lock(self.table(key)).take(&self.keyed.limit, part, key, now)
    }

    fn put_back(&self, part: ReplicaPart, request: &RequestHead, client: impl Fn() -> IpAddr) {
        let key = self.key(request, client);
        lock(self.table(key)).put_back(&self.keyed.limit, part, key);
    }

    fn key(&self, request: &RequestHead, client: impl Fn() -> IpAddr) -> u128 {
        match &self.keyed.key {
            RateLimitKey::All => 0,
            RateLimitKey::ClientAddress { ipv6_prefix_length } => {
                network(client(), *ipv6_prefix_length)
            }
            RateLimitKey::Header(name) => request.fields.get(name).map_or(0, header_key),
        }
    }

    fn table(&self, key: u128) -> &Mutex<BucketTable> {
        &self.tables[hash(&key.to_be_bytes()) as usize % self.tables.len()]
    }
}

/// Returns the key of a client: its IPv4 address, or the first bits of its IPv6 address.
fn network(client: IpAddr, ipv6_prefix_length: u8) -> u128 {
    match client.to_canonical() {
        IpAddr::V4(address) => address.to_ipv6_mapped().to_bits(),
        IpAddr::V6(address) => {
            let rest = 128_u32.saturating_sub(u32::from(ipv6_prefix_length));
            address.to_bits().checked_shr(rest).and_then(|it| it.checked_shl(rest)).unwrap_or(0)
        }
    }
}

/// Returns the key of a field's value. The hash is the same at all replicas, and clients find no two values with the
/// same one.
fn header_key(value: &[u8]) -> u128 {
    let mut key = [0; 16];
    key.copy_from_slice(&digest(&SHA256, value).as_ref()[..16]);
    u128::from_be_bytes(key)
}

impl RateLimitRejection {
    /// Returns the status code of the response.
    pub(crate) fn status(&self) -> u16 {
        self.settings.status
    }

    /// Returns the time until the next token.
    pub(crate) fn wait(&self) -> Duration {
        self.wait.min(LATEST)
    }

    /// Adds `Retry-After` and the fields of draft-ietf-httpapi-ratelimit-headers-10 to a response.
    pub(crate) fn describe(&self, response: &mut ResponseHead) {
        let seconds = self.wait().as_nanos().div_ceil(1_000_000_000).max(1).to_string();
        let limits = self.settings.limits.iter().enumerate().map(|(number, keyed)| {
            let (limit, name) = (&keyed.limit, self.name(number));
            match limit.period.subsec_nanos() {
                0 => format!("\"{name}\";q={};w={}", limit.requests, limit.period.as_secs()),
                // A window has whole seconds.
                _ => format!("\"{name}\";q={}", limit.requests),
            }
        });
        let policy = limits.collect::<Vec<_>>().join(", ");
        response.fields.append("RateLimit-Policy", policy);
        let state = format!("\"{}\";r=0;t={seconds}", self.name(self.limit));
        response.fields.append("RateLimit", state);
        response.fields.add(KnownFieldName::RetryAfter, seconds);
    }

    /// Returns the name of a limit for clients: that of its policy, and its number if there are several.
    fn name(&self, number: usize) -> String {
        let policy = self.settings.policy.rsplit('/').next().unwrap_or_default();
        match self.settings.limits.len() {
            1 => policy.to_owned(),
            _ => format!("{policy}-{number}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn key_of_an_address_is_its_network() {
        let key = |text: &str| network(text.parse().unwrap(), 64);
        assert_eq!(key("2001:db8::1"), key("2001:db8::ffff:2"));
        assert_ne!(key("2001:db8::1"), key("2001:db8:0:1::1"));
        assert_eq!(key("192.0.2.1"), key("::ffff:192.0.2.1"));
        assert_ne!(key("192.0.2.1"), key("192.0.2.2"));
        let whole = |text: &str| network(text.parse().unwrap(), 128);
        assert_ne!(whole("2001:db8::1"), whole("2001:db8::2"));
    }
}
