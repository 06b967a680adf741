//! Slot leases: several balancers that share endpoints move slots to where requests wait.
//!
//! [`SlotAssignment`] gives each balancer a number of slots of each endpoint, its *base*. A balancer
//! lends slots of its base that are not in use to peers that need them, for as long as both
//! communicate. A [`LeaseTable`](crate::leases::LeaseTable) decides this for one balancer. It takes
//! messages and returns messages, and knows no connection and no clock.
//!
//! At each endpoint a balancer uses at most `base - lent + borrowed` slots, so all together use no
//! more than the sum of the bases, which is the cap. This rests on three rules. A slot is handed
//! over after it has been released: the limit on requests in flight is lowered first. Holder and
//! lender count cumulatively, so the holder never holds more than the lender considers lent. And a
//! lease expires at the holder before the lender takes its slots back.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::time::Duration;

use crate::slot_assignment::{SlotAssigner, SlotAssignment};
use crate::time::Time;

/// Times, bounds and policy.
mod settings;
/// Messages, and the reasons to refuse them.
mod message;
/// Changes that a peer has not acknowledged.
mod change_queue;
/// Messages that requests pay for.
mod message_budget;
/// Slots lent and borrowed, by peer.
mod ledger;
/// Exchange with one peer.
mod link;
/// Endpoints and pools of the table.
mod endpoint_slots;
/// Members, endpoints and bases.
mod membership;
/// Receipt of messages.
mod receive;
/// Shares in force, and slots handed over.
mod shares;
/// Movement of slots by demand.
mod rebalance;
/// Questions of the data plane.
mod queries;

pub use endpoint_slots::{EndpointShare, LeasedEndpoint, SlotAccount};
pub use message::{
    LEASE_VERSION, LeaseMessage, LeaseRefusal, LentEntry, PoolEntry, PoolKey, PoolState,
    QueueState, ReplicaIdentity, ReturnedEntry,
};
pub use settings::{
    CutOffPolicy, DRIFT_MARGIN, LEASE_TERM, MAX_CLOCK_DRIFT_PPM, MAX_LENT_ENDPOINTS,
    MAX_MESSAGE_ENTRIES, MAX_POOLS, MAX_SLOTS, REDEAL_INTERVAL, TICK,
};

use endpoint_slots::{EndpointSlots, SlotPool};
use link::PeerLink;
use message_budget::MessageBudget;
use settings::MessageIntervals;

/// Slots of one balancer: its base, what it lends and what it borrows.
///
/// One thread owns the table. It reports requests in flight and queued, passes on the messages of
/// peers, and calls [`LeaseTable::poll`] after these and when [`LeaseTable::next_poll`] has come.
/// Several reports and messages may precede one `poll`; slots move when it is called.
///
/// A `poll` looks at the peers, and at the pools and endpoints that have changed since the last one.
#[derive(Debug)]
pub struct LeaseTable {
    me: ReplicaIdentity,
    policy: CutOffPolicy,
    assigner: SlotAssigner,
    assignment: SlotAssignment,
    assignment_changes: Option<Time>,
    endpoints: BTreeMap<SocketAddr, EndpointSlots>,
    pools: BTreeMap<PoolKey, SlotPool>,
    links: BTreeMap<SocketAddr, PeerLink>,
    /// Endpoints whose share is to be put in force, or whose slots are to be handed over.
    unsettled: BTreeSet<SocketAddr>,
    /// True if an endpoint is no longer configured and not forgotten yet.
    has_removed: bool,
    /// Pools with a change since the last poll.
    changed_pools: BTreeSet<PoolKey>,
    /// Pools that are looked at when slots are moved by demand.
    active_pools: BTreeSet<PoolKey>,
    /// Times at which the oldest queued requests of pools become overdue.
    overdue: BTreeSet<(Time, PoolKey)>,
    last_epoch: u64,
    last_sent: Time,
    next_redeal: Time,
    budget: MessageBudget,
    /// Time since which no peer is heard; `None` if one is, or there is none.
    silent_since: Option<Time>,
    has_emergency_slots: bool,
    counts: LeaseCounts,
}

/// Minimum of the time until the next poll that [`LeaseTable::next_poll`] returns.
const MIN_POLL_INTERVAL: Duration = Duration::from_millis(1);

/// Counts of events since the start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseCounts {
    /// Messages sent.
    pub sent: u64,
    /// Messages received and processed.
    pub received: u64,
    /// Messages refused, in the order of [`LeaseRefusal::ALL`].
    pub refused: [u64; LeaseRefusal::ALL.len()],
    /// Slots lent to peers.
    pub lent: u64,
    /// Slots returned to peers.
    pub returned: u64,
    /// Slots taken back because a peer was silent.
    pub taken_back: u64,
}

impl LeaseTable {
    /// Returns a table without endpoints and peers.
    ///
    /// # Panics
    ///
    /// If the incarnation is 0.
    pub fn new(me: ReplicaIdentity, policy: CutOffPolicy) -> Self {
        assert!(me.incarnation > 0, "incarnation 0 means that it is not known");
        let ip = me.member.ip().to_canonical();
        let member = SocketAddr::new(ip, me.member.port());
        Self {
            me: ReplicaIdentity { member, ..me },
            policy,
            assigner: SlotAssigner::new(member),
            assignment: SlotAssignment::alone(),
            assignment_changes: None,
            endpoints: BTreeMap::new(),
            pools: BTreeMap::new(),
            links: BTreeMap::new(),
            unsettled: BTreeSet::new(),
            has_removed: false,
            changed_pools: BTreeSet::new(),
            active_pools: BTreeSet::new(),
            overdue: BTreeSet::new(),
            last_epoch: 0,
            last_sent: Time::ZERO,
            next_redeal: Time::ZERO,
            budget: MessageBudget::FULL,
            silent_since: None,
            has_emergency_slots: false,
            counts: LeaseCounts::default(),
        }
    }

    /// Records that requests have begun since the last call, at any endpoint. They pay for messages:
    /// without requests slots move later.
    pub fn record_requests(&mut self, requests: u32) {
        self.budget.record_requests(requests);
    }

    /// Records the number of our requests in flight at an endpoint.
    pub fn report_in_flight(&mut self, endpoint: SocketAddr, in_flight: u32) {
        if let Some(slots) = self.endpoints.get_mut(&endpoint) {
            let pool = self.pools.get_mut(&slots.pool).expect("an endpoint has its pool");
            if slots.set_in_flight(in_flight, pool) {
                self.changed_pools.insert(slots.pool);
            }
        }
    }

    /// Records if requests can use the slots of an endpoint: it is healthy and reachable. Slots that
    /// they cannot use do not count as free.
    pub fn report_usable(&mut self, endpoint: SocketAddr, is_usable: bool) {
        if let Some(slots) = self.endpoints.get_mut(&endpoint)
            && slots.is_usable != is_usable
        {
            slots.is_usable = is_usable;
            let pool = self.pools.get_mut(&slots.pool).expect("an endpoint has its pool");
            slots.count_free(pool);
            self.changed_pools.insert(slots.pool);
        }
    }

    /// Records our requests that wait for a slot of a pool.
    pub fn report_queue(&mut self, key: PoolKey, queue: QueueState) {
        let Some(pool) = self.pools.get_mut(&key) else { return };
        if pool.queue != queue {
            if let Some(at) = pool.overdue_at() {
                self.overdue.remove(&(at, key));
            }
            pool.queue = queue;
            if let Some(at) = pool.overdue_at() {
                self.overdue.insert((at, key));
            }
            self.changed_pools.insert(key);
        }
    }

    /// Does what is due: moves slots and returns messages to peers, at most one for each.
    ///
    /// `put_in_force` sets the share of an endpoint and returns the number of our requests in flight
    /// there *after* that. From then on no request may begin while as many as the share are in
    /// flight: slots are handed over on the strength of that number. A worker that takes a slot by
    /// adding to an atomic count has to compare with the share after it has added.
    pub fn poll(
        &mut self,
        now: Time,
        mut put_in_force: impl FnMut(SocketAddr, EndpointShare) -> u32,
    ) -> Vec<LeaseMessage> {
        self.update_assignment(now);
        self.expire(now);
        self.update_cut_off(now);
        self.update_liveness(now);
        if now >= self.next_redeal {
            self.next_redeal = now + REDEAL_INTERVAL;
            self.redeal(now);
        }
        while let Some(&(at, key)) = self.overdue.first()
            && at < now
        {
            self.overdue.pop_first();
            self.changed_pools.insert(key);
        }
        let mut changed = std::mem::take(&mut self.changed_pools);
        self.active_pools.extend(&changed);
        self.give(&changed, now);
        for endpoint in std::mem::take(&mut self.unsettled) {
            self.settle(endpoint, &mut put_in_force);
        }
        // Pools that change by that are looked at here and in the next poll.
        changed.extend(&self.changed_pools);
        self.update_wants(&changed, now);
        self.compose(&changed, now)
    }

    /// Returns the time at which the table has to be polled, if nothing happens before.
    pub fn next_poll(&self, now: Time) -> Time {
        let intervals = self.intervals();
        let due = |link: &PeerLink| link.due_at(now, intervals).min(link.expires_at());
        let links = self.links.values().map(due).min().unwrap_or(Time::MAX);
        let is_active = !self.active_pools.is_empty() || self.has_removed;
        let redeal = is_active.then_some(self.next_redeal);
        let overdue = self.overdue.first().map(|&(at, _)| at + MIN_POLL_INTERVAL);
        let times = [redeal, overdue, self.assigner.next_change(now)];
        times.into_iter().flatten().fold(links, Time::min).max(now + MIN_POLL_INTERVAL)
    }

    /// Returns the intervals of messages.
    fn intervals(&self) -> &'static MessageIntervals {
        if self.budget.has_credit() { &MessageIntervals::FAST } else { &MessageIntervals::SLOW }
    }

    /// Returns the time until which the shares are valid. After it, only
    /// [`EndpointShare::without_leases`] may be used: a worker compares before it takes a slot, so
    /// that leases expire even if the table is not polled.
    pub fn valid_until(&self) -> Time {
        let used = self.links.values().filter(|link| link.is_used());
        used.map(|link| link.valid_until).min().unwrap_or(Time::MAX)
    }

    /// Returns the counts of events since the start.
    pub fn counts(&self) -> LeaseCounts {
        self.counts
    }

    /// Returns the numbers of slots lent and borrowed at present.
    pub fn lent_and_borrowed(&self) -> (u64, u64) {
        let lent = self.links.values().map(|link| link.lending.total());
        let borrowed = self.endpoints.values().map(|slots| u64::from(slots.borrowed));
        (lent.sum(), borrowed.sum())
    }

    /// Returns the slots of an endpoint as the ledgers have them.
    pub fn account(&self, endpoint: SocketAddr) -> SlotAccount {
        let Some(slots) = self.endpoints.get(&endpoint) else { return SlotAccount::default() };
        let lent = self.links.values().map(|link| link.lending.outstanding(endpoint));
        let held = self.links.values().map(|link| link.borrowing.held(endpoint));
        SlotAccount { base: slots.base, lent: lent.sum(), held: held.sum() }
    }

    /// Returns the share that is in force at an endpoint; none if the endpoint is not known.
    pub fn share(&self, endpoint: SocketAddr) -> EndpointShare {
        self.endpoints.get(&endpoint).map_or_else(EndpointShare::default, |slots| slots.in_force)
    }

    fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }

    /// Writes the messages that are due.
    fn compose(&mut self, changed: &BTreeSet<PoolKey>, now: Time) -> Vec<LeaseMessage> {
        let mut messages = Vec::new();
        let intervals = self.intervals();
        let state = |pool| self.pools.get(&pool).map(|pool: &SlotPool| pool.state(now));
        let changed: Vec<_> =
            changed.iter().filter_map(|&pool| Some((pool, state(pool)?))).collect();
        for link in self.links.values_mut() {
            changed.iter().for_each(|(pool, state)| link.note_pool(*pool, state, now));
            if now < link.due_at(now, intervals) {
                continue;
            }
            if link.is_keep_alive(now) {
                self.budget.record_renewal();
            } else {
                self.budget.record_sent();
            }
            // Two messages at the same moment still have an order.
            self.last_sent = now.max(self.last_sent + Duration::from_nanos(1));
            messages.push(link.compose(self.me, self.last_sent, &state));
        }
        self.counts.sent += messages.len() as u64;
        messages
    }
}

#[cfg(test)]
mod tests;
