//! Fault simulation of one seed: events in order of time, applied to the production `balance`.
//!
//! First there are faults (*safety*). Then they stop, and their effects must end (*recovery*). Then
//! each request must be served at once (*calm*). Then no more requests come, and every count must
//! return to zero.

use std::fmt;
use std::time::Duration;

use balance::health::ProbeResult;
use balance::reachability::LONGEST_PAUSE;
use balance::{AttemptResult, Time};

use crate::backend::SimulatedBackend;
use crate::balancer::SimulatedBalancer;
use crate::event_queue::EventQueue;
use crate::invariants;
use crate::plan::{self, SimulationPlan};
use crate::random::RandomSource;
use crate::request_counts::RequestCounts;
use crate::requests::{AttemptId, BackendId, RequestId, RequestTable};
use crate::server::{ServerFault, SimulatedServer};

/// Lifecycle of a request.
mod request_lifecycle;
/// Control thread: health and limits.
mod control_thread;

pub(crate) type ServerEndpoint = balance::Endpoint<usize>;

pub(crate) struct FaultSimulation {
    plan: SimulationPlan,
    dice: RandomSource,
    now: Time,
    phase: SimulationPhase,
    events: EventQueue<SimulationEvent>,
    servers: Vec<SimulatedServer>,
    balancers: Vec<SimulatedBalancer>,
    requests: RequestTable,
    counts: RequestCounts,
    traced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum SimulationPhase {
    Safety,
    Recovery,
    Calm,
    End,
}

#[derive(Clone, Copy, Debug)]
enum SimulationEvent {
    /// A request of the safety phase arrives, at a random time, at any balancer.
    Arrive {
        backend: usize,
    },
    /// A request of the later phases arrives; these are evenly spaced, and the backends take turns.
    ArriveInTurn {
        turn: usize,
    },
    /// A request asks for a slot, possibly again.
    RequestSlot(RequestId),
    /// A queued request that was granted a slot takes it.
    Wake(RequestId),
    /// The server has refused the connection, or the request.
    Refuse(AttemptId, AttemptResult),
    /// The server has finished with the request, which may have failed.
    Finish {
        server: usize,
        job: AttemptId,
        end: AttemptResult,
    },
    /// The attempt has timed out.
    TimeOut(AttemptId),
    /// The request has waited for its timeout.
    WaitTimeout(RequestId),
    ClientDisconnect(RequestId),
    /// A worker receives the configuration in force.
    UpdateWorker {
        backend_id: BackendId,
        worker: usize,
    },
    /// A balancer evaluates the health of all endpoints.
    Tick {
        balancer: usize,
    },
    Probed {
        backend_id: BackendId,
        server: usize,
        result: ProbeResult,
    },
    /// A balancer tries to connect to an endpoint that it has marked unreachable.
    Attempt {
        balancer: usize,
        server: usize,
    },
    Fault,
    EnterPhase(SimulationPhase),
}

impl FaultSimulation {
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut dice = RandomSource::new(seed);
        let plan = SimulationPlan::draw(&mut dice);
        Self {
            now: Time::ZERO,
            phase: SimulationPhase::Safety,
            events: EventQueue::new(),
            servers: plan.servers.iter().map(|_| SimulatedServer::healthy()).collect(),
            balancers: (0..plan.balancers)
                .map(|_| SimulatedBalancer::new(&plan, &mut dice))
                .collect(),
            requests: RequestTable::default(),
            counts: RequestCounts::default(),
            plan,
            dice,
            traced,
        }
    }

    /// Runs all events. Panics if an invariant is violated.
    pub(crate) fn run(mut self) -> RequestCounts {
        self.trace(format_args!("{:#?}", self.plan));
        for backend in 0..self.plan.backends.len() {
            self.after(Duration::ZERO, SimulationEvent::Arrive { backend });
        }
        for balancer in 0..self.balancers.len() {
            self.after(self.plan.tick, SimulationEvent::Tick { balancer });
        }
        self.after(self.plan.fault_interval, SimulationEvent::Fault);
        self.after(
            self.plan.fault_duration,
            SimulationEvent::EnterPhase(SimulationPhase::Recovery),
        );
        while let Some((at, event)) = self.events.next() {
            self.now = at;
            self.trace(format_args!("{event:?}"));
            self.handle(event);
            self.balancers
                .iter()
                .flat_map(|balancer| &balancer.backends)
                .for_each(SimulatedBackend::check);
            self.check_readmission();
        }
        self.check_end();
        self.counts
    }

    fn handle(&mut self, event: SimulationEvent) {
        match event {
            SimulationEvent::Arrive { backend } => self.arrive(backend),
            SimulationEvent::ArriveInTurn { turn } => self.arrive_in_turn(turn),
            SimulationEvent::RequestSlot(id) => self.request_slot_again(id),
            SimulationEvent::Wake(id) => self.wake(id),
            SimulationEvent::Refuse(job, end) => self.conclude(job, end),
            SimulationEvent::Finish { server, job, end } => self.finish(server, job, end),
            SimulationEvent::TimeOut(job) => self.conclude(job, AttemptResult::TimedOut),
            SimulationEvent::WaitTimeout(id) => self.wait_timed_out(id),
            SimulationEvent::ClientDisconnect(id) => self.client_disconnects(id),
            SimulationEvent::UpdateWorker { backend_id, worker } => {
                self.backend(backend_id).update_worker(worker)
            }
            SimulationEvent::Tick { balancer } => self.tick(balancer),
            SimulationEvent::Probed { backend_id, server, result } => {
                self.probe_finished(backend_id, server, result)
            }
            SimulationEvent::Attempt { balancer, server } => self.attempt(balancer, server),
            SimulationEvent::Fault => self.fault(),
            SimulationEvent::EnterPhase(phase) => self.enter_phase(phase),
        }
    }

    fn fault(&mut self) {
        if self.phase != SimulationPhase::Safety {
            return;
        }
        self.check_counts();
        if self.plan.single_deaths {
            return self.single_death();
        }
        let next = self.dice.exponential(self.plan.fault_interval);
        self.after(next, SimulationEvent::Fault);
        match self.dice.below(4) {
            0 => self.reconfigure(),
            _ => {
                let server = self.dice.below(self.servers.len());
                let fault = ServerFault::draw(&mut self.dice, self.now, self.plan.longest_spell());
                self.set_fault(server, fault);
            }
        }
    }

    /// Restores the dead server, or lets another die.
    fn single_death(&mut self) {
        let interval = self.plan.death_interval();
        match self.servers.iter().position(|server| !server.is_healthy()) {
            Some(dead) => {
                self.set_fault(dead, ServerFault::None);
                self.after(interval, SimulationEvent::Fault);
            }
            None => {
                let server = self.dice.below(self.servers.len());
                self.set_fault(server, ServerFault::Dead);
                self.after(interval / 2, SimulationEvent::Fault);
            }
        }
    }

    /// Sets the fault of a server. If the server dies, its connections break.
    fn set_fault(&mut self, server: usize, fault: ServerFault) {
        self.trace(format_args!("server {server}: {fault:?}"));
        for job in self.servers[server].set_fault(fault, self.now) {
            if self.requests.is_in_flight(job) {
                let backend_id = self.requests.get(job.id).backend;
                self.balancers[backend_id.balancer].resends[server].record_loss();
            }
            self.after(
                Duration::from_micros(100),
                SimulationEvent::Refuse(job, AttemptResult::ConnectionBroken),
            );
        }
    }

    /// Changes the configuration of one backend: other endpoints and weights, or other limits.
    fn reconfigure(&mut self) {
        let backend_id = BackendId {
            balancer: self.dice.below(self.balancers.len()),
            backend: self.dice.below(self.plan.backends.len()),
        };
        let (mut set, mut limits) =
            (self.backend(backend_id).configured(), self.backend(backend_id).limits());
        if self.dice.percent(50) {
            // Scaled to zero, down, to most or up: sometimes no waiting request has any endpoint.
            let joining = [0, 30, 70, 70, 70, 100][self.dice.below(6)];
            let weights = self.servers.iter().map(|_| {
                let joins = self.dice.percent(joining);
                joins.then(|| self.dice.between(0, 5))
            });
            let weights: Vec<_> = weights.collect();
            set = self.balancers[backend_id.balancer].set(&weights);
        } else {
            limits = plan::draw_limits(&mut self.dice, plan::slowest(&self.plan.servers));
        }
        self.configure(backend_id, set, limits);
    }

    fn enter_phase(&mut self, phase: SimulationPhase) {
        self.phase = phase;
        self.check_counts();
        match phase {
            SimulationPhase::Safety => {}
            SimulationPhase::Recovery => {
                for server in &mut self.servers {
                    server.set_fault(ServerFault::None, self.now);
                }
                for backend_id in self.all_backends() {
                    let plan = &self.plan.backends[backend_id.backend];
                    let weights: Vec<_> = plan.weights.iter().copied().map(Some).collect();
                    let set = self.balancers[backend_id.balancer].set(&weights);
                    self.configure(backend_id, set, plan.limits);
                }
                self.after(Duration::ZERO, SimulationEvent::ArriveInTurn { turn: 0 });
                self.after(
                    self.plan.recovery(),
                    SimulationEvent::EnterPhase(SimulationPhase::Calm),
                );
            }
            SimulationPhase::Calm => {
                for backend_id in self.all_backends() {
                    let now = self.now;
                    self.backend(backend_id).check_recovery(now);
                }
                let mut endpoints = self.balancers.iter().flat_map(|it| &it.endpoints);
                let all_are_back = endpoints.all(|endpoint| endpoint.is_reachable());
                assert!(all_are_back, "an endpoint is still marked unreachable");
                let rounds = 200 * self.all_backends().len() as u32;
                self.after(
                    self.plan.easy_interval() * rounds,
                    SimulationEvent::EnterPhase(SimulationPhase::End),
                );
            }
            SimulationPhase::End => {}
        }
    }

    /// Checks that an endpoint which accepts connections is not marked unreachable for longer than
    /// the pause between two background attempts.
    fn check_readmission(&self) {
        for endpoint in self.balancers.iter().flat_map(|balancer| &balancer.endpoints) {
            let Some(marked_at) = endpoint.unreachable_since() else { continue };
            let back_at = self.servers[endpoint.data].accepting_since(self.now);
            let since = back_at.map_or(self.now, |back_at| back_at.max(marked_at));
            let waits = self.now.saturating_since(since);
            assert!(
                waits <= LONGEST_PAUSE,
                "{endpoint:?} is still marked unreachable after {waits:?}"
            );
        }
    }

    /// Checks that a request does not end without a response, while its client is still there,
    /// because of one server alone.
    fn check_loss(&self) {
        assert!(!self.plan.single_deaths, "a request fails though all servers but one are healthy");
    }

    /// Checks that the slots taken are the slots held.
    fn check_counts(&self) {
        let taken: usize = self.balancers.iter().map(SimulatedBalancer::in_flight).sum();
        let probing: usize = self.balancers.iter().map(|balancer| balancer.probing).sum();
        assert_eq!(
            taken,
            self.requests.slots_held() + probing,
            "the slots taken are the slots held"
        );
    }

    fn check_end(&mut self) {
        assert!(self.requests.is_empty(), "every request has ended");
        assert!(self.servers.iter().all(SimulatedServer::is_idle), "no server has work left");
        let idle = self.balancers.iter().all(|balancer| balancer.in_flight() == 0);
        assert!(idle, "every count is back at zero");
        for backend_id in self.all_backends() {
            let backend = &self.balancers[backend_id.balancer].backends[backend_id.backend];
            let plan = &self.plan.backends[backend_id.backend];
            backend.check_budget(&plan.retry, self.now);
            invariants::shares_match_weights(plan, self.plan.workers, &backend.counts.served);
        }
        for plan in &self.plan.backends {
            invariants::keys_stay(plan.algorithm, self.servers.len(), &mut self.dice);
            invariants::failures_attract_nothing(plan, self.plan.workers, &mut self.dice);
        }
    }

    /// Returns every backend of every balancer.
    fn all_backends(&self) -> Vec<BackendId> {
        let backends = 0..self.plan.backends.len();
        let of = |balancer| backends.clone().map(move |backend| BackendId { balancer, backend });
        (0..self.balancers.len()).flat_map(of).collect()
    }

    fn backend(&mut self, backend_id: BackendId) -> &mut SimulatedBackend {
        &mut self.balancers[backend_id.balancer].backends[backend_id.backend]
    }

    fn after(&mut self, duration: Duration, event: SimulationEvent) {
        self.events.schedule(self.now + duration, event);
    }

    #[expect(clippy::print_stdout, reason = "the trace is the output of a replay")]
    fn trace(&self, line: fmt::Arguments<'_>) {
        if self.traced {
            println!("{:>12.3} ms  {line}", self.now.as_nanos() as f64 / 1e6);
        }
    }
}
