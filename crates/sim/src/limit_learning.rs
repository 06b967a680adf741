//! Study of limit learning: one table, by workers, clients, service times and incidents.
//!
//! Each endpoint has some workers and a backlog, or shares processors among all its requests. The
//! limiter, the picker and the queue are production code. Each row also has the result of the same
//! simulation with a fixed cap of one request per worker. `docs/internals/limits.md` shows the
//! table.

use std::time::Duration;

use balance::ConcurrencyCap;

use crate::random::ServiceVariance;

/// Model of an endpoint.
mod model_server;
/// Simulation of a scenario.
mod simulation;

pub(crate) use model_server::{ModelServer, NextFinish, RunningRequest};

use simulation::LimitSimulation;

/// Service time of article 001.
const SERVICE: Duration = Duration::from_millis(340);
/// Time of learning; its results are counted separately.
pub(crate) const LEARNING: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ServiceDiscipline {
    /// Each worker serves one request after the other; other requests wait in order.
    Workers,
    /// All requests share as many processors as there are workers.
    Processors,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientModel {
    /// Closed loop: this many clients, each with one request after the other.
    Closed(usize),
    /// Open loop: requests arrive at random, with this mean interval.
    Open(Duration),
}

/// Change of one endpoint, or of all.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointChange {
    pub(crate) at: Duration,
    pub(crate) endpoint: Option<usize>,
    pub(crate) workers: Option<usize>,
    pub(crate) slower: f64,
}

/// Scenario: one row of the table.
#[derive(Clone, Debug)]
pub(crate) struct LimitScenario {
    pub(crate) name: &'static str,
    /// Workers of each endpoint.
    pub(crate) workers: Vec<usize>,
    pub(crate) sharing: ServiceDiscipline,
    pub(crate) variance: ServiceVariance,
    pub(crate) service: Duration,
    pub(crate) clients: ClientModel,
    pub(crate) changes: Vec<EndpointChange>,
    /// Amplitude of a periodic change of service times, relative to their mean; the period is two
    /// hours.
    pub(crate) drift: f64,
    pub(crate) lasts: Duration,
    pub(crate) cap: ConcurrencyCap,
    pub(crate) seed: u64,
}

/// Result of a scenario.
#[derive(Debug, Default)]
pub(crate) struct LimitScenarioResult {
    /// Requests served during learning, and after it.
    pub(crate) served: [u64; 2],
    /// Latencies after learning in seconds, sorted.
    pub(crate) latencies: Vec<f64>,
    /// Limit and number of workers of each endpoint at the end of each second.
    pub(crate) limits: Vec<Vec<(u32, usize)>>,
}

impl LimitScenario {
    /// Returns the scenario of article 001: six endpoints with this many workers each, and this
    /// many clients.
    pub(crate) fn article(workers: usize, clients: usize) -> Self {
        Self {
            name: "article 001",
            workers: vec![workers; 6],
            sharing: ServiceDiscipline::Workers,
            variance: ServiceVariance::Exponential,
            service: SERVICE,
            clients: ClientModel::Closed(clients),
            changes: Vec::new(),
            drift: 0.0,
            lasts: Duration::from_secs(600),
            cap: ConcurrencyCap::Learned,
            seed: 0,
        }
    }

    pub(crate) fn run(&self) -> LimitScenarioResult {
        LimitSimulation::new(self).run()
    }

    fn fixed(&self) -> Self {
        Self { cap: ConcurrencyCap::of(self.workers[0] as u32), ..self.clone() }
    }
}

/// Prints the table, a row for each scenario.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(crate) fn print() {
    println!(
        "scenario,workers,sharing,variance,clients,throughput_learning,throughput,latency_mean,latency_p99,\
         fixed_mean,fixed_p99,limit_120s_least,limit_120s_most,limit_least,limit_most,off_by_more_than_one"
    );
    for scenario in scenarios() {
        let (learned, fixed) = (scenario.run(), scenario.fixed().run());
        let part = |at: usize| learned.served[at] as f64 / fixed.served[at].max(1) as f64;
        let workers: Vec<String> = scenario.workers.iter().map(ToString::to_string).collect();
        let at_120 =
            learned.limit_range(LEARNING.as_secs() as usize..LEARNING.as_secs() as usize + 1);
        let after = learned.limit_range(LEARNING.as_secs() as usize..learned.limits.len());
        println!(
            "{},{},{:?},{:?},{:?},{:.3},{:.3},{:.3},{:.3},{:.3},{:.3},{},{},{},{},{:.4}",
            scenario.name,
            workers.join("+"),
            scenario.sharing,
            scenario.variance,
            scenario.clients,
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
            learned.share_off_by_more_than_one(LEARNING.as_secs() as usize),
        );
    }
}

fn scenarios() -> Vec<LimitScenario> {
    let mut scenarios = Vec::new();
    for sharing in [ServiceDiscipline::Workers, ServiceDiscipline::Processors] {
        for variance in [
            ServiceVariance::Exponential,
            ServiceVariance::Low,
            ServiceVariance::None,
            ServiceVariance::High,
        ] {
            for workers in [2, 4, 8] {
                scenarios.extend([16, 24, 48].map(|clients| LimitScenario {
                    sharing,
                    variance,
                    ..LimitScenario::article(workers, clients)
                }));
            }
        }
    }
    scenarios.extend(incidents());
    scenarios
}

/// Returns scenarios with incidents or unusual endpoints.
pub(crate) fn incidents() -> Vec<LimitScenario> {
    let base =
        || LimitScenario { lasts: Duration::from_secs(1200), ..LimitScenario::article(4, 48) };
    let change = |at, endpoint, workers, slower| EndpointChange {
        at: Duration::from_secs(at),
        endpoint,
        workers,
        slower,
    };
    let open = |percent: u32| ClientModel::Open(SERVICE * 100 / (6 * 4 * percent));
    vec![
        LimitScenario {
            name: "one endpoint",
            workers: vec![4],
            clients: ClientModel::Closed(24),
            ..base()
        },
        LimitScenario { name: "of different size", workers: vec![4, 2, 4, 8, 8, 2], ..base() },
        LimitScenario {
            name: "one grows to 8",
            changes: vec![change(300, Some(2), Some(8), 1.0)],
            ..base()
        },
        LimitScenario {
            name: "all shrink to 4",
            workers: vec![8; 6],
            clients: ClientModel::Closed(96),
            changes: vec![change(300, None, Some(4), 1.0)],
            ..base()
        },
        LimitScenario {
            name: "all 3 times slower for 200 s",
            changes: vec![change(300, None, None, 3.0), change(500, None, None, 1.0)],
            ..base()
        },
        LimitScenario {
            name: "one 10 times slower for 100 s",
            changes: vec![change(300, Some(1), None, 10.0), change(400, Some(1), None, 1.0)],
            ..base()
        },
        LimitScenario { name: "5 ms", service: Duration::from_millis(5), ..base() },
        LimitScenario {
            name: "10 s",
            service: Duration::from_secs(10),
            lasts: Duration::from_secs(6000),
            ..base()
        },
        LimitScenario {
            name: "50 workers",
            workers: vec![50; 6],
            service: Duration::from_millis(100),
            clients: ClientModel::Closed(600),
            lasts: Duration::from_secs(400),
            ..base()
        },
        LimitScenario { name: "90 % of what can be served", clients: open(90), ..base() },
        LimitScenario { name: "50 % of what can be served", clients: open(50), ..base() },
        LimitScenario { name: "10 % of what can be served", clients: open(10), ..base() },
        LimitScenario {
            name: "6 hours of drift",
            drift: 0.8,
            clients: ClientModel::Closed(30),
            lasts: Duration::from_secs(6 * 3600),
            ..base()
        },
    ]
}

impl LimitScenarioResult {
    pub(crate) fn mean(&self) -> f64 {
        self.latencies.iter().sum::<f64>() / self.latencies.len().max(1) as f64
    }

    pub(crate) fn p99(&self) -> f64 {
        self.latencies.get(self.latencies.len() * 99 / 100).copied().unwrap_or_default()
    }

    /// Returns the least and the highest limit of any endpoint in these seconds.
    pub(crate) fn limit_range(&self, seconds: std::ops::Range<usize>) -> (u32, u32) {
        let limits = || self.limits[seconds.clone()].iter().flatten().map(|&(limit, _)| limit);
        (limits().min().unwrap_or(0), limits().max().unwrap_or(0))
    }

    /// Returns the share of the time since this second in which limits differed by more than one
    /// from the number of workers.
    pub(crate) fn share_off_by_more_than_one(&self, since: usize) -> f64 {
        let all = || self.limits[since..].iter().flatten();
        let off = all().filter(|&&(limit, workers)| u64::from(limit).abs_diff(workers as u64) > 1);
        off.count() as f64 / all().count().max(1) as f64
    }
}

#[cfg(test)]
mod tests;
