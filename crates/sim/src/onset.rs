//! Study: time until a picker avoids an endpoint that becomes slow, as the 99th percentile of
//! latency from that moment on.
//!
//! It simulates the scenario `slow` of `lab/experiments/bad-endpoints`: five endpoints, each of
//! which serves four requests at a time, in 5 ms on average; 1,600 requests per second, at random
//! times. After one second one endpoint becomes ten times slower.

use std::collections::VecDeque;
use std::time::Duration;

use balance::{
    Admission, AdmissionLimits, Algorithm, AttemptResult, ConcurrencyCap, EndpointSet, Outcome,
    PickRequest, Picker, Queue, Time,
};

use crate::endpoint_sets;
use crate::event_queue::EventQueue;
use crate::random::{RandomSource, ServiceVariance};

const ALGORITHMS: [Algorithm; 2] = [Algorithm::LeastLoad, Algorithm::PeakEwma];
const ENDPOINTS: usize = 5;
const PLACES: usize = 4;
const SERVICE: Duration = Duration::from_millis(5);
const INTERVAL: Duration = Duration::from_micros(625);
const SLOWER: u32 = 10;
const ONSET: Time = Time::from_nanos(1_000_000_000);
const COUNTED: [u64; 2] = [3, 5];
const SEEDS: u64 = 101;

/// Prints a row for each algorithm and length of the measurement.
pub(crate) fn print() {
    println!("picker,seconds,latency_p99_ms,to_the_slow_endpoint_percent");
    for seconds in COUNTED {
        for algorithm in ALGORITHMS {
            let runs = (0..SEEDS).map(|seed| OnsetSimulation::new(algorithm, seed).run(seconds));
            let (mut latencies, mut shares): (Vec<_>, Vec<_>) = runs.unzip();
            latencies.sort_by(f64::total_cmp);
            shares.sort_by(f64::total_cmp);
            let middle = SEEDS as usize / 2;
            let (latency, share) = (latencies[middle], shares[middle]);
            println!("{algorithm:?},{seconds},{latency:.1},{share:.1}");
        }
    }
}

struct OnsetSimulation {
    dice: RandomSource,
    set: EndpointSet<usize>,
    picker: Picker,
    admission: Admission,
    queue: Queue<usize, ()>,
    servers: Vec<FifoServer>,
    departures: EventQueue<ServerRequest>,
    /// Latencies of requests that were sent from the onset on, at the end of the measurement.
    latencies: Vec<f64>,
    slow: usize,
}

#[derive(Default)]
struct FifoServer {
    serving: usize,
    waiting: VecDeque<Time>,
}

struct ServerRequest {
    server: usize,
    started: Time,
}

impl OnsetSimulation {
    fn new(algorithm: Algorithm, seed: u64) -> Self {
        let mut dice = RandomSource::new(seed);
        let set = endpoint_sets::equal_endpoints(ENDPOINTS, |server| server);
        set.prepare(algorithm);
        Self {
            picker: Picker::new(algorithm, dice.seed()),
            dice,
            set,
            admission: Admission::new(),
            queue: Queue::new(EndpointSet::empty().into(), AdmissionLimits::default()),
            servers: (0..ENDPOINTS).map(|_| FifoServer::default()).collect(),
            departures: EventQueue::new(),
            latencies: Vec::new(),
            slow: 0,
        }
    }

    /// Returns the 99th percentile in ms, and the share of the slow endpoint in percent.
    fn run(mut self, seconds: u64) -> (f64, f64) {
        let end = ONSET + Duration::from_secs(seconds);
        let mut now = Time::ZERO;
        while now < end {
            now = now + self.dice.exponential(INTERVAL);
            self.finish_until(now);
            self.send(now);
        }
        while let Some((at, request)) = self.departures.next() {
            self.depart(request, at);
        }
        self.latencies.sort_by(f64::total_cmp);
        let count = self.latencies.len();
        (self.latencies[count * 99 / 100], self.slow as f64 * 100.0 / count as f64)
    }

    fn finish_until(&mut self, now: Time) {
        while let Some((at, request)) = self.departures.next_until(now) {
            self.depart(request, at);
        }
    }

    fn depart(&mut self, ServerRequest { server, started }: ServerRequest, at: Time) {
        let latency = at.saturating_since(started);
        let endpoint = &self.set.members()[server].endpoint;
        endpoint.learn(
            &Outcome { started, head_after: Some(latency), result: AttemptResult::Success },
            at,
        );
        self.admission.release(endpoint, || at, || &mut self.queue);
        if started >= ONSET {
            self.latencies.push(latency.as_secs_f64() * 1e3);
            self.slow += usize::from(server == 0);
        }
        self.servers[server].serving -= 1;
        if let Some(started) = self.servers[server].waiting.pop_front() {
            self.serve(server, started, at);
        }
    }

    fn send(&mut self, now: Time) {
        let request = PickRequest { now, ..PickRequest::default() };
        let endpoint =
            self.picker.take(&self.set, ConcurrencyCap::None, &request).expect("there is no cap");
        let server = endpoint.data;
        if self.servers[server].serving < PLACES {
            self.serve(server, now, now);
        } else {
            self.servers[server].waiting.push_back(now);
        }
    }

    fn serve(&mut self, server: usize, started: Time, now: Time) {
        self.servers[server].serving += 1;
        let usual = SERVICE.mul_f64(self.dice.service_factor(ServiceVariance::Exponential));
        let service = if server == 0 && now >= ONSET { usual * SLOWER } else { usual };
        self.departures.schedule(now + service, ServerRequest { server, started });
    }
}
