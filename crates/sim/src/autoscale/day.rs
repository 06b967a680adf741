//! Simulation of a day, in order of time: requests arrive, wait, are served or rejected; pods start
//! and terminate; the scaler runs.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use balance::demand::{self, DemandShard, RejectedDemand};
use balance::{
    Admission, AdmissionConfig, AdmissionDecision, Algorithm, AttemptResult, EndpointSet, Outcome,
    PickRequest, Picker, Queue, QueueParameters, Ticket, Time,
};

use super::metrics::MetricHistory;
use super::pods::{PodEndpoint, PodSet};
use super::record::{DayRecord, MinuteMeans};
use super::scaler::{PodScaler, ScalerInput};
use super::settings::DaySettings;
use super::traffic::TrafficSource;
use crate::event_queue::EventQueue;
use crate::random::RandomSource;

const WORKERS: usize = 4;

pub(crate) struct DaySimulation<'a> {
    settings: &'a DaySettings,
    traffic: TrafficSource,
    dice: RandomSource,
    now: Time,
    events: EventQueue<DayEvent>,
    pods: PodSet,
    set: Arc<EndpointSet<()>>,
    pickers: Vec<Picker>,
    admission: Admission,
    queue: Queue<(), u64>,
    waiting: WaiterTable,
    demand: DemandAccounting,
    metrics: MetricHistory,
    scaler: PodScaler,
    record: DayRecord,
    /// Sums over the seconds since the last minute, and since the last run of the scaler.
    minute: SecondSums,
    watched: SecondSums,
}

enum DayEvent {
    /// The endpoint has finished with a request.
    Finish { endpoint: Arc<PodEndpoint>, started: Time },
    /// A client that was rejected retries.
    Retry { client: RetryingClient, counted_until: Time },
    /// A queued request has waited for its timeout.
    WaitTimeout(u64),
    /// This many seconds are over.
    Second(u64),
}

#[derive(Clone, Copy)]
struct RetryingClient {
    arrived: Time,
    tries: u32,
}

/// Queued requests, numbered in the order of arrival.
#[derive(Default)]
struct WaiterTable {
    first: u64,
    waiters: VecDeque<Option<WaitingClient>>,
}

struct WaitingClient {
    client: RetryingClient,
    ticket: Arc<Ticket<()>>,
}

/// Demand as the balancer computes it for scalers.
struct DemandAccounting {
    shard: DemandShard,
    rejected: RejectedDemand,
    averager: demand::DemandAverager,
}

/// Sums of readings that are taken each second.
#[derive(Clone, Copy, Default)]
struct SecondSums {
    seconds: f64,
    burst: f64,
    needed: f64,
    pods: f64,
    ready: f64,
    pending: f64,
    nodes: f64,
    /// Values at the begin of the first second.
    request_seconds: f64,
    refused: u64,
}

impl<'a> DaySimulation<'a> {
    pub(crate) fn new(settings: &'a DaySettings) -> Self {
        let traffic = TrafficSource::new(settings);
        let mut dice = RandomSource::new(settings.seed ^ 2);
        let target = f64::from(settings.scaler.target_percent) / 100.0;
        let least = u32::from(settings.scaler.keda.is_none());
        let first = ((traffic.needed(0) / target).ceil() as u32).max(least);
        let pods = PodSet::new(settings, first);
        let set = pods.set();
        let picker = |_| Picker::new(Algorithm::LeastLoad, dice.seed());
        let mut day = Self {
            pickers: (0..WORKERS).map(picker).collect(),
            admission: Admission::new(),
            queue: Queue::new(set.clone(), settings.limits),
            waiting: WaiterTable::default(),
            demand: DemandAccounting {
                shard: DemandShard::new(),
                rejected: RejectedDemand::new(),
                averager: demand::DemandAverager::new(Time::ZERO),
            },
            metrics: MetricHistory::new(settings.scaler.metric_age),
            scaler: PodScaler::new(settings),
            record: DayRecord::default(),
            minute: SecondSums::default(),
            watched: SecondSums::default(),
            now: Time::ZERO,
            events: EventQueue::new(),
            settings,
            traffic,
            dice,
            pods,
            set,
        };
        day.events.schedule(Time::ZERO + Duration::from_secs(1), DayEvent::Second(1));
        day
    }

    /// Runs the day.
    pub(crate) fn run(mut self) -> DayRecord {
        while let Some(at) = self.traffic.next() {
            while let Some((at, event)) = self.events.next_until(at) {
                self.handle(at, event);
            }
            self.now = at;
            self.record.current_minute().arrived += 1;
            self.request_slot(RetryingClient { arrived: at, tries: 0 });
        }
        while let Some((at, event)) = self.events.next() {
            self.handle(at, event);
        }
        self.check_end();
        self.record
    }

    fn handle(&mut self, at: Time, event: DayEvent) {
        self.now = at;
        match event {
            DayEvent::Finish { endpoint, started } => self.finish(&endpoint, started),
            DayEvent::Retry { client, counted_until } => {
                self.demand.rejected.record_retry(counted_until, at);
                self.request_slot(client);
            }
            DayEvent::WaitTimeout(number) => self.wait_timed_out(number),
            DayEvent::Second(second) => self.second(second),
        }
    }

    fn request_slot(&mut self, client: RetryingClient) {
        let client = RetryingClient { tries: client.tries + 1, ..client };
        let until = self.now + self.settings.patience;
        let queueing = QueueParameters { deadline: until, ..QueueParameters::default() };
        let request = PickRequest { now: self.now, queueing, ..PickRequest::default() };
        let picker = &mut self.pickers[self.dice.below(WORKERS)];
        let (queue, number) = (&mut self.queue, self.waiting.next_number());
        let config = AdmissionConfig { set: &self.set, limits: self.settings.limits };
        match self.admission.enter(picker, config, &request, || queue, || number) {
            AdmissionDecision::Slot(endpoint) => {
                self.demand.shard.take(self.now);
                self.start(client, endpoint);
            }
            AdmissionDecision::Waiting { ticket, evicted: _ } => {
                self.demand.shard.wait(self.now);
                self.waiting.waiters.push_back(Some(WaitingClient { client, ticket }));
                self.events
                    .schedule(self.now + self.settings.patience, DayEvent::WaitTimeout(number));
            }
            AdmissionDecision::Rejected(_) => self.refuse(client),
        }
    }

    /// Serves a client that has its slot.
    fn start(&mut self, client: RetryingClient, endpoint: Arc<PodEndpoint>) {
        self.record.record_served(self.now.saturating_since(client.arrived));
        let takes = self.dice.exponential(self.settings.service);
        self.events.schedule(self.now + takes, DayEvent::Finish { endpoint, started: self.now });
    }

    fn finish(&mut self, endpoint: &PodEndpoint, started: Time) {
        let head_after = Some(self.now.saturating_since(started));
        endpoint.learn(&Outcome { started, head_after, result: AttemptResult::Success }, self.now);
        self.demand.shard.give_back(started, self.now);
        let woken = self.admission.release(endpoint, || self.now, || &mut self.queue);
        woken.into_iter().for_each(|number| self.wake(number));
    }

    /// Serves a queued request that was granted a slot.
    fn wake(&mut self, number: u64) {
        let waiter = self.waiting.remove(number).expect("only a queued request is woken");
        let endpoint = waiter.ticket.granted().expect("a woken request has a slot");
        self.demand.shard.grant(self.now);
        self.start(waiter.client, endpoint);
    }

    fn wait_timed_out(&mut self, number: u64) {
        let Some(waiter) = self.waiting.remove(number) else { return };
        assert!(self.admission.cancel(&waiter.ticket), "a granted request is woken at once");
        self.demand.shard.abandon(self.now);
        self.refuse(waiter.client);
    }

    /// Answers a client with 429: it retries later, or leaves for good.
    fn refuse(&mut self, client: RetryingClient) {
        self.record.record_rejection(self.now);
        let counted_until = self.demand.refuse(self.now);
        let clients = &self.settings.clients;
        if client.tries >= clients.tries {
            self.record.current_minute().lost += 1;
            return;
        }
        let later = clients.retry_after * self.dice.between(100, 150) / 100;
        self.events.schedule(self.now + later, DayEvent::Retry { client, counted_until });
    }

    /// Ends a second: publishes pods that are ready, and on some seconds runs the scaler.
    fn second(&mut self, second: u64) {
        let needed = self.traffic.needed(second - 1);
        let burst = f64::from(u8::from(self.traffic.is_burst(second - 1)));
        for sums in [&mut self.minute, &mut self.watched] {
            sums.seconds += 1.0;
            sums.burst += burst;
            sums.needed += needed;
            sums.pods += f64::from(self.pods.count() - self.pods.pending());
            sums.ready += f64::from(self.pods.ready());
            sums.pending += f64::from(self.pods.pending());
            sums.nodes += f64::from(self.pods.nodes());
        }
        self.demand.record(self.now);
        let demand = self.demand.averager.average(demand::WINDOW);
        self.metrics.record(self.pods.ready(), self.settings.slots(), demand);
        if self.pods.advance(self.now) {
            self.publish();
        }
        let has_demand = demand.total() > 0.0;
        if let Some(pods) = self.scaler.activate(self.pods.count(), has_demand, self.now) {
            self.scale(pods);
        }
        if second.is_multiple_of(self.settings.scaler.sync.as_secs()) {
            self.sync(second);
        }
        if second.is_multiple_of(60) {
            self.end_minute();
        }
        if second < self.traffic.seconds() {
            self.events.schedule(self.now + Duration::from_secs(1), DayEvent::Second(second + 1));
        }
    }

    fn sync(&mut self, second: u64) {
        let slots = f64::from(self.settings.slots());
        let SecondSums { seconds, refused, .. } = self.watched;
        let refused_by_now = self.demand.averager.rejected_requests();
        let input = ScalerInput {
            pods: self.pods.count(),
            ready: self.pods.ready(),
            metrics: self.metrics.read(),
            refusals: (refused_by_now - refused) as f64 / seconds,
            needed_slots: self.traffic.needed(second) * slots,
        };
        self.watched = SecondSums { refused: refused_by_now, ..SecondSums::default() };
        let wanted = self.scaler.sync(&input, self.now);
        self.scale(wanted);
    }

    fn scale(&mut self, pods: u32) {
        if self.pods.scale(pods, self.now) {
            self.publish();
        }
    }

    /// Publishes the endpoints to the balancer.
    fn publish(&mut self) {
        self.set = self.pods.set();
        let (set, limits) = (self.set.clone(), self.settings.limits);
        let woken = self.admission.replace(set, limits, self.now, || &mut self.queue);
        woken.into_iter().for_each(|number| self.wake(number));
    }

    fn end_minute(&mut self) {
        let SecondSums { seconds, burst, needed, pods, ready, request_seconds, .. } = self.minute;
        let SecondSums { pending, nodes, .. } = self.minute;
        let request_seconds_by_now = self.demand.averager.request_seconds().total();
        let demand = (request_seconds_by_now - request_seconds) / seconds;
        self.minute =
            SecondSums { request_seconds: request_seconds_by_now, ..SecondSums::default() };
        self.record.end_minute(MinuteMeans {
            burst: burst / seconds,
            needed: needed / seconds,
            pods: pods / seconds,
            ready: ready / seconds,
            pending: pending / seconds,
            nodes: nodes / seconds,
            demand,
        });
    }

    /// Checks that every client was counted and every slot is back.
    fn check_end(&self) {
        self.record.check_totals();
        assert_eq!(self.admission.waiting(), 0, "no request waits");
        let idle = self.set.members().iter().all(|member| member.endpoint.in_flight() == 0);
        assert!(idle, "every count is back at zero");
    }
}

impl DemandAccounting {
    fn refuse(&mut self, now: Time) -> Time {
        let service_time = self.averager.service_time().unwrap_or(demand::ASSUMED_SERVICE_TIME);
        self.rejected.reject(now, service_time)
    }

    fn record(&mut self, now: Time) {
        let mut totals = self.shard.read().expect("no change is in progress");
        totals += self.rejected.read(now);
        self.averager.record(now, totals);
    }
}

impl WaiterTable {
    fn next_number(&self) -> u64 {
        self.first + self.waiters.len() as u64
    }

    /// Removes a request that still waits.
    fn remove(&mut self, number: u64) -> Option<WaitingClient> {
        let index = number.checked_sub(self.first)?;
        let waiter = self.waiters.get_mut(index as usize)?.take();
        while let Some(None) = self.waiters.front() {
            self.waiters.pop_front();
            self.first += 1;
        }
        waiter
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(options: &[&str]) -> String {
        DaySimulation::new(&DaySettings::parse(options).unwrap()).run().to_string()
    }

    #[test]
    fn same_seed_reproduces_the_same_day() {
        assert_eq!(run(&["seed=7"]), run(&["seed=7"]));
        assert_ne!(run(&["seed=7"]), run(&["seed=8"]));
    }

    #[test]
    fn no_scaler_loses_clients_or_slots() {
        for scaler in ["demand", "in-flight", "busy", "need", "refusals", "refusals-alone"] {
            let scaler = format!("scaler={scaler}");
            run(&[&scaler, "busy_pods=3", "queue=8", "burst_times=9"]);
            run(&[&scaler, "busy_pods=3", "queue=8", "burst_times=9", "node_pods=2"]);
        }
        for polling in ["keda_polling_seconds=0", "keda_polling_seconds=30"] {
            run(&[polling, "busy_pods=3", "bursts=3", "between_percent=0", "node_pods=2"]);
        }
    }
}
