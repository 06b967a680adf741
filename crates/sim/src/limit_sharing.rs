//! Study of learned limits of several replicas in front of the same endpoints: each learns alone, or
//! they share what they learn. `docs/internals/replicas.md` shows the table.

use std::time::Duration;

/// Simulation of a scenario.
mod simulation;

use simulation::SharingSimulation;

/// Number of endpoints.
const ENDPOINTS: usize = 6;
/// Service time while requests do not wait.
const SERVICE: Duration = Duration::from_millis(100);
/// Time of learning, which results do not include.
const LEARNING: Duration = Duration::from_secs(120);
/// Time after another incident than a change of capacity, which results do not include.
const ADAPTING: Duration = Duration::from_secs(5);

/// Exchange of messages between replicas.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum MessageExchange {
    /// There is none: each replica learns alone.
    None,
    /// This share of messages is lost, in percent.
    WithLoss(u32),
}

/// Requests of all replicas together.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum RequestLoad {
    /// Clients for each slot of the first capacity, each with one request after the other.
    ClientsPerSlot(usize),
    /// Requests at random, as a share of what endpoints can serve at first, in percent.
    Percent(u32),
}

/// Event at some time.
#[derive(Clone, Copy, Debug)]
pub(crate) enum SharingIncident {
    /// Each endpoint has this many workers from now on.
    Capacity(usize),
    /// Requests are split like this from now on.
    Split([u32; 3]),
    /// No message reaches or leaves this replica from now on; its requests go on.
    CutOff(usize),
    /// Messages pass again.
    Restored(usize),
    /// The replica has gone: the list says so, and its clients go to the next.
    Leaves(usize),
}

/// Scenario: one row of the table.
#[derive(Clone, Debug)]
pub(crate) struct SharingScenario {
    pub(crate) name: &'static str,
    pub(crate) exchange: MessageExchange,
    /// Share of requests at each replica, in percent.
    pub(crate) split: [u32; 3],
    pub(crate) load: RequestLoad,
    pub(crate) service: Duration,
    /// Workers of each endpoint at first.
    pub(crate) workers: usize,
    pub(crate) incidents: Vec<(Duration, SharingIncident)>,
    pub(crate) lasts: Duration,
    pub(crate) seed: u64,
}

/// One second of a scenario.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharingSecond {
    /// Workers of each endpoint.
    pub(crate) workers: usize,
    /// Sum of the limits in force of replicas that have requests, mean over endpoints.
    pub(crate) limits: f64,
    /// Highest such sum at any endpoint in the second.
    pub(crate) most: u32,
    pub(crate) served: u64,
    /// Sum of the times at the endpoint of these, in seconds.
    pub(crate) endpoint_seconds: f64,
}

/// Result of a scenario: its seconds.
#[derive(Debug, Default)]
pub(crate) struct SharingResult {
    pub(crate) seconds: Vec<SharingSecond>,
}

/// Means over some seconds.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SharingFigures {
    /// Sum of limits, relative to workers.
    pub(crate) limits: f64,
    /// Highest such sum of a second.
    pub(crate) most: f64,
    /// Share of the seconds in which it is more than a quarter, and one slot, off.
    pub(crate) off: f64,
    /// Throughput, relative to what all workers can serve.
    pub(crate) throughput: f64,
    /// Time at the endpoint, relative to the service time.
    pub(crate) slowness: f64,
}

impl SharingScenario {
    pub(crate) fn new(exchange: MessageExchange, split: [u32; 3], load: RequestLoad) -> Self {
        Self {
            name: "capacity changes",
            exchange,
            split,
            load,
            service: SERVICE,
            workers: 8,
            incidents: vec![
                (Duration::from_secs(400), SharingIncident::Capacity(4)),
                (Duration::from_secs(800), SharingIncident::Capacity(12)),
            ],
            lasts: Duration::from_secs(1200),
            seed: 1,
        }
    }

    pub(crate) fn run(&self) -> SharingResult {
        SharingSimulation::new(self).run()
    }
}

impl SharingResult {
    pub(crate) fn figures(
        &self,
        seconds: std::ops::Range<usize>,
        service: Duration,
    ) -> SharingFigures {
        let seconds = &self.seconds[seconds];
        let count = seconds.len() as f64;
        let mean = |of: &dyn Fn(&SharingSecond) -> f64| seconds.iter().map(of).sum::<f64>() / count;
        let workers = |second: &SharingSecond| second.workers as f64;
        let is_off = |second: &SharingSecond| {
            let off = (second.limits - workers(second)).abs();
            off > (workers(second) / 4.0).max(1.0)
        };
        let served: u64 = seconds.iter().map(|second| second.served).sum();
        let most = seconds.iter().map(|second| f64::from(second.most) / workers(second));
        let endpoint_seconds: f64 = seconds.iter().map(|second| second.endpoint_seconds).sum();
        let slots: f64 = seconds.iter().map(|second| (second.workers * ENDPOINTS) as f64).sum();
        SharingFigures {
            limits: mean(&|second| second.limits / workers(second)),
            most: most.fold(0.0, f64::max),
            off: mean(&|second| f64::from(u8::from(is_off(second)))),
            throughput: served as f64 * service.as_secs_f64() / slots,
            slowness: endpoint_seconds / served as f64 / service.as_secs_f64(),
        }
    }
}

/// Prints the table, a row for each scenario and time.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(crate) fn print() {
    println!("scenario,split,load,exchange,workers,limits,most,off,throughput,slowness");
    for scenario in scenarios() {
        let result = scenario.run();
        let times = scenario.times();
        for seconds in times {
            let workers = result.seconds[seconds.start].workers;
            let figures = result.figures(seconds, scenario.service);
            println!(
                "{},{}/{}/{},{:?},{:?},{workers},{:.2},{:.2},{:.3},{:.3},{:.2}",
                scenario.name,
                scenario.split[0],
                scenario.split[1],
                scenario.split[2],
                scenario.load,
                scenario.exchange,
                figures.limits,
                figures.most,
                figures.off,
                figures.throughput,
                figures.slowness,
            );
        }
    }
}

impl SharingScenario {
    /// Returns the times between incidents, each without the time of learning or adapting.
    pub(crate) fn times(&self) -> Vec<std::ops::Range<usize>> {
        let at = |time: Duration| time.as_secs() as usize;
        let start = |&(at, incident): &(Duration, SharingIncident)| match incident {
            SharingIncident::Capacity(_) => at + LEARNING,
            SharingIncident::Split(_)
            | SharingIncident::CutOff(_)
            | SharingIncident::Restored(_)
            | SharingIncident::Leaves(_) => at + ADAPTING,
        };
        let starts = [LEARNING].into_iter().chain(self.incidents.iter().map(start));
        let ends = self.incidents.iter().map(|it| it.0).chain([self.lasts]);
        starts.zip(ends).map(|(start, end)| at(start)..at(end)).collect()
    }
}

const SPLITS: [[u32; 3]; 3] = [[34, 33, 33], [70, 20, 10], [100, 0, 0]];

fn scenarios() -> Vec<SharingScenario> {
    let mut scenarios = Vec::new();
    for load in [RequestLoad::ClientsPerSlot(3), RequestLoad::Percent(90), RequestLoad::Percent(50)]
    {
        for split in SPLITS {
            for exchange in [MessageExchange::None, MessageExchange::WithLoss(0)] {
                scenarios.push(SharingScenario::new(exchange, split, load));
            }
        }
    }
    scenarios.extend(incidents());
    scenarios
}

/// Returns scenarios in which messages, replicas or requests change, and the capacity does not.
pub(crate) fn incidents() -> Vec<SharingScenario> {
    let seconds = Duration::from_secs;
    let full = RequestLoad::ClientsPerSlot(3);
    let base = |name, incidents| SharingScenario {
        name,
        incidents,
        lasts: seconds(600),
        ..SharingScenario::new(MessageExchange::WithLoss(0), [34, 33, 33], full)
    };
    vec![
        SharingScenario {
            exchange: MessageExchange::WithLoss(30),
            ..base("30 % of messages lost", Vec::new())
        },
        base(
            "requests move",
            vec![
                (seconds(200), SharingIncident::Split([100, 0, 0])),
                (seconds(300), SharingIncident::Split([0, 100, 0])),
                (seconds(400), SharingIncident::Split([10, 20, 70])),
            ],
        ),
        base(
            "first cut off for 20 s",
            vec![
                (seconds(300), SharingIncident::CutOff(0)),
                (seconds(320), SharingIncident::Restored(0)),
            ],
        ),
        base(
            "second cut off for 200 s",
            vec![
                (seconds(300), SharingIncident::CutOff(1)),
                (seconds(500), SharingIncident::Restored(1)),
            ],
        ),
        base("first leaves", vec![(seconds(300), SharingIncident::Leaves(0))]),
    ]
}

#[cfg(test)]
mod tests;
