//! The world of one seed: what happens in it, in order of time, to the real `balance`.
//!
//! First there are faults (*safety*), then they stop and their traces must go (*recovery*), then each request must be
//! served at once (*calm*), then nobody comes any more and every count must return to zero.

use std::fmt;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::{EndpointSet, Entry, Ledger, Member, Time};

use crate::agenda::Agenda;
use crate::backend::Backend;
use crate::dice::Dice;
use crate::laws::View;
use crate::plan::{self, Plan};
use crate::requests::{Id, Request, Requests, Stage};
use crate::tally::Tally;

pub(crate) type Endpoint = balance::Endpoint<usize>;

pub(crate) struct World {
    plan: Plan,
    dice: Dice,
    now: Time,
    phase: Phase,
    agenda: Agenda<Event>,
    ledger: Ledger<usize>,
    servers: Vec<Server>,
    backends: Vec<Backend>,
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

#[derive(Debug)]
enum Event {
    /// A request of the safety phase, at a random time.
    Arrive {
        backend: usize,
    },
    /// A request of the later phases, evenly spaced, at one backend after the other.
    ArriveInTurn {
        backend: usize,
    },
    /// A waiter that was granted a slot comes to take it.
    Wake(Id),
    /// The endpoint has finished with the request.
    Finish(Id),
    /// It has waited long enough.
    LosePatience(Id),
    ClientGoes(Id),
    /// A worker learns what is in force.
    Learn {
        backend: usize,
        worker: usize,
    },
    Fault,
    Enter(Phase),
}

struct Server {
    slowdown: u32,
    failing_percent: u32,
}

impl World {
    pub(crate) fn new(seed: u64, traced: bool) -> Self {
        let mut dice = Dice::new(seed);
        let plan = Plan::draw(&mut dice);
        let mut world = Self {
            now: Time::ZERO,
            phase: Phase::Safety,
            agenda: Agenda::new(),
            ledger: Ledger::new(),
            servers: plan.servers.iter().map(|_| Server::sound()).collect(),
            backends: Vec::new(),
            requests: Requests::default(),
            tally: Tally::default(),
            plan,
            dice,
            traced,
        };
        for backend in 0..world.plan.backends.len() {
            let view = world.sound_view(backend);
            let backend = Backend::new(&world.plan, backend, view, &mut world.dice);
            world.backends.push(backend);
        }
        world
    }

    /// Lets everything happen. Panics if a law is broken.
    pub(crate) fn run(mut self) -> Tally {
        self.trace(format_args!("{:#?}", self.plan));
        for backend in 0..self.backends.len() {
            self.after(Duration::ZERO, Event::Arrive { backend });
        }
        self.after(self.plan.calm, Event::Fault);
        self.after(self.plan.safety, Event::Enter(Phase::Recovery));
        while let Some((at, event)) = self.agenda.next() {
            self.now = at;
            self.trace(format_args!("{event:?}"));
            self.happen(event);
            self.backends.iter().for_each(Backend::check);
        }
        assert!(self.requests.is_empty(), "every request has ended");
        let idle = self.ledger.live().iter().all(|endpoint| endpoint.in_flight() == 0);
        assert!(idle, "every count is back at zero");
        self.tally
    }

    fn happen(&mut self, event: Event) {
        match event {
            Event::Arrive { backend } => self.arrive(backend),
            Event::ArriveInTurn { backend } => self.arrive_in_turn(backend),
            Event::Wake(id) => self.wake(id),
            Event::Finish(id) => self.finish(id),
            Event::LosePatience(id) => self.lose_patience(id),
            Event::ClientGoes(id) => self.client_goes(id),
            Event::Learn { backend, worker } => self.backends[backend].learn(worker),
            Event::Fault => self.fault(),
            Event::Enter(phase) => self.enter_phase(phase),
        }
    }

    fn arrive(&mut self, backend: usize) {
        if self.phase == Phase::Safety {
            let next = self.dice.exponential(self.plan.backends[backend].interval);
            self.after(next, Event::Arrive { backend });
            self.begin_request(backend);
        }
    }

    fn arrive_in_turn(&mut self, backend: usize) {
        if self.phase != Phase::End {
            let backend_after = (backend + 1) % self.backends.len();
            let next = Event::ArriveInTurn { backend: backend_after };
            self.after(self.plan.easy_interval(), next);
            self.begin_request(backend);
        }
    }

    fn begin_request(&mut self, backend: usize) {
        self.tally.arrived += 1;
        let worker = self.dice.below(self.plan.workers);
        let stage = Stage::Asks;
        let request = Request { backend, worker, stage, except: None, client_gone: false };
        let id = self.requests.add(request);
        let plan = &self.plan.backends[backend];
        if self.dice.percent(plan.leaving_percent) {
            let stays = self.dice.exponential(plan.patience / 2);
            self.after(stays, Event::ClientGoes(id));
        }
        self.ask(id);
    }

    /// A request asks for a slot.
    fn ask(&mut self, id: Id) {
        let Request { backend, worker, ref except, .. } = *self.requests.known(id);
        let plan = &self.plan.backends[backend];
        let entry = self.backends[backend].enter(id, worker, except.as_ref());
        self.trace(format_args!("{id:?} asks: {entry:?}"));
        let at_once = matches!(entry, Entry::Slot(_));
        assert!(self.phase < Phase::Calm || at_once, "the traces of faults have not gone");
        match entry {
            Entry::Slot(endpoint) => self.start(id, endpoint),
            Entry::Waiting(ticket) => {
                self.requests.known(id).stage = Stage::Waits(ticket, None);
                let patience = plan.patience;
                self.after(patience, Event::LosePatience(id));
            }
            Entry::Refused(_) => {
                self.tally.refused += 1;
                self.requests.remove(id);
            }
        }
    }

    fn start(&mut self, id: Id, endpoint: Arc<Endpoint>) {
        let server = &self.plan.servers[endpoint.data];
        let varies = server.varies && self.phase == Phase::Safety;
        let usual = if varies { self.dice.exponential(server.service) } else { server.service };
        let service = usual * self.servers[endpoint.data].slowdown;
        self.requests.known(id).stage = Stage::Runs(endpoint);
        self.after(service, Event::Finish(id));
    }

    fn wake(&mut self, id: Id) {
        // It may have taken its slot when it lost patience, or have gone.
        if let Some(Request { stage: Stage::Waits(ticket, Some(grant)), .. }) =
            self.requests.find(id)
        {
            let endpoint = ticket.granted().expect("who is woken has a slot");
            grant.shown(&endpoint);
            self.start(id, endpoint);
        }
    }

    /// The slot comes back even if the client has gone: it is free when the endpoint has finished, not before.
    fn finish(&mut self, id: Id) {
        let request = self.requests.known(id);
        let Stage::Runs(endpoint) = std::mem::replace(&mut request.stage, Stage::Asks) else {
            panic!("only what runs finishes");
        };
        let failed = self.dice.percent(self.servers[endpoint.data].failing_percent);
        let retried = failed && !request.client_gone && request.except.is_none();
        if retried {
            request.except = Some(endpoint.clone());
        } else {
            let end = if failed { &mut self.tally.failed } else { &mut self.tally.served };
            *end += 1;
        }
        let backend = request.backend;
        self.release(backend, &endpoint);
        if retried {
            self.ask(id);
        } else {
            self.requests.remove(id);
        }
    }

    fn lose_patience(&mut self, id: Id) {
        let Some(Request { backend, stage: Stage::Waits(ticket, grant), .. }) =
            self.requests.find(id)
        else {
            return;
        };
        match self.backends[*backend].give_up(id, ticket) {
            None => {
                self.tally.out_of_patience += 1;
                self.requests.remove(id);
            }
            // A slot at the last moment is as good as any.
            Some(endpoint) => {
                grant.as_ref().expect("it was woken").shown(&endpoint);
                self.start(id, endpoint);
            }
        }
    }

    fn client_goes(&mut self, id: Id) {
        let Some(request) = self.requests.find(id) else { return };
        request.client_gone = true;
        let Stage::Waits(ticket, grant) = &request.stage else { return };
        let backend = request.backend;
        if let Some(endpoint) = self.backends[backend].give_up(id, ticket) {
            grant.as_ref().expect("it was woken").shown(&endpoint);
            self.release(backend, &endpoint);
        }
        self.tally.client_gone += 1;
        self.requests.remove(id);
    }

    /// A slot comes back through one backend; those who wait at the others may want it too.
    fn release(&mut self, backend: usize, endpoint: &Endpoint) {
        let woken = self.backends[backend].release(endpoint);
        self.wake_up(backend, woken);
        for other in (0..self.backends.len()).filter(|&other| other != backend) {
            let woken = self.backends[other].dispatch();
            self.wake_up(other, woken);
        }
    }

    fn wake_up(&mut self, backend: usize, woken: impl IntoIterator<Item = Id>) {
        for id in woken {
            self.trace(format_args!("{id:?} is granted a slot"));
            let Backend { line, current, .. } = &mut self.backends[backend];
            let Stage::Waits(_, grant @ None) = &mut self.requests.known(id).stage else {
                panic!("only who waits is granted a slot, and once");
            };
            *grant = Some(line.granted(id, current));
            let late = Duration::from_micros(u64::from(self.dice.between(0, 100)));
            self.after(late, Event::Wake(id));
        }
    }

    fn replace(&mut self, backend: usize, view: View) {
        self.trace(format_args!("backend {backend}: {:?}, {:?}", view.set, view.limits));
        let woken = self.backends[backend].replace(view);
        self.wake_up(backend, woken);
        for worker in 0..self.plan.workers {
            let lag = self.plan.backends[backend].lag;
            let late = lag * self.dice.between(0, 100) / 100;
            self.after(late, Event::Learn { backend, worker });
        }
    }

    fn fault(&mut self) {
        if self.phase != Phase::Safety {
            return;
        }
        let next = self.dice.exponential(self.plan.calm);
        self.after(next, Event::Fault);
        self.check_counts();
        let server = self.dice.below(self.servers.len());
        let backend = self.dice.below(self.backends.len());
        match self.dice.below(4) {
            0 => self.servers[server].slowdown = self.dice.between(1, plan::SLOWEST),
            1 => self.servers[server].failing_percent = self.dice.between(0, 50),
            2 => {
                let weights = self.servers.iter().map(|_| {
                    let joins = self.dice.percent(70);
                    joins.then(|| self.dice.between(0, 5))
                });
                let weights: Vec<_> = weights.collect();
                let limits = self.backends[backend].current.limits;
                let set = self.set(&weights);
                self.replace(backend, View { set, limits });
            }
            _ => {
                let limits = plan::draw_limits(&mut self.dice);
                let set = self.backends[backend].current.set.clone();
                self.replace(backend, View { set, limits });
            }
        }
    }

    fn enter_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.check_counts();
        match phase {
            Phase::Safety => {}
            Phase::Recovery => {
                self.servers.iter_mut().for_each(|server| *server = Server::sound());
                for backend in 0..self.backends.len() {
                    let view = self.sound_view(backend);
                    self.replace(backend, view);
                }
                self.after(Duration::ZERO, Event::ArriveInTurn { backend: 0 });
                self.after(self.plan.recovery(), Event::Enter(Phase::Calm));
            }
            Phase::Calm => {
                let waiting = self.backends.iter().all(|backend| backend.line.len() == 0);
                assert!(waiting, "somebody still waits though all is well");
                self.after(self.plan.easy_interval() * 200, Event::Enter(Phase::End));
            }
            Phase::End => {}
        }
    }

    /// Every slot taken is held by somebody.
    fn check_counts(&self) {
        let taken = self.ledger.live().iter().map(|endpoint| endpoint.in_flight()).sum::<u32>();
        assert_eq!(taken as usize, self.requests.holding(), "a slot taken is a slot held");
    }

    fn sound_view(&mut self, backend: usize) -> View {
        let plan = &self.plan.backends[backend];
        let (weights, limits) =
            (plan.weights.iter().copied().map(Some).collect::<Vec<_>>(), plan.limits);
        View { set: self.set(&weights), limits }
    }

    /// The servers with a weight, under addresses that tell which is which.
    fn set(&mut self, weights: &[Option<u32>]) -> Arc<EndpointSet<usize>> {
        let member = |(server, weight): (usize, &Option<u32>)| {
            let address = SocketAddr::from(([10, 0, 0, 1], server as u16));
            let endpoint = self.ledger.endpoint(address, || server);
            weight.map(|weight| Member::new(endpoint, weight))
        };
        Arc::new(EndpointSet::new(weights.iter().enumerate().filter_map(member).collect()))
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

impl Server {
    fn sound() -> Self {
        Self { slowdown: 1, failing_percent: 0 }
    }
}
