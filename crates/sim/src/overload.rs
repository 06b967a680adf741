//! Study: a queue in a sustained overload. Measures the waits of served requests, and the share of
//! the work that is of use.
//!
//! Clients are impatient and announce no deadline: a response that comes too late is wasted work
//! and takes as long as any other. `docs/internals/queue.md` shows the table.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, Algorithm, ConcurrencyCap,
    ControlledDelay, Endpoint, EndpointSet, PickRequest, Picker, Queue, QueueParameters, Ticket,
    Time,
};

use crate::endpoint_sets;
use crate::event_queue::EventQueue;
use crate::random::RandomSource;

const ENDPOINTS: usize = 6;
const SLOTS: u32 = 4;
/// Mean service time; times are exponential.
const SERVICE: Duration = Duration::from_millis(340);
const LOAD_PERCENTS: [u32; 6] = [90, 105, 120, 150, 200, 300];
/// Bounds of a client's patience for the whole response, uniformly distributed.
const PATIENCE_MILLISECONDS: (u32, u32) = (1_000, 3_000);
const QUEUE_TIMEOUT: Duration = Duration::from_secs(5);
const TARGET: Duration = Duration::from_millis(200);
const LASTS: Duration = Duration::from_secs(1_000);
/// Time at the begin that is not counted, because the simulation begins empty.
const WARMING_UP: Duration = Duration::from_secs(100);

/// Behaviour of a queue.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum QueueVariant {
    /// Every request waits for as long as the queue's timeout allows.
    Patient,
    /// A request whose expected wait exceeds that is rejected at once.
    Foresight,
    /// In addition, there is a target delay.
    Target,
    /// Clients announce their deadline, and a request whose expected wait exceeds it is rejected at
    /// once.
    Deadline,
}

const QUEUE_VARIANTS: [QueueVariant; 4] =
    [QueueVariant::Patient, QueueVariant::Foresight, QueueVariant::Target, QueueVariant::Deadline];

/// Prints the table, a row for each combination. Times are in seconds.
#[expect(clippy::print_stdout, reason = "the table is the output")]
pub(crate) fn print() {
    println!("queue,load,wait_p50,wait_p99,busy,in_time,refused_p50");
    for load_percent in LOAD_PERCENTS {
        for variant in QUEUE_VARIANTS {
            let load = f64::from(load_percent) / 100.0;
            let OverloadResult { mut waits, mut refused, busy, in_time } =
                OverloadSimulation::new(variant).run(load);
            let (middle, most) = (percentile(&mut waits, 50), percentile(&mut waits, 99));
            let refused = percentile(&mut refused, 50);
            let variant = format!("{variant:?}").to_lowercase();
            println!("{variant},{load},{middle:.3},{most:.3},{busy:.3},{in_time:.3},{refused:.3}");
        }
    }
}

fn percentile(times: &mut [Duration], percent: usize) -> f64 {
    times.sort_unstable();
    let time = times.get(times.len() * percent / 100);
    time.map_or(0.0, Duration::as_secs_f64)
}

#[derive(Default)]
struct OverloadResult {
    /// Waits of served requests.
    waits: Vec<Duration>,
    /// Waits of rejected requests.
    refused: Vec<Duration>,
    /// Share of all slots' time that was work.
    busy: f64,
    /// Share of all slots' time that was work for a client that still waited when it was done.
    in_time: f64,
}

#[derive(Clone, Copy)]
struct ImpatientClient {
    arrived: Time,
    leaves: Time,
}

enum OverloadEvent {
    Arrive,
    Finish(Arc<Endpoint<()>>),
    WaitTimeout(u64),
}

struct OverloadSimulation {
    variant: QueueVariant,
    set: Arc<EndpointSet<()>>,
    limits: AdmissionLimits,
    picker: Picker,
    admission: Admission,
    queue: Queue<(), u64>,
    waiting: BTreeMap<u64, (ImpatientClient, Arc<Ticket<()>>)>,
    events: EventQueue<OverloadEvent>,
    dice: RandomSource,
    now: Time,
    next: u64,
    result: OverloadResult,
}

impl OverloadSimulation {
    fn new(variant: QueueVariant) -> Self {
        let set = Arc::new(endpoint_sets::equal_endpoints(ENDPOINTS, |_| ()));
        let delay = ControlledDelay { target: TARGET, interval: QUEUE_TIMEOUT };
        let limits = AdmissionLimits {
            cap: ConcurrencyCap::of(SLOTS),
            max_waiting: 1_024,
            fair: true,
            delay: (variant == QueueVariant::Target).then_some(delay),
        };
        Self {
            variant,
            limits,
            picker: Picker::new(Algorithm::LeastLoad, 1),
            admission: Admission::new(),
            queue: Queue::new(set.clone(), limits),
            set,
            waiting: BTreeMap::new(),
            events: EventQueue::new(),
            dice: RandomSource::new(42),
            now: Time::ZERO,
            next: 0,
            result: OverloadResult::default(),
        }
    }

    fn run(mut self, load: f64) -> OverloadResult {
        let slots = ENDPOINTS as f64 * f64::from(SLOTS);
        let interval = SERVICE.div_f64(slots * load);
        self.events.schedule(Time::ZERO, OverloadEvent::Arrive);
        let end = Time::ZERO + LASTS;
        while let Some((at, event)) = self.events.next_until(end) {
            self.now = at;
            match event {
                OverloadEvent::Arrive => {
                    let next = self.dice.exponential(interval);
                    self.events.schedule(at + next, OverloadEvent::Arrive);
                    self.arrive();
                }
                OverloadEvent::Finish(endpoint) => self.finish(&endpoint),
                OverloadEvent::WaitTimeout(number) => self.wait_timed_out(number),
            }
        }
        let all = slots * (LASTS - WARMING_UP).as_secs_f64();
        let OverloadResult { busy, in_time, .. } = self.result;
        OverloadResult { busy: busy / all, in_time: in_time / all, ..self.result }
    }

    fn arrive(&mut self) {
        let (least, most) = PATIENCE_MILLISECONDS;
        let patience = Duration::from_millis(u64::from(self.dice.between(least, most)));
        let client = ImpatientClient { arrived: self.now, leaves: self.now + patience };
        let timeout = self.now + QUEUE_TIMEOUT;
        let until = match self.variant {
            QueueVariant::Patient => Time::MAX,
            QueueVariant::Foresight | QueueVariant::Target => timeout,
            QueueVariant::Deadline => client.leaves,
        };
        let request = PickRequest {
            now: self.now,
            queueing: QueueParameters { deadline: until, ..QueueParameters::default() },
            ..PickRequest::default()
        };
        let (queue, number) = (&mut self.queue, self.next);
        self.next += 1;
        let entry = self.admission.enter(
            &mut self.picker,
            AdmissionConfig { set: &self.set, limits: self.limits },
            &request,
            || queue,
            || number,
        );
        match entry {
            AdmissionDecision::Slot(endpoint) => self.start(client, endpoint),
            AdmissionDecision::Waiting { ticket, .. } => {
                self.waiting.insert(number, (client, ticket));
                self.events.schedule(until.min(timeout), OverloadEvent::WaitTimeout(number));
            }
            AdmissionDecision::Rejected(_) => self.refuse(client),
        }
    }

    fn start(&mut self, client: ImpatientClient, endpoint: Arc<Endpoint<()>>) {
        let takes = self.dice.exponential(SERVICE);
        let ends = self.now + takes;
        if self.counts() {
            self.result.waits.push(self.now.saturating_since(client.arrived));
            self.result.busy += takes.as_secs_f64();
            if ends <= client.leaves {
                self.result.in_time += takes.as_secs_f64();
            }
        }
        self.events.schedule(ends, OverloadEvent::Finish(endpoint));
    }

    fn finish(&mut self, endpoint: &Endpoint<()>) {
        let now = self.now;
        let woken = self.admission.release(endpoint, || now, || &mut self.queue);
        for number in woken {
            let (client, ticket) =
                self.waiting.remove(&number).expect("a woken request was queued");
            match ticket.granted() {
                Some(endpoint) => self.start(client, endpoint),
                None => self.refuse(client),
            }
        }
    }

    fn wait_timed_out(&mut self, number: u64) {
        let Some((client, ticket)) = self.waiting.remove(&number) else { return };
        assert!(self.admission.cancel(&ticket), "a granted request is woken at once");
        self.refuse(client);
    }

    fn refuse(&mut self, client: ImpatientClient) {
        if self.counts() {
            self.result.refused.push(self.now.saturating_since(client.arrived));
        }
    }

    fn counts(&self) -> bool {
        self.now >= Time::ZERO + WARMING_UP
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queue_delay_target_avoids_wasted_work_in_sustained_overload() {
        let run = |variant| OverloadSimulation::new(variant).run(2.0);
        let [patient, foresight, target] =
            [QueueVariant::Patient, QueueVariant::Foresight, QueueVariant::Target].map(run);
        for it in [&patient, &foresight, &target] {
            assert!(it.busy > 0.95, "slots were busy for {} of the time", it.busy);
        }
        assert!(patient.in_time < 0.1 && foresight.in_time < 0.1);
        assert!(target.in_time > 0.8, "{}", target.in_time);
    }
}
