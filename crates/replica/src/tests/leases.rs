//! Lease tables that share a cap over channels.

use balance::leases::{
    CutOffPolicy, EndpointShare, LeaseRefusal, LeaseTable, LeasedEndpoint, PoolKey, QueueState,
};
use balance::rng::Rng;
use tokio::time::MissedTickBehavior;

use super::*;

/// Cap of each endpoint.
const CAP: u32 = 4;
const ENDPOINTS: usize = 3;
const POOL: PoolKey = PoolKey(7);
/// Time that passes for the tables with each step. They do not see how long a step takes, so a busy
/// machine lets no lease expire.
const STEP: Duration = Duration::from_millis(5);

/// Replica with a lease table and requests.
struct LeaseNode {
    replica: TestReplica,
    table: LeaseTable,
    shares: Vec<EndpointShare>,
    /// Endpoint and end of each request in flight.
    requests: Vec<(usize, Time)>,
    /// Number of requests in flight and queued.
    demand: usize,
    queued_since: Option<Time>,
    started: usize,
}

fn endpoint(number: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 0, number as u8], 80))
}

impl LeaseNode {
    fn new(replica: TestReplica, now: Time) -> Self {
        let mut table = LeaseTable::new(replica.me, CutOffPolicy::Strict);
        table.update_members(replica.members.borrow().iter().copied(), now);
        let leased = |number| LeasedEndpoint { address: endpoint(number), cap: CAP, pool: POOL };
        table.update_endpoints(&(0..ENDPOINTS).map(leased).collect::<Vec<_>>());
        Self {
            replica,
            table,
            shares: vec![EndpointShare::default(); ENDPOINTS],
            requests: Vec::new(),
            demand: 0,
            queued_since: None,
            started: 0,
        }
    }

    fn in_flight(&self, endpoint: usize) -> u32 {
        self.requests.iter().filter(|&&(at, _)| at == endpoint).count() as u32
    }

    /// Ends requests, and starts those that a share allows.
    fn serve(&mut self, now: Time, rng: &mut Rng) {
        self.requests.retain(|&(_, end)| end > now);
        let is_leased = now < self.table.valid_until();
        for endpoint in 0..ENDPOINTS {
            let share = self.shares[endpoint];
            let slots = if is_leased { share.slots } else { share.without_leases };
            while self.requests.len() < self.demand && self.in_flight(endpoint) < slots {
                let duration = Duration::from_millis(10 + rng.below(50) as u64);
                self.requests.push((endpoint, now + duration));
                self.started += 1;
            }
        }
    }

    /// Takes messages, each of them twice, and sends those that are due.
    async fn exchange(&mut self, now: Time) {
        loop {
            let received = tokio::select! {
                biased;
                received = self.replica.receive() => received,
                () = std::future::ready(()) => break,
            };
            let ReplicaMessage::Lease(message) = received.message else { continue };
            assert_eq!(self.table.receive(&message, now), Ok(()));
            let replayed = self.table.receive(&message, now);
            assert_eq!(replayed, Err(LeaseRefusal::StaleSequence));
        }
        let queued = self.demand.saturating_sub(self.requests.len()) as u32;
        self.queued_since = if queued > 0 { self.queued_since.or(Some(now)) } else { None };
        self.table.report_queue(POOL, QueueState::of_one_priority(queued, self.queued_since));
        let in_flight: Vec<_> = (0..ENDPOINTS).map(|number| self.in_flight(number)).collect();
        for (number, &in_flight) in in_flight.iter().enumerate() {
            self.table.report_in_flight(endpoint(number), in_flight);
        }
        let messages = self.table.poll(now, |address, share| {
            let at = (0..ENDPOINTS).find(|&it| endpoint(it) == address).unwrap();
            self.shares[at] = share;
            in_flight[at]
        });
        for message in messages {
            self.replica.sender.send(message.to.member, ReplicaMessage::Lease(message));
        }
    }
}

/// Replicas in front of the same endpoints.
struct LeaseGroup {
    nodes: Vec<LeaseNode>,
    rng: Rng,
    now: Time,
}

impl LeaseGroup {
    /// Lets one step pass. Never are more requests at an endpoint than its cap.
    async fn step(&mut self) {
        self.now = self.now + STEP;
        for node in &mut self.nodes {
            node.serve(self.now, &mut self.rng);
            node.exchange(self.now).await;
        }
        for endpoint in 0..ENDPOINTS {
            let counts: Vec<_> = self.nodes.iter().map(|node| node.in_flight(endpoint)).collect();
            assert!(counts.iter().sum::<u32>() <= CAP, "{counts:?} at {endpoint}");
        }
    }

    fn has_slots(&self, number: usize) -> bool {
        self.nodes[number].requests.len() == ENDPOINTS * CAP as usize
    }
}

#[tokio::test]
async fn replicas_keep_a_cap_over_channels_and_slots_go_where_requests_wait() {
    let authority = TestAuthority::new();
    let now = Time::from_nanos(1_000_000_000);
    let group = TestReplica::group(3, &authority);
    let nodes = group.into_iter().map(|replica| LeaseNode::new(replica, now)).collect();
    let mut group = LeaseGroup { nodes, rng: Rng::new(3), now };
    let mut ticks = interval(Duration::from_millis(1));
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    for step in 0..2_000 {
        if step % 20 == 0 {
            for node in &mut group.nodes {
                node.demand = group.rng.below(16);
            }
        }
        if step == 1_000 {
            for node in &mut group.nodes {
                node.replica.certificates.send_replace(Some(authority.certificates()));
            }
        }
        ticks.tick().await;
        group.step().await;
    }
    for busy in 0..3 {
        for (number, node) in group.nodes.iter_mut().enumerate() {
            node.demand = if number == busy { 20 } else { 0 };
        }
        let mut steps = 0;
        while !group.has_slots(busy) {
            steps += 1;
            assert!(steps < 1_000, "replica {busy} does not get all slots");
            ticks.tick().await;
            group.step().await;
        }
    }
    for node in &group.nodes {
        let counts = node.table.counts();
        assert!(counts.lent > 20 && counts.returned > 20 && counts.taken_back == 0, "{counts:?}");
        assert!(node.started > 300, "{} requests", node.started);
        assert_eq!(node.replica.count(|it| &it.messages_dropped), 0);
    }
}
