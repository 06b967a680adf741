//! The life of a request: it asks, waits, is sent, and ends or is sent again.

use std::sync::Arc;
use std::time::Duration;

use balance::limit::Visit;
use balance::{End, Entry, Outcome, Priority, outcome::Testimony};

use super::{Endpoint, Event, Phase, World};
use crate::dice::Dice;
use crate::laws::{RequestHistory, Tried, Want};
use crate::plan::BackendPlan;
use crate::requests::{Id, Job, Place, Request, Stage};
use crate::server::Reception;

/// How long a connection attempt may take.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// At whose expense a request is sent again.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Payer {
    /// Nothing was sent.
    Nobody,
    /// The endpoint has died with the request.
    Endpoint,
    Budget,
}

impl World {
    pub(super) fn arrive(&mut self, backend: usize) {
        if self.phase == Phase::Safety {
            let next = self.dice.exponential(self.plan.backends[backend].interval);
            self.after(next, Event::Arrive { backend });
            let balancer = self.dice.below(self.balancers.len());
            self.begin_request(Place { balancer, backend });
        }
    }

    pub(super) fn arrive_in_turn(&mut self, turn: usize) {
        if self.phase != Phase::End {
            let places = self.places();
            self.after(self.plan.easy_interval(), Event::ArriveInTurn { turn: turn + 1 });
            self.begin_request(places[turn % places.len()]);
        }
    }

    fn begin_request(&mut self, place: Place) {
        self.tally.arrived += 1;
        let now = self.now;
        let plan = &self.plan.backends[place.backend];
        let worker = self.dice.below(self.plan.workers);
        let faulty = self.phase == Phase::Safety;
        let bound = faulty && self.dice.percent(plan.bound_percent);
        let want = Want {
            tried: Tried::default(),
            only: bound.then(|| self.dice.below(self.servers.len())),
            key: Some(self.dice.seed()),
            priority: draw_priority(&mut self.dice, plan),
            route: u64::from(self.dice.between(1, plan.routes)),
        };
        let stage = Stage::Asks;
        let history = RequestHistory::default();
        let request =
            Request { place, worker, stage, want, attempts: 0, history, client_gone: false };
        let id = self.requests.add(request);
        if faulty && self.dice.percent(plan.leaving_percent) {
            let stays = self.dice.exponential(plan.patience / 2);
            self.after(stays, Event::ClientGoes(id));
        }
        self.backend(place).request(worker, now);
        self.ask(id);
    }

    pub(super) fn ask_again(&mut self, id: Id) {
        if self.requests.find(id).is_some() {
            self.ask(id);
        }
    }

    /// A request asks for a slot.
    fn ask(&mut self, id: Id) {
        let Request { place, worker, want, .. } = *self.requests.known(id);
        let until = self.now + self.plan.backends[place.backend].patience;
        let balancer = &mut self.balancers[place.balancer];
        let backend = &mut balancer.backends[place.backend];
        let entry = backend.enter((id, want, until), worker, &balancer.endpoints, self.now);
        // A probe may hold the slot that the request needs.
        let at_once = matches!(entry, Entry::Slot(_)) || balancer.probing > 0;
        assert!(self.phase < Phase::Calm || at_once, "the traces of faults have not gone");
        self.trace(format_args!("{id:?} asks: {entry:?}"));
        match entry {
            Entry::Slot(endpoint) => self.start(id, endpoint),
            Entry::Waiting { ticket, turned_out } => {
                self.requests.known(id).stage = Stage::Waits(ticket, None);
                self.agenda.enter(until, Event::LosePatience(id));
                if let Some(victim) = turned_out {
                    self.refused(victim);
                }
            }
            Entry::Refused(_) => self.refused(id),
        }
    }

    fn refused(&mut self, id: Id) {
        self.check_loss();
        self.tally.refused += 1;
        self.requests.remove(id);
    }

    /// A request that has a slot is sent to its endpoint.
    fn start(&mut self, id: Id, endpoint: Arc<Endpoint>) {
        let server = endpoint.data;
        let request = self.requests.known(id);
        request.attempts += 1;
        let level = endpoint.in_flight();
        request.stage = Stage::Runs(endpoint, self.now, level);
        let job = Job { id, attempt: request.attempts };
        let timeout = self.plan.backends[request.place.backend].timeout;
        self.after(timeout, Event::TimeOut(job));
        match self.servers[server].receive(job, &self.plan.servers[server], self.now) {
            Reception::Refused => {
                self.after(Duration::from_micros(100), Event::Refuse(job, End::ConnectFailed));
            }
            Reception::Full(retry_after) => {
                let end = End::Refused { retry_after };
                self.after(Duration::from_micros(100), Event::Refuse(job, end));
            }
            Reception::Begins => self.serve(server, job),
            // With a kept connection the attempt times out.
            Reception::Swallowed if self.dice.percent(50) => {}
            Reception::Swallowed => {
                self.after(timeout.min(CONNECT_TIMEOUT), Event::Refuse(job, End::ConnectFailed));
            }
            Reception::Waits => {}
        }
    }

    /// A thread of the server turns to a request.
    fn serve(&mut self, server: usize, job: Job) {
        let plan = &self.plan.servers[server];
        let varies = plan.varies && self.phase == Phase::Safety;
        let (takes, end) = self.servers[server].serve(plan, &mut self.dice, varies, self.now);
        self.after(takes, Event::Finish { server, job, end });
    }

    /// A thread of the server has finished, whether or not anybody still waits for the answer.
    pub(super) fn finish(&mut self, server: usize, job: Job, end: End) {
        if let Some(until) = self.servers[server].paused_until(self.now) {
            self.agenda.enter(until, Event::Finish { server, job, end });
            return;
        }
        if !self.servers[server].finishes(job) {
            return;
        }
        let requests = &mut self.requests;
        if let Some(next) = self.servers[server].next(|job| requests.runs(job)) {
            self.serve(server, next);
        }
        self.conclude(job, end);
    }

    /// An attempt ends, unless it has ended before. Its outcome is told, its slot comes back, and perhaps there is
    /// another.
    pub(super) fn conclude(&mut self, job: Job, end: End) {
        if !self.requests.runs(job) {
            return;
        }
        let request = self.requests.known(job.id);
        let Stage::Runs(endpoint, started, level) =
            std::mem::replace(&mut request.stage, Stage::Asks)
        else {
            panic!("only what runs is concluded");
        };
        let in_flight = endpoint.in_flight();
        if end == End::ConnectFailed && endpoint.mark_unreachable(self.now) {
            let (balancer, server) = (request.place.balancer, endpoint.data);
            self.agenda.enter(endpoint.attempt_due_at(), Event::Attempt { balancer, server });
            self.reachability_changed(balancer);
        }
        let request = self.requests.known(job.id);
        let end = if request.client_gone { End::Unfinished } else { end };
        let place = request.place;
        let took = self.now.saturating_since(started);
        let answered = matches!(end, End::Success | End::ServerError);
        let outcome = Outcome { started, head_after: answered.then_some(took), end };
        self.tell(place, &endpoint, &outcome);
        endpoint.evidence.learn(Visit { level, held: took }, end);
        if let End::Refused { retry_after } = end {
            endpoint.refused(level, retry_after, self.now);
        }
        self.release(place, &endpoint);
        self.settle(job.id, end, &endpoint, in_flight);
    }

    /// The control thread of a balancer tries to connect to an endpoint that is marked unreachable.
    pub(super) fn attempt(&mut self, balancer: usize, server: usize) {
        let (now, accepts) = (self.now, self.servers[server].accepts(self.now));
        let endpoint = self.balancers[balancer].endpoints[server].clone();
        if accepts {
            if endpoint.mark_reachable(now) {
                self.reachability_changed(balancer);
            }
        } else {
            endpoint.attempt_failed(now);
            self.agenda.enter(endpoint.attempt_due_at(), Event::Attempt { balancer, server });
        }
    }

    /// Those who wait look again for what may serve them.
    fn reachability_changed(&mut self, balancer: usize) {
        let now = self.now;
        for backend in 0..self.plan.backends.len() {
            let place = Place { balancer, backend };
            let woken = self.backend(place).reachability_changed(now);
            self.wake_up(place, woken);
        }
    }

    fn tell(&mut self, place: Place, endpoint: &Endpoint, outcome: &Outcome) {
        endpoint.learn(outcome, self.now);
        let totals = &mut self.balancers[place.balancer].totals[endpoint.data];
        match outcome.end.testimony() {
            Testimony::For => totals.successes += 1,
            Testimony::Against => totals.failures += 1,
            Testimony::Neither => {}
        }
        if endpoint.health.learn(outcome, &self.plan.backends[place.backend].health) {
            self.judge(place);
        }
    }

    /// A request whose attempt has ended so is served, tried again, or has failed.
    fn settle(&mut self, id: Id, end: End, endpoint: &Endpoint, in_flight: u32) {
        let (now, server) = (self.now, endpoint.data);
        let Request { place, client_gone, .. } = *self.requests.known(id);
        let calm = self.phase >= Phase::Calm;
        assert!(!calm || end == End::Success, "a request fails though all is well");
        if end == End::Success {
            self.tally.served += 1;
            if calm {
                self.backend(place).bill.served[server] += 1;
            }
            return self.requests.remove(id);
        }
        let Request { want, history, .. } = self.requests.known(id);
        want.tried.add(server);
        history.ended(end);
        let (tried, sent) = (want.tried, history.sent);
        let retry = self.plan.backends[place.backend].retry;
        let balancer = &mut self.balancers[place.balancer];
        let backend = &mut balancer.backends[place.backend];
        let payer = if client_gone {
            None
        } else if end == End::ConnectFailed {
            (backend.current.untried(tried) > 0).then_some(Payer::Nobody)
        } else if sent >= retry.attempts.get() {
            None
        } else if end == End::Broken && endpoint.resends.takes(in_flight, now) {
            balancer.resends[server].resend(in_flight, now);
            Some(Payer::Endpoint)
        } else {
            backend.may_retry(&retry, now).then_some(Payer::Budget)
        };
        let Some(payer) = payer else {
            if !client_gone {
                history.fails(tried, &backend.current);
                self.check_loss();
            }
            self.tally.failed += 1;
            return self.requests.remove(id);
        };
        history.budgeted += u32::from(payer == Payer::Budget);
        self.tally.retried += 1;
        // The first retry is made at once.
        let waits = end != End::ConnectFailed && sent > 1;
        let wait = if waits { backend.backoff(&retry, sent - 1) } else { Duration::ZERO };
        self.after(wait, Event::Ask(id));
    }

    pub(super) fn wake(&mut self, id: Id) {
        // It may have taken its slot when it lost patience, or have gone.
        if let Some(Request { stage: Stage::Waits(ticket, Some(grant)), .. }) =
            self.requests.find(id)
        {
            let endpoint = ticket.granted().expect("who is woken has a slot");
            grant.shown(&endpoint);
            self.start(id, endpoint);
        }
    }

    pub(super) fn lose_patience(&mut self, id: Id) {
        let Some(Request { place, stage: Stage::Waits(ticket, grant), .. }) =
            self.requests.find(id)
        else {
            return;
        };
        let backend = &mut self.balancers[place.balancer].backends[place.backend];
        match backend.give_up(id, ticket) {
            None => {
                self.check_loss();
                self.tally.out_of_patience += 1;
                self.requests.remove(id);
            }
            // A slot at the last moment is as good as any.
            Some(endpoint) => {
                grant.as_ref().expect("it was woken").shown(&endpoint);
                self.start(id, endpoint);
            }
        }
    }

    /// What runs goes on until the endpoint has finished; what waits or is about to ask goes away.
    pub(super) fn client_goes(&mut self, id: Id) {
        let Some(request) = self.requests.find(id) else { return };
        request.client_gone = true;
        let place = request.place;
        match &request.stage {
            Stage::Runs(..) => return,
            Stage::Asks => {}
            Stage::Waits(ticket, grant) => {
                let backend = &mut self.balancers[place.balancer].backends[place.backend];
                if let Some(endpoint) = backend.give_up(id, ticket) {
                    grant.as_ref().expect("it was woken").shown(&endpoint);
                    self.release(place, &endpoint);
                }
            }
        }
        self.tally.client_gone += 1;
        self.requests.remove(id);
    }

    /// A slot comes back through one backend; those who wait at the balancer's others may want it too.
    pub(super) fn release(&mut self, place: Place, endpoint: &Endpoint) {
        let now = self.now;
        let woken = self.backend(place).release(endpoint, now);
        self.wake_up(place, woken);
        for backend in (0..self.plan.backends.len()).filter(|&other| other != place.backend) {
            let place = Place { backend, ..place };
            let woken = self.backend(place).dispatch(now);
            self.wake_up(place, woken);
        }
    }

    pub(super) fn wake_up(&mut self, place: Place, woken: impl IntoIterator<Item = Id>) {
        for id in woken {
            let backend = &mut self.balancers[place.balancer].backends[place.backend];
            let granted = backend.line.woken(id, &backend.current);
            if granted.is_none() {
                self.trace(format_args!("{id:?} is let go"));
                self.refused(id);
                continue;
            }
            self.trace(format_args!("{id:?} is granted a slot"));
            let Stage::Waits(_, grant @ None) = &mut self.requests.known(id).stage else {
                panic!("only who waits is granted a slot, and once");
            };
            *grant = granted.map(Box::new);
            let late = Duration::from_micros(u64::from(self.dice.between(0, 100)));
            self.after(late, Event::Wake(id));
        }
    }
}

fn draw_priority(dice: &mut Dice, plan: &BackendPlan) -> Priority {
    let other = dice.percent(plan.prioritised_percent);
    if other { Priority::ALL[dice.below(Priority::COUNT)] } else { Priority::default() }
}
