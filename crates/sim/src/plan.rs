//! Draws the plan of a seed: servers, load, policies, and the bound on recovery.

use std::num::NonZeroU32;
use std::time::Duration;

use balance::health::HealthSettings;
use balance::reachability::LONGEST_PAUSE;
use balance::retry::RetrySettings;
use balance::{AdmissionLimits, Algorithm, ConcurrencyCap};

use crate::random::{EXPONENTIAL_CUTOFF, RandomSource};

/// Policies of a backend.
mod policy;

pub(crate) use policy::draw_limits;

/// Largest slowdown factor of a slow endpoint.
pub(crate) const SLOWEST: u32 = 10;

#[derive(Debug)]
pub(crate) struct SimulationPlan {
    /// Number of Sheave replicas, which know nothing of one another.
    pub(crate) balancers: usize,
    /// Workers of each balancer.
    pub(crate) workers: usize,
    pub(crate) servers: Vec<ServerPlan>,
    /// Backends of each balancer. If there are two, both name all servers: a request queued at one
    /// may wait for a slot that the other frees.
    pub(crate) backends: Vec<BackendPlan>,
    /// Interval between two health evaluations.
    pub(crate) tick: Duration,
    /// Mean time between faults.
    pub(crate) fault_interval: Duration,
    /// Duration of the phase with faults.
    pub(crate) fault_duration: Duration,
    /// True if the only faults are deaths, of one server at a time, while the others could serve
    /// the whole load: no request may fail.
    pub(crate) single_deaths: bool,
}

/// Plan of a server.
#[derive(Debug)]
pub(crate) struct ServerPlan {
    /// Mean time to serve a request.
    pub(crate) service: Duration,
    /// True if service times are exponentially distributed; otherwise they are constant.
    pub(crate) varies: bool,
    /// Number of requests that it serves at a time; others wait.
    pub(crate) threads: u32,
}

#[derive(Debug)]
pub(crate) struct BackendPlan {
    pub(crate) algorithm: Algorithm,
    /// Weight of each server, none of them 0.
    pub(crate) weights: Vec<u32>,
    pub(crate) limits: AdmissionLimits,
    pub(crate) health: HealthSettings,
    pub(crate) retry: RetrySettings,
    /// Mean time between arrivals, over all balancers.
    pub(crate) interval: Duration,
    /// Longest wait of a request for a slot.
    pub(crate) patience: Duration,
    /// Timeout of an attempt.
    pub(crate) timeout: Duration,
    /// Percentage of clients that leave before they are served.
    pub(crate) leaving_percent: u32,
    /// Percentage of requests that are bound to one endpoint.
    pub(crate) bound_percent: u32,
    /// Percentage of requests with a random priority instead of the default.
    pub(crate) prioritised_percent: u32,
    /// Number of routes.
    pub(crate) routes: u32,
    /// Maximum delay until a worker learns of a change.
    pub(crate) lag: Duration,
}

impl SimulationPlan {
    /// Approximate number of requests in the phase with faults.
    const REQUESTS: u32 = 4_000;
    /// Percentage of seeds in which the only faults are deaths.
    const SINGLE_DEATHS_PERCENT: u32 = 10;
    /// Duration of the phase with deaths, in intervals between them.
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

    /// Returns the plan with only single deaths: the load is so low that the loss of one server
    /// does not matter, there are no caps, only unreachability affects health, and retries have the
    /// default settings.
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

    /// Returns the minimum time between two deaths: the first server has returned and is reachable
    /// again, and resent requests have been served.
    pub(crate) fn death_interval(&self) -> Duration {
        slowest(&self.servers) * 100 + LONGEST_PAUSE * 2
    }

    /// Returns the maximum time that a request, begun before the faults ended, can keep a thread of
    /// a server.
    pub(crate) fn longest_service(&self) -> Duration {
        slowest(&self.servers) * (SLOWEST * EXPONENTIAL_CUTOFF)
    }

    /// Returns the maximum duration of a server's pause, or of its cold time after a start.
    pub(crate) fn longest_spell(&self) -> Duration {
        slowest(&self.servers) * 100
    }

    /// Returns the time after the last fault in which it may still have effects, step by step:
    /// servers finish their requests; queued requests have timed out; the endpoint ejected last is
    /// half-open and then starts slowly, while probes find it healthy.
    pub(crate) fn recovery(&self) -> Duration {
        let most = |of: &dyn Fn(&BackendPlan) -> Duration| {
            self.backends.iter().map(of).max().expect("a plan has backends")
        };
        let servers_finish = self.longest_service() + self.longest_spell();
        let queue_empties = most(&|backend| backend.patience + backend.timeout * 2);
        // A half-open period without a result is repeated after a second, and each endpoint needs a
        // half-open request.
        let tries = 4 * self.servers.len() * self.balancers * self.backends.len();
        let trials = self.easy_interval() * tries as u32 + Duration::from_secs(3);
        servers_finish
            + queue_empties
            + most(&|backend| policy::longest_return(&backend.health) + backend.lag)
            + trials
            + self.tick * 10
    }

    /// Returns an interval between evenly spaced arrivals at which each must find a free slot at
    /// once, even if all go to the same server: it could serve twice as many.
    pub(crate) fn easy_interval(&self) -> Duration {
        // A learned limit may be one.
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
        // From a third of the capacity to three times as much.
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

/// Returns the longest mean service time of a server.
pub(crate) fn slowest(servers: &[ServerPlan]) -> Duration {
    servers.iter().map(|server| server.service).max().expect("a plan has servers")
}
