//! Members, endpoints and caps change: bases are computed anew, and links come and go.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;

use super::LeaseTable;
use super::endpoint_slots::{EndpointSlots, LeasedEndpoint, SlotPool};
use super::link::PeerLink;
use super::message::{PoolKey, ReplicaIdentity};
use super::settings::{CutOffPolicy, LEASE_TERM, MAX_SLOTS};
use crate::hash::{hash, hash_address};
use crate::time::Time;

impl LeaseTable {
    /// Sets the members, ourselves included. Slots that others get are given up at once, and slots
    /// that we get are used after
    /// [`HANDOVER_TIME`](crate::slot_assignment::HANDOVER_TIME), as without leases. An empty list
    /// changes nothing.
    pub fn update_members(&mut self, members: impl IntoIterator<Item = SocketAddr>, now: Time) {
        let canonical = |it: SocketAddr| SocketAddr::new(it.ip().to_canonical(), it.port());
        let members: Vec<_> = members.into_iter().map(canonical).collect();
        if members.is_empty() {
            return;
        }
        self.assigner.update_members(members.iter().copied(), now);
        for &member in &members {
            if member != self.me.member && !self.links.contains_key(&member) {
                let epoch = self.next_epoch();
                let peer = ReplicaIdentity { member, incarnation: 0 };
                self.links.insert(member, PeerLink::new(peer, epoch, self.last_sent));
            }
        }
        for (member, link) in &mut self.links {
            link.is_member = members.contains(member);
        }
        self.apply_assignment(now);
    }

    /// Sets the endpoints. Slots of those that are missing are given up.
    pub fn update_endpoints(&mut self, endpoints: &[LeasedEndpoint]) {
        let known: BTreeMap<_, _> = endpoints.iter().map(|it| (it.address, it)).collect();
        for (&address, endpoint) in &known {
            let new = || EndpointSlots::new(address, endpoint.pool);
            self.endpoints.entry(address).or_insert_with(new);
        }
        for (address, slots) in &mut self.endpoints {
            slots.cap = known.get(address).map_or(0, |endpoint| endpoint.cap.min(MAX_SLOTS));
            slots.pool = known.get(address).map_or(slots.pool, |endpoint| endpoint.pool);
        }
        self.forget_endpoints();
        self.rebuild_pools();
        self.compute_bases();
    }

    /// Forgets endpoints without slots and requests that are no longer configured. Returns true if
    /// there is one.
    fn forget_endpoints(&mut self) -> bool {
        let links = &mut self.links;
        let known = self.endpoints.len();
        self.endpoints.retain(|&address, slots| {
            let is_used = links.values().any(|link| {
                link.lending.outstanding(address) > 0 || link.borrowing.held(address) > 0
            });
            // A share that is in force is withdrawn first.
            let is_in_force = slots.in_flight > 0 || slots.in_force.slots > 0;
            let stays = slots.cap > 0 || is_in_force || is_used;
            if !stays {
                links.values_mut().for_each(|link| link.lending.close(address));
            }
            stays
        });
        self.unsettled.retain(|address| self.endpoints.contains_key(address));
        self.has_removed = self.endpoints.values().any(|slots| slots.cap == 0);
        self.endpoints.len() < known
    }

    /// Forgets what is left of endpoints that are no longer configured, once it is gone.
    pub(super) fn tidy_endpoints(&mut self) {
        if self.has_removed && self.forget_endpoints() {
            self.rebuild_pools();
        }
    }

    fn rebuild_pools(&mut self) {
        let mut pools: BTreeMap<PoolKey, SlotPool> = BTreeMap::new();
        for (&address, slots) in &mut self.endpoints {
            let pool = pools.entry(slots.pool).or_insert_with(|| {
                let old = self.pools.get(&slots.pool).cloned().unwrap_or_default();
                let (endpoints, free_endpoints) = (Vec::new(), BTreeSet::new());
                SlotPool { endpoints, free_endpoints, free: 0, borrowed: 0, in_flight: 0, ..old }
            });
            pool.endpoints.push(address);
            slots.recount(pool);
        }
        self.pools = pools;
        let known = |pool: &PoolKey| self.pools.contains_key(pool);
        self.links.values_mut().for_each(|link| link.pools.retain(|pool, _| known(pool)));
        self.active_pools.retain(known);
        self.overdue.retain(|(_, pool)| known(pool));
        self.changed_pools = self.pools.keys().copied().collect();
    }

    /// Applies the assignment if it has changed by time.
    pub(super) fn update_assignment(&mut self, now: Time) {
        if self.assignment_changes.is_some_and(|at| now >= at) {
            self.apply_assignment(now);
        }
    }

    fn apply_assignment(&mut self, now: Time) {
        self.assignment = self.assigner.assignment(now);
        self.assignment_changes = self.assigner.next_change(now);
        self.compute_bases();
    }

    fn compute_bases(&mut self) {
        for (&address, slots) in &mut self.endpoints {
            slots.base = self.assignment.share(address, slots.cap);
        }
        self.refresh_all();
    }

    /// Lets leases expire, on both sides.
    pub(super) fn expire(&mut self, now: Time) {
        let mut changed = Vec::new();
        let mut epoch = self.last_epoch;
        for link in self.links.values_mut() {
            if now >= link.takes_back_at && link.lending.total() > 0 {
                changed.extend(link.lending.lent_endpoints());
                self.counts.taken_back += link.lending.total();
                epoch += 1;
                link.reset_lending(epoch);
            }
            if link.update_suspension(now) {
                changed.extend(link.borrowing.held_endpoints());
            }
        }
        self.last_epoch = epoch;
        self.links.retain(|_, link| link.is_member || now < link.takes_back_at);
        for endpoint in changed {
            self.refresh(endpoint);
        }
    }

    /// Looks at all pools anew if a peer has come in touch, or is silent.
    pub(super) fn update_liveness(&mut self, now: Time) {
        let mut has_changed = false;
        for link in self.links.values_mut() {
            has_changed |= link.update_liveness(now);
        }
        if has_changed {
            self.changed_pools.extend(self.pools.keys());
        }
    }

    /// Takes or gives up the slots beyond the cap that a replica has when it is cut off.
    pub(super) fn update_cut_off(&mut self, now: Time) {
        let members = || self.links.values().filter(|link| link.is_member);
        let is_silent = members().next().is_some() && !members().any(|link| link.is_live(now));
        self.silent_since = if is_silent { self.silent_since.or(Some(now)) } else { None };
        let is_cut_off = self.policy == CutOffPolicy::Available
            && self.silent_since.is_some_and(|since| now.saturating_since(since) >= LEASE_TERM);
        if !is_cut_off && !self.has_emergency_slots {
            return;
        }
        self.has_emergency_slots = is_cut_off;
        let mut changed = Vec::new();
        for pool in self.pools.values() {
            let slots = |address: &SocketAddr| &self.endpoints[address];
            let holds = |address: &SocketAddr| slots(address).total() > 0;
            let rank = |address: &&SocketAddr| {
                hash_address(hash_address(hash(b"cut off"), self.me.member), **address)
            };
            let configured = pool.endpoints.iter().filter(|it| slots(it).cap > 0);
            let chosen = if is_cut_off && !pool.endpoints.iter().any(holds) {
                configured.min_by_key(rank)
            } else {
                None
            };
            let has = |address: &SocketAddr| chosen == Some(address);
            let differs = |it: &&SocketAddr| slots(it).has_emergency_slot != has(it);
            changed.extend(pool.endpoints.iter().filter(differs).map(|it| (*it, has(it))));
        }
        for (address, has) in changed {
            self.endpoints.get_mut(&address).expect("a known endpoint").has_emergency_slot = has;
            self.refresh(address);
        }
    }
}
