//! Says what world a seed draws: who serves, who asks how often, and what bounds recovery.

use std::num::NonZeroU32;
use std::time::Duration;

use balance::{Algorithm, Limits};

use crate::dice::{Dice, LONGEST};

/// How many times slower than usual a slow endpoint is, at most.
pub(crate) const SLOWEST: u32 = 10;

#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) workers: usize,
    pub(crate) servers: Vec<ServerPlan>,
    /// With two, both name all servers: a slot freed by one is what the other waits for.
    pub(crate) backends: Vec<BackendPlan>,
    /// The mean time between faults.
    pub(crate) calm: Duration,
    /// How long there are faults.
    pub(crate) safety: Duration,
}

/// What stands at an endpoint.
#[derive(Debug)]
pub(crate) struct ServerPlan {
    /// The mean time to serve a request.
    pub(crate) service: Duration,
    /// Service times are exponentially distributed; else constant.
    pub(crate) varies: bool,
}

#[derive(Debug)]
pub(crate) struct BackendPlan {
    pub(crate) algorithm: Algorithm,
    /// One for each server, none of them 0.
    pub(crate) weights: Vec<u32>,
    pub(crate) limits: Limits,
    /// The mean time between arrivals.
    pub(crate) interval: Duration,
    /// How long a request waits for a slot at most.
    pub(crate) patience: Duration,
    /// How many clients in a hundred go before they are served.
    pub(crate) leaving_percent: u32,
    /// How late a worker learns of a change, at most.
    pub(crate) lag: Duration,
}

impl Plan {
    /// Requests of the phase with faults, about.
    const REQUESTS: u32 = 4_000;

    pub(crate) fn draw(dice: &mut Dice) -> Self {
        let usual = Duration::from_micros(u64::from(dice.between(200, 20_000)));
        let servers: Vec<_> =
            (0..dice.between(1, 12)).map(|_| ServerPlan::draw(dice, usual)).collect();
        let backends: Vec<_> =
            (0..dice.between(1, 2)).map(|_| BackendPlan::draw(dice, &servers)).collect();
        let interval: Duration = backends.iter().map(|backend| backend.interval).sum();
        let safety = interval * (Self::REQUESTS / backends.len().pow(2) as u32);
        let workers = dice.between(1, 8) as usize;
        Self { workers, servers, backends, calm: safety / dice.between(5, 100), safety }
    }

    fn slowest(servers: &[ServerPlan]) -> Duration {
        servers.iter().map(|server| server.service).max().expect("a plan has servers")
    }

    /// How long after the last fault it may still be felt: the longest service that can have begun before, then one
    /// patience for whom that has kept waiting, then a usual service for the last of those.
    pub(crate) fn recovery(&self) -> Duration {
        let slowest = Self::slowest(&self.servers);
        let patience = self.backends.iter().map(|backend| backend.patience).max();
        slowest * (SLOWEST * LONGEST) + patience.unwrap_or_default() + slowest * 2
    }

    /// Between arrivals that, evenly spaced, must each find a free slot at once: the slots of the smallest backend are
    /// enough for twice as many at the slowest server.
    pub(crate) fn easy_interval(&self) -> Duration {
        let slots = |backend: &BackendPlan| {
            backend.limits.cap.map_or(8, NonZeroU32::get) * self.servers.len() as u32
        };
        let slots = self.backends.iter().map(slots).min().expect("a plan has backends");
        Self::slowest(&self.servers) * 2 / slots
    }
}

impl ServerPlan {
    fn draw(dice: &mut Dice, usual: Duration) -> Self {
        Self { service: usual * dice.between(50, 200) / 100, varies: dice.percent(70) }
    }
}

impl BackendPlan {
    fn draw(dice: &mut Dice, servers: &[ServerPlan]) -> Self {
        let limits = draw_limits(dice);
        let slowest = Plan::slowest(servers);
        let slots = limits.cap.map_or(4, NonZeroU32::get) * servers.len() as u32;
        // From a third of what can be served to three times as much.
        let interval = slowest / slots * dice.between(33, 300) / 100;
        Self {
            algorithm: draw_algorithm(dice),
            weights: servers.iter().map(|_| dice.between(1, 5)).collect(),
            limits,
            interval,
            patience: slowest * dice.between(1, 30),
            leaving_percent: dice.between(0, 30),
            lag: slowest * dice.between(0, 5),
        }
    }
}

fn draw_algorithm(dice: &mut Dice) -> Algorithm {
    if dice.percent(50) { Algorithm::LeastLoad } else { Algorithm::RoundRobin }
}

pub(crate) fn draw_limits(dice: &mut Dice) -> Limits {
    let cap = if dice.percent(85) { NonZeroU32::new(dice.between(1, 4)) } else { None };
    let max_waiting = if dice.percent(85) { dice.between(1, 64) } else { 0 };
    Limits { cap, max_waiting }
}
