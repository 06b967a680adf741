//! Says what world a seed draws: who serves, who asks how often, how it is judged, and what bounds recovery.

use std::num::NonZeroU32;
use std::time::Duration;

use balance::health::HealthSettings;
use balance::reachability::LONGEST_PAUSE;
use balance::retry::RetrySettings;
use balance::{AdmissionLimits, Algorithm, ConcurrencyCap};

use crate::random::{EXPONENTIAL_CUTOFF, RandomSource};

/// Drawing the policies of a backend.
mod policy;

pub(crate) use policy::draw_limits;

/// How many times slower than usual a slow endpoint is, at most.
pub(crate) const SLOWEST: u32 = 10;

#[derive(Debug)]
pub(crate) struct SimulationPlan {
    /// Sheaves side by side, which know nothing of one another.
    pub(crate) balancers: usize,
    /// Of each balancer.
    pub(crate) workers: usize,
    pub(crate) servers: Vec<ServerPlan>,
    /// Of each balancer. With two, both name all servers: a slot freed by one is what the other waits for.
    pub(crate) backends: Vec<BackendPlan>,
    /// Between two rounds of judging.
    pub(crate) tick: Duration,
    /// The mean time between faults.
    pub(crate) fault_interval: Duration,
    /// How long there are faults.
    pub(crate) fault_duration: Duration,
    /// The only faults are deaths, of one server at a time while the others could serve everything: no request fails.
    pub(crate) single_deaths: bool,
}

/// What stands at an endpoint.
#[derive(Debug)]
pub(crate) struct ServerPlan {
    /// The mean time to serve a request.
    pub(crate) service: Duration,
    /// Service times are exponentially distributed; else constant.
    pub(crate) varies: bool,
    /// How many requests it serves at a time; others wait.
    pub(crate) threads: u32,
}

#[derive(Debug)]
pub(crate) struct BackendPlan {
    pub(crate) algorithm: Algorithm,
    /// One for each server, none of them 0.
    pub(crate) weights: Vec<u32>,
    pub(crate) limits: AdmissionLimits,
    pub(crate) health: HealthSettings,
    pub(crate) retry: RetrySettings,
    /// The mean time between arrivals, over all balancers.
    pub(crate) interval: Duration,
    /// How long a request waits for a slot at most.
    pub(crate) patience: Duration,
    /// How long an attempt may take.
    pub(crate) timeout: Duration,
    /// How many clients in a hundred go before they are served.
    pub(crate) leaving_percent: u32,
    /// How many requests in a hundred are bound to one endpoint.
    pub(crate) bound_percent: u32,
    /// How many requests in a hundred are of another priority than most.
    pub(crate) prioritised_percent: u32,
    /// By how many routes they come.
    pub(crate) routes: u32,
    /// How late a worker learns of a change, at most.
    pub(crate) lag: Duration,
}

impl SimulationPlan {
    /// Requests of the phase with faults, about.
    const REQUESTS: u32 = 4_000;
    /// In so many seeds of a hundred the only faults are deaths.
    const SINGLE_DEATHS_PERCENT: u32 = 10;
    /// How long there are deaths then, in intervals between them.
    const DEATH_INTERVALS: u32 = 10;

    pub(crate) fn draw(dice: &mut RandomSource) -> Self {
        let usual = Duration::from_micros(u64::from(dice.between(2_000, 50_000)));
        let servers: Vec<_> =
            (0..dice.between(1, 12)).map(|_| ServerPlan::draw(dice, usual)).collect();
        let backends: Vec<_> =
            (0..dice.between(1, 2)).map(|_| BackendPlan::draw(dice, &servers)).collect();
        let interval: Duration = backends.iter().map(|backend| backend.interval).sum();
        let safety = interval * (Self::REQUESTS / backends.len().pow(2) as u32);
        let plan = Self {
            balancers: dice.between(1, 3) as usize,
            workers: dice.between(1, 8) as usize,
            tick: usual * dice.between(1, 10),
            fault_interval: safety / dice.between(5, 100),
            servers,
            backends,
            fault_duration: safety,
            single_deaths: false,
        };
        let single_deaths = plan.servers.len() > 1 && dice.percent(Self::SINGLE_DEATHS_PERCENT);
        if single_deaths { plan.with_single_deaths() } else { plan }
    }

    /// The plan with so little load that one server less is no matter, no limits, nothing but outages to judge by, and
    /// what holds by default of retries.
    fn with_single_deaths(mut self) -> Self {
        let (backends, slowest) = (self.backends.len() as u32, slowest(&self.servers));
        for backend in &mut self.backends {
            backend.weights.fill(1);
            backend.limits.cap = ConcurrencyCap::None;
            backend.health = HealthSettings { passive: None, active: None, ..backend.health };
            backend.retry = RetrySettings::default();
            backend.timeout = slowest * 50;
        }
        let interval = self.easy_interval() * backends;
        self.backends.iter_mut().for_each(|backend| backend.interval = interval);
        self.fault_duration = self.death_interval() * Self::DEATH_INTERVALS;
        self.fault_interval = self.death_interval();
        Self { single_deaths: true, ..self }
    }

    /// Between two deaths, at least: the first server has returned and is readmitted, and what was resent is served.
    pub(crate) fn death_interval(&self) -> Duration {
        slowest(&self.servers) * 100 + LONGEST_PAUSE * 2
    }

    /// The most time that a request, begun before the faults ended, can keep a thread of a server.
    pub(crate) fn longest_service(&self) -> Duration {
        slowest(&self.servers) * (SLOWEST * EXPONENTIAL_CUTOFF)
    }

    /// How long a server pauses, or is cold after a start, at most.
    pub(crate) fn longest_spell(&self) -> Duration {
        slowest(&self.servers) * 100
    }

    /// How long after the last fault it may still be felt, step by step: servers finish what they have begun; who
    /// waited has gone; who was ejected last is tried and starts slowly, while probes find it fit.
    pub(crate) fn recovery(&self) -> Duration {
        let most = |of: &dyn Fn(&BackendPlan) -> Duration| {
            self.backends.iter().map(of).max().expect("a plan has backends")
        };
        let servers_finish = self.longest_service() + self.longest_spell();
        let who_waited_has_gone = most(&|backend| backend.patience + backend.timeout * 2);
        // A trial that told nothing is repeated after a second, and each endpoint needs a request that tries it.
        let tries = 4 * self.servers.len() * self.balancers * self.backends.len();
        let trials = self.easy_interval() * tries as u32 + Duration::from_secs(3);
        servers_finish
            + who_waited_has_gone
            + most(&|backend| policy::longest_return(&backend.health) + backend.lag)
            + trials
            + self.tick * 10
    }

    /// Between arrivals that, evenly spaced, must each find a free slot at once, even if all come to the same server:
    /// it could serve twice as many.
    pub(crate) fn easy_interval(&self) -> Duration {
        // What is learned may be one.
        let one = NonZeroU32::MIN;
        let caps = self.backends.iter().filter_map(|backend| match backend.limits.cap {
            ConcurrencyCap::Learned => Some(one),
            cap => cap.fixed(),
        });
        let threads = self.servers.iter().map(|server| server.threads);
        let slots = caps.map(NonZeroU32::get).chain(threads).min().expect("a plan has servers");
        slowest(&self.servers) * 2 / slots
    }
}

impl ServerPlan {
    fn draw(dice: &mut RandomSource, usual: Duration) -> Self {
        Self {
            service: usual * dice.between(50, 200) / 100,
            varies: dice.percent(70),
            threads: dice.between(1, 8),
        }
    }
}

impl BackendPlan {
    fn draw(dice: &mut RandomSource, servers: &[ServerPlan]) -> Self {
        let slowest = slowest(servers);
        let limits = draw_limits(dice, slowest);
        let served = |server: &ServerPlan| {
            limits.cap.fixed().map_or(server.threads, |cap| cap.get().min(server.threads))
        };
        let served_at_a_time: u32 = servers.iter().map(served).sum();
        // From a third of what can be served to three times as much.
        let interval = slowest / served_at_a_time * dice.between(33, 300) / 100;
        Self {
            algorithm: policy::draw_algorithm(dice),
            weights: servers.iter().map(|_| dice.between(1, 5)).collect(),
            limits,
            health: policy::draw_health(dice, slowest),
            retry: policy::draw_retry(dice, slowest),
            interval,
            patience: slowest * dice.between(1, 30),
            timeout: slowest * dice.between(5, 50),
            leaving_percent: dice.between(0, 30),
            bound_percent: if dice.percent(30) { dice.between(0, 100) } else { 0 },
            prioritised_percent: if dice.percent(50) { dice.between(0, 100) } else { 0 },
            routes: if dice.percent(50) { dice.between(1, 5) } else { 1 },
            lag: slowest * dice.between(0, 5),
        }
    }
}

/// The longest time that a server takes as a rule.
pub(crate) fn slowest(servers: &[ServerPlan]) -> Duration {
    servers.iter().map(|server| server.service).max().expect("a plan has servers")
}
