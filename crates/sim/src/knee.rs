//! How well limits are learned: one table, by workers, clients, service times, and what happens meanwhile.
//!
//! Each endpoint has some workers and a backlog, or shares processors among all that it has. The limits are real ones, and so
//! are picker and queue. Beside each row stands the same world with a fixed cap of as many as an endpoint has workers.
//! The table is what `docs/internals/limits.md` shows.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::limit::Visit;
use balance::{
    Admission, Algorithm, Cap, End, Endpoint, EndpointSet, Entry, Ledger, LimitSettings, Limiter,
    Limits, Member, Picker, Queue, Time, Wish,
};

use crate::agenda::Agenda;
use crate::dice::Dice;

/// Article 001's service time.
const SERVICE: Duration = Duration::from_millis(340);
/// Between a response and the next request of the same client.
const THINKS: Duration = Duration::from_micros(500);
const ROUND: Duration = Duration::from_millis(100);
/// What comes before this is learning, and is told apart.
pub(crate) const LEARNING: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sharing {
    /// Each worker serves one request after the other; the rest waits in order.
    Workers,
    /// All requests share as many processors.
    Processors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Variance {
    None,
    /// Evenly between half and one and a half.
    Low,
    Exponential,
    /// One request in twenty takes about twenty times as long as the others; the variance is that of ten exponentials.
    High,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Clients {
    /// So many, each with one request after the other.
    Closed(usize),
    /// Requests come at random, with this time between them on average.
    Open(Duration),
}

/// Something that happens to one endpoint, or to all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Change {
    pub(crate) at: Duration,
    pub(crate) endpoint: Option<usize>,
    pub(crate) workers: Option<usize>,
    pub(crate) slower: f64,
}

/// One row of the table.
#[derive(Clone, Debug)]
pub(crate) struct Scene {
    pub(crate) name: &'static str,
    /// Of each endpoint.
    pub(crate) workers: Vec<usize>,
    pub(crate) sharing: Sharing,
    pub(crate) variance: Variance,
    pub(crate) service: Duration,
    pub(crate) clients: Clients,
    pub(crate) changes: Vec<Change>,
    /// Service times go up and down by this part of themselves, once in two hours.
    pub(crate) drift: f64,
    pub(crate) lasts: Duration,
    pub(crate) cap: Cap,
    pub(crate) seed: u64,
}

/// What came of it.
#[derive(Debug, Default)]
pub(crate) struct Result {
    /// Requests served while learning, and after.
    pub(crate) served: [u64; 2],
    /// Of those served after learning; sorted, seconds.
    pub(crate) latencies: Vec<f64>,
    /// At the end of each second the limit of each endpoint, and how many workers it has.
    pub(crate) limits: Vec<Vec<(u32, usize)>>,
}

impl Scene {
    /// Article 001: six endpoints of so many workers, so many clients.
    pub(crate) fn article(workers: usize, clients: usize) -> Self {
        Self {
            name: "article 001",
            workers: vec![workers; 6],
            sharing: Sharing::Workers,
            variance: Variance::Exponential,
            service: SERVICE,
            clients: Clients::Closed(clients),
            changes: Vec::new(),
            drift: 0.0,
            lasts: Duration::from_secs(600),
            cap: Cap::Learned,
            seed: 0,
        }
    }

    pub(crate) fn run(&self) -> Result {
        World::new(self).run()
    }

    fn fixed(&self) -> Self {
        Self { cap: Cap::of(self.workers[0] as u32), ..self.clone() }
    }
}

/// Prints the table, a row for each scene.
#[expect(clippy::print_stdout, reason = "the table is what it is for")]
pub(crate) fn print() {
    println!(
        "scene,workers,sharing,variance,clients,throughput_learning,throughput,latency_mean,latency_p99,\
         fixed_mean,fixed_p99,limit_120s_least,limit_120s_most,limit_least,limit_most,off_by_more_than_one"
    );
    for scene in scenes() {
        let (learned, fixed) = (scene.run(), scene.fixed().run());
        let part = |at: usize| learned.served[at] as f64 / fixed.served[at].max(1) as f64;
        let workers: Vec<String> = scene.workers.iter().map(ToString::to_string).collect();
        let at_120 = learned.spread(LEARNING.as_secs() as usize..LEARNING.as_secs() as usize + 1);
        let after = learned.spread(LEARNING.as_secs() as usize..learned.limits.len());
        println!(
            "{},{},{:?},{:?},{:?},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{:.4}",
            scene.name,
            workers.join("+"),
            scene.sharing,
            scene.variance,
            scene.clients,
            part(0),
            part(1),
            learned.mean(),
            learned.p99(),
            fixed.mean(),
            fixed.p99(),
            at_120.0,
            at_120.1,
            after.0,
            after.1,
            learned.off(LEARNING.as_secs() as usize),
        );
    }
}

fn scenes() -> Vec<Scene> {
    let mut scenes = Vec::new();
    for sharing in [Sharing::Workers, Sharing::Processors] {
        for variance in [Variance::Exponential, Variance::Low, Variance::None, Variance::High] {
            for workers in [2, 4, 8] {
                scenes.extend([16, 24, 48].map(|clients| Scene {
                    sharing,
                    variance,
                    ..Scene::article(workers, clients)
                }));
            }
        }
    }
    scenes.extend(incidents());
    scenes
}

/// What may happen to endpoints, and other endpoints.
pub(crate) fn incidents() -> Vec<Scene> {
    let base = || Scene { lasts: Duration::from_secs(1200), ..Scene::article(4, 48) };
    let change = |at, endpoint, workers, slower| Change {
        at: Duration::from_secs(at),
        endpoint,
        workers,
        slower,
    };
    let open = |percent: u32| Clients::Open(SERVICE * 100 / (6 * 4 * percent));
    vec![
        Scene { name: "one endpoint", workers: vec![4], clients: Clients::Closed(24), ..base() },
        Scene { name: "of different size", workers: vec![4, 2, 4, 8, 8, 2], ..base() },
        Scene {
            name: "one grows to 8",
            changes: vec![change(300, Some(2), Some(8), 1.0)],
            ..base()
        },
        Scene {
            name: "all shrink to 4",
            workers: vec![8; 6],
            clients: Clients::Closed(96),
            changes: vec![change(300, None, Some(4), 1.0)],
            ..base()
        },
        Scene {
            name: "all 3 times slower for 200 s",
            changes: vec![change(300, None, None, 3.0), change(500, None, None, 1.0)],
            ..base()
        },
        Scene {
            name: "one 10 times slower for 100 s",
            changes: vec![change(300, Some(1), None, 10.0), change(400, Some(1), None, 1.0)],
            ..base()
        },
        Scene { name: "5 ms", service: Duration::from_millis(5), ..base() },
        Scene {
            name: "10 s",
            service: Duration::from_secs(10),
            lasts: Duration::from_secs(6000),
            ..base()
        },
        Scene {
            name: "50 workers",
            workers: vec![50; 6],
            service: Duration::from_millis(100),
            clients: Clients::Closed(600),
            lasts: Duration::from_secs(400),
            ..base()
        },
        Scene { name: "90 % of what can be served", clients: open(90), ..base() },
        Scene { name: "50 % of what can be served", clients: open(50), ..base() },
        Scene { name: "10 % of what can be served", clients: open(10), ..base() },
        Scene {
            name: "6 hours of drift",
            drift: 0.8,
            clients: Clients::Closed(30),
            lasts: Duration::from_secs(6 * 3600),
            ..base()
        },
    ]
}

impl Result {
    pub(crate) fn mean(&self) -> f64 {
        self.latencies.iter().sum::<f64>() / self.latencies.len().max(1) as f64
    }

    pub(crate) fn p99(&self) -> f64 {
        self.latencies.get(self.latencies.len() * 99 / 100).copied().unwrap_or_default()
    }

    /// The least and the highest limit of any endpoint in these seconds.
    pub(crate) fn spread(&self, seconds: std::ops::Range<usize>) -> (u32, u32) {
        let limits = || self.limits[seconds.clone()].iter().flatten().map(|&(limit, _)| limit);
        (limits().min().unwrap_or(0), limits().max().unwrap_or(0))
    }

    /// In which part of the time since this second limits were off by more than one from the number of workers.
    pub(crate) fn off(&self, since: usize) -> f64 {
        let all = || self.limits[since..].iter().flatten();
        let off = all().filter(|&&(limit, workers)| u64::from(limit).abs_diff(workers as u64) > 1);
        off.count() as f64 / all().count().max(1) as f64
    }
}

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

struct World<'s> {
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
    fn new(scene: &'s Scene) -> Self {
        let mut ledger = Ledger::new();
        let member = |server: usize| {
            let address = SocketAddr::from(([10, 0, 0, 1], server as u16));
            Member::new(ledger.endpoint(address, || server), 1)
        };
        let set = Arc::new(EndpointSet::new((0..scene.workers.len()).map(member).collect()));
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

    fn run(mut self) -> Result {
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
        let factor = match self.scene.variance {
            Variance::None => 1.0,
            Variance::Low => f64::from(self.dice.between(500, 1500)) / 1000.0,
            Variance::Exponential => self.dice.unit_exponential(),
            Variance::High if self.dice.percent(5) => self.dice.unit_exponential() * 10.5,
            Variance::High => self.dice.unit_exponential() * 0.5,
        };
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

#[cfg(test)]
mod tests;
