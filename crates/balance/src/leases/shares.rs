//! Shares in force, and slots handed over: the limit is lowered first, and the slot moves once no
//! request is in it.

use std::net::SocketAddr;

use super::LeaseTable;
use super::endpoint_slots::EndpointShare;

impl LeaseTable {
    /// Computes the slots of an endpoint from the ledgers, to be put in force.
    pub(super) fn refresh(&mut self, address: SocketAddr) {
        if self.endpoints.contains_key(&address) {
            self.limit_lent(address);
            self.compute_slots(address);
            self.unsettled.insert(address);
        }
    }

    /// Asks peers to give back what the base no longer covers.
    fn limit_lent(&mut self, address: SocketAddr) {
        let mut left = self.endpoints[&address].base;
        for link in self.links.values_mut() {
            let lent = link.lending.outstanding(address);
            let keep = if link.is_member { lent.min(left) } else { 0 };
            left -= keep;
            link.lending.set_keep(address, (keep < lent).then_some(keep));
        }
    }

    fn compute_slots(&mut self, address: SocketAddr) {
        let Some(slots) = self.endpoints.get_mut(&address) else { return };
        let lent: u32 = self.links.values().map(|link| link.lending.outstanding(address)).sum();
        let borrowed = self.links.values().map(|link| link.usable(address)).sum();
        let pool = self.pools.get_mut(&slots.pool).expect("an endpoint has its pool");
        if slots.set_slots(slots.base.saturating_sub(lent), borrowed, pool) {
            self.changed_pools.insert(slots.pool);
        }
    }

    pub(super) fn refresh_all(&mut self) {
        let all: Vec<_> = self.endpoints.keys().copied().collect();
        all.into_iter().for_each(|address| self.refresh(address));
    }

    /// Gives a slot to a peer as soon as it is free.
    pub(super) fn pledge(&mut self, address: SocketAddr, peer: SocketAddr) {
        let slots = self.endpoints.get_mut(&address).expect("a known endpoint");
        match slots.pledges.iter_mut().find(|(to, _)| *to == peer) {
            Some((_, count)) => *count += 1,
            None => slots.pledges.push((peer, 1)),
        }
        slots.count_free(self.pools.get_mut(&slots.pool).expect("an endpoint has its pool"));
        self.changed_pools.insert(slots.pool);
        self.unsettled.insert(address);
    }

    /// Puts the share of an endpoint in force, and hands over the slots that are to go and are free.
    pub(super) fn settle(
        &mut self,
        address: SocketAddr,
        put_in_force: &mut impl FnMut(SocketAddr, EndpointShare) -> u32,
    ) {
        loop {
            let Some(slots) = self.endpoints.get_mut(&address) else { return };
            let pool = self.pools.get_mut(&slots.pool).expect("an endpoint has its pool");
            slots.in_force = slots.share();
            let in_flight = put_in_force(address, slots.in_force);
            if slots.set_in_flight(in_flight, pool) {
                self.changed_pools.insert(slots.pool);
            }
            let returned = self.return_surplus(address);
            if !self.hand_over(address) && !returned {
                return;
            }
            // What is left without leases may be less now.
            self.compute_slots(address);
            if self.endpoints[&address].share() == self.endpoints[&address].in_force {
                return;
            }
        }
    }

    /// Hands over pledged slots that are free. Returns false if none is.
    fn hand_over(&mut self, address: SocketAddr) -> bool {
        let slots = self.endpoints.get_mut(&address).expect("a known endpoint");
        // At an endpoint that is no longer configured all slots that are free are returned anyway.
        let has_endpoint = slots.cap > 0;
        let mut free = if has_endpoint { slots.total().saturating_sub(slots.in_flight) } else { 0 };
        let pool = slots.pool;
        let mut own = slots.own;
        let mut has_moved = false;
        let pledges = std::mem::take(&mut slots.pledges);
        let mut left = Vec::new();
        for (peer, pledged) in pledges {
            let Some(link) = self.links.get_mut(&peer) else { continue };
            let count = pledged.min(free);
            let returned = count.min(link.usable(address));
            if returned > 0 {
                link.borrowing.return_slots(address, returned);
                self.counts.returned += u64::from(returned);
            }
            let can_lend = link.is_member && link.lending.can_grant(address);
            let granted = if can_lend { (count - returned).min(own) } else { 0 };
            if granted > 0 {
                link.lending.grant(address, granted);
                self.counts.lent += u64::from(granted);
                own -= granted;
            }
            let moved = returned + granted;
            free -= moved;
            has_moved |= moved > 0;
            link.record_given(pool, moved);
            if pledged > count {
                left.push((peer, pledged - count));
            }
        }
        if !left.is_empty() {
            self.unsettled.insert(address);
        }
        let slots = self.endpoints.get_mut(&address).expect("a known endpoint");
        slots.pledges = left;
        has_moved
    }

    /// Returns slots that are held and not in the share, as far as requests in flight allow.
    fn return_surplus(&mut self, address: SocketAddr) -> bool {
        let slots = &self.endpoints[&address];
        // At an endpoint that is no longer configured nothing may be kept.
        let has_endpoint = slots.cap > 0;
        let total = if has_endpoint { slots.total() } else { 0 };
        let mut over = slots.in_flight.saturating_sub(total);
        let mut has_returned = false;
        for link in self.links.values_mut() {
            let held = link.borrowing.held(address);
            let used = if has_endpoint { link.usable(address) } else { 0 };
            let is_expired = has_endpoint && link.is_member && link.is_suspended;
            if held == used || is_expired {
                continue;
            }
            let surplus = held - used;
            let returned = surplus.saturating_sub(over);
            over = over.saturating_sub(surplus);
            if returned > 0 {
                link.borrowing.return_slots(address, returned);
                self.counts.returned += u64::from(returned);
                has_returned = true;
            }
            if returned < surplus {
                self.unsettled.insert(address);
            }
        }
        has_returned
    }
}
