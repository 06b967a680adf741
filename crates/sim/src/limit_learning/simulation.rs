//! Simulation of one scenario: servers that serve some requests at a time, clients, and learned
//! limits.

use std::sync::Arc;
use std::time::Duration;

use balance::limit::LimitSample;
use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, Algorithm, AttemptResult,
    ConcurrencyCap, ConcurrencyLimiter, Endpoint, EndpointSet, LimitSettings, PickRequest, Picker,
    Queue, Time,
};

use super::model_server::{ModelServer, NextFinish, RunningRequest};
use super::{ClientModel, EndpointChange, LEARNING, LimitScenario, LimitScenarioResult};
use crate::endpoint_sets;
use crate::event_queue::EventQueue;
use crate::random::RandomSource;

/// Time between a response and the next request of the same client.
const THINK_TIME: Duration = Duration::from_micros(500);
const UPDATE_INTERVAL: Duration = Duration::from_millis(100);

enum LimitSimulationEvent {
    Arrive,
    /// The endpoint has finished a request, unless it has been given another since.
    Finish {
        endpoint: usize,
        generation: u64,
    },
    UpdateLimits,
    Change(usize),
}

/// Simulation of one scenario.
pub(super) struct LimitSimulation<'s> {
    scenario: &'s LimitScenario,
    dice: RandomSource,
    now: Time,
    events: EventQueue<LimitSimulationEvent>,
    servers: Vec<ModelServer>,
    set: Arc<EndpointSet<usize>>,
    limits: AdmissionLimits,
    picker: Picker,
    admission: Admission,
    queue: Queue<usize, Time>,
    limiter: ConcurrencyLimiter,
    updates: u64,
    result: LimitScenarioResult,
}

impl<'s> LimitSimulation<'s> {
    pub(super) fn new(scenario: &'s LimitScenario) -> Self {
        let set = Arc::new(endpoint_sets::equal_endpoints(scenario.workers.len(), |server| server));
        let limits = AdmissionLimits {
            cap: scenario.cap,
            max_waiting: 1 << 20,
            ..AdmissionLimits::default()
        };
        let server = |&workers: &usize| ModelServer::new(workers, scenario.sharing);
        Self {
            dice: RandomSource::new(scenario.seed),
            now: Time::ZERO,
            events: EventQueue::new(),
            servers: scenario.workers.iter().map(server).collect(),
            picker: Picker::new(Algorithm::LeastLoad, scenario.seed),
            admission: Admission::new(),
            queue: Queue::new(set.clone(), limits),
            set,
            limits,
            limiter: ConcurrencyLimiter::new(),
            updates: 0,
            result: LimitScenarioResult::default(),
            scenario,
        }
    }

    pub(super) fn run(mut self) -> LimitScenarioResult {
        self.update_limits();
        let arrivals = match self.scenario.clients {
            ClientModel::Closed(clients) => clients,
            ClientModel::Open(_) => 1,
        };
        for arrival in 0..arrivals {
            self.events
                .schedule(Time::ZERO + THINK_TIME * arrival as u32, LimitSimulationEvent::Arrive);
        }
        for (at, change) in self.scenario.changes.iter().enumerate() {
            self.events.schedule(Time::ZERO + change.at, LimitSimulationEvent::Change(at));
        }
        while let Some((at, event)) = self.events.next_until(Time::ZERO + self.scenario.lasts) {
            self.now = at;
            match event {
                LimitSimulationEvent::Arrive => self.arrive(),
                LimitSimulationEvent::Finish { endpoint, generation } => {
                    self.finish(endpoint, generation)
                }
                LimitSimulationEvent::UpdateLimits => self.update_limits(),
                LimitSimulationEvent::Change(change) => self.change(self.scenario.changes[change]),
            }
        }
        self.result.latencies.sort_by(f64::total_cmp);
        self.result
    }

    fn arrive(&mut self) {
        if let ClientModel::Open(interval) = self.scenario.clients {
            let next = self.now + self.dice.exponential(interval);
            self.events.schedule(next, LimitSimulationEvent::Arrive);
        }
        let (queue, now) = (&mut self.queue, self.now);
        let request = PickRequest { now, ..PickRequest::default() };
        let entry = self.admission.enter(
            &mut self.picker,
            AdmissionConfig { set: &self.set, limits: self.limits },
            &request,
            || queue,
            || now,
        );
        match entry {
            AdmissionDecision::Slot(endpoint) => self.begin(&endpoint, now),
            // A waiting request is identified by its arrival time; the ticket is only needed to
            // cancel.
            AdmissionDecision::Waiting { .. } => {}
            AdmissionDecision::Rejected(refusal) => panic!("a request is rejected: {refusal:?}"),
        }
    }

    fn begin(&mut self, endpoint: &Endpoint<usize>, asked: Time) {
        let server = endpoint.data;
        let factor = self.dice.service_factor(self.scenario.variance);
        let hours = self.now.as_nanos() as f64 / 3.6e12;
        let drift = 1.0 + self.scenario.drift * (hours * std::f64::consts::PI).sin();
        let work_left =
            self.scenario.service.as_secs_f64() * factor * drift * self.servers[server].slower;
        let (arrived, started, level) = (asked, self.now, endpoint.in_flight());
        let request = RunningRequest { arrived, started, level, work_left, owner: 0 };
        let next = self.servers[server].begin(request, self.now);
        self.schedule_finish(server, next);
    }

    fn finish(&mut self, server: usize, generation: u64) {
        let Some(job) = self.servers[server].finish(generation, self.now) else { return };
        let next = self.servers[server].next_finish(self.now);
        self.schedule_finish(server, next);
        let late = self.now >= Time::ZERO + LEARNING;
        self.result.served[usize::from(late)] += 1;
        if late {
            self.result.latencies.push(self.now.saturating_since(job.arrived).as_secs_f64());
        }
        let endpoint = self.set.members()[server].endpoint.clone();
        let sample =
            LimitSample { level: job.level, slot_time: self.now.saturating_since(job.started) };
        endpoint.limit_counters.learn(sample, AttemptResult::Success);
        let (queue, now) = (&mut self.queue, self.now);
        if let Some(asked) = self.admission.release(&endpoint, || now, || queue).granted {
            self.begin(&endpoint, asked);
        }
        if let ClientModel::Closed(_) = self.scenario.clients {
            self.events.schedule(self.now + THINK_TIME, LimitSimulationEvent::Arrive);
        }
    }

    fn update_limits(&mut self) {
        self.updates += 1;
        self.events.schedule(self.now + UPDATE_INTERVAL, LimitSimulationEvent::UpdateLimits);
        if self.scenario.cap == ConcurrencyCap::Learned {
            let waiting = self.admission.waiting();
            let settings = LimitSettings::default();
            self.limiter.update(&self.set, &settings, waiting, self.updates, self.now);
        }
        if self.updates.is_multiple_of(10) {
            let limits = self.limiter.estimates().map(|(_, limit)| limit);
            let workers = self.servers.iter().map(|server| server.workers);
            self.result.limits.push(limits.zip(workers).collect());
        }
        let before: Vec<u32> = self.in_flight();
        let queue = &mut self.queue;
        let now = self.now;
        let mut woken = self.admission.dispatch(|| now, || queue).into_iter();
        for (member, before) in before.into_iter().enumerate() {
            let endpoint = self.set.members()[member].endpoint.clone();
            for _ in before..endpoint.in_flight() {
                let asked = woken.next().expect("a slot for each woken request");
                self.begin(&endpoint, asked);
            }
        }
    }

    fn in_flight(&self) -> Vec<u32> {
        self.set.members().iter().map(|member| member.endpoint.in_flight()).collect()
    }

    fn change(&mut self, change: EndpointChange) {
        for server in 0..self.servers.len() {
            if change.endpoint.is_none_or(|endpoint| endpoint == server) {
                let next = self.servers[server].change(change.workers, change.slower, self.now);
                self.schedule_finish(server, next);
            }
        }
    }

    fn schedule_finish(&mut self, endpoint: usize, next: Option<NextFinish>) {
        if let Some(NextFinish { at, generation }) = next {
            self.events.schedule(at, LimitSimulationEvent::Finish { endpoint, generation });
        }
    }
}
