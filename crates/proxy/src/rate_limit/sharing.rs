//! Exchange of tokens with other replicas: the data plane's side of `TokenExchange`.
//!
//! The thread of the leases owns it. No request waits for it: it takes the same locks as requests, for as short a time.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::Time;
use balance::leases::ReplicaIdentity;
use balance::rate_limit::{
    LimitId, ReplicaPart, TokenAmount, TokenExchange, TokenMessage, TokenRefusal, by_bucket, divide,
};

use super::LimitBuckets;
use crate::control::Proxy;
use crate::mutex::lock;

/// The exchange of tokens of rate limits with other replicas.
pub struct RateLimitSharing {
    proxy: Arc<Proxy>,
    exchange: TokenExchange,
    part: ReplicaPart,
}

impl RateLimitSharing {
    /// Interval of messages to peers.
    pub const INTERVAL: Duration = Duration::from_millis(50);

    /// Begins without other replicas.
    #[must_use]
    pub fn new(proxy: Arc<Proxy>, me: ReplicaIdentity) -> Self {
        Self { proxy, exchange: TokenExchange::new(me), part: ReplicaPart::WHOLE }
    }

    /// Sets the replicas that serve now, this one included.
    pub fn update_members(&mut self, members: impl IntoIterator<Item = SocketAddr>, now: Time) {
        self.exchange.update_members(members, now);
        self.apply_part(now);
    }

    /// Puts the part of this replica in force that it has at `now`.
    pub fn apply_part(&mut self, now: Time) {
        let part = self.exchange.part(now);
        if part != self.part {
            self.part = part;
            self.proxy.set_rate_limit_part(part);
        }
    }

    /// Returns the time at which the part changes by itself, if it will.
    #[must_use]
    pub fn next_change(&self) -> Option<Time> {
        self.exchange.next_change()
    }

    /// True if there are other replicas, and limits.
    #[must_use]
    pub fn is_needed(&self) -> bool {
        self.exchange.has_peers() && !self.proxy.shared().config.load().rate_limiters.is_empty()
    }

    /// Takes a message of a peer.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is refused. Then it has no effect.
    pub fn receive(&mut self, message: &TokenMessage, now: Time) -> Result<(), TokenRefusal> {
        let gifts = self.exchange.receive(message, now)?;
        if gifts.is_empty() {
            return Ok(());
        }
        let limits = self.limits();
        for TokenAmount { limit, key, micros } in gifts {
            let Some(buckets) = limits.get(&limit) else { continue };
            let mut table = lock(buckets.table(key));
            table.add(&buckets.keyed.limit, self.part, key, micros, now);
        }
        Ok(())
    }

    /// Removes tokens that peers want from the buckets, and returns the messages that are due.
    pub fn step(&mut self, now: Time) -> Vec<TokenMessage> {
        self.apply_part(now);
        let limits = self.limits();
        let mut gifts = Vec::new();
        for wishes in by_bucket(&self.exchange.wishes(now)) {
            let TokenAmount { limit, key, .. } = wishes[0].tokens;
            let Some(buckets) = limits.get(&limit) else { continue };
            let total = wishes.iter().fold(0_u64, |sum, it| sum.saturating_add(it.tokens.micros));
            let mut table = lock(buckets.table(key));
            let released = table.release(&buckets.keyed.limit, self.part, key, total, now);
            drop(table);
            gifts.extend(divide(released, wishes));
        }
        self.exchange.give(gifts, now);
        self.exchange.messages(&wanted(&limits, self.part, now), now)
    }

    /// Returns the number of messages refused for each reason, in the order of [`TokenRefusal::ALL`].
    #[must_use]
    pub fn refused(&self) -> [u64; TokenRefusal::ALL.len()] {
        self.exchange.refused()
    }

    fn limits(&self) -> BTreeMap<LimitId, Arc<LimitBuckets>> {
        let config = self.proxy.shared().config.load();
        let limits = config.rate_limiters.iter().flat_map(|limiter| &limiter.limits);
        limits.map(|limit| (limit.id, Arc::clone(limit))).collect()
    }
}

/// Returns the tokens that this replica wants, those of which it wants most first.
fn wanted(
    limits: &BTreeMap<LimitId, Arc<LimitBuckets>>,
    part: ReplicaPart,
    now: Time,
) -> Vec<TokenAmount> {
    let mut wanted = Vec::new();
    for (&limit, buckets) in limits {
        for table in &buckets.tables {
            lock(table).wanted(&buckets.keyed.limit, part, now, |key, micros| {
                wanted.push(TokenAmount { limit, key, micros });
            });
        }
    }
    wanted.sort_by_key(|tokens| std::cmp::Reverse(tokens.micros));
    wanted
}
