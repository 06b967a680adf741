//! Study: several balancers that divide the slots of shared servers. Checks that the cap is not
//! exceeded, and measures the cost of the division.
//!
//! Each has its own queue, picker and slots. Of the others it knows only their addresses, with a
//! delay. `docs/internals/replicas.md` shows the table.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::slot_assignment::HANDOVER_TIME;
use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, Algorithm, ConcurrencyCap,
    Endpoint, EndpointSet, PickRequest, Picker, Queue, SetMember, SlotAssigner, Ticket, Time,
};

use crate::endpoint_sets;
use crate::event_queue::EventQueue;
use crate::random::{EXPONENTIAL_CUTOFF, RandomSource};

/// Mean service time in the table; times are exponential.
const SERVICE: Duration = Duration::from_millis(100);

/// Scenario of one simulation.
#[derive(Clone, Debug)]
struct ReplicaScenario {
    endpoints: usize,
    cap: u32,
    /// Percentage of all requests that each balancer gets.
    split: Vec<u32>,
    /// Request rate, relative to the capacity of all slots.
    load: f64,
    /// Maximum duration of a request.
    longest: Duration,
    /// Changes of membership: the time, and the balancer that joins or leaves. All balancers of the
    /// split are members at the begin.
    changes: Vec<(Duration, usize)>,
    /// Maximum delay until a change is learned.
    lag: Duration,
    lasts: Duration,
    seed: u64,
}

impl ReplicaScenario {
    /// Returns the mean service time.
    fn service(&self) -> Duration {
        self.longest / EXPONENTIAL_CUTOFF
    }

    fn fixed(split: &[u32], cap: u32, load: f64) -> Self {
        Self {
            endpoints: 30,
            cap,
            split: split.to_vec(),
            load,
            longest: SERVICE * EXPONENTIAL_CUTOFF,
            changes: Vec::new(),
            lag: Duration::ZERO,
            lasts: Duration::from_secs(200),
            seed: 42,
        }
    }

    /// Returns a scenario whose members come and go at random, with requests of at most this
    /// length.
    #[cfg(test)]
    fn with_random_changes(seed: u64, longest: Duration) -> Self {
        let mut dice = RandomSource::new(seed);
        let replicas = dice.between(2, 5) as usize;
        let mut at = Duration::ZERO;
        let changes = (0..12).map(|_| {
            at += Duration::from_millis(u64::from(dice.between(10, 6_000)));
            (at, dice.below(replicas))
        });
        Self {
            changes: changes.collect(),
            endpoints: dice.between(1, 8) as usize,
            split: vec![100 / replicas as u32; replicas],
            cap: dice.between(1, 6),
            load: f64::from(dice.between(5, 20)) / 10.0,
            longest,
            lag: Duration::from_millis(500),
            lasts: Duration::from_secs(60),
            seed,
        }
    }
}

/// Result of a scenario.
#[derive(Default)]
struct ReplicaResult {
    /// Wait of each request that was served.
    waits: Vec<Duration>,
    /// Requests that began at a server that already had as many as its cap, or more.
    over_cap: u64,
    /// Requests among these that began beside no request older than the handover time.
    over_cap_after_handover: u64,
    /// Maximum of requests in flight at all servers together.
    max_in_flight: usize,
}

/// Prints the table, a row for each combination. Times are in milliseconds.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(crate) fn print() {
    println!("balancers,split,cap,load,wait_mean,wait_p99");
    for split in [&[100][..], &[34, 33, 33], &[50, 30, 20], &[70, 20, 10]] {
        for cap in [1, 4, 16] {
            for load in [0.5, 0.7, 0.85, 0.95] {
                let ReplicaResult { mut waits, over_cap: over, .. } =
                    ReplicaSimulation::new(ReplicaScenario::fixed(split, cap, load)).run();
                assert_eq!(over, 0, "the assigned slots exceed the cap");
                waits.sort_unstable();
                let millis = |time: Duration| time.as_secs_f64() * 1000.0;
                let mean = waits.iter().copied().map(millis).sum::<f64>() / waits.len() as f64;
                let p99 = millis(waits[waits.len() * 99 / 100]);
                let (balancers, split) = (split.len(), split.iter().map(u32::to_string));
                let split = split.collect::<Vec<_>>().join("/");
                println!("{balancers},{split},{cap},{load},{mean:.2},{p99:.1}");
            }
        }
    }
}

enum ReplicaEvent {
    Arrive,
    Finish {
        replica: usize,
        endpoint: Arc<Endpoint<usize>>,
        began: Time,
    },
    /// A balancer joins if it is away, and leaves if it is present.
    Change(usize),
    /// A balancer learns the members.
    UpdateMembers(usize, Vec<usize>),
    /// A balancer may use newly assigned slots.
    ApplyAssignment(usize),
}

/// One balancer.
struct BalancerReplica {
    assigner: SlotAssigner,
    /// Time at which it has learned of all changes so far.
    informed_at: Time,
    /// Endpoints with all slots.
    endpoints: EndpointSet<usize>,
    /// Endpoints with the slots assigned to it.
    set: Arc<EndpointSet<usize>>,
    picker: Picker,
    admission: Admission,
    queue: Queue<usize, u64>,
    /// Arrival time and ticket of each queued request.
    waiting: BTreeMap<u64, (Time, Arc<Ticket<usize>>)>,
}

struct ReplicaSimulation {
    scenario: ReplicaScenario,
    limits: AdmissionLimits,
    dice: RandomSource,
    now: Time,
    events: EventQueue<ReplicaEvent>,
    replicas: Vec<BalancerReplica>,
    is_present: Vec<bool>,
    /// Begin times of the requests in flight at each server, from all balancers.
    servers: Vec<Vec<Time>>,
    arrivals: u64,
    result: ReplicaResult,
}

fn replica_address(replica: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, replica as u8], 0))
}

impl ReplicaSimulation {
    fn new(scenario: ReplicaScenario) -> Self {
        let limits = AdmissionLimits {
            cap: ConcurrencyCap::of(scenario.cap),
            max_waiting: 1 << 20,
            ..AdmissionLimits::default()
        };
        let replica = |number: usize| {
            let set = Arc::new(EndpointSet::empty());
            BalancerReplica {
                assigner: SlotAssigner::new(replica_address(number)),
                informed_at: Time::ZERO,
                endpoints: endpoint_sets::equal_endpoints(scenario.endpoints, |server| server),
                picker: Picker::new(Algorithm::LeastLoad, scenario.seed + number as u64),
                admission: Admission::new(),
                queue: Queue::new(Arc::clone(&set), limits),
                waiting: BTreeMap::new(),
                set,
            }
        };
        Self {
            limits,
            dice: RandomSource::new(scenario.seed),
            now: Time::ZERO,
            events: EventQueue::new(),
            replicas: (0..scenario.split.len()).map(replica).collect(),
            is_present: vec![true; scenario.split.len()],
            servers: vec![Vec::new(); scenario.endpoints],
            arrivals: 0,
            result: ReplicaResult::default(),
            scenario,
        }
    }

    fn run(mut self) -> ReplicaResult {
        let all: Vec<usize> = (0..self.replicas.len()).collect();
        for replica in 0..self.replicas.len() {
            self.update_members(replica, &all);
        }
        self.events.schedule(Time::ZERO + HANDOVER_TIME, ReplicaEvent::Arrive);
        for &(after, replica) in &self.scenario.changes {
            self.events.schedule(Time::ZERO + HANDOVER_TIME + after, ReplicaEvent::Change(replica));
        }
        while let Some((at, event)) = self.events.next() {
            self.now = at;
            match event {
                ReplicaEvent::Arrive => self.arrive(),
                ReplicaEvent::Finish { replica, endpoint, began } => {
                    self.finish(replica, &endpoint, began);
                }
                ReplicaEvent::Change(replica) => self.change(replica),
                ReplicaEvent::UpdateMembers(replica, members) => {
                    self.update_members(replica, &members)
                }
                ReplicaEvent::ApplyAssignment(replica) => self.apply_assignment(replica),
            }
        }
        self.check_end();
        self.result
    }

    fn arrive(&mut self) {
        let slots = self.scenario.endpoints as f64 * f64::from(self.scenario.cap);
        let interval = self.scenario.service().div_f64(slots * self.scenario.load);
        let next = self.now + self.dice.exponential(interval);
        if next < Time::ZERO + HANDOVER_TIME + self.scenario.lasts {
            self.events.schedule(next, ReplicaEvent::Arrive);
        }
        let Some(number) = self.choose_replica() else { return };
        let (now, arrival) = (self.now, self.arrivals);
        self.arrivals += 1;
        let BalancerReplica { set, picker, admission, queue, waiting, .. } =
            &mut self.replicas[number];
        let request = PickRequest { now, ..PickRequest::default() };
        let config = AdmissionConfig { set, limits: self.limits };
        match admission.enter(picker, config, &request, || queue, || arrival) {
            AdmissionDecision::Slot(endpoint) => self.begin(number, endpoint, now),
            AdmissionDecision::Waiting { ticket, .. } => {
                waiting.insert(arrival, (now, ticket));
            }
            AdmissionDecision::Rejected(refusal) => panic!("a request is rejected: {refusal:?}"),
        }
    }

    /// Chooses a balancer among those that are present, by its share of the requests.
    fn choose_replica(&mut self) -> Option<usize> {
        let present: Vec<usize> =
            (0..self.replicas.len()).filter(|&it| self.is_present[it]).collect();
        let parts = || present.iter().map(|&replica| self.scenario.split[replica] as usize);
        let all = parts().sum::<usize>();
        if all == 0 {
            return None;
        }
        let mut point = self.dice.below(all);
        let chosen = parts().position(|part| {
            let here = point < part;
            point = point.saturating_sub(part);
            here
        });
        chosen.map(|chosen| present[chosen])
    }

    fn begin(&mut self, replica: usize, endpoint: Arc<Endpoint<usize>>, arrived: Time) {
        let (now, server) = (self.now, &mut self.servers[endpoint.data]);
        if server.len() >= self.scenario.cap as usize {
            let grace = HANDOVER_TIME - self.scenario.lag;
            let is_old = |began: &Time| now.saturating_since(*began) >= grace;
            self.result.over_cap += 1;
            self.result.over_cap_after_handover += u64::from(!server.iter().any(is_old));
        }
        server.push(now);
        self.result.waits.push(now.saturating_since(arrived));
        let ends = now + self.dice.exponential(self.scenario.service());
        self.events.schedule(ends, ReplicaEvent::Finish { replica, endpoint, began: now });
        let in_flight = self.servers.iter().map(Vec::len).sum();
        self.result.max_in_flight = self.result.max_in_flight.max(in_flight);
    }

    fn finish(&mut self, number: usize, endpoint: &Endpoint<usize>, began: Time) {
        let server = &mut self.servers[endpoint.data];
        let index = server.iter().position(|&it| it == began).expect("it is in flight");
        server.swap_remove(index);
        let now = self.now;
        let BalancerReplica { admission, queue, .. } = &mut self.replicas[number];
        let woken = admission.release(endpoint, || now, || queue);
        self.wake(number, woken);
    }

    /// Begins the woken requests, which have slots.
    fn wake(&mut self, number: usize, woken: impl IntoIterator<Item = u64>) {
        for arrival in woken {
            let known = self.replicas[number].waiting.remove(&arrival);
            let (arrived, ticket) = known.expect("a woken request was queued");
            let endpoint = ticket.granted().expect("no request is shed");
            self.begin(number, endpoint, arrived);
        }
    }

    fn change(&mut self, replica: usize) {
        self.is_present[replica] ^= true;
        let members: Vec<usize> =
            (0..self.replicas.len()).filter(|&it| self.is_present[it]).collect();
        for replica in 0..self.replicas.len() {
            let late = self.scenario.lag * self.dice.between(0, 100) / 100;
            // Later changes do not overtake earlier ones.
            let at = (self.now + late).max(self.replicas[replica].informed_at);
            self.replicas[replica].informed_at = at;
            self.events.schedule(at, ReplicaEvent::UpdateMembers(replica, members.clone()));
        }
    }

    fn update_members(&mut self, replica: usize, members: &[usize]) {
        let members = members.iter().map(|&member| replica_address(member));
        self.replicas[replica].assigner.update_members(members, self.now);
        self.apply_assignment(replica);
    }

    /// Applies the current assignment.
    fn apply_assignment(&mut self, number: usize) {
        let (now, limits) = (self.now, self.limits);
        let BalancerReplica { assigner, endpoints, set, admission, queue, .. } =
            &mut self.replicas[number];
        let assignment = assigner.assignment(now);
        let assigned = |member: &SetMember<usize>| SetMember {
            max_in_flight: assignment.max_in_flight(member.endpoint.address, limits.cap),
            ..member.clone()
        };
        *set = Arc::new(EndpointSet::new(endpoints.members().iter().map(assigned).collect()));
        if let Some(next) = assigner.next_change(now) {
            self.events.schedule(next, ReplicaEvent::ApplyAssignment(number));
        }
        let woken = admission.replace(Arc::clone(set), limits, now, || queue);
        self.wake(number, woken);
    }

    /// Checks that no slot is taken any more, and that no request waits at a balancer that has
    /// slots.
    fn check_end(&self) {
        assert!(self.servers.iter().all(Vec::is_empty), "a request has not ended");
        for replica in &self.replicas {
            let members = replica.set.members();
            assert!(members.iter().all(|member| member.endpoint.in_flight() == 0));
            assert_eq!(replica.admission.waiting() as usize, replica.waiting.len());
            if members.iter().any(|member| member.max_in_flight > 0) {
                assert!(replica.waiting.is_empty(), "a request waits for a free slot");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Maximum duration of a request that ends within the handover time, after all members have
    /// learned of a change.
    const SHORT: Duration = Duration::from_millis(1_499);

    #[test]
    fn fixed_replicas_never_exceed_the_cap() {
        for seed in 0..100 {
            let scenario = ReplicaScenario::with_random_changes(seed, Duration::from_secs(16));
            let scenario = ReplicaScenario { changes: Vec::new(), lag: Duration::ZERO, ..scenario };
            assert_eq!(ReplicaSimulation::new(scenario).run().over_cap, 0, "seed {seed}");
        }
    }

    #[test]
    fn all_slots_are_used_with_any_number_of_replicas() {
        for replicas in [1, 3, 7] {
            let scenario = ReplicaScenario::fixed(&vec![100 / replicas as u32; replicas], 4, 3.0);
            let lasts = Duration::from_secs(20);
            let result = ReplicaSimulation::new(ReplicaScenario { lasts, ..scenario }).run();
            assert_eq!(result.max_in_flight, 30 * 4);
        }
    }

    #[test]
    fn changing_replicas_never_exceed_the_cap() {
        for seed in 0..200 {
            let result =
                ReplicaSimulation::new(ReplicaScenario::with_random_changes(seed, SHORT)).run();
            assert_eq!(result.over_cap, 0, "seed {seed}");
        }
    }

    #[test]
    fn cap_is_exceeded_only_by_requests_outlasting_the_handover() {
        let mut over = 0;
        for seed in 0..200 {
            let result = ReplicaSimulation::new(ReplicaScenario::with_random_changes(
                seed,
                Duration::from_secs(16),
            ))
            .run();
            assert_eq!(result.over_cap_after_handover, 0, "seed {seed}");
            over += result.over_cap;
        }
        assert!(over > 0, "the bound is never reached");
    }
}
