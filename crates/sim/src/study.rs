//! Study: waiting times under each picker, in one table by load, number of endpoints, variance and
//! fault.
//!
//! Each endpoint serves one request at a time and queues the others in order. There is no cap, so
//! all waiting is caused by the picker. Times are in mean service times.
//! `docs/internals/pickers.md` shows the table.

use std::time::Duration;

use balance::{
    Admission, AdmissionLimits, Algorithm, AttemptResult, ConcurrencyCap, Endpoint, EndpointSet,
    Outcome, PickRequest, Picker, Queue, Time, hash,
};

use crate::endpoint_sets;
use crate::event_queue::EventQueue;
use crate::random::{RandomSource, ServiceVariance};

const ALGORITHMS: [Algorithm; 6] = [
    Algorithm::LeastLoad,
    Algorithm::PeakEwma,
    Algorithm::RoundRobin,
    Algorithm::Random,
    Algorithm::ConsistentHash,
    Algorithm::Maglev,
];
const ENDPOINTS: [usize; 6] = [3, 10, 30, 100, 300, 1000];
const LOAD_PERCENTS: [u32; 6] = [50, 60, 70, 80, 90, 95];
/// Slowdown factor of the slow endpoint, if there is one.
const SLOWER: u32 = 5;
const SERVICE: Duration = Duration::from_millis(10);
const WORKERS: usize = 4;
/// Number of keys: as many as there might be clients.
const KEYS: usize = 10_000;
const REQUESTS_AT_LEAST: usize = 100_000;
/// Percentage of requests at the begin that are not counted, because the simulation begins empty.
const WARMING_UP_PERCENT: usize = 20;

/// Scenario: one row of the table.
struct PickerScenario {
    algorithm: Algorithm,
    endpoints: usize,
    load_percent: u32,
    variance: ServiceVariance,
    one_is_slow: bool,
}

/// Prints the table, a row for each combination.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(crate) fn print() {
    println!("picker,endpoints,load,variance,slow_endpoints,wait_p50,wait_p99,wait_mean");
    for scenario in scenarios() {
        let PickerScenario { algorithm, endpoints, load_percent, variance, one_is_slow } = scenario;
        let mut waits = scenario.run();
        waits.sort_by(f64::total_cmp);
        let at = |percent: usize| waits[waits.len() * percent / 100];
        let mean = waits.iter().sum::<f64>() / waits.len() as f64;
        let load = f64::from(load_percent) / 100.0;
        let (variance, slow) = (format!("{variance:?}").to_lowercase(), usize::from(one_is_slow));
        let (middle, most) = (at(50), at(99));
        println!(
            "{algorithm:?},{endpoints},{load},{variance},{slow},{middle:.4},{most:.4},{mean:.4}"
        );
    }
}

fn scenarios() -> Vec<PickerScenario> {
    let mut scenarios = Vec::new();
    for one_is_slow in [false, true] {
        for variance in [ServiceVariance::Low, ServiceVariance::High] {
            for endpoints in ENDPOINTS {
                for load_percent in LOAD_PERCENTS {
                    scenarios.extend(ALGORITHMS.map(|algorithm| PickerScenario {
                        algorithm,
                        endpoints,
                        load_percent,
                        variance,
                        one_is_slow,
                    }));
                }
            }
        }
    }
    scenarios
}

impl PickerScenario {
    /// Returns the wait of each request until its service began.
    fn run(&self) -> Vec<f64> {
        let requests = REQUESTS_AT_LEAST.max(self.endpoints * 300);
        let mut dice = RandomSource::new(42);
        let mut simulation = PickerSimulation::new(self, &mut dice);
        let mut waits = Vec::with_capacity(requests);
        let mut now = Time::ZERO;
        for _ in 0..requests {
            now = now + dice.exponential(self.interval());
            simulation.finish_until(now);
            waits.push(simulation.send(self, now, &mut dice));
        }
        waits.split_off(requests * WARMING_UP_PERCENT / 100)
    }

    /// Returns the interval between arrivals: the load is a share of the capacity of all endpoints,
    /// the slow one included.
    fn interval(&self) -> Duration {
        let slow = if self.one_is_slow { 1.0 - 1.0 / f64::from(SLOWER) } else { 0.0 };
        let served_at_a_time = self.endpoints as f64 - slow;
        SERVICE.div_f64(served_at_a_time * f64::from(self.load_percent) / 100.0)
    }

    fn service(&self, server: usize, dice: &mut RandomSource) -> Duration {
        let usual = SERVICE.mul_f64(dice.service_factor(self.variance));
        if self.one_is_slow && server == 0 { usual * SLOWER } else { usual }
    }
}

/// Backend, and the state of its endpoints.
struct PickerSimulation {
    set: EndpointSet<usize>,
    pickers: Vec<Picker>,
    admission: Admission,
    queue: Queue<usize, ()>,
    /// Time at which each endpoint will have finished its current requests.
    free_at: Vec<Time>,
    departures: EventQueue<RequestDeparture>,
}

struct RequestDeparture {
    server: usize,
    started: Time,
}

impl PickerSimulation {
    fn new(scenario: &PickerScenario, dice: &mut RandomSource) -> Self {
        let set = endpoint_sets::equal_endpoints(scenario.endpoints, |server| server);
        set.prepare(scenario.algorithm);
        let picker = |_| Picker::new(scenario.algorithm, dice.seed());
        Self {
            pickers: (0..WORKERS).map(picker).collect(),
            admission: Admission::new(),
            queue: Queue::new(EndpointSet::empty().into(), AdmissionLimits::default()),
            free_at: vec![Time::ZERO; scenario.endpoints],
            departures: EventQueue::new(),
            set,
        }
    }

    /// Finishes the requests that end by now.
    fn finish_until(&mut self, now: Time) {
        while let Some((at, departure)) = self.departures.next_until(now) {
            let endpoint: &Endpoint<usize> = &self.set.members()[departure.server].endpoint;
            let head_after = Some(at.saturating_since(departure.started));
            let outcome =
                Outcome { started: departure.started, head_after, result: AttemptResult::Success };
            endpoint.learn(&outcome, at);
            self.admission.release(endpoint, || at, || &mut self.queue);
        }
    }

    /// Sends one request; returns its wait.
    fn send(&mut self, scenario: &PickerScenario, now: Time, dice: &mut RandomSource) -> f64 {
        let key = hash::hash(&dice.below(KEYS).to_le_bytes());
        let request = PickRequest { key: Some(key), now, ..PickRequest::default() };
        let picker = &mut self.pickers[dice.below(WORKERS)];
        let endpoint =
            picker.take(&self.set, ConcurrencyCap::None, &request).expect("there is no cap");
        let server = endpoint.data;
        let begins = now.max(self.free_at[server]);
        let ends = begins + scenario.service(server, dice);
        self.free_at[server] = ends;
        self.departures.schedule(ends, RequestDeparture { server, started: now });
        begins.saturating_since(now).as_secs_f64() / SERVICE.as_secs_f64()
    }
}
