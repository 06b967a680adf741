//! A day, in order of time: requests come, wait, are served or refused; pods start and go; the scaler looks.

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use balance::demand::{self, Shard, Shed};
use balance::{
    Admission, Algorithm, End, EndpointSet, Entry, Outcome, Picker, Queue, Rank, Ticket, Time, Wish,
};

use super::pods::{Endpoint, Pods};
use super::record::{Means, Record};
use super::scaler::{Scaler, Sight};
use super::settings::Settings;
use super::traffic::Traffic;
use crate::agenda::Agenda;
use crate::dice::Dice;

const WORKERS: usize = 4;

pub(crate) struct Day<'a> {
    settings: &'a Settings,
    traffic: Traffic,
    dice: Dice,
    now: Time,
    agenda: Agenda<Event>,
    pods: Pods,
    set: Arc<EndpointSet<()>>,
    pickers: Vec<Picker>,
    admission: Admission,
    queue: Queue<(), u64>,
    waiting: Waiting,
    demand: Demand,
    scaler: Scaler,
    record: Record,
    /// Sums over the seconds since the last minute, and since the last look of the scaler.
    minute: Sums,
    watched: Sums,
}

enum Event {
    /// The endpoint has finished with a request.
    Finish { endpoint: Arc<Endpoint>, started: Time },
    /// A client that was refused asks again.
    AskAgain { client: Client, counted_until: Time },
    /// A waiter has waited long enough.
    LosePatience(u64),
    /// So many seconds are over.
    Second(u64),
}

#[derive(Clone, Copy)]
struct Client {
    arrived: Time,
    tries: u32,
}

/// Those who wait, numbered in the order in which they came.
#[derive(Default)]
struct Waiting {
    first: u64,
    waiters: VecDeque<Option<Waiter>>,
}

struct Waiter {
    client: Client,
    ticket: Arc<Ticket<()>>,
}

/// What the balancer reckons for scalers.
struct Demand {
    shard: Shard,
    shed: Shed,
    meter: demand::Meter,
}

/// Readings of each second, added up.
#[derive(Clone, Copy, Default)]
struct Sums {
    seconds: f64,
    burst: f64,
    needed: f64,
    pods: f64,
    ready: f64,
    /// What they were when the first second began.
    request_seconds: f64,
    refused: u64,
}

impl<'a> Day<'a> {
    pub(crate) fn new(settings: &'a Settings) -> Self {
        let traffic = Traffic::new(settings);
        let mut dice = Dice::new(settings.seed ^ 2);
        let target = f64::from(settings.scaler.target_percent) / 100.0;
        let pods = Pods::new(settings, (traffic.needed(0) / target).ceil() as u32);
        let set = pods.set();
        let picker = |_| Picker::new(Algorithm::LeastLoad, dice.seed());
        let mut day = Self {
            pickers: (0..WORKERS).map(picker).collect(),
            admission: Admission::new(),
            queue: Queue::new(set.clone(), settings.limits),
            waiting: Waiting::default(),
            demand: Demand {
                shard: Shard::new(),
                shed: Shed::new(),
                meter: demand::Meter::new(Time::ZERO),
            },
            scaler: Scaler::new(settings),
            record: Record::default(),
            minute: Sums::default(),
            watched: Sums::default(),
            now: Time::ZERO,
            agenda: Agenda::new(),
            settings,
            traffic,
            dice,
            pods,
            set,
        };
        day.agenda.enter(Time::ZERO + Duration::from_secs(1), Event::Second(1));
        day
    }

    /// Lets the day pass.
    pub(crate) fn run(mut self) -> Record {
        while let Some(at) = self.traffic.next() {
            while let Some((at, event)) = self.agenda.next_until(at) {
                self.happen(at, event);
            }
            self.now = at;
            self.record.minute().arrived += 1;
            self.ask(Client { arrived: at, tries: 0 });
        }
        while let Some((at, event)) = self.agenda.next() {
            self.happen(at, event);
        }
        self.check_end();
        self.record
    }

    fn happen(&mut self, at: Time, event: Event) {
        self.now = at;
        match event {
            Event::Finish { endpoint, started } => self.finish(&endpoint, started),
            Event::AskAgain { client, counted_until } => {
                self.demand.shed.ask_again(counted_until, at);
                self.ask(client);
            }
            Event::LosePatience(number) => self.lose_patience(number),
            Event::Second(second) => self.second(second),
        }
    }

    fn ask(&mut self, client: Client) {
        let client = Client { tries: client.tries + 1, ..client };
        let until = self.now + self.settings.patience;
        let rank = Rank { until, ..Rank::default() };
        let wish = Wish { now: self.now, rank, ..Wish::default() };
        let picker = &mut self.pickers[self.dice.below(WORKERS)];
        let (queue, number) = (&mut self.queue, self.waiting.next_number());
        let limits = self.settings.limits;
        match self.admission.enter(picker, &self.set, limits, &wish, || queue, || number) {
            Entry::Slot(endpoint) => {
                self.demand.shard.take(self.now);
                self.start(client, endpoint);
            }
            Entry::Waiting { ticket, turned_out: _ } => {
                self.demand.shard.wait(self.now);
                self.waiting.waiters.push_back(Some(Waiter { client, ticket }));
                self.agenda.enter(self.now + self.settings.patience, Event::LosePatience(number));
            }
            Entry::Refused(_) => self.refuse(client),
        }
    }

    /// The client has its slot.
    fn start(&mut self, client: Client, endpoint: Arc<Endpoint>) {
        self.record.served(self.now.saturating_since(client.arrived));
        let takes = self.dice.exponential(self.settings.service);
        self.agenda.enter(self.now + takes, Event::Finish { endpoint, started: self.now });
    }

    fn finish(&mut self, endpoint: &Endpoint, started: Time) {
        let head_after = Some(self.now.saturating_since(started));
        endpoint.learn(&Outcome { started, head_after, end: End::Success }, self.now);
        self.demand.shard.give_back(started, self.now);
        let woken = self.admission.release(endpoint, || self.now, || &mut self.queue);
        woken.into_iter().for_each(|number| self.wake(number));
    }

    /// One who waited has a slot.
    fn wake(&mut self, number: u64) {
        let waiter = self.waiting.remove(number).expect("only who waits is woken");
        let endpoint = waiter.ticket.granted().expect("who is woken has a slot");
        self.demand.shard.grant(self.now);
        self.start(waiter.client, endpoint);
    }

    fn lose_patience(&mut self, number: u64) {
        let Some(waiter) = self.waiting.remove(number) else { return };
        assert!(self.admission.cancel(&waiter.ticket), "who is granted a slot is woken at once");
        self.demand.shard.leave(self.now);
        self.refuse(waiter.client);
    }

    /// The client is answered 429: it comes again later, or goes for good.
    fn refuse(&mut self, client: Client) {
        self.record.refused(self.now);
        let counted_until = self.demand.refuse(self.now);
        let clients = &self.settings.clients;
        if client.tries >= clients.tries {
            self.record.minute().lost += 1;
            return;
        }
        let later = clients.retry_after * self.dice.between(100, 150) / 100;
        self.agenda.enter(self.now + later, Event::AskAgain { client, counted_until });
    }

    /// A second is over: pods that are ready are published, and on some seconds the scaler looks.
    fn second(&mut self, second: u64) {
        let needed = self.traffic.needed(second - 1);
        let burst = f64::from(u8::from(self.traffic.is_burst(second - 1)));
        for sums in [&mut self.minute, &mut self.watched] {
            sums.seconds += 1.0;
            sums.burst += burst;
            sums.needed += needed;
            sums.pods += f64::from(self.pods.count());
            sums.ready += f64::from(self.pods.ready());
        }
        self.demand.note(self.now);
        if self.pods.become_ready(self.now) {
            self.publish();
        }
        if second.is_multiple_of(self.settings.scaler.sync.as_secs()) {
            self.sync(second);
        }
        if second.is_multiple_of(60) {
            self.end_minute();
        }
        if second < self.traffic.seconds() {
            self.agenda.enter(self.now + Duration::from_secs(1), Event::Second(second + 1));
        }
    }

    fn sync(&mut self, second: u64) {
        let slots = f64::from(self.settings.slots());
        let Sums { seconds, ready, refused, .. } = self.watched;
        let demand = self.demand.meter.average(demand::WINDOW);
        let refused_by_now = self.demand.meter.refused();
        let sight = Sight {
            pods: self.pods.count(),
            ready: self.pods.ready(),
            demand: demand.total(),
            in_flight: demand.in_flight,
            busy: demand.in_flight / (ready / seconds * slots),
            refusals: (refused_by_now - refused) as f64 / seconds,
            need: self.traffic.needed(second) * slots,
        };
        self.watched = Sums { refused: refused_by_now, ..Sums::default() };
        let wanted = self.scaler.sync(&sight, self.now);
        if self.pods.scale(wanted, self.now) {
            self.publish();
        }
    }

    /// The balancer learns of the endpoints there are.
    fn publish(&mut self) {
        self.set = self.pods.set();
        let (set, limits) = (self.set.clone(), self.settings.limits);
        let woken = self.admission.replace(set, limits, self.now, || &mut self.queue);
        woken.into_iter().for_each(|number| self.wake(number));
    }

    fn end_minute(&mut self) {
        let Sums { seconds, burst, needed, pods, ready, request_seconds, .. } = self.minute;
        let request_seconds_by_now = self.demand.meter.request_seconds().total();
        let demand = (request_seconds_by_now - request_seconds) / seconds;
        self.minute = Sums { request_seconds: request_seconds_by_now, ..Sums::default() };
        self.record.end_minute(Means {
            burst: burst / seconds,
            needed: needed / seconds,
            pods: pods / seconds,
            ready: ready / seconds,
            demand,
        });
    }

    /// Nobody was forgotten and every slot is back.
    fn check_end(&self) {
        self.record.check();
        assert_eq!(self.admission.waiting(), 0, "nobody waits");
        let idle = self.set.members().iter().all(|member| member.endpoint.in_flight() == 0);
        assert!(idle, "every count is back at zero");
    }
}

impl Demand {
    fn refuse(&mut self, now: Time) -> Time {
        let service_time = self.meter.service_time().unwrap_or(demand::ASSUMED_SERVICE_TIME);
        self.shed.refuse(now, service_time)
    }

    fn note(&mut self, now: Time) {
        let mut totals = self.shard.read().expect("nobody else changes it");
        totals += self.shed.read(now);
        self.meter.note(now, totals);
    }
}

impl Waiting {
    fn next_number(&self) -> u64 {
        self.first + self.waiters.len() as u64
    }

    /// One who still waits.
    fn remove(&mut self, number: u64) -> Option<Waiter> {
        let place = number.checked_sub(self.first)?;
        let waiter = self.waiters.get_mut(place as usize)?.take();
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
        Day::new(&Settings::parse(options).unwrap()).run().to_string()
    }

    #[test]
    fn same_seed_reproduces_the_same_day() {
        assert_eq!(run(&["seed=7"]), run(&["seed=7"]));
        assert_ne!(run(&["seed=7"]), run(&["seed=8"]));
    }

    #[test]
    fn no_scaler_loses_clients_or_slots() {
        for scaler in ["demand", "in-flight", "busy", "need", "refusals", "refusals-alone"] {
            run(&[&format!("scaler={scaler}"), "busy_pods=3", "queue=8", "burst_times=9"]);
        }
    }
}
