//! Simulation of one seed: replicas, requests and messages under faults. Then the faults stop, and
//! every slot must be in use again and every queued request served, within a bound.

use std::fmt;
use std::ops::AddAssign;
use std::time::Duration;

use balance::Time;
use balance::leases::{LEASE_TERM, LeaseMessage, ReplicaIdentity, TICK};
use balance::slot_assignment::HANDOVER_TIME;

use super::audit::{EndpointAudit, SlotsInForce};
use super::lease_plan::{LeasePlan, MAX_LAG};
use super::lease_replica::{LeaseReplica, QueuedLeaseRequest, member, member_number};
use super::network::{NetworkQuality, ReplicaClock};
use crate::event_queue::EventQueue;
use crate::random::RandomSource;

/// Faults: crashes, pauses, partitions, changes of members and endpoints.
mod lease_fault_events;
/// State at the end: every slot is there, and no request waits.
mod lease_recovery;

/// Results of one seed, or of many.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct LeaseFaultCounts {
    requests: u64,
    messages: u64,
    refused: u64,
    lent: u64,
    taken_back: u64,
    faults: u64,
    /// Requests that began at an endpoint with as many in flight as its cap, all of them beside
    /// requests of a dead replica or requests that outlasted a lease.
    over_cap: u64,
}

impl AddAssign for LeaseFaultCounts {
    fn add_assign(&mut self, other: Self) {
        self.requests += other.requests;
        self.messages += other.messages;
        self.refused += other.refused;
        self.lent += other.lent;
        self.taken_back += other.taken_back;
        self.faults += other.faults;
        self.over_cap += other.over_cap;
    }
}

impl fmt::Display for LeaseFaultCounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { requests, messages, refused, lent, taken_back, faults, over_cap } = self;
        write!(
            f,
            "{requests} requests, {over_cap} over the cap beside others that outlast their slot, \
             {messages} messages, {refused} refused, {lent} slots lent, {taken_back} taken back, \
             {faults} faults"
        )
    }
}

#[derive(Clone, Debug)]
enum LeaseEvent {
    Arrive,
    Finish {
        replica: usize,
        incarnation: u64,
        endpoint: usize,
    },
    Deliver(LeaseMessage),
    Poll {
        replica: usize,
        incarnation: u64,
    },
    LearnMembers {
        replica: usize,
        incarnation: u64,
        members: Vec<usize>,
    },
    LearnCaps {
        replica: usize,
        incarnation: u64,
        caps: Vec<u32>,
    },
    Resume(usize),
    Start(usize),
    /// Messages between these, in this direction, arrive again.
    Connect(usize, usize),
    Fault,
    EndFaults,
}

/// Process of a replica, with what is simulated around it.
struct ReplicaProcess {
    replica: LeaseReplica,
    clock: ReplicaClock,
    incarnation: u64,
    is_alive: bool,
    is_paused: bool,
    /// Events that a paused process has not seen.
    deferred: Vec<LeaseEvent>,
    next_poll: Time,
    /// Time at which it has learned of all changes so far.
    informed_at: Time,
}

pub(super) struct LeaseFaultSimulation {
    plan: LeasePlan,
    dice: RandomSource,
    now: Time,
    events: EventQueue<LeaseEvent>,
    processes: Vec<ReplicaProcess>,
    members: Vec<usize>,
    endpoints: Vec<EndpointAudit>,
    network: NetworkQuality,
    /// Number of cuts from each replica to each.
    cuts: Vec<Vec<u32>>,
    /// Messages that an attacker has recorded.
    recorded: Vec<LeaseMessage>,
    incarnations: u64,
    has_faults: bool,
    counts: LeaseFaultCounts,
    traced: bool,
}

impl LeaseFaultSimulation {
    pub(super) fn new(seed: u64, traced: bool) -> Self {
        let mut dice = RandomSource::new(seed);
        let plan = LeasePlan::draw(&mut dice);
        let mut simulation = Self {
            now: Time::ZERO,
            events: EventQueue::new(),
            processes: Vec::new(),
            members: (0..plan.replicas).collect(),
            endpoints: plan.caps.iter().map(|&cap| EndpointAudit::new(cap)).collect(),
            network: plan.network,
            cuts: vec![vec![0; MAX_REPLICAS]; MAX_REPLICAS],
            recorded: Vec::new(),
            incarnations: 0,
            has_faults: true,
            counts: LeaseFaultCounts::default(),
            dice,
            plan,
            traced,
        };
        for number in 0..simulation.plan.replicas {
            let process = simulation.new_process(number);
            simulation.processes.push(process);
        }
        simulation
    }

    /// Runs all events. Panics if an invariant is violated.
    pub(super) fn run(mut self) -> LeaseFaultCounts {
        self.trace(format_args!("{:#?}", self.plan));
        (0..self.processes.len()).for_each(|replica| self.step(replica));
        // Requests come once the first bases are in use.
        let begin = HANDOVER_TIME + TICK * 5;
        self.after(begin, LeaseEvent::Arrive);
        if self.plan.fault_interval.is_some() {
            self.after(begin, LeaseEvent::Fault);
        }
        self.after(begin + self.plan.fault_duration, LeaseEvent::EndFaults);
        let mut ends = Time::MAX;
        while let Some((at, event)) = self.events.next() {
            if at > ends {
                break;
            }
            self.now = at;
            if matches!(event, LeaseEvent::EndFaults) {
                ends = at + self.recovery_time();
            }
            self.handle(event);
            self.check_slots();
        }
        self.check_end();
        self.counts
    }

    fn handle(&mut self, event: LeaseEvent) {
        let Some(event) = self.defer(event) else { return };
        self.trace(format_args!("{event:?}"));
        match event {
            LeaseEvent::Arrive => self.arrive(),
            LeaseEvent::Finish { replica, incarnation, endpoint } => {
                if self.is_running(replica, incarnation) {
                    self.processes[replica].replica.finish(endpoint);
                    self.step(replica);
                }
            }
            LeaseEvent::Deliver(message) => self.deliver(&message),
            LeaseEvent::Poll { replica, incarnation } => {
                if self.is_running(replica, incarnation)
                    && self.processes[replica].next_poll <= self.now
                {
                    self.processes[replica].next_poll = Time::MAX;
                    self.step(replica);
                }
            }
            LeaseEvent::LearnMembers { replica, incarnation, .. }
            | LeaseEvent::LearnCaps { replica, incarnation, .. } => {
                if self.is_running(replica, incarnation) {
                    self.learn(&event);
                    self.poll(replica);
                    self.dispatch(replica);
                }
            }
            LeaseEvent::Resume(replica) => self.resume(replica),
            LeaseEvent::Start(replica) => self.start(replica),
            LeaseEvent::Connect(from, to) => self.cuts[from][to] -= 1,
            LeaseEvent::Fault => self.fault(),
            LeaseEvent::EndFaults => self.end_faults(),
        }
    }

    /// Keeps the event for later if the process that it concerns is paused. The endpoint finishes a
    /// request all the same.
    fn defer(&mut self, event: LeaseEvent) -> Option<LeaseEvent> {
        let replica = match &event {
            &LeaseEvent::Finish { replica, incarnation, endpoint } => {
                self.endpoints[endpoint].in_flight -= 1;
                let is_dead = !self.is_running(replica, incarnation);
                self.endpoints[endpoint].of_dead -= u32::from(is_dead);
                replica
            }
            LeaseEvent::Deliver(message) => member_number(message.to.member),
            LeaseEvent::Poll { replica, .. }
            | LeaseEvent::LearnMembers { replica, .. }
            | LeaseEvent::LearnCaps { replica, .. } => *replica,
            LeaseEvent::Arrive
            | LeaseEvent::Resume(_)
            | LeaseEvent::Start(_)
            | LeaseEvent::Connect(..)
            | LeaseEvent::Fault
            | LeaseEvent::EndFaults => return Some(event),
        };
        let process = &mut self.processes[replica];
        if process.is_paused {
            process.deferred.push(event);
            return None;
        }
        Some(event)
    }

    fn is_running(&self, replica: usize, incarnation: u64) -> bool {
        let process = &self.processes[replica];
        process.is_alive && process.incarnation == incarnation
    }

    fn arrive(&mut self) {
        if !self.has_faults {
            return;
        }
        let slots: u32 = self.plan.caps.iter().sum();
        let interval = self.plan.service.div_f64(f64::from(slots) * self.plan.load);
        let next = self.dice.exponential(interval);
        self.after(next, LeaseEvent::Arrive);
        let skewed = self.dice.percent(self.plan.skew_percent);
        let drawn = self.members[self.dice.below(self.members.len())];
        let replica = if skewed { self.members[0] } else { drawn };
        let pool = self.plan.pools[self.dice.below(self.plan.pools.len())];
        let process = &mut self.processes[replica];
        // Clients of a replica that does not answer go elsewhere; queues are bounded.
        if !process.is_alive || process.is_paused || process.replica.queued() >= 30 {
            return;
        }
        self.counts.requests += 1;
        let arrived_here = process.clock.at(self.now);
        let number = self.counts.requests;
        let request = QueuedLeaseRequest { number, arrived: self.now, arrived_here };
        process.replica.enqueue(pool, request);
        self.step(replica);
    }

    fn deliver(&mut self, message: &LeaseMessage) {
        let number = member_number(message.to.member);
        let process = &mut self.processes[number];
        if !process.is_alive {
            return;
        }
        let now = process.clock.at(self.now);
        if let Err(refusal) = process.replica.table.receive(message, now) {
            self.trace(format_args!("refused: {refusal:?}"));
        }
        self.step(number);
    }

    /// Starts what can start, before and after the table is polled.
    fn step(&mut self, number: usize) {
        self.dispatch(number);
        self.poll(number);
        self.dispatch(number);
    }

    /// Polls the table, which puts its shares in force, and sends its messages.
    fn poll(&mut self, number: usize) {
        let process = &mut self.processes[number];
        let now = process.clock.at(self.now);
        let messages = process.replica.poll(now);
        let next = process.clock.when(process.replica.table.next_poll(now));
        let incarnation = process.incarnation;
        if next < process.next_poll {
            process.next_poll = next;
            self.events.schedule(next, LeaseEvent::Poll { replica: number, incarnation });
        }
        messages.into_iter().for_each(|message| self.send(number, message));
    }

    fn send(&mut self, from: usize, message: LeaseMessage) {
        self.counts.messages += 1;
        let to = member_number(message.to.member);
        if self.has_faults && self.dice.percent(2) && self.recorded.len() < 20 {
            self.recorded.push(message.clone());
        }
        if self.cuts[from][to] > 0 {
            return;
        }
        for delay in self.network.delays(&mut self.dice) {
            self.after(delay, LeaseEvent::Deliver(message.clone()));
        }
    }

    fn dispatch(&mut self, number: usize) {
        let process = &mut self.processes[number];
        let (now, incarnation) = (process.clock.at(self.now), process.incarnation);
        for (request, endpoint) in process.replica.dispatch(now) {
            self.trace(format_args!("replica {number}: {} begins at {endpoint}", request.number));
            self.endpoints[endpoint].in_flight += 1;
            let slots = self.slots_in_force(endpoint);
            let is_over = self.endpoints[endpoint].check_begin(endpoint, slots, self.now);
            self.counts.over_cap += u64::from(is_over);
            assert!(
                !is_over || self.plan.fault_interval.is_some(),
                "endpoint {endpoint} is over its cap though nothing has failed"
            );
            let ends = self.dice.exponential(self.plan.service);
            self.after(ends, LeaseEvent::Finish { replica: number, incarnation, endpoint });
        }
    }

    fn slots_in_force(&self, endpoint: usize) -> SlotsInForce {
        let mut slots = SlotsInForce::default();
        for process in self.processes.iter().filter(|process| process.is_alive) {
            let in_flight = process.replica.in_flight(endpoint);
            if process.is_paused {
                slots.outlasting += in_flight;
                continue;
            }
            let usable = process.replica.usable(endpoint, process.clock.at(self.now));
            let is_emergency = process.replica.share(endpoint).is_emergency;
            slots.emergency += u32::from(is_emergency);
            slots.usable += usable - u32::from(is_emergency);
            slots.outlasting += in_flight.saturating_sub(usable);
        }
        slots
    }

    fn check_slots(&mut self) {
        for endpoint in 0..self.endpoints.len() {
            let slots = self.slots_in_force(endpoint);
            self.endpoints[endpoint].check_slots(endpoint, slots, self.now);
        }
    }

    fn after(&mut self, duration: Duration, event: LeaseEvent) {
        self.events.schedule(self.now + duration, event);
    }

    #[expect(clippy::print_stdout, reason = "the trace is the output of a replay")]
    fn trace(&self, line: fmt::Arguments<'_>) {
        if self.traced {
            println!("{:>12.3} ms  {line}", self.now.as_nanos() as f64 / 1e6);
        }
    }
}

/// Maximum number of replicas, those that have left included.
const MAX_REPLICAS: usize = 16;
