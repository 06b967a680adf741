//! The world of one seed: what happens in it, in order of time, to the real `balance`.
//!
//! First there are faults (*safety*), then they stop and their traces must go (*recovery*), then each request must be
//! served at once (*calm*), then nobody comes any more and every count must return to zero.

use std::fmt;
use std::time::Duration;

use balance::health::ProbeResult;
use balance::reachability::LONGEST_PAUSE;
use balance::{End, Time};

use crate::agenda::Agenda;
use crate::backend::Backend;
use crate::balancer::Balancer;
use crate::dice::Dice;
use crate::laws;
use crate::plan::{self, Plan};
use crate::requests::{Id, Job, Place, Requests};
use crate::server::{Fault, Server};
use crate::tally::Tally;

/// The life of a request.
mod life;
/// What health does beside requests.
mod rounds;

pub(crate) type Endpoint = balance::Endpoint<usize>;

pub(crate) struct World {
    plan: Plan,
    dice: Dice,
    now: Time,
    phase: Phase,
    agenda: Agenda<Event>,
    servers: Vec<Server>,
    balancers: Vec<Balancer>,
    requests: Requests,
    tally: Tally,
    traced: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Phase {
    Safety,
    Recovery,
    Calm,
    End,
}

#[derive(Clone, Copy, Debug)]
enum Event {
    /// A request of the safety phase, at a random time, at any balancer.
    Arrive {
        backend: usize,
    },
    /// A request of the later phases, evenly spaced, at one place after the other.
    ArriveInTurn {
        turn: usize,
    },
    /// A request asks for a slot, again.
    Ask(Id),
    /// A waiter that was granted a slot comes to take it.
    Wake(Id),
    /// The server has refused the connection, or the request.
    Refuse(Job, End),
    /// The server has finished with the request; it may have failed.
    Finish {
        server: usize,
        job: Job,
        end: End,
    },
    /// The attempt has taken too long.
    TimeOut(Job),
    /// It has waited long enough.
    LosePatience(Id),
    ClientGoes(Id),
    /// A worker learns what is in force.
    Learn {
        place: Place,
        worker: usize,
    },
    /// A balancer looks at the health of all endpoints.
    Tick {
        balancer: usize,
    },
    Probed {
        place: Place,
        server: usize,
        result: ProbeResult,
    },
    /// A balancer tries to connect to an endpoint that it has marked unreachable.
    Attempt {
        balancer: usize,
        server: usize,
    },
    Fault,
    Enter(Phase),
}

impl World {
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut dice = Dice::new(seed);
        let plan = Plan::draw(&mut dice);
        Self {
            now: Time::ZERO,
            phase: Phase::Safety,
            agenda: Agenda::new(),
            servers: plan.servers.iter().map(|_| Server::sound()).collect(),
            balancers: (0..plan.balancers).map(|_| Balancer::new(&plan, &mut dice)).collect(),
            requests: Requests::default(),
            tally: Tally::default(),
            plan,
            dice,
            traced,
        }
    }

    /// Lets everything happen. Panics if a law is broken.
    pub(crate) fn run(mut self) -> Tally {
        self.trace(format_args!("{:#?}", self.plan));
        for backend in 0..self.plan.backends.len() {
            self.after(Duration::ZERO, Event::Arrive { backend });
        }
        for balancer in 0..self.balancers.len() {
            self.after(self.plan.tick, Event::Tick { balancer });
        }
        self.after(self.plan.calm, Event::Fault);
        self.after(self.plan.safety, Event::Enter(Phase::Recovery));
        while let Some((at, event)) = self.agenda.next() {
            self.now = at;
            self.trace(format_args!("{event:?}"));
            self.happen(event);
            self.balancers.iter().flat_map(|balancer| &balancer.backends).for_each(Backend::check);
            self.check_readmission();
        }
        self.check_end();
        self.tally
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { backend } => self.arrive(backend),
            Event::ArriveInTurn { turn } => self.arrive_in_turn(turn),
            Event::Ask(id) => self.ask_again(id),
            Event::Wake(id) => self.wake(id),
            Event::Refuse(job, end) => self.conclude(job, end),
            Event::Finish { server, job, end } => self.finish(server, job, end),
            Event::TimeOut(job) => self.conclude(job, End::TimedOut),
            Event::LosePatience(id) => self.lose_patience(id),
            Event::ClientGoes(id) => self.client_goes(id),
            Event::Learn { place, worker } => self.backend(place).learn(worker),
            Event::Tick { balancer } => self.tick(balancer),
            Event::Probed { place, server, result } => self.probed(place, server, result),
            Event::Attempt { balancer, server } => self.attempt(balancer, server),
            Event::Fault => self.fault(),
            Event::Enter(phase) => self.enter_phase(phase),
        }
    }

    fn fault(&mut self) {
        if self.phase != Phase::Safety {
            return;
        }
        self.check_counts();
        if self.plan.single_deaths {
            return self.single_death();
        }
        let next = self.dice.exponential(self.plan.calm);
        self.after(next, Event::Fault);
        match self.dice.below(4) {
            0 => self.reconfigure(),
            _ => {
                let server = self.dice.below(self.servers.len());
                let fault = Fault::draw(&mut self.dice, self.now, self.plan.longest_spell());
                self.suffer(server, fault);
            }
        }
    }

    /// The dead server returns, or another dies.
    fn single_death(&mut self) {
        let interval = self.plan.death_interval();
        match self.servers.iter().position(|server| !server.is_sound()) {
            Some(dead) => {
                self.suffer(dead, Fault::None);
                self.after(interval, Event::Fault);
            }
            None => {
                let server = self.dice.below(self.servers.len());
                self.suffer(server, Fault::Dead);
                self.after(interval / 2, Event::Fault);
            }
        }
    }

    /// Connections break if the server dies.
    fn suffer(&mut self, server: usize, fault: Fault) {
        self.trace(format_args!("server {server}: {fault:?}"));
        for job in self.servers[server].suffer(fault, self.now) {
            if self.requests.runs(job) {
                let place = self.requests.known(job.id).place;
                self.balancers[place.balancer].resends[server].lost();
            }
            self.after(Duration::from_micros(100), Event::Refuse(job, End::Broken));
        }
    }

    /// Somebody writes another configuration for one backend: other endpoints and weights, or other limits.
    fn reconfigure(&mut self) {
        let place = Place {
            balancer: self.dice.below(self.balancers.len()),
            backend: self.dice.below(self.plan.backends.len()),
        };
        let (mut set, mut limits) =
            (self.backend(place).configured(), self.backend(place).limits());
        if self.dice.percent(50) {
            // Scaled to nobody, down, to most or up: it happens that all who wait have no endpoint at all.
            let joining = [0, 30, 70, 70, 70, 100][self.dice.below(6)];
            let weights = self.servers.iter().map(|_| {
                let joins = self.dice.percent(joining);
                joins.then(|| self.dice.between(0, 5))
            });
            let weights: Vec<_> = weights.collect();
            set = self.balancers[place.balancer].set(&weights);
        } else {
            limits = plan::draw_limits(&mut self.dice, plan::slowest(&self.plan.servers));
        }
        self.configure(place, set, limits);
    }

    fn enter_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.check_counts();
        match phase {
            Phase::Safety => {}
            Phase::Recovery => {
                for server in &mut self.servers {
                    server.suffer(Fault::None, self.now);
                }
                for place in self.places() {
                    let plan = &self.plan.backends[place.backend];
                    let weights: Vec<_> = plan.weights.iter().copied().map(Some).collect();
                    let set = self.balancers[place.balancer].set(&weights);
                    self.configure(place, set, plan.limits);
                }
                self.after(Duration::ZERO, Event::ArriveInTurn { turn: 0 });
                self.after(self.plan.recovery(), Event::Enter(Phase::Calm));
            }
            Phase::Calm => {
                for place in self.places() {
                    let now = self.now;
                    self.backend(place).check_recovery(now);
                }
                let mut endpoints = self.balancers.iter().flat_map(|it| &it.endpoints);
                let all_are_back = endpoints.all(|endpoint| endpoint.is_reachable());
                assert!(all_are_back, "an endpoint is still marked unreachable");
                let rounds = 200 * self.places().len() as u32;
                self.after(self.plan.easy_interval() * rounds, Event::Enter(Phase::End));
            }
            Phase::End => {}
        }
    }

    /// An endpoint at which connections can be made is not marked unreachable for longer than the pause between two
    /// background attempts.
    fn check_readmission(&self) {
        for endpoint in self.balancers.iter().flat_map(|balancer| &balancer.endpoints) {
            let Some(marked_at) = endpoint.unreachable_since() else { continue };
            let back_at = self.servers[endpoint.data].accepting_since(self.now);
            let since = back_at.map_or(self.now, |back_at| back_at.max(marked_at));
            let waits = self.now.saturating_since(since);
            assert!(waits <= LONGEST_PAUSE, "{endpoint:?} is not readmitted after {waits:?}");
        }
    }

    /// A request ends without an answer, and its client is still there: one server alone must not be the reason.
    fn check_loss(&self) {
        assert!(!self.plan.single_deaths, "a request fails though all servers but one are sound");
    }

    /// Every slot taken is held by somebody.
    fn check_counts(&self) {
        let taken: usize = self.balancers.iter().map(Balancer::in_flight).sum();
        let probing: usize = self.balancers.iter().map(|balancer| balancer.probing).sum();
        assert_eq!(taken, self.requests.holding() + probing, "a slot taken is a slot held");
    }

    fn check_end(&mut self) {
        assert!(self.requests.is_empty(), "every request has ended");
        assert!(self.servers.iter().all(Server::is_idle), "no server works for nobody");
        let idle = self.balancers.iter().all(|balancer| balancer.in_flight() == 0);
        assert!(idle, "every count is back at zero");
        for place in self.places() {
            let backend = &self.balancers[place.balancer].backends[place.backend];
            let plan = &self.plan.backends[place.backend];
            backend.check_budget(&plan.retry, self.now);
            laws::shares_match_weights(plan, self.plan.workers, &backend.bill.served);
        }
        for plan in &self.plan.backends {
            laws::keys_stay(plan.algorithm, self.servers.len(), &mut self.dice);
            laws::failures_attract_nothing(plan, self.plan.workers, &mut self.dice);
        }
    }

    /// Every backend of every balancer.
    fn places(&self) -> Vec<Place> {
        let backends = 0..self.plan.backends.len();
        let of = |balancer| backends.clone().map(move |backend| Place { balancer, backend });
        (0..self.balancers.len()).flat_map(of).collect()
    }

    fn backend(&mut self, place: Place) -> &mut Backend {
        &mut self.balancers[place.balancer].backends[place.backend]
    }

    fn after(&mut self, duration: Duration, event: Event) {
        self.agenda.enter(self.now + duration, event);
    }

    #[expect(clippy::print_stdout, reason = "the trace is what a replay is for")]
    fn trace(&self, line: fmt::Arguments<'_>) {
        if self.traced {
            println!("{:>12.3} ms  {line}", self.now.as_nanos() as f64 / 1e6);
        }
    }
}
