//! Movement of slots by demand: replicas ask for slots that they lack, and give those that they do
//! not need.
//!
//! Each replica knows how many slots of a pool are free at the others, from their last messages. A
//! fair part of all free slots is in proportion to the square root of the replica's demand, since
//! the number of requests in flight varies by its square root. A replica asks before it has no slot
//! left, when it has less than half of its fair part, and at once when a request is queued. It gives
//! all free slots for queued requests of a peer, and otherwise those beyond its fair part.

use std::cmp::{Ordering, Reverse};
use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::time::Duration;

use super::LeaseTable;
use super::endpoint_slots::OVERDUE_WAIT;
use super::link::{PeerLink, PeerPool};
use super::message::{PoolKey, PoolState};
use crate::time::Time;

/// Wait by which the oldest request of a peer must exceed ours, for the peer to get slots that our
/// queued requests could use.
pub(super) const FAIRNESS_MARGIN: Duration = Duration::from_millis(50);

/// Divisor of the slots in use that a replica keeps for its own requests, though a peer has some of a
/// higher priority: in one queue a request of a lower priority is next after seven others, too.
const PRIORITY_PART: u32 = 8;

/// State of a pool at the replicas that communicate.
struct PoolOverview {
    /// Free slots of all.
    free: f64,
    /// Sum of the square roots of demand.
    weight: f64,
}

impl PoolOverview {
    /// Returns the overview of our pool and those of peers.
    fn of(mine: &PoolState, theirs: &[PoolState]) -> Self {
        let states = || std::iter::once(mine).chain(theirs);
        let free = states().map(|state| f64::from(state.free)).sum();
        Self { free, weight: states().map(weight).sum() }
    }

    /// Returns the part of all free slots that is fair for a replica.
    fn fair_part(&self, state: &PoolState) -> f64 {
        self.free * weight(state) / self.weight
    }
}

/// Returns the weight of a replica for free slots; one without demand has a small one.
fn weight(state: &PoolState) -> f64 {
    (state.demand_milli as f64 / 1000.0 + 0.1).sqrt()
}

impl LeaseTable {
    /// Returns the peers that can get and give slots now.
    fn live_links(&self, now: Time) -> impl Iterator<Item = &PeerLink> {
        self.links.values().filter(move |link| link.is_member && link.is_live(now))
    }

    fn overview(&self, key: PoolKey, now: Time) -> PoolOverview {
        let heard: Vec<_> = self.live_links(now).filter_map(|link| link.state_of(key)).collect();
        PoolOverview::of(&self.pools[&key].state(now), &heard)
    }

    /// Gives free slots to peers that have asked for them: first to the one with the highest priority
    /// among its queued requests, and of those to the one with the oldest request.
    pub(super) fn give(&mut self, pools: &BTreeSet<PoolKey>, now: Time) {
        for &key in pools {
            if self.pools[&key].free == 0 {
                continue;
            }
            let asks = |link: &PeerLink| {
                let pool = link.pools.get(&key)?;
                let unmet = pool.unmet();
                let is_queued = pool.state.queued > 0;
                let order = (!is_queued, pool.state.priority, Reverse(pool.oldest_wait(now)));
                (unmet > 0).then_some((order, Reverse(unmet), link.peer.member))
            };
            let mut asking: Vec<_> = self.live_links(now).filter_map(asks).collect();
            asking.sort_unstable();
            for ((is_ahead, ..), Reverse(unmet), peer) in asking {
                let asked = unmet.min(self.available(key, !is_ahead, now));
                let unasked = if asked > 0 { self.unasked(key, peer, asked, now) } else { 0 };
                self.give_to(key, peer, asked + unasked);
            }
        }
    }

    /// Returns the number of slots that a peer gets beyond those that it asks for: those beyond our
    /// fair part that it lacks for its own. It would ask for them soon, with a message of its own.
    fn unasked(&self, key: PoolKey, peer: SocketAddr, asked: u32, now: Time) -> u32 {
        let Some(theirs) = self.links[&peer].state_of(key) else { return 0 };
        let spare = self.available(key, false, now).saturating_sub(asked);
        let fair = self.overview(key, now).fair_part(&theirs).floor() as u32;
        spare.min(fair.saturating_sub(theirs.free))
    }

    /// Returns the number of free slots that we can give away.
    fn available(&self, key: PoolKey, for_queued: bool, now: Time) -> u32 {
        let pool = &self.pools[&key];
        if for_queued {
            return pool.free.saturating_sub(pool.queue.queued);
        }
        let fair = self.overview(key, now).fair_part(&pool.state(now));
        pool.free.saturating_sub(pool.queue.queued).saturating_sub(fair.ceil() as u32)
    }

    fn give_to(&mut self, key: PoolKey, peer: SocketAddr, slots: u32) {
        for _ in 0..slots {
            let Some((endpoint, receiver)) = self.find_slot_for(key, peer) else { return };
            self.pledge(endpoint, receiver);
        }
    }

    /// Returns an endpoint with a free slot, and the peer that can get it: `peer`, or the lender of
    /// the slot if there is no other.
    fn find_slot_for(
        &mut self,
        key: PoolKey,
        peer: SocketAddr,
    ) -> Option<(SocketAddr, SocketAddr)> {
        let pool = self.pools.get_mut(&key)?;
        let link = self.links.get_mut(&peer)?;
        let can_get = |address: &SocketAddr| {
            let slots = &self.endpoints[address];
            let pledged = slots.pledged();
            let is_lendable = slots.own > pledged && link.lending.can_grant(*address);
            link.usable(*address) > pledged || is_lendable
        };
        let found = pool.free_endpoints_in_turn().find(can_get);
        if let Some(address) = found {
            pool.cursor = Some(address);
            return Some((address, peer));
        }
        let address = pool.free_endpoints_in_turn().next()?;
        // The peer is to ask the lender, so it has to know that we have the slot no longer.
        link.is_urgent = true;
        link.pool_changes.mark_once(key);
        link.record_given(key, 1);
        let holds = |link: &&PeerLink| link.usable(address) > 0;
        let lender = self.links.values().find(holds)?;
        Some((address, lender.peer.member))
    }

    /// Tells each peer how many slots we want of it.
    pub(super) fn update_wants(&mut self, pools: &BTreeSet<PoolKey>, now: Time) {
        let has_credit = self.budget.has_credit();
        for &key in pools {
            let heard: Vec<_> =
                self.live_links(now).filter_map(|link| link.state_of(key)).collect();
            let state = self.pools[&key].state(now);
            let overview = PoolOverview::of(&state, &heard);
            let (wanted, is_for_queued) = wanted_slots(&state, &overview);
            let spare = |pool: &PoolState| {
                let kept = if is_for_queued { 0.0 } else { overview.fair_part(pool) };
                (f64::from(pool.free) - f64::from(pool.queued) - kept).max(0.0)
            };
            let total_spare: f64 = heard.iter().map(spare).sum();
            self.pools.get_mut(&key).expect("a known pool").record_look(wanted > 0, now);
            for link in self.links.values_mut() {
                let is_asked = wanted > 0 && link.is_member && link.is_live(now);
                let pool = link.pools.entry(key).or_default();
                let part = spare(&pool.state) / total_spare.max(f64::from(wanted));
                // If no peer is known to have as many, each gives what becomes free. What is known
                // may be wrong: after a while each is asked for all.
                let beyond = f64::from(wanted) - total_spare;
                let standing = if is_for_queued { beyond.max(0.0) } else { 0.0 };
                let is_overdue = is_for_queued && state.oldest_wait > OVERDUE_WAIT;
                let asked = if is_overdue {
                    wanted
                } else {
                    ((part * f64::from(wanted)).round() + standing) as u32
                };
                pool.wanted = if is_asked { asked } else { 0 };
                let has_doubled = pool.wanted > 2 * pool.told_wanted;
                let can_give = part > 0.0 || pool.state.queued == 0;
                link.is_urgent |= has_doubled && can_give && (is_for_queued || has_credit);
            }
        }
    }
}

/// Returns the number of slots that we want, and true if it is for queued requests.
fn wanted_slots(state: &PoolState, overview: &PoolOverview) -> (u32, bool) {
    let fair = overview.fair_part(state).floor() as u32;
    if state.queued > state.free {
        return (state.queued - state.free, true);
    }
    // What an idle replica got, it would return.
    let is_idle = state.demand_milli as f64 <= IDLE_DEMAND * 1000.0;
    let is_low = !is_idle && state.free - state.queued < fair / 2;
    (if is_low { fair - (state.free - state.queued) } else { 0 }, false)
}

impl LeaseTable {
    /// Averages the demand; moves slots by it.
    pub(super) fn redeal(&mut self, now: Time) {
        self.tidy_endpoints();
        self.drop_pledges();
        let mut active = std::mem::take(&mut self.active_pools);
        active.retain(|&key| {
            let pool = self.pools.get_mut(&key).expect("an active pool is known");
            pool.sample_demand();
            let is_due = pool.is_look_due(now);
            self.share_busy_slots(key, now);
            self.return_unneeded(key);
            let stays = !self.is_quiescent(key);
            if stays && is_due {
                self.changed_pools.insert(key);
            }
            stays
        });
        self.active_pools.extend(active);
    }

    /// True if neither we nor a peer that asks us have something to do for a pool.
    fn is_quiescent(&self, key: PoolKey) -> bool {
        let asks = |link: &PeerLink| link.pools.get(&key).is_some_and(PeerPool::is_wanted);
        self.pools[&key].is_quiescent() && !self.links.values().any(asks)
    }

    /// Drops pledges of busy slots: they are made anew if they are still fair.
    fn drop_pledges(&mut self) {
        // An endpoint with pledges is not settled.
        for address in &self.unsettled {
            let slots = self.endpoints.get_mut(address).expect("a known endpoint");
            slots.pledges.clear();
            slots.count_free(self.pools.get_mut(&slots.pool).expect("an endpoint has its pool"));
            self.changed_pools.insert(slots.pool);
        }
    }

    /// Pledges busy slots to peers whose requests have a higher priority than ours, or the same and
    /// have waited much longer.
    fn share_busy_slots(&mut self, key: PoolKey, now: Time) {
        let pool = &self.pools[&key];
        let mine = pool.state(now);
        if mine.queued == 0 {
            return;
        }
        let busy = pool.in_flight;
        let mut for_priority = busy - busy.div_ceil(PRIORITY_PART);
        let due = |link: &PeerLink| {
            let peer = link.pools.get(&key).filter(|peer| peer.state.queued > 0)?;
            let slots = match peer.state.priority.cmp(&mine.priority) {
                Ordering::Less => {
                    let lacking = peer.state.first_queued.saturating_sub(peer.on_their_way());
                    let slots = lacking.min(for_priority);
                    for_priority -= slots;
                    slots
                }
                Ordering::Equal if peer.oldest_wait(now) > mine.oldest_wait + FAIRNESS_MARGIN => {
                    slots_owed(busy, &mine, &peer.state)
                }
                Ordering::Equal | Ordering::Greater => 0,
            };
            (slots > 0).then_some((link.peer.member, slots))
        };
        let owed: Vec<_> = self.live_links(now).filter_map(due).collect();
        for (peer, slots) in owed {
            self.pledge_busy(key, peer, slots);
        }
    }

    fn pledge_busy(&mut self, key: PoolKey, peer: SocketAddr, slots: u32) {
        let pool = &self.pools[&key];
        let link = &self.links[&peer];
        let can_go = |address: &SocketAddr| {
            let slots = &self.endpoints[address];
            let movable = link.usable(*address)
                + if link.lending.can_grant(*address) { slots.own } else { 0 };
            movable > slots.pledged()
        };
        let chosen: Vec<_> = pool.endpoints_in_turn().filter(can_go).take(slots as usize).collect();
        chosen.into_iter().for_each(|address| self.pledge(address, peer));
    }

    /// Returns borrowed slots if there is nothing to do, so that a lender has its base in case the
    /// exchange breaks.
    fn return_unneeded(&mut self, key: PoolKey) {
        let pool = &self.pools[&key];
        if pool.in_flight + pool.queue.queued > 0 || pool.demand > IDLE_DEMAND || pool.borrowed == 0
        {
            return;
        }
        let mut returns = Vec::new();
        for &address in &pool.endpoints {
            let lenders = self.links.values().map(|link| (link.peer.member, link.usable(address)));
            let lenders = lenders.filter(|&(_, slots)| slots > 0);
            returns.extend(
                lenders.flat_map(|(lender, slots)| (0..slots).map(move |_| (address, lender))),
            );
        }
        returns.into_iter().for_each(|(address, lender)| self.pledge(address, lender));
    }
}

/// Mean number of requests below which a replica has nothing to do.
const IDLE_DEMAND: f64 = 0.05;

/// Returns half of the slots that a peer lacks for equal waits, at least one.
fn slots_owed(busy: u32, mine: &PoolState, theirs: &PoolState) -> u32 {
    let our_demand = f64::from(busy) + f64::from(mine.queued);
    let their_demand = theirs.demand_milli as f64 / 1000.0;
    let their_busy = (their_demand - f64::from(theirs.queued)).max(0.0);
    let total = f64::from(busy) + their_busy;
    let fair = total * our_demand / (our_demand + their_demand).max(1.0);
    ((f64::from(busy) - fair) / 2.0).clamp(1.0, f64::from(busy).max(1.0)) as u32
}
