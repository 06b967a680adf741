//! Waits of requests: one central queue, static slots, and leases, with the same requests.

use std::collections::BTreeMap;
use std::time::Duration;

use balance::Time;
use balance::leases::{CutOffPolicy, LeaseMessage, ReplicaIdentity};
use balance::slot_assignment::HANDOVER_TIME;

use super::lease_replica::{LeaseReplica, QueuedLeaseRequest, member, member_number};
use crate::event_queue::EventQueue;
use crate::random::RandomSource;

/// Delay of each message, and the maximum that is added at random.
const DELAY: Duration = Duration::from_micros(500);
const JITTER: Duration = Duration::from_micros(100);

/// Endpoints of a scenario.
#[derive(Clone, Copy, Debug)]
struct EndpointGroup {
    endpoints: usize,
    cap: u32,
    /// Mean service time; times are exponential.
    service: Duration,
}

impl EndpointGroup {
    /// Returns the group of the table: 30 endpoints, 100 ms.
    fn of(cap: u32) -> Self {
        Self { endpoints: 30, cap, service: Duration::from_millis(100) }
    }
}

/// Distribution of slots.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SlotPolicy {
    /// One replica has all slots and gets all requests.
    Central,
    /// Replicas use their bases.
    Static,
    Leases,
}

#[derive(Clone, Debug)]
struct WaitScenario {
    group: EndpointGroup,
    /// Percentage of all requests that each replica gets.
    split: Vec<u32>,
    load: f64,
    lasts: Duration,
    seed: u64,
}

/// Result of a scenario.
#[derive(Debug, Default)]
struct WaitResult {
    waits: Vec<Duration>,
    /// Arrival and replica of each of them.
    arrivals: Vec<(Time, usize)>,
    /// Requests that ended before the last arrival.
    served: u64,
    messages: u64,
    /// Requests that began at an endpoint with as many in flight as its cap.
    over_cap: u64,
}

impl WaitResult {
    fn mean(&self) -> f64 {
        self.waits.iter().copied().map(millis).sum::<f64>() / self.waits.len() as f64
    }

    fn p99(&self) -> f64 {
        let mut waits = self.waits.clone();
        waits.sort_unstable();
        millis(waits[waits.len() * 99 / 100])
    }
}

impl WaitResult {
    /// Returns the differences of mean waits, in milliseconds, between the replicas at which
    /// requests arrived in the same 100 ms, largest last.
    fn wait_differences(&self, replicas: usize) -> Vec<f64> {
        let mut windows = BTreeMap::new();
        for (&(arrived, replica), &wait) in self.arrivals.iter().zip(&self.waits) {
            let window = arrived.as_nanos() / FAIRNESS_WINDOW.as_nanos() as u64;
            let sums: &mut Vec<(f64, f64)> =
                windows.entry(window).or_insert_with(|| vec![(0.0, 0.0); replicas]);
            sums[replica].0 += millis(wait);
            sums[replica].1 += 1.0;
        }
        let difference = |sums: &Vec<(f64, f64)>| {
            let means =
                sums.iter().filter(|(_, count)| *count > 0.0).map(|(sum, count)| sum / count);
            means.clone().fold(0.0, f64::max) - means.fold(f64::MAX, f64::min)
        };
        let mut differences: Vec<_> = windows.values().map(difference).collect();
        differences.sort_unstable_by(f64::total_cmp);
        differences
    }

    #[cfg(test)]
    fn mean_at(&self, replica: usize) -> f64 {
        let at = self.arrivals.iter().zip(&self.waits).filter(|((_, it), _)| *it == replica);
        let waits: Vec<_> = at.map(|(_, &wait)| millis(wait)).collect();
        waits.iter().sum::<f64>() / waits.len() as f64
    }
}

/// Time within which requests that arrive at different replicas should wait equally long.
const FAIRNESS_WINDOW: Duration = Duration::from_millis(100);

/// Prints the differences of waits between replicas in an overload of 5 s, a row for each
/// combination.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(super) fn print_fairness() {
    println!("split,cap,load,mean_wait,mean_difference,p99_difference");
    for split in [[34, 33, 33], [70, 20, 10], [90, 5, 5]] {
        for cap in [1, 4, 16] {
            for load in [1.1, 1.5] {
                let (group, lasts) = (EndpointGroup::of(cap), Duration::from_secs(5));
                let scenario = WaitScenario { group, split: split.to_vec(), load, lasts, seed: 42 };
                let result = WaitSimulation::new(scenario, SlotPolicy::Leases).run();
                let differences = result.wait_differences(split.len());
                println!(
                    "{},{cap},{load},{:.0},{:.0},{:.0}",
                    split.map(|part| part.to_string()).join("/"),
                    result.mean(),
                    differences.iter().sum::<f64>() / differences.len() as f64,
                    differences[differences.len() * 99 / 100],
                );
            }
        }
    }
}

fn millis(time: Duration) -> f64 {
    time.as_secs_f64() * 1000.0
}

/// Prints the table, a row for each combination. Times are in milliseconds.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(super) fn print() {
    println!(
        "split,cap,load,central_mean,central_p99,static_mean,static_p99,leases_mean,leases_p99,\
         messages_per_request,throughput"
    );
    for split in [[34, 33, 33], [70, 20, 10], [100, 0, 0]] {
        for cap in [1, 4, 16] {
            for load in [0.7, 0.85, 0.95] {
                let lasts = Duration::from_secs(200);
                let scenario = WaitScenario {
                    group: EndpointGroup::of(cap),
                    split: split.to_vec(),
                    load,
                    lasts,
                    seed: 42,
                };
                let run = |policy| WaitSimulation::new(scenario.clone(), policy).run();
                let central = run(SlotPolicy::Central);
                let fixed = run(SlotPolicy::Static);
                let leases = run(SlotPolicy::Leases);
                assert_eq!(fixed.over_cap + leases.over_cap, 0, "the cap is exceeded");
                let messages = leases.messages as f64 / leases.waits.len() as f64;
                let throughput = leases.served as f64 / central.served as f64;
                println!(
                    "{},{cap},{load},{:.2},{:.1},{:.2},{:.1},{:.2},{:.1},{messages:.2},{throughput:.3}",
                    split.map(|part| part.to_string()).join("/"),
                    central.mean(),
                    central.p99(),
                    fixed.mean(),
                    fixed.p99(),
                    leases.mean(),
                    leases.p99(),
                );
            }
        }
    }
}

/// Groups of endpoints of the lab's experiment `replicas`.
const LAB_GROUPS: [EndpointGroup; 3] = [
    EndpointGroup { endpoints: 30, cap: 1, service: Duration::from_millis(50) },
    EndpointGroup { endpoints: 10, cap: 4, service: Duration::from_millis(100) },
    EndpointGroup { endpoints: 4, cap: 16, service: Duration::from_millis(100) },
];

/// Duration of a load of the lab, its warm-up included.
const LAB_LASTS: Duration = Duration::from_secs(7);

/// Number of loads of which a row has the mean.
const LAB_ROUNDS: u64 = 10;

/// Prints the table of the lab's cases, a row for each.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(super) fn print_lab() {
    println!("split,cap,load,central_mean,central_p99,leases_mean,leases_p99,messages_per_request");
    for group in LAB_GROUPS {
        for split in [[34, 33, 33], [70, 20, 10], [100, 0, 0]] {
            for load in [0.7, 0.85, 0.95] {
                print_lab_row(group, split, load);
            }
        }
    }
}

#[expect(clippy::print_stdout, reason = "the table is the output")]
fn print_lab_row(group: EndpointGroup, split: [u32; 3], load: f64) {
    let run = |policy| {
        let mut sum = WaitResult::default();
        for seed in 0..LAB_ROUNDS {
            let split = split.to_vec();
            let scenario = WaitScenario { group, split, load, lasts: LAB_LASTS, seed: seed * 2 };
            let result = WaitSimulation::new(scenario, policy).run();
            assert_eq!(result.over_cap, 0, "the cap is exceeded");
            sum.waits.extend(result.waits);
            sum.messages += result.messages;
        }
        sum
    };
    let (central, leases) = (run(SlotPolicy::Central), run(SlotPolicy::Leases));
    println!(
        "{},{},{load},{:.2},{:.1},{:.2},{:.1},{:.2}",
        split.map(|part| part.to_string()).join("/"),
        group.cap,
        central.mean(),
        central.p99(),
        leases.mean(),
        leases.p99(),
        leases.messages as f64 / leases.waits.len() as f64,
    );
}

enum WaitEvent {
    Arrive,
    Finish { replica: usize, endpoint: usize },
    Deliver(LeaseMessage),
    Poll(usize),
}

struct WaitSimulation {
    scenario: WaitScenario,
    policy: SlotPolicy,
    /// Arrivals and service times: the same for each policy.
    dice: RandomSource,
    network_dice: RandomSource,
    now: Time,
    events: EventQueue<WaitEvent>,
    replicas: Vec<LeaseReplica>,
    polls: Vec<Time>,
    /// Arrival of the last message on each connection: none overtakes another.
    arrivals: Vec<Vec<Time>>,
    services: Vec<Duration>,
    in_flight: Vec<u32>,
    result: WaitResult,
}

impl WaitSimulation {
    fn new(scenario: WaitScenario, policy: SlotPolicy) -> Self {
        let count = if policy == SlotPolicy::Central { 1 } else { scenario.split.len() };
        let members = || (0..count).map(member);
        let replica = |number| {
            let identity = ReplicaIdentity { member: member(number), incarnation: 1 };
            let group = scenario.group;
            let pools = vec![0; group.endpoints];
            let mut replica = LeaseReplica::new(identity, CutOffPolicy::Strict, &pools);
            replica.table.update_members(members(), Time::ZERO);
            replica.configure(&vec![group.cap; group.endpoints]);
            replica
        };
        Self {
            policy,
            dice: RandomSource::new(scenario.seed),
            network_dice: RandomSource::new(scenario.seed + 1),
            now: Time::ZERO,
            events: EventQueue::new(),
            replicas: (0..count).map(replica).collect(),
            polls: vec![Time::MAX; count],
            arrivals: vec![vec![Time::ZERO; count]; count],
            services: Vec::new(),
            in_flight: vec![0; scenario.group.endpoints],
            result: WaitResult::default(),
            scenario,
        }
    }

    fn run(mut self) -> WaitResult {
        // The network must be quiet at first, and each replica has its base by then.
        let begin = Time::ZERO + HANDOVER_TIME * 2;
        let end = begin + self.scenario.lasts;
        self.events.schedule(begin, WaitEvent::Arrive);
        (0..self.replicas.len()).for_each(|replica| self.step(replica));
        while let Some((at, event)) = self.events.next() {
            self.now = at;
            match event {
                WaitEvent::Arrive if at < end => self.arrive(),
                WaitEvent::Arrive => {}
                WaitEvent::Finish { replica, endpoint } => {
                    self.in_flight[endpoint] -= 1;
                    self.result.served += u64::from(at < end);
                    self.replicas[replica].finish(endpoint);
                    self.step(replica);
                }
                WaitEvent::Deliver(message) => {
                    let replica = member_number(message.to.member);
                    // Messages keep their order here, and nothing is wrong with them.
                    let received = self.replicas[replica].table.receive(&message, at);
                    debug_assert!(received.is_ok(), "{received:?}");
                    self.step(replica);
                }
                WaitEvent::Poll(replica) if self.polls[replica] == at => {
                    self.polls[replica] = Time::MAX;
                    self.step(replica);
                }
                WaitEvent::Poll(_) => {}
            }
            let is_over = at > end && self.replicas.iter().all(|replica| replica.queued() == 0);
            // Static slots never serve the queue of a replica without them; the rest is enough.
            if is_over || at > end + Duration::from_secs(20) {
                break;
            }
        }
        self.result
    }

    fn arrive(&mut self) {
        let EndpointGroup { endpoints, cap, service } = self.scenario.group;
        let slots = endpoints as f64 * f64::from(cap);
        let interval = self.dice.exponential(service.div_f64(slots * self.scenario.load));
        self.events.schedule(self.now + interval, WaitEvent::Arrive);
        let service = self.dice.exponential(service);
        let mut point = self.dice.between(0, 99);
        let chosen = self.scenario.split.iter().position(|&part| {
            let is_here = point < part;
            point = point.saturating_sub(part);
            is_here
        });
        let replica = chosen.expect("parts add up to 100").min(self.replicas.len() - 1);
        let number = self.services.len() as u64;
        self.services.push(service);
        let request = QueuedLeaseRequest { number, arrived: self.now, arrived_here: self.now };
        self.replicas[replica].enqueue(0, request);
        self.step(replica);
    }

    /// Starts what can start, polls the table and sends its messages.
    fn step(&mut self, number: usize) {
        self.dispatch(number);
        let messages = self.replicas[number].poll(self.now);
        self.dispatch(number);
        if self.policy == SlotPolicy::Leases {
            // Those before the first request concern the start.
            let counts = !self.services.is_empty();
            self.result.messages += if counts { messages.len() as u64 } else { 0 };
            messages.into_iter().for_each(|message| self.send(number, message));
        }
        let next = self.replicas[number].table.next_poll(self.now);
        if next < self.polls[number] {
            self.polls[number] = next;
            self.events.schedule(next, WaitEvent::Poll(number));
        }
    }

    fn send(&mut self, from: usize, message: LeaseMessage) {
        let jitter = JITTER * self.network_dice.between(0, 100) / 100;
        let last = &mut self.arrivals[from][member_number(message.to.member)];
        *last = (*last).max(self.now + DELAY + jitter);
        self.events.schedule(*last, WaitEvent::Deliver(message));
    }

    fn dispatch(&mut self, replica: usize) {
        for (request, endpoint) in self.replicas[replica].dispatch(self.now) {
            self.in_flight[endpoint] += 1;
            self.result.over_cap += u64::from(self.in_flight[endpoint] > self.scenario.group.cap);
            self.result.waits.push(self.now.saturating_since(request.arrived));
            self.result.arrivals.push((request.arrived, replica));
            let ends = self.now + self.services[request.number as usize];
            self.events.schedule(ends, WaitEvent::Finish { replica, endpoint });
        }
    }
}

#[cfg(test)]
mod tests {
    use balance::PriorityLevel;

    use super::*;

    fn run(cap: u32, split: &[u32], policy: SlotPolicy) -> WaitResult {
        let lasts = Duration::from_secs(20);
        let split = split.to_vec();
        let scenario =
            WaitScenario { group: EndpointGroup::of(cap), split, load: 0.85, lasts, seed: 7 };
        WaitSimulation::new(scenario, policy).run()
    }

    #[test]
    fn leases_are_close_to_a_central_queue() {
        let even = [34, 33, 33];
        for (cap, split, factor) in
            [(1, even, 2.5), (1, [70, 20, 10], 2.5), (4, even, 2.0), (4, [70, 20, 10], 2.0)]
        {
            let central = run(cap, &split, SlotPolicy::Central);
            let leases = run(cap, &split, SlotPolicy::Leases);
            assert_eq!(leases.over_cap, 0);
            assert_eq!(leases.waits.len(), central.waits.len());
            let waits = [central.mean(), central.p99(), leases.mean(), leases.p99()];
            // In a short run a mean of a quarter of a millisecond rests on few requests that wait.
            let most_mean = central.mean() * factor + 0.1;
            assert!(leases.mean() <= most_mean, "cap {cap}, {split:?}: {waits:?}");
            assert!(leases.p99() <= central.p99() * factor, "cap {cap}, {split:?}: {waits:?}");
            assert!(leases.served as f64 >= central.served as f64 * 0.98);
            // In a short run the first credit of the message budget counts for more.
            let most = leases.waits.len() as u64 * 60 / 100;
            assert!(leases.messages <= most, "cap {cap}, {split:?}: {} messages", leases.messages);
        }
    }

    #[test]
    fn requests_wait_equally_long_at_each_replica_in_an_overload() {
        for (cap, split) in [(1, [70, 20, 10]), (4, [70, 20, 10]), (4, [34, 33, 33])] {
            let (group, lasts) = (EndpointGroup::of(cap), Duration::from_secs(5));
            let scenario = WaitScenario { group, split: split.to_vec(), load: 1.5, lasts, seed: 7 };
            let result = WaitSimulation::new(scenario, SlotPolicy::Leases).run();
            assert!(result.mean() > 500.0, "requests wait");
            let differences = result.wait_differences(3);
            let mean = differences.iter().sum::<f64>() / differences.len() as f64;
            let p99 = differences[differences.len() * 99 / 100];
            // About twice what `--leases --fairness` shows.
            assert!(mean < 400.0 && p99 < 1_200.0, "cap {cap}, {split:?}: {mean} ms, {p99} ms");
        }
    }

    #[test]
    fn higher_priority_at_one_replica_goes_before_lower_ones_at_others() {
        let (group, lasts) = (EndpointGroup::of(4), Duration::from_secs(5));
        let split = vec![30, 35, 35];
        let scenario = WaitScenario { group, split, load: 1.5, lasts, seed: 7 };
        let mut simulation = WaitSimulation::new(scenario, SlotPolicy::Leases);
        simulation.replicas[0].priority = PriorityLevel::ALL[0];
        let result = simulation.run();
        assert_eq!(result.over_cap, 0);
        let [high, low] = [result.mean_at(0), result.mean_at(1)];
        assert!(high * 5.0 < low, "{high} ms, {low} ms");
    }

    #[test]
    fn static_slots_exceed_no_cap_and_wait_longer() {
        let fixed = run(4, &[34, 33, 33], SlotPolicy::Static);
        let leases = run(4, &[34, 33, 33], SlotPolicy::Leases);
        assert_eq!(fixed.over_cap, 0);
        assert!(fixed.mean() > leases.mean() * 4.0);
    }
}
