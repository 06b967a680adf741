//! State of the exchange with one peer: sequence, acknowledgement, leases, and what both know of
//! each other's demand.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use super::change_queue::ChangeQueue;
use super::ledger::{BorrowingLedger, LendingLedger};
use super::message::{
    LEASE_VERSION, LeaseMessage, LeaseRefusal, PoolEntry, PoolKey, PoolState, ReplicaIdentity,
};
use super::settings::{
    DRIFT_MARGIN, GREETING_INTERVAL, KEEP_ALIVE, LEASE_TERM, LIVE_TIME, MAX_MESSAGE_ENTRIES,
    MAX_POOLS, MessageIntervals, TICK,
};
use crate::time::Time;

/// Interval at which a wish is repeated: a peer may have forgotten it with the pool.
pub(crate) const WISH_INTERVAL: Duration = KEEP_ALIVE;

/// Time by which a peer's clock may be ahead of what ours says has passed since its last message:
/// that one may have been late.
const MAX_TIME_JUMP: Duration = Duration::from_secs(60);

/// Latest time of sending: about 292 years after the origin of the peer's clock.
const MAX_SENT: Time = Time::from_nanos(u64::MAX / 2);

/// Maximum number of messages for which the slots given are known one by one.
const MAX_GIVEN: usize = 64;

#[derive(Clone, Debug)]
pub(crate) struct PeerLink {
    /// The peer; incarnation 0 until it has told it.
    pub(crate) peer: ReplicaIdentity,
    /// False if the peer has left: it gives back everything, and so do we.
    pub(crate) is_member: bool,
    /// The newest `sent` of the peer that we have processed.
    received: Time,
    received_at: Time,
    /// The newest `sent` of ours that the peer has processed.
    echoed: Time,
    last_sent: Time,
    /// Time at which we take back what we lend, unless we hear from the peer.
    pub(crate) takes_back_at: Time,
    /// Time until which we may use the slots of the peer.
    pub(crate) valid_until: Time,
    /// True if the slots of the peer are out of use because the lease is about to expire.
    pub(crate) is_suspended: bool,
    /// True if the peer was live when we last looked.
    was_live: bool,
    pub(crate) lending: LendingLedger,
    pub(crate) borrowing: BorrowingLedger,
    pub(crate) pools: BTreeMap<PoolKey, PeerPool>,
    /// Pools with slots that are given with the next message.
    given_pools: Vec<PoolKey>,
    pub(crate) pool_changes: ChangeQueue<PoolKey>,
    /// Time of the first message that needs an acknowledgement.
    unacknowledged_since: Option<Time>,
    /// True if the next message does not wait for the interval of news.
    pub(crate) is_urgent: bool,
}

/// Demand for one pool at a peer, and what the peer knows of ours.
#[derive(Clone, Debug, Default)]
pub(crate) struct PeerPool {
    /// State of the pool at the peer, as it has told it.
    pub(crate) state: PoolState,
    /// Time at which it was received.
    pub(crate) heard_at: Time,
    /// Number of slots that the peer asks for.
    their_wanted: u32,
    /// Slots given to the peer in messages that it had not seen when it asked.
    given: Vec<(Time, u32)>,
    given_unsent: u32,
    /// Number of slots that we ask the peer for.
    pub(crate) wanted: u32,
    /// The same as the peer knows it.
    pub(crate) told_wanted: u32,
    pub(crate) told: PoolState,
    told_at: Time,
}

impl PeerPool {
    /// Returns the number of slots that the peer asks for and that are not on their way.
    pub(crate) fn unmet(&self) -> u32 {
        self.their_wanted.saturating_sub(self.on_their_way())
    }

    /// Returns the number of slots that are given to the peer, and of which it did not know when it
    /// told its state.
    pub(crate) fn on_their_way(&self) -> u32 {
        self.given.iter().map(|&(_, slots)| slots).sum::<u32>() + self.given_unsent
    }

    /// Returns the wait of the oldest request of the highest priority at the peer, as far as it is
    /// known.
    pub(crate) fn oldest_wait(&self, now: Time) -> Duration {
        if self.state.queued == 0 {
            return Duration::ZERO;
        }
        self.state.oldest_wait.saturating_add(now.saturating_since(self.heard_at))
    }

    /// True if we ask for slots, or the peer does.
    pub(crate) fn is_wanted(&self) -> bool {
        self.wanted + self.their_wanted > 0
    }

    /// True if the peer should know our state and wish better. A wish is repeated: the peer may
    /// have forgotten it with the pool.
    fn is_outdated(&self, state: &PoolState, now: Time) -> bool {
        let is_far = |now: u64, told: u64, least: u64| now.abs_diff(told) > least.max(told / 2);
        let is_old = self.wanted > 0 && now.saturating_since(self.told_at) >= WISH_INTERVAL;
        is_old
            || is_far(self.wanted.into(), self.told_wanted.into(), 0)
            || is_far(state.queued.into(), self.told.queued.into(), 2)
            || is_far(state.first_queued.into(), self.told.first_queued.into(), 2)
            || state.queued > 0 && state.priority != self.told.priority
            || is_far(state.free.into(), self.told.free.into(), 2)
            || is_far(state.demand_milli, self.told.demand_milli, 1000)
    }

    fn record_sent(&mut self, sent: Time) {
        let slots = std::mem::take(&mut self.given_unsent);
        if slots == 0 {
            return;
        }
        if self.given.len() < MAX_GIVEN {
            self.given.push((sent, slots));
        } else if let Some(last) = self.given.last_mut() {
            *last = (sent, last.1 + slots);
        }
    }

    /// Takes what the peer tells. Returns true if anything follows from it: a wish that is repeated
    /// is for requests that wait as before.
    fn hear(&mut self, entry: &PoolEntry, echo: Time, now: Time) -> bool {
        let (state, unmet) = (self.state, self.unmet());
        self.state = entry.state;
        self.their_wanted = entry.wanted;
        self.heard_at = now;
        self.given.retain(|&(sent, _)| sent > echo);
        let known = PoolState { oldest_wait: state.oldest_wait, ..self.state };
        state != known || unmet != self.unmet()
    }
}

impl PeerLink {
    /// Returns the link to a peer that gets the messages after `last_sent`.
    pub(crate) fn new(peer: ReplicaIdentity, epoch: u64, last_sent: Time) -> Self {
        Self {
            peer,
            is_member: true,
            received: Time::ZERO,
            received_at: Time::ZERO,
            echoed: Time::ZERO,
            last_sent,
            takes_back_at: Time::ZERO,
            valid_until: Time::ZERO,
            is_suspended: true,
            was_live: false,
            lending: LendingLedger::new(epoch),
            borrowing: BorrowingLedger::new(0),
            pools: BTreeMap::new(),
            given_pools: Vec::new(),
            pool_changes: ChangeQueue::new(),
            unacknowledged_since: None,
            is_urgent: true,
        }
    }

    /// True if the peer has recently seen a message of ours and we have seen its reply.
    pub(crate) fn is_live(&self, now: Time) -> bool {
        self.echoed > Time::ZERO && now.saturating_since(self.echoed) <= LIVE_TIME
    }

    /// Returns true if the peer has become live since the last call, or is no longer.
    pub(crate) fn update_liveness(&mut self, now: Time) -> bool {
        let is_live = self.is_live(now);
        std::mem::replace(&mut self.was_live, is_live) != is_live
    }

    /// Checks sequence and numbers of a message from the peer's current incarnation.
    pub(crate) fn check(&self, message: &LeaseMessage, now: Time) -> Result<(), LeaseRefusal> {
        if message.sent <= self.received {
            return Err(LeaseRefusal::StaleSequence);
        }
        // One impossible time would make all later messages stale.
        let elapsed = now.saturating_since(self.received_at);
        if message.sent > MAX_SENT
            || self.received > Time::ZERO
                && message.sent.saturating_since(self.received) > elapsed * 2 + MAX_TIME_JUMP
        {
            return Err(LeaseRefusal::Absurd);
        }
        let LeaseMessage { to, lent, returned, pools, .. } = message;
        let is_greeting = to.incarnation == 0;
        let has_state = !lent.is_empty() || !returned.is_empty() || message.echo > Time::ZERO;
        let counts = [lent.len(), returned.len(), pools.len()];
        if counts.iter().any(|&count| count > MAX_MESSAGE_ENTRIES)
            || message.echo > self.last_sent
            || is_greeting && has_state
            || self.pools.len() + pools.len() > MAX_POOLS
        {
            return Err(LeaseRefusal::Absurd);
        }
        if !is_greeting {
            self.borrowing.check(message.lending_epoch, lent)?;
        }
        if message.borrowing_epoch == self.lending.epoch() {
            self.lending.check(returned)?;
        }
        Ok(())
    }

    /// Takes sequence, acknowledgement and demand of a message that was checked, and renews the
    /// leases. Returns the pools with another demand than before.
    pub(crate) fn take_header(&mut self, message: &LeaseMessage, now: Time) -> Vec<PoolKey> {
        self.received = message.sent;
        self.received_at = now;
        self.takes_back_at = now + LEASE_TERM;
        self.echoed = self.echoed.max(message.echo);
        self.lending.acknowledge(message.echo);
        self.borrowing.changes.acknowledge(message.echo);
        self.pool_changes.acknowledge(message.echo);
        let mut changed = Vec::new();
        for entry in &message.pools {
            if self.pools.entry(entry.pool).or_default().hear(entry, message.echo, now) {
                changed.push(entry.pool);
            }
        }
        let has_changes =
            !message.lent.is_empty() || !message.returned.is_empty() || !message.pools.is_empty();
        if message.to.incarnation == 0 {
            // The peer waits for our identity.
            self.is_urgent = true;
        } else if has_changes {
            self.unacknowledged_since.get_or_insert(now);
        }
        changed
    }

    /// Renews our lease of the peer's slots: it counts from when the message was sent that the peer
    /// has seen.
    pub(crate) fn renew(&mut self, echo: Time) {
        if echo > Time::ZERO {
            self.valid_until = self.valid_until.max(echo + (LEASE_TERM - DRIFT_MARGIN));
        }
    }

    /// True if we use slots of the peer.
    pub(crate) fn is_used(&self) -> bool {
        self.is_member && !self.is_suspended && self.borrowing.total() > 0
    }

    /// Returns the number of slots of the peer that we may use.
    pub(crate) fn usable(&self, endpoint: SocketAddr) -> u32 {
        let is_used = self.is_member && !self.is_suspended;
        if is_used { self.borrowing.usable(endpoint) } else { 0 }
    }

    /// Records that slots have come that we have asked for.
    pub(crate) fn note_received(&mut self, pool: PoolKey, slots: u32) {
        if let Some(pool) = self.pools.get_mut(&pool) {
            pool.told_wanted = pool.told_wanted.saturating_sub(slots);
        }
    }

    /// Stops or resumes the use of the peer's slots, a tick before the lease expires. Returns true
    /// if that has changed.
    pub(crate) fn update_suspension(&mut self, now: Time) -> bool {
        let is_suspended = now + TICK >= self.valid_until;
        std::mem::replace(&mut self.is_suspended, is_suspended) != is_suspended
    }

    /// Returns the time at which the first lease between us and the peer expires.
    pub(crate) fn expires_at(&self) -> Time {
        let lent = if self.lending.total() > 0 { self.takes_back_at } else { Time::MAX };
        let stops = self.valid_until.saturating_sub(TICK);
        if self.is_suspended { lent } else { lent.min(stops) }
    }

    /// Takes back everything that we lend: counts begin anew.
    pub(crate) fn reset_lending(&mut self, epoch: u64) {
        self.lending = LendingLedger::new(epoch);
    }

    /// Gives up everything that we hold: the peer has taken it back.
    pub(crate) fn reset_borrowing(&mut self, epoch: u64) {
        self.borrowing = BorrowingLedger::new(epoch);
        self.valid_until = Time::ZERO;
        self.is_suspended = true;
    }

    /// Returns the state of a pool that the peer has told.
    pub(crate) fn state_of(&self, key: PoolKey) -> Option<PoolState> {
        self.pools.get(&key).map(|pool| pool.state)
    }

    /// Records that slots of a pool are given to the peer with the next message.
    pub(crate) fn record_given(&mut self, key: PoolKey, slots: u32) {
        let pool = self.pools.entry(key).or_default();
        if pool.given_unsent == 0 && slots > 0 {
            self.given_pools.push(key);
        }
        pool.given_unsent += slots;
    }

    /// Marks a pool if the peer should know our state and wish better.
    pub(crate) fn note_pool(&mut self, key: PoolKey, state: &PoolState, now: Time) {
        if self.pools.get(&key).is_some_and(|pool| pool.is_outdated(state, now)) {
            self.pool_changes.mark_once(key);
        }
    }

    /// Returns the time at which the next message is due if nothing more changes.
    pub(crate) fn due_at(&self, now: Time, intervals: &MessageIntervals) -> Time {
        let interval = if self.is_urgent || self.has_unsent_slots() {
            intervals.urgent
        } else if !self.is_live(now) {
            GREETING_INTERVAL
        } else if self.pool_changes.has_unsent() {
            intervals.news
        } else if self.has_changes() {
            intervals.repeat
        } else {
            KEEP_ALIVE
        };
        let due = self.last_sent + interval;
        let acknowledge_by = self.unacknowledged_since.map(|it| it + intervals.acknowledgement);
        acknowledge_by.map_or(due, |by| by.min(due))
    }

    /// True if a message at this time only renews the leases, and nothing has to pay for it.
    pub(crate) fn is_keep_alive(&self, now: Time) -> bool {
        now >= self.last_sent + KEEP_ALIVE
    }

    /// True if slots were granted or returned of which the peer has no message yet.
    fn has_unsent_slots(&self) -> bool {
        self.peer.incarnation > 0
            && (self.lending.changes.has_unsent() || self.borrowing.changes.has_unsent())
    }

    fn has_changes(&self) -> bool {
        let ledgers = [&self.lending.changes, &self.borrowing.changes];
        !self.pool_changes.is_empty() || ledgers.iter().any(|changes| !changes.is_empty())
    }

    /// Returns the next message to the peer, with our state of pools.
    pub(crate) fn compose(
        &mut self,
        from: ReplicaIdentity,
        sent: Time,
        state: &impl Fn(PoolKey) -> Option<PoolState>,
    ) -> LeaseMessage {
        let mut message = LeaseMessage {
            version: LEASE_VERSION,
            from,
            to: self.peer,
            sent,
            echo: self.received,
            lending_epoch: self.lending.epoch(),
            borrowing_epoch: self.borrowing.epoch(),
            lent: Vec::new(),
            returned: Vec::new(),
            pools: Vec::new(),
        };
        let pools = self.pool_changes.collect(MAX_MESSAGE_ENTRIES, sent);
        message
            .pools
            .extend(pools.into_iter().filter_map(|pool| self.tell(pool, state(pool)?, sent)));
        for key in std::mem::take(&mut self.given_pools) {
            if let Some(pool) = self.pools.get_mut(&key) {
                pool.record_sent(sent);
            }
        }
        if self.peer.incarnation > 0 {
            let lent = self.lending.changes.collect(MAX_MESSAGE_ENTRIES, sent);
            message.lent.extend(lent.into_iter().filter_map(|it| self.lending.entry(it)));
            let returned = self.borrowing.changes.collect(MAX_MESSAGE_ENTRIES, sent);
            message.returned.extend(returned.into_iter().filter_map(|it| self.borrowing.entry(it)));
        } else {
            message.echo = Time::ZERO;
        }
        self.last_sent = sent;
        self.unacknowledged_since = None;
        self.is_urgent = false;
        message
    }

    fn tell(&mut self, key: PoolKey, state: PoolState, sent: Time) -> Option<PoolEntry> {
        let pool = self.pools.get_mut(&key)?;
        pool.told = state;
        pool.told_at = sent;
        pool.told_wanted = pool.wanted;
        Some(PoolEntry { pool: key, state, wanted: pool.wanted })
    }
}
