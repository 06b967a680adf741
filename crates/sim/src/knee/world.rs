//! What happens in one scene: servers that serve some requests at a time, clients, and limits that are learned.

use std::sync::Arc;
use std::time::Duration;

use balance::limit::Visit;
use balance::{
    Admission, Algorithm, Cap, End, Endpoint, EndpointSet, Entry, LimitSettings, Limiter, Limits,
    Picker, Queue, Time, Wish,
};

use super::{Change, Clients, LEARNING, Result, Scene, Sharing};
use crate::agenda::Agenda;
use crate::dice::Dice;
use crate::farm;

/// Between a response and the next request of the same client.
const THINKS: Duration = Duration::from_micros(500);
const ROUND: Duration = Duration::from_millis(100);

enum Event {
    Arrive,
    /// The endpoint has finished something, unless it has been given something since.
    Finish {
        endpoint: usize,
        generation: u64,
    },
    Round,
    Change(usize),
}

/// A request at an endpoint.
struct Job {
    asked: Time,
    taken: Time,
    level: u32,
    /// Seconds of work left.
    left: f64,
}

struct Server {
    workers: usize,
    slower: f64,
    jobs: Vec<Job>,
    as_of: Time,
    generation: u64,
}

/// The world of one scene.
pub(super) struct World<'s> {
    scene: &'s Scene,
    dice: Dice,
    now: Time,
    agenda: Agenda<Event>,
    servers: Vec<Server>,
    set: Arc<EndpointSet<usize>>,
    limits: Limits,
    picker: Picker,
    admission: Admission,
    queue: Queue<usize, Time>,
    limiter: Limiter,
    rounds: u64,
    result: Result,
}

impl<'s> World<'s> {
    pub(super) fn new(scene: &'s Scene) -> Self {
        let set = Arc::new(farm::endpoints(scene.workers.len(), |server| server));
        let limits = Limits { cap: scene.cap, max_waiting: 1 << 20, ..Limits::default() };
        let server = |&workers: &usize| Server {
            workers,
            slower: 1.0,
            jobs: Vec::new(),
            as_of: Time::ZERO,
            generation: 0,
        };
        Self {
            dice: Dice::new(scene.seed),
            now: Time::ZERO,
            agenda: Agenda::new(),
            servers: scene.workers.iter().map(server).collect(),
            picker: Picker::new(Algorithm::LeastLoad, scene.seed),
            admission: Admission::new(),
            queue: Queue::new(set.clone(), limits),
            set,
            limits,
            limiter: Limiter::new(),
            rounds: 0,
            result: Result::default(),
            scene,
        }
    }

    pub(super) fn run(mut self) -> Result {
        self.round();
        let arrivals = match self.scene.clients {
            Clients::Closed(clients) => clients,
            Clients::Open(_) => 1,
        };
        for arrival in 0..arrivals {
            self.agenda.enter(Time::ZERO + THINKS * arrival as u32, Event::Arrive);
        }
        for (at, change) in self.scene.changes.iter().enumerate() {
            self.agenda.enter(Time::ZERO + change.at, Event::Change(at));
        }
        while let Some((at, event)) = self.agenda.next_until(Time::ZERO + self.scene.lasts) {
            self.now = at;
            match event {
                Event::Arrive => self.arrive(),
                Event::Finish { endpoint, generation } => self.finish(endpoint, generation),
                Event::Round => self.round(),
                Event::Change(change) => self.change(self.scene.changes[change]),
            }
        }
        self.result.latencies.sort_by(f64::total_cmp);
        self.result
    }

    fn arrive(&mut self) {
        if let Clients::Open(interval) = self.scene.clients {
            let next = self.now + self.dice.exponential(interval);
            self.agenda.enter(next, Event::Arrive);
        }
        let (queue, now) = (&mut self.queue, self.now);
        let wish = Wish { now, ..Wish::default() };
        let entry =
            self.admission.enter(&mut self.picker, &self.set, self.limits, &wish, || queue, || now);
        match entry {
            Entry::Slot(endpoint) => self.begin(&endpoint, now),
            // Who waits is known by when it asked; the ticket is for those who may give up.
            Entry::Waiting { .. } => {}
            Entry::Refused(refusal) => panic!("nobody is refused: {refusal:?}"),
        }
    }

    fn begin(&mut self, endpoint: &Endpoint<usize>, asked: Time) {
        let server = endpoint.data;
        self.advance(server);
        let factor = self.dice.unit(self.scene.variance);
        let hours = self.now.as_nanos() as f64 / 3.6e12;
        let drift = 1.0 + self.scene.drift * (hours * std::f64::consts::PI).sin();
        let left = self.scene.service.as_secs_f64() * factor * drift * self.servers[server].slower;
        let level = endpoint.in_flight();
        self.servers[server].jobs.push(Job { asked, taken: self.now, level, left });
        self.expect(server);
    }

    fn finish(&mut self, server: usize, generation: u64) {
        if self.servers[server].generation != generation {
            return;
        }
        self.advance(server);
        let speeds =
            (0..self.servers[server].jobs.len()).filter(|&job| self.speed(server, job) > 0.0);
        let left = |&job: &usize| self.servers[server].jobs[job].left;
        let done = speeds.min_by(|one, other| left(one).total_cmp(&left(other)));
        let job = self.servers[server].jobs.remove(done.expect("something is finished"));
        self.expect(server);
        let late = self.now >= Time::ZERO + LEARNING;
        self.result.served[usize::from(late)] += 1;
        if late {
            self.result.latencies.push(self.now.saturating_since(job.asked).as_secs_f64());
        }
        let endpoint = self.set.members()[server].endpoint.clone();
        let visit = Visit { level: job.level, held: self.now.saturating_since(job.taken) };
        endpoint.evidence.learn(visit, End::Success);
        let (queue, now) = (&mut self.queue, self.now);
        if let Some(asked) = self.admission.release(&endpoint, || now, || queue).granted {
            self.begin(&endpoint, asked);
        }
        if let Clients::Closed(_) = self.scene.clients {
            self.agenda.enter(self.now + THINKS, Event::Arrive);
        }
    }

    fn round(&mut self) {
        self.rounds += 1;
        self.agenda.enter(self.now + ROUND, Event::Round);
        if self.scene.cap == Cap::Learned {
            let waiting = self.admission.waiting();
            let settings = LimitSettings::default();
            self.limiter.round(&self.set, &settings, waiting, self.rounds, self.now);
        }
        if self.rounds.is_multiple_of(10) {
            let limits = self.limiter.believed().map(|(_, limit)| limit);
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
                let asked = woken.next().expect("a slot for each who was woken");
                self.begin(&endpoint, asked);
            }
        }
    }

    fn in_flight(&self) -> Vec<u32> {
        self.set.members().iter().map(|member| member.endpoint.in_flight()).collect()
    }

    fn change(&mut self, change: Change) {
        for server in 0..self.servers.len() {
            if change.endpoint.is_none_or(|endpoint| endpoint == server) {
                self.advance(server);
                let changed = &mut self.servers[server];
                changed.workers = change.workers.unwrap_or(changed.workers);
                changed.slower = change.slower;
                self.expect(server);
            }
        }
    }

    /// The part of a worker that a request has.
    fn speed(&self, server: usize, job: usize) -> f64 {
        let Server { workers, jobs, .. } = &self.servers[server];
        match self.scene.sharing {
            Sharing::Workers => f64::from(u8::from(job < *workers)),
            Sharing::Processors => (*workers as f64 / jobs.len() as f64).min(1.0),
        }
    }

    /// What was done since the last look.
    fn advance(&mut self, server: usize) {
        let passed = self.now.saturating_since(self.servers[server].as_of).as_secs_f64();
        for job in 0..self.servers[server].jobs.len() {
            let done = passed * self.speed(server, job);
            self.servers[server].jobs[job].left -= done;
        }
        self.servers[server].as_of = self.now;
    }

    /// When the server finishes something if nothing happens before.
    fn expect(&mut self, server: usize) {
        self.servers[server].generation += 1;
        let left =
            |job: usize| self.servers[server].jobs[job].left.max(0.0) / self.speed(server, job);
        let next = (0..self.servers[server].jobs.len()).map(left).filter(|left| left.is_finite());
        if let Some(next) = next.reduce(f64::min) {
            let generation = self.servers[server].generation;
            let at = self.now + Duration::from_secs_f64(next);
            self.agenda.enter(at, Event::Finish { endpoint: server, generation });
        }
    }
}
