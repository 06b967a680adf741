//! Simulation of one scenario: three replicas with their own queue, picker and limiter, in front of
//! the same servers.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::leases::{PoolKey, ReplicaIdentity};
use balance::limit::{LimitMessage, LimitSample, LimitSharing};
use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, Algorithm, AttemptResult,
    ConcurrencyCap, ConcurrencyLimiter, Endpoint, EndpointSet, LimitSettings, PickRequest, Picker,
    Queue, Time,
};

use super::{
    ENDPOINTS, MessageExchange, RequestLoad, SharingIncident, SharingResult, SharingScenario,
    SharingSecond,
};
use crate::endpoint_sets;
use crate::event_queue::EventQueue;
use crate::limit_learning::{ModelServer, NextFinish, RunningRequest, ServiceDiscipline};
use crate::random::{RandomSource, ServiceVariance};

const REPLICAS: usize = 3;
/// Time between a response and the next request of the same client.
const THINK_TIME: Duration = Duration::from_micros(500);
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);
const POOL: PoolKey = PoolKey(1);

enum SharingEvent {
    /// A client has a request.
    Arrive,
    Finish {
        endpoint: usize,
        generation: u64,
    },
    UpdateLimits(usize),
    Send(usize),
    Receive {
        to: usize,
        message: Arc<LimitMessage>,
    },
    Incident(usize),
    EndSecond,
}

struct SharingReplica {
    set: Arc<EndpointSet<usize>>,
    picker: Picker,
    admission: Admission,
    queue: Queue<usize, Time>,
    limiter: ConcurrencyLimiter,
    sharing: LimitSharing,
    updates: u64,
    is_cut_off: bool,
    has_left: bool,
}

/// Simulation of one scenario.
pub(super) struct SharingSimulation<'s> {
    scenario: &'s SharingScenario,
    dice: RandomSource,
    now: Time,
    events: EventQueue<SharingEvent>,
    servers: Vec<ModelServer>,
    replicas: Vec<SharingReplica>,
    split: [u32; REPLICAS],
    second: SharingSecond,
    result: SharingResult,
}

impl<'s> SharingSimulation<'s> {
    pub(super) fn new(scenario: &'s SharingScenario) -> Self {
        let server = |_| ModelServer::new(scenario.workers, ServiceDiscipline::Workers);
        Self {
            dice: RandomSource::new(scenario.seed),
            now: Time::ZERO,
            events: EventQueue::new(),
            servers: (0..ENDPOINTS).map(server).collect(),
            replicas: (0..REPLICAS).map(|it| SharingReplica::new(it, scenario.seed)).collect(),
            split: scenario.split,
            second: SharingSecond::default(),
            result: SharingResult::default(),
            scenario,
        }
    }

    pub(super) fn run(mut self) -> SharingResult {
        for replica in 0..REPLICAS {
            // Replicas do not update at the same moment.
            let offset = Duration::from_millis(31) * replica as u32;
            self.replicas[replica].update(Time::ZERO);
            self.events.schedule(Time::ZERO + offset, SharingEvent::UpdateLimits(replica));
            let offset = offset + Duration::from_millis(47);
            if self.scenario.exchange != MessageExchange::None {
                self.events.schedule(Time::ZERO + offset, SharingEvent::Send(replica));
            }
        }
        let arrivals = match self.scenario.load {
            RequestLoad::ClientsPerSlot(clients) => clients * self.scenario.workers * ENDPOINTS,
            RequestLoad::Percent(_) => 1,
        };
        for arrival in 0..arrivals {
            self.events.schedule(Time::ZERO + THINK_TIME * arrival as u32, SharingEvent::Arrive);
        }
        for (at, (time, _)) in self.scenario.incidents.iter().enumerate() {
            self.events.schedule(Time::ZERO + *time, SharingEvent::Incident(at));
        }
        self.events.schedule(Time::ZERO + Duration::from_secs(1), SharingEvent::EndSecond);
        while let Some((at, event)) = self.events.next_until(Time::ZERO + self.scenario.lasts) {
            self.now = at;
            match event {
                SharingEvent::Arrive => self.arrive(),
                SharingEvent::Finish { endpoint, generation } => self.finish(endpoint, generation),
                SharingEvent::UpdateLimits(replica) => self.update_limits(replica),
                SharingEvent::Send(replica) => self.send(replica),
                SharingEvent::Receive { to, message } => {
                    let result = self.replicas[to].sharing.receive(&message, at);
                    // Messages may overtake one another.
                    debug_assert!(
                        result.is_ok() || self.scenario.exchange != MessageExchange::None
                    );
                }
                SharingEvent::Incident(at) => self.incident(self.scenario.incidents[at].1),
                SharingEvent::EndSecond => self.end_second(),
            }
        }
        self.result
    }

    fn arrive(&mut self) {
        if let RequestLoad::Percent(percent) = self.scenario.load {
            let all = (ENDPOINTS * self.scenario.workers) as u32 * percent;
            let interval = self.scenario.service * 100 / all;
            let next = self.now + self.dice.exponential(interval);
            self.events.schedule(next, SharingEvent::Arrive);
        }
        // Clients connect again for each request, so that a split can change.
        let all: u32 = self.split.iter().sum();
        let mut draw = self.dice.below(all as usize) as u32;
        let is_first = |part: &u32| {
            let found = draw < *part;
            draw = draw.saturating_sub(*part);
            found
        };
        let replica = self.split.iter().position(is_first).expect("parts make the whole");
        if let Some(endpoint) = self.replicas[replica].enter(self.now) {
            self.begin(replica, &endpoint, self.now);
        }
    }

    fn begin(&mut self, owner: usize, endpoint: &Endpoint<usize>, arrived: Time) {
        let server = &mut self.servers[endpoint.data];
        let factor = self.dice.service_factor(ServiceVariance::Exponential);
        let work_left = self.scenario.service.as_secs_f64() * factor * server.slower;
        let level = endpoint.in_flight();
        let started = self.now;
        let request = RunningRequest { arrived, started, level, work_left, owner };
        let next = server.begin(request, self.now);
        self.schedule_finish(endpoint.data, next);
    }

    fn finish(&mut self, server: usize, generation: u64) {
        let Some(job) = self.servers[server].finish(generation, self.now) else { return };
        let next = self.servers[server].next_finish(self.now);
        self.schedule_finish(server, next);
        let slot_time = self.now.saturating_since(job.started);
        self.second.served += 1;
        self.second.endpoint_seconds += slot_time.as_secs_f64();
        let replica = &mut self.replicas[job.owner];
        let endpoint = replica.set.members()[server].endpoint.clone();
        let sample = LimitSample { level: job.level, slot_time };
        endpoint.limit_counters.learn(sample, AttemptResult::Success);
        let (queue, now) = (&mut replica.queue, self.now);
        if let Some(asked) = replica.admission.release(&endpoint, || now, || queue).granted {
            self.begin(job.owner, &endpoint, asked);
        }
        if let RequestLoad::ClientsPerSlot(_) = self.scenario.load {
            self.events.schedule(self.now + THINK_TIME, SharingEvent::Arrive);
        }
    }

    fn update_limits(&mut self, replica: usize) {
        self.events.schedule(self.now + UPDATE_INTERVAL, SharingEvent::UpdateLimits(replica));
        for (endpoint, asked) in self.replicas[replica].update(self.now) {
            self.begin(replica, &endpoint, asked);
        }
        for endpoint in 0..ENDPOINTS {
            let sum = self.sum_of_limits(endpoint);
            self.second.most = self.second.most.max(sum);
            let updates = (10 * REPLICAS * ENDPOINTS) as f64;
            self.second.limits += f64::from(sum) / updates;
        }
    }

    /// Returns the sum of the limits of replicas that have requests.
    fn sum_of_limits(&self, endpoint: usize) -> u32 {
        let used = self.replicas.iter().zip(self.split).filter(|&(_, split)| split > 0);
        let limit = |(replica, _): (&SharingReplica, u32)| {
            let endpoint = &replica.set.members()[endpoint].endpoint;
            endpoint.limit(ConcurrencyCap::Learned).unwrap_or(0)
        };
        used.map(limit).sum()
    }

    fn send(&mut self, from: usize) {
        self.events.schedule(self.now + UPDATE_INTERVAL, SharingEvent::Send(from));
        let MessageExchange::WithLoss(loss) = self.scenario.exchange else { return };
        let now = self.now;
        let Some(message) = self.replicas[from].sharing.message(now) else { return };
        let message = Arc::new(message);
        for to in (0..REPLICAS).filter(|&to| to != from) {
            let is_lost = self.dice.percent(loss)
                || [from, to].iter().any(|&it| self.replicas[it].is_closed());
            let delay = Duration::from_micros(u64::from(self.dice.between(500, 3000)));
            if !is_lost {
                let message = Arc::clone(&message);
                self.events.schedule(now + delay, SharingEvent::Receive { to, message });
            }
        }
    }

    fn incident(&mut self, incident: SharingIncident) {
        match incident {
            SharingIncident::Capacity(workers) => {
                for server in 0..ENDPOINTS {
                    let next = self.servers[server].change(Some(workers), 1.0, self.now);
                    self.schedule_finish(server, next);
                }
            }
            SharingIncident::Split(split) => self.split = split,
            SharingIncident::CutOff(replica) => self.replicas[replica].is_cut_off = true,
            SharingIncident::Restored(replica) => self.replicas[replica].is_cut_off = false,
            SharingIncident::Leaves(replica) => self.leave(replica),
        }
    }

    fn leave(&mut self, replica: usize) {
        self.replicas[replica].has_left = true;
        self.split[(replica + 1) % REPLICAS] += std::mem::take(&mut self.split[replica]);
        let members: Vec<_> = (0..REPLICAS).filter(|&it| !self.replicas[it].has_left).collect();
        for &other in &members {
            self.replicas[other].sharing.update_members(members.iter().copied().map(address));
        }
    }

    fn end_second(&mut self) {
        self.events.schedule(self.now + Duration::from_secs(1), SharingEvent::EndSecond);
        self.second.workers = self.servers[0].workers;
        self.result.seconds.push(std::mem::take(&mut self.second));
    }

    fn schedule_finish(&mut self, endpoint: usize, next: Option<NextFinish>) {
        if let Some(NextFinish { at, generation }) = next {
            self.events.schedule(at, SharingEvent::Finish { endpoint, generation });
        }
    }
}

impl SharingReplica {
    fn new(number: usize, seed: u64) -> Self {
        let set = Arc::new(endpoint_sets::equal_endpoints(ENDPOINTS, |server| server));
        let me = ReplicaIdentity { member: address(number), incarnation: number as u64 + 1 };
        let mut sharing = LimitSharing::new(me);
        sharing.update_members((0..REPLICAS).map(address));
        Self {
            picker: Picker::new(Algorithm::LeastLoad, seed + number as u64),
            admission: Admission::new(),
            queue: Queue::new(set.clone(), limits()),
            set,
            limiter: ConcurrencyLimiter::new(),
            sharing,
            updates: 0,
            is_cut_off: false,
            has_left: false,
        }
    }

    fn is_closed(&self) -> bool {
        self.is_cut_off || self.has_left
    }

    fn enter(&mut self, now: Time) -> Option<Arc<Endpoint<usize>>> {
        let request = PickRequest { now, ..PickRequest::default() };
        let queue = &mut self.queue;
        let config = AdmissionConfig { set: &self.set, limits: limits() };
        match self.admission.enter(&mut self.picker, config, &request, || queue, || now) {
            AdmissionDecision::Slot(endpoint) => Some(endpoint),
            AdmissionDecision::Waiting { .. } => None,
            AdmissionDecision::Rejected(refusal) => panic!("a request is rejected: {refusal:?}"),
        }
    }

    /// Updates limits; returns requests that waited and have a slot now.
    fn update(&mut self, now: Time) -> Vec<(Arc<Endpoint<usize>>, Time)> {
        self.updates += 1;
        let (settings, waiting) = (LimitSettings::default(), self.admission.waiting());
        let sharing = (POOL, &mut self.sharing);
        self.limiter.update_shared(&self.set, &settings, waiting, self.updates, sharing, now);
        let members = self.set.members();
        let before: Vec<u32> = members.iter().map(|member| member.endpoint.in_flight()).collect();
        let queue = &mut self.queue;
        let mut woken = self.admission.dispatch(|| now, || queue).into_iter();
        let mut begun = Vec::new();
        for (member, before) in self.set.members().iter().zip(before) {
            for _ in before..member.endpoint.in_flight() {
                let asked = woken.next().expect("a slot for each woken request");
                begun.push((member.endpoint.clone(), asked));
            }
        }
        begun
    }
}

fn limits() -> AdmissionLimits {
    AdmissionLimits {
        cap: ConcurrencyCap::Learned,
        max_waiting: 1 << 20,
        ..AdmissionLimits::default()
    }
}

fn address(replica: usize) -> SocketAddr {
    SocketAddr::from(([10, 0, 1, replica as u8], 7000))
}
