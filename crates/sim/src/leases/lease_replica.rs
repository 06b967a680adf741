//! One replica: its lease table, and a data plane that takes slots as the table allows.

use std::collections::VecDeque;
use std::net::SocketAddr;

use balance::leases::{
    CutOffPolicy, EndpointShare, LeaseMessage, LeaseTable, LeasedEndpoint, PoolKey, QueueState,
    ReplicaIdentity,
};
use balance::{PriorityLevel, Time};

use super::audit::HandoverAudit;

/// Request that waits for a slot.
#[derive(Clone, Copy, Debug)]
pub(super) struct QueuedLeaseRequest {
    pub(super) number: u64,
    /// Arrival by the clock of the simulation.
    pub(super) arrived: Time,
    /// Arrival by the clock of the replica.
    pub(super) arrived_here: Time,
}

/// Slots and requests of one endpoint at one replica.
#[derive(Clone, Copy, Debug, Default)]
struct EndpointUse {
    share: EndpointShare,
    in_flight: u32,
    pool: usize,
}

pub(super) struct LeaseReplica {
    pub(super) table: LeaseTable,
    endpoints: Vec<EndpointUse>,
    queues: Vec<VecDeque<QueuedLeaseRequest>>,
    valid_until: Time,
    /// Priority of all its requests.
    pub(super) priority: PriorityLevel,
    /// Requests that have begun since the last poll.
    begun: u32,
}

pub(super) fn member(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, number as u8], 0))
}

pub(super) fn member_number(member: SocketAddr) -> usize {
    match member.ip() {
        std::net::IpAddr::V4(ip) => usize::from(ip.octets()[3]),
        std::net::IpAddr::V6(_) => unreachable!("members have IPv4 addresses"),
    }
}

pub(super) fn endpoint(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, 1], number as u16 + 1))
}

fn endpoint_number(address: SocketAddr) -> usize {
    usize::from(address.port()) - 1
}

impl LeaseReplica {
    /// Returns a replica for endpoints of these pools, with no slots yet.
    pub(super) fn new(identity: ReplicaIdentity, policy: CutOffPolicy, pools: &[usize]) -> Self {
        let endpoints = pools.iter().map(|&pool| EndpointUse { pool, ..EndpointUse::default() });
        let queues = pools.iter().max().map_or(0, |most| most + 1);
        Self {
            table: LeaseTable::new(identity, policy),
            endpoints: endpoints.collect(),
            queues: vec![VecDeque::new(); queues],
            valid_until: Time::ZERO,
            priority: PriorityLevel::default(),
            begun: 0,
        }
    }

    /// Sets the cap of each endpoint; those of 0 are removed.
    pub(super) fn configure(&mut self, caps: &[u32]) {
        let configured = caps.iter().enumerate().filter(|&(_, &cap)| cap > 0);
        let endpoints = configured.map(|(number, &cap)| {
            let pool = PoolKey(self.endpoints[number].pool as u64);
            LeasedEndpoint { address: endpoint(number), cap, pool }
        });
        self.table.update_endpoints(&endpoints.collect::<Vec<_>>());
    }

    pub(super) fn enqueue(&mut self, pool: usize, request: QueuedLeaseRequest) {
        self.queues[pool].push_back(request);
    }

    pub(super) fn queued(&self) -> usize {
        self.queues.iter().map(VecDeque::len).sum()
    }

    pub(super) fn clear_queues(&mut self) {
        self.queues.iter_mut().for_each(VecDeque::clear);
    }

    /// Ends a request at an endpoint.
    pub(super) fn finish(&mut self, endpoint: usize) {
        self.endpoints[endpoint].in_flight -= 1;
    }

    pub(super) fn in_flight(&self, endpoint: usize) -> u32 {
        self.endpoints[endpoint].in_flight
    }

    pub(super) fn share(&self, endpoint: usize) -> EndpointShare {
        self.endpoints[endpoint].share
    }

    /// Returns the number of slots of an endpoint that the data plane may use now.
    pub(super) fn usable(&self, endpoint: usize, now: Time) -> u32 {
        let share = self.endpoints[endpoint].share;
        if now < self.valid_until { share.slots } else { share.without_leases }
    }

    /// Takes slots for queued requests; returns each request and its endpoint.
    pub(super) fn dispatch(&mut self, now: Time) -> Vec<(QueuedLeaseRequest, usize)> {
        let mut started = Vec::new();
        for pool in 0..self.queues.len() {
            while let Some(&request) = self.queues[pool].front() {
                let Some(endpoint) = self.least_loaded(pool, now) else { break };
                self.queues[pool].pop_front();
                self.endpoints[endpoint].in_flight += 1;
                self.begun += 1;
                started.push((request, endpoint));
            }
        }
        started
    }

    /// Returns the endpoint with the fewest requests in flight among those with a free slot.
    fn least_loaded(&self, pool: usize, now: Time) -> Option<usize> {
        let endpoints = self.endpoints.iter().enumerate();
        let free = endpoints.filter(|&(number, endpoint)| {
            endpoint.pool == pool && endpoint.in_flight < self.usable(number, now)
        });
        free.min_by_key(|(_, endpoint)| endpoint.in_flight).map(|(number, _)| number)
    }

    /// Reports to the table, polls it and puts its shares in force. Returns its messages.
    pub(super) fn poll(&mut self, now: Time) -> Vec<LeaseMessage> {
        self.table.record_requests(std::mem::take(&mut self.begun));
        for (number, used) in self.endpoints.iter().enumerate() {
            self.table.report_in_flight(endpoint(number), used.in_flight);
        }
        for (pool, queue) in self.queues.iter().enumerate() {
            let oldest = queue.front().map(|request| request.arrived_here);
            let queue = QueueState::of_one_priority(queue.len() as u32, oldest);
            let queue = QueueState { priority: self.priority, ..queue };
            self.table.report_queue(PoolKey(pool as u64), queue);
        }
        let before = HandoverAudit::new(&self.table, (0..self.endpoints.len()).map(endpoint));
        let endpoints = &mut self.endpoints;
        let messages = self.table.poll(now, |address, share| {
            let endpoint = &mut endpoints[endpoint_number(address)];
            endpoint.share = share;
            endpoint.in_flight
        });
        self.valid_until = self.table.valid_until();
        before.check(&self.table, |number| self.endpoints[number].in_flight);
        messages
    }
}
