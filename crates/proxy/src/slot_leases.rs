//! Slots of endpoints that replicas lease to one another: the data plane's side of [`balance::leases`].
//!
//! One thread owns a [`SlotLeases`]. It reports requests in flight and queued to the lease table, and puts shares in
//! force. Workers never wait for it: they compare with the share in force, and wake the thread when a request is queued,
//! or when a slot is free that a peer may get.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use balance::leases::{
    CutOffPolicy, EndpointShare, LeaseCounts, LeaseMessage, LeaseRefusal, LeaseTable,
    LeasedEndpoint, PoolKey, QueueState, ReplicaIdentity,
};
use balance::{ConcurrencyCap, EndpointSet, FirstWaiting, SlotAssignment, Time};

use crate::backend::Backend;
use crate::control::Proxy;
use crate::dial::pool::{self, Endpoint, EndpointData};
use crate::lease_signal::LeaseSignal;

/// Endpoints with a fixed cap, in pools.
mod capped;

use capped::{AssignedEndpoint, CappedEndpoint, CappedEndpoints};

/// The slots of this replica, and their exchange with its peers.
pub struct SlotLeases {
    proxy: Arc<Proxy>,
    signal: Arc<LeaseSignal>,
    table: LeaseTable,
    /// Generation of the configuration that the table has.
    generation: Option<u64>,
    endpoints: BTreeMap<SocketAddr, LeasedState>,
    pools: Vec<LeasedPool>,
    /// Endpoints whose slots are assigned and do not move.
    assigned: Vec<AssignedEndpoint>,
    /// Assignment that is in force for these, and for backends that bind requests to endpoints.
    assignment: SlotAssignment,
    /// Number of requests of which the table knows.
    requests: u64,
}

/// An endpoint whose slots are leased.
struct LeasedState {
    endpoint: Arc<Endpoint>,
    /// Index of its pool; `None`: it is no longer configured, or its slots are no longer leased.
    pool: Option<usize>,
    /// Set if its slots are assigned from now on, until none is leased any more.
    assigned: Option<AssignedSlots>,
    /// Number of requests in flight that the table has.
    reported: u32,
    /// True if a backend of the pool gives it requests.
    has_weight: bool,
    /// True if the table knows it as usable; `None`: the table has to be told.
    is_usable: Option<bool>,
}

/// Slots of an endpoint that the assignment gives us.
#[derive(Clone, Copy)]
struct AssignedSlots {
    slots: u32,
    /// See [`AssignedEndpoint::is_limited_by_sets`].
    is_limited_by_sets: bool,
}

/// Backends that share endpoints, so that one queue waits for the slots.
struct LeasedPool {
    key: PoolKey,
    backends: Vec<Arc<Backend>>,
    is_raised: bool,
    /// Endpoint sets in force when they were last read.
    sets: Vec<Arc<EndpointSet<EndpointData>>>,
    /// True if one of them is new.
    has_new_sets: bool,
}

/// The state of the leases, for metrics.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LeaseStatus {
    pub counts: LeaseCounts,
    /// Slots that this replica may use now.
    pub held: u64,
    /// Slots of this replica that peers use now.
    pub lent: u64,
    /// Slots of peers that this replica uses now.
    pub borrowed: u64,
}

impl SlotLeases {
    /// Returns the leases of a data plane; `None` unless it was started with
    /// [`ProxySettings::leases_slots`](crate::ProxySettings::leases_slots).
    #[must_use]
    pub fn new(proxy: Arc<Proxy>, me: ReplicaIdentity, policy: CutOffPolicy) -> Option<Self> {
        let signal = Arc::clone(proxy.shared().leases.as_ref()?);
        Some(Self {
            proxy,
            signal,
            table: LeaseTable::new(me, policy),
            generation: None,
            endpoints: BTreeMap::new(),
            pools: Vec::new(),
            assigned: Vec::new(),
            assignment: SlotAssignment::withheld(),
            requests: 0,
        })
    }

    /// Sets the replicas that serve now, this one included.
    pub fn update_members(&mut self, members: impl IntoIterator<Item = SocketAddr>, now: Time) {
        self.table.update_members(members, now);
    }

    /// Takes a message of a peer, for the next [`step`](Self::step).
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is refused. Then it has no effect.
    pub fn receive(&mut self, message: &LeaseMessage, now: Time) -> Result<(), LeaseRefusal> {
        self.table.receive(message, now)
    }

    /// Waits until the data plane has something to report. Cancel-safe.
    pub async fn changed(&self) {
        self.signal.woken().await;
    }

    /// Returns the time of the next [`step`](Self::step), if nothing happens before.
    #[must_use]
    pub fn next_step(&self, now: Time) -> Time {
        self.table.next_poll(now)
    }

    /// Reports the state of the data plane, moves slots and puts shares in force. Returns messages for peers.
    pub fn step(&mut self, now: Time) -> Vec<LeaseMessage> {
        self.apply_assignment();
        self.follow_configuration();
        self.report(now);
        let (endpoints, pools) = (&mut self.endpoints, &mut self.pools);
        let messages = self.table.poll(now, |address, share| match endpoints.get_mut(&address) {
            Some(state) => state.put_in_force(share, pools),
            None => 0,
        });
        self.signal.validity.set(self.table.valid_until());
        self.apply_assignment();
        self.update_leaving();
        self.watch_releases();
        self.grant_raised();
        messages
    }

    /// Returns the state of the leases.
    #[must_use]
    pub fn status(&self) -> LeaseStatus {
        let (lent, borrowed) = self.table.lent_and_borrowed();
        let shares = self.endpoints.keys().map(|&address| self.table.share(address).slots);
        LeaseStatus {
            counts: self.table.counts(),
            held: shares.map(u64::from).sum(),
            lent,
            borrowed,
        }
    }

    /// Gives the table the endpoints with a fixed cap, if the configuration has changed.
    fn follow_configuration(&mut self) {
        let generation = self.signal.generation();
        if self.generation == Some(generation) {
            return;
        }
        self.generation = Some(generation);
        let config = self.proxy.shared().config.load();
        let capped = CappedEndpoints::of(&config.backends);
        // What has been told about pools that are no longer leased holds no more.
        let former = self.pools.iter().flat_map(|pool| &pool.backends);
        former.for_each(|backend| backend.set_shared_queue(0, 0));
        self.pools = capped.pools.into_iter().map(LeasedPool::new).collect();
        for state in self.endpoints.values_mut() {
            (state.pool, state.assigned) = (None, None);
        }
        for (address, found) in &capped.endpoints {
            self.endpoints.insert(*address, LeasedState::new(found));
        }
        let leased = |(&address, found): (&SocketAddr, &CappedEndpoint)| {
            let pool = self.pools[found.pool].key;
            LeasedEndpoint { address, cap: found.cap, pool }
        };
        self.table.update_endpoints(&capped.endpoints.iter().map(leased).collect::<Vec<_>>());
        self.assigned = capped.assigned;
        self.set_assigned_shares();
        // Requests may have waited for an endpoint that is new, or no longer leased.
        config.backends.iter().for_each(|backend| backend.dispatch());
    }

    fn report(&mut self, now: Time) {
        let (table, mut requests) = (&mut self.table, 0);
        self.endpoints.retain(|&address, state| {
            requests += state.requests();
            let in_flight = state.leased_in_flight();
            if in_flight != state.reported {
                state.reported = in_flight;
                table.report_in_flight(address, in_flight);
            }
            // An endpoint that is leaving stays until `update_leaving` removes it.
            let is_needed = state.pool.is_some() || state.assigned.is_some();
            is_needed || in_flight > 0 || table.share(address).slots > 0
        });
        table.record_requests(requests.saturating_sub(self.requests).min(u32::MAX.into()) as u32);
        self.requests = requests;
        for pool in &mut self.pools {
            pool.follow_sets();
            let queue = pool.queue_state(now);
            table.report_queue(pool.key, queue);
            if queue.queued > 0 {
                let (elsewhere, slots) = table.shared_queue(pool.key);
                pool.backends.iter().for_each(|it| it.set_shared_queue(elsewhere, slots));
            }
        }
        for (&address, state) in &mut self.endpoints {
            if let Some(pool) = state.pool
                && let Some(is_usable) = state.update_usable(&self.pools[pool])
            {
                table.report_usable(address, is_usable);
            }
        }
    }

    /// Puts a new assignment in force where slots are not leased.
    fn apply_assignment(&mut self) {
        if self.assignment != *self.table.assignment() {
            self.assignment = self.table.assignment().clone();
            self.set_assigned_shares();
            self.proxy.set_slot_assignment(self.assignment.clone());
        }
    }

    /// Limits the endpoints whose slots are assigned.
    fn set_assigned_shares(&mut self) {
        for AssignedEndpoint { endpoint, cap, is_limited_by_sets } in &self.assigned {
            let slots = self.assignment.share(endpoint.address, *cap);
            let assigned = AssignedSlots { slots, is_limited_by_sets: *is_limited_by_sets };
            match self.endpoints.get_mut(&endpoint.address) {
                Some(state) if Arc::ptr_eq(&state.endpoint, endpoint) => {
                    state.assigned = Some(assigned);
                }
                Some(_) | None => assigned.put_in_force(endpoint),
            }
        }
        self.update_leaving();
    }

    /// Gives endpoints whose slots are no longer leased their assigned share, less the slots that peers still have.
    fn update_leaving(&mut self) {
        let table = &self.table;
        self.endpoints.retain(|&address, state| {
            let Some(assigned) = state.assigned else { return true };
            let lent = table.account(address).lent;
            let slots = assigned.slots.saturating_sub(lent);
            state.endpoint.set_share(EndpointShare::assigned(slots));
            state.trim();
            let has_left = lent == 0 && table.share(address).slots == 0;
            if has_left {
                assigned.put_in_force(&state.endpoint);
                state.endpoint.data.backends().iter().for_each(|backend| backend.dispatch());
            }
            !has_left
        });
    }

    /// Has workers wake this thread when a slot is free that a peer may get.
    fn watch_releases(&self) {
        let asked: Vec<_> = self.pools.iter().map(|it| self.table.peers_ask_for(it.key)).collect();
        for (&address, state) in &self.endpoints {
            let is_asked = state.pool.is_some_and(|pool| asked[pool]);
            let watches = state.reported > 0 && self.table.awaits_release(address, is_asked);
            state.endpoint.data.watch_releases(watches);
            // The end of a request just before that has woken nothing.
            if watches && state.leased_in_flight() != state.reported {
                self.signal.wake();
            }
        }
    }

    /// Grants slots to waiting requests of pools whose share of an endpoint was raised.
    fn grant_raised(&mut self) {
        for pool in &mut self.pools {
            if std::mem::take(&mut pool.is_raised) {
                pool.backends.iter().for_each(|backend| backend.dispatch());
            }
        }
    }
}

impl AssignedSlots {
    /// Limits an endpoint of which no slot is leased.
    fn put_in_force(self, endpoint: &Endpoint) {
        if self.is_limited_by_sets {
            endpoint.stop_leasing();
        } else {
            endpoint.set_share(EndpointShare::assigned(self.slots));
        }
    }
}

impl LeasedState {
    fn new(found: &CappedEndpoint) -> Self {
        Self {
            endpoint: Arc::clone(&found.endpoint),
            pool: Some(found.pool),
            assigned: None,
            reported: 0,
            has_weight: false,
            is_usable: None,
        }
    }

    /// Returns if requests of the pool can be sent to the endpoint, unless the table knows it.
    fn update_usable(&mut self, pool: &LeasedPool) -> Option<bool> {
        if pool.has_new_sets {
            self.has_weight = pool.has_weight(self.endpoint.address);
        }
        let is_usable = self.has_weight && self.endpoint.is_reachable();
        (self.is_usable.replace(is_usable) != Some(is_usable)).then_some(is_usable)
    }

    /// Puts the share in force; returns the number of requests in flight after that.
    fn put_in_force(&mut self, share: EndpointShare, pools: &mut [LeasedPool]) -> u32 {
        if self.assigned.is_some() {
            self.reported = self.leased_in_flight();
            self.trim();
            return self.reported;
        }
        let before = self.endpoint.limit(ConcurrencyCap::of(u32::MAX)).unwrap_or(u32::MAX);
        self.reported = self.endpoint.set_share(share);
        if share.slots > before
            && let Some(pool) = self.pool
        {
            pools[pool].is_raised = true;
        }
        self.trim();
        self.reported
    }

    /// Closes idle connections beyond the share. An endpoint may serve only as many connections as it has slots: the
    /// connection of a slot that has become free is idle by now, and the next holder of the slot opens its own.
    fn trim(&self) {
        let share = self.endpoint.limit(ConcurrencyCap::of(u32::MAX));
        pool::trim_to(&self.endpoint, share.unwrap_or(u32::MAX));
    }

    /// Returns the number of requests in flight in slots of the table.
    fn leased_in_flight(&self) -> u32 {
        self.endpoint.in_flight().saturating_sub(self.assigned.map_or(0, |it| it.slots))
    }

    /// Returns the number of requests, connections and flows that have ended at the endpoint.
    fn requests(&self) -> u64 {
        self.endpoint.data.counters.iter().map(|it| it.attempts.value()).sum()
    }
}

impl LeasedPool {
    fn new((key, backends): (PoolKey, Vec<Arc<Backend>>)) -> Self {
        Self { key, backends, is_raised: false, sets: Vec::new(), has_new_sets: false }
    }

    /// Returns the number of requests that wait, and of those that were rejected since the last call because they may
    /// not wait.
    fn take_queued(&self) -> u32 {
        self.backends.iter().map(|it| it.waiting().saturating_add(it.take_rejected())).sum()
    }

    fn queue_state(&self, now: Time) -> QueueState {
        let queued = self.take_queued();
        if queued == 0 {
            return QueueState::default();
        }
        let waiting = self.backends.iter().filter_map(|backend| backend.first_waiting());
        let Some(first) = waiting.reduce(FirstWaiting::join) else {
            return QueueState::of_one_priority(queued, Some(now));
        };
        QueueState {
            queued,
            priority: first.priority,
            first_queued: u32::try_from(first.requests).unwrap_or(u32::MAX).min(queued),
            oldest: Some(first.since),
        }
    }

    /// Reads the endpoints in force of the backends.
    fn follow_sets(&mut self) {
        let newest: Vec<_> = self.backends.iter().map(|it| Arc::clone(&it.current().set)).collect();
        let is_known = newest.len() == self.sets.len()
            && newest.iter().zip(&self.sets).all(|(new, known)| Arc::ptr_eq(new, known));
        (self.sets, self.has_new_sets) = (newest, !is_known);
    }

    /// True if a backend gives requests to an endpoint.
    fn has_weight(&self, endpoint: SocketAddr) -> bool {
        let member = |set: &Arc<EndpointSet<EndpointData>>| {
            set.find(endpoint).is_some_and(|it| it.weight > 0 || it.half_open)
        };
        self.sets.iter().any(member)
    }
}
