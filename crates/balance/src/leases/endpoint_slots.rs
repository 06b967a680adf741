//! Slots of one endpoint, and of the pool to which it belongs, as one replica has them.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::ops::Bound;
use std::time::Duration;

use super::message::{PoolKey, PoolState, QueueState};
use crate::time::Time;

/// Weight of the newest sample in the mean demand.
const NEWEST_WEIGHT: f64 = 0.2;

/// Wait of a request after which each peer is asked for all slots that we want.
pub(crate) const OVERDUE_WAIT: Duration = Duration::from_millis(40);

/// Interval at which the wishes of a pool are computed though nothing has happened. Wishes are
/// repeated at this interval, so it is shorter than the one at which peers expect it.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Mean demand below which it counts as none.
const LEAST_DEMAND: f64 = 0.001;

/// Endpoint whose slots are leased.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeasedEndpoint {
    /// Address of the endpoint.
    pub address: SocketAddr,
    /// Number of slots of all replicas together.
    pub cap: u32,
    /// Pool to which it belongs. Backends that share endpoints are one pool.
    pub pool: PoolKey,
}

/// Number of requests that a replica may have in flight at an endpoint.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct EndpointShare {
    /// The number until [`LeaseTable::valid_until`](super::LeaseTable::valid_until).
    pub slots: u32,
    /// The number after that.
    pub without_leases: u32,
    /// True if one slot is beyond what the replica holds: it is cut off, and the policy is
    /// [`CutOffPolicy::Available`](super::CutOffPolicy::Available).
    pub is_emergency: bool,
}

impl EndpointShare {
    /// Returns a share of slots that are not leased.
    pub fn assigned(slots: u32) -> Self {
        Self { slots, without_leases: slots, is_emergency: false }
    }
}

/// Slots of one endpoint in the ledgers of one replica.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlotAccount {
    /// Slots that the assignment gives the replica.
    pub base: u32,
    /// Slots of the base that peers may be using.
    pub lent: u32,
    /// Slots of peers that the replica has not returned. It may not use those that are recalled, or
    /// whose lease has expired.
    pub held: u32,
}

/// Slots of one endpoint.
#[derive(Clone, Debug)]
pub(crate) struct EndpointSlots {
    address: SocketAddr,
    pub(crate) pool: PoolKey,
    pub(crate) cap: u32,
    /// Slots that the assignment gives us.
    pub(crate) base: u32,
    /// Slots of the base that are not lent.
    pub(crate) own: u32,
    /// Slots of peers that we may use.
    pub(crate) borrowed: u32,
    /// Slots that go to peers as soon as they are free.
    pub(crate) pledges: Vec<(SocketAddr, u32)>,
    pub(crate) has_emergency_slot: bool,
    /// True if requests can use its slots now.
    pub(crate) is_usable: bool,
    pub(crate) in_flight: u32,
    /// Share that was put in force last.
    pub(crate) in_force: EndpointShare,
    /// Slots that count as free in the pool.
    counted_free: u32,
}

impl EndpointSlots {
    pub(crate) fn new(address: SocketAddr, pool: PoolKey) -> Self {
        Self {
            address,
            pool,
            cap: 0,
            base: 0,
            own: 0,
            borrowed: 0,
            pledges: Vec::new(),
            has_emergency_slot: false,
            is_usable: true,
            in_flight: 0,
            in_force: EndpointShare::default(),
            counted_free: 0,
        }
    }

    pub(crate) fn total(&self) -> u32 {
        self.own + self.borrowed
    }

    pub(crate) fn pledged(&self) -> u32 {
        self.pledges.iter().map(|&(_, slots)| slots).sum()
    }

    /// Returns the share that is to be in force.
    pub(crate) fn share(&self) -> EndpointShare {
        let least = u32::from(self.has_emergency_slot);
        let slots = self.total().saturating_sub(self.pledged()).min(self.cap);
        EndpointShare {
            slots: slots.max(least),
            without_leases: slots.min(self.own).max(least),
            is_emergency: slots == 0 && self.has_emergency_slot,
        }
    }

    /// Returns the number of slots that are not in use, and that a request could use.
    pub(crate) fn free(&self) -> u32 {
        if self.is_usable { self.share().slots.saturating_sub(self.in_flight) } else { 0 }
    }

    /// Adds the counts of the endpoint to those of a pool that are computed anew.
    pub(crate) fn recount(&mut self, pool: &mut SlotPool) {
        self.counted_free = 0;
        pool.in_flight += self.in_flight;
        pool.borrowed += self.borrowed;
        self.count_free(pool);
    }

    /// Returns true if the number has changed.
    pub(crate) fn set_in_flight(&mut self, in_flight: u32, pool: &mut SlotPool) -> bool {
        if self.in_flight == in_flight {
            return false;
        }
        pool.in_flight = pool.in_flight + in_flight - self.in_flight;
        self.in_flight = in_flight;
        self.count_free(pool);
        true
    }

    /// Sets the slots of the base that are not lent and those of peers. Returns true if the pool has
    /// more or fewer free slots now.
    pub(crate) fn set_slots(&mut self, own: u32, borrowed: u32, pool: &mut SlotPool) -> bool {
        pool.borrowed = pool.borrowed + borrowed - self.borrowed;
        self.own = own;
        self.borrowed = borrowed;
        self.count_free(pool)
    }

    /// Brings the free slots of the pool up to date. Returns true if they have changed.
    pub(crate) fn count_free(&mut self, pool: &mut SlotPool) -> bool {
        let free = self.free();
        let counted = std::mem::replace(&mut self.counted_free, free);
        if free == counted {
            return false;
        }
        pool.free = pool.free + free - counted;
        if free == 0 {
            pool.free_endpoints.remove(&self.address);
        } else {
            pool.free_endpoints.insert(self.address);
        }
        true
    }
}

/// Endpoints for which one queue waits.
#[derive(Clone, Debug, Default)]
pub(crate) struct SlotPool {
    /// Endpoints, in the order of their addresses.
    pub(crate) endpoints: Vec<SocketAddr>,
    /// Endpoints among them with a free slot.
    pub(crate) free_endpoints: BTreeSet<SocketAddr>,
    /// Endpoint after which the search for a slot to give goes on.
    pub(crate) cursor: Option<SocketAddr>,
    pub(crate) free: u32,
    /// Slots of peers that we may use.
    pub(crate) borrowed: u32,
    pub(crate) in_flight: u32,
    pub(crate) queue: QueueState,
    /// Mean number of requests in flight and queued: arrivals times service time, by Little's law.
    pub(crate) demand: f64,
    /// Demand when the wishes of the pool were last computed, and the time of that.
    pub(crate) looked_demand: f64,
    pub(crate) looked_at: Time,
    /// True if we want slots of peers.
    pub(crate) wants: bool,
}

impl SlotPool {
    pub(crate) fn state(&self, now: Time) -> PoolState {
        let QueueState { queued, priority, first_queued, oldest } = self.queue;
        PoolState {
            free: self.free,
            queued,
            priority,
            first_queued,
            oldest_wait: oldest.map(|since| now.saturating_since(since)).unwrap_or_default(),
            demand_milli: (self.demand * 1000.0) as u64,
        }
    }

    /// Returns the endpoints with a free slot, those after the cursor first.
    pub(crate) fn free_endpoints_in_turn(&self) -> impl Iterator<Item = SocketAddr> {
        let after = self.cursor.map_or(Bound::Unbounded, Bound::Excluded);
        let last = self.cursor.map_or(Bound::Unbounded, Bound::Included);
        let from = self.free_endpoints.range((after, Bound::Unbounded));
        // Without a cursor the first part has all of them.
        let before = self.cursor.map(|_| self.free_endpoints.range((Bound::Unbounded, last)));
        from.chain(before.into_iter().flatten()).copied()
    }

    /// Returns all endpoints, those after the cursor first.
    pub(crate) fn endpoints_in_turn(&self) -> impl Iterator<Item = SocketAddr> {
        let start = self.endpoints.partition_point(|it| Some(*it) <= self.cursor);
        let (before, from) = self.endpoints.split_at(start);
        from.iter().chain(before).copied()
    }

    /// True if there is nothing to do for the pool until a request or a message comes.
    pub(crate) fn is_quiescent(&self) -> bool {
        let load = self.in_flight + self.queue.queued + self.borrowed;
        load == 0 && self.demand < LEAST_DEMAND
    }

    /// Returns the time at which the oldest queued request becomes overdue.
    pub(crate) fn overdue_at(&self) -> Option<Time> {
        self.queue.oldest.filter(|_| self.queue.queued > 0).map(|since| since + OVERDUE_WAIT)
    }

    /// Records that the wishes of the pool are computed.
    pub(crate) fn record_look(&mut self, wants: bool, now: Time) {
        (self.looked_demand, self.looked_at, self.wants) = (self.demand, now, wants);
    }

    /// True if the wishes are to be computed though nothing has happened: the mean demand is another
    /// one, or a wish is to be repeated.
    pub(crate) fn is_look_due(&self, now: Time) -> bool {
        let is_far = (self.demand - self.looked_demand).abs() > 0.1 + self.looked_demand / 8.0;
        is_far || self.wants && now.saturating_since(self.looked_at) >= LOOK_INTERVAL
    }

    /// Adds a sample to the mean demand.
    pub(crate) fn sample_demand(&mut self) {
        let current = f64::from(self.in_flight) + f64::from(self.queue.queued);
        self.demand += (current - self.demand) * NEWEST_WEIGHT;
    }
}
