//! Questions of the data plane to the table.

use std::net::SocketAddr;

use super::LeaseTable;
use super::message::PoolKey;
use crate::slot_assignment::SlotAssignment;

impl LeaseTable {
    /// True if a slot of the endpoint that becomes free may go to a peer: then the table has to be
    /// polled as soon as a request there ends, not only when [`LeaseTable::next_poll`] has come.
    ///
    /// `is_asked` says if peers ask for slots of the pool ([`LeaseTable::peers_ask_for`]).
    pub fn awaits_release(&self, endpoint: SocketAddr, is_asked: bool) -> bool {
        let Some(slots) = self.endpoints.get(&endpoint) else { return false };
        let has_to_go = !slots.pledges.is_empty() || slots.in_flight > slots.total();
        slots.in_flight > 0 && (is_asked || has_to_go)
    }

    /// True if a peer that communicates asks for slots of the pool.
    pub fn peers_ask_for(&self, pool: PoolKey) -> bool {
        let members = self.links.values().filter(|link| link.is_member);
        members.filter_map(|link| link.pools.get(&pool)).any(|it| it.unmet() > 0)
    }

    /// Returns the number of requests that wait at peers for slots of the pool, as they have told,
    /// and the slots of its endpoints that requests can use, at all replicas together.
    pub fn shared_queue(&self, key: PoolKey) -> (u64, u64) {
        let members = self.links.values().filter(|link| link.is_member);
        let queued = members.filter_map(|link| link.state_of(key)).map(|it| u64::from(it.queued));
        let endpoints = self.pools.get(&key).into_iter().flat_map(|pool| &pool.endpoints);
        let usable = endpoints.filter_map(|it| self.endpoints.get(it)).filter(|it| it.is_usable);
        (queued.sum(), usable.map(|it| u64::from(it.cap)).sum())
    }

    /// Returns the assignment of slots that is in force without leases: for endpoints that are not
    /// in the table.
    pub fn assignment(&self) -> &SlotAssignment {
        &self.assignment
    }
}
