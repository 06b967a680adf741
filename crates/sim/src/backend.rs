//! A backend as the workers of the world use it: each call goes to the real `balance`, and its answer to the laws.

use std::sync::Arc;
use std::time::Duration;

use balance::health::{Condition, Event, HealthSettings, Judgement, ProbeResult, Standing, Totals};
use balance::retry::RetrySettings;
use balance::{
    Admission, Algorithm, Cap, EndpointSet, Entry, LimitSettings, Limiter, Limits, Picker, Queue,
    Rank, RetryBudget, Rng, Ticket, Time, Ward, Wish,
};

use crate::dice::Dice;
use crate::laws::{Line, View, Want, check_verdict};
use crate::plan::{BackendPlan, Plan};
use crate::requests::Id;
use crate::world::Endpoint;

pub(crate) struct Backend {
    algorithm: Algorithm,
    admission: Admission,
    queue: Queue<usize, Id>,
    /// As somebody has written it, whatever health makes of it.
    configured: Arc<EndpointSet<usize>>,
    limits: Limits,
    limiter: Limiter,
    health: HealthSettings,
    ward: Ward,
    budget: RetryBudget,
    rng: Rng,
    /// What is in force.
    pub(crate) current: View,
    /// One for each worker.
    workers: Vec<Worker>,
    pub(crate) line: Line,
    pub(crate) bill: Bill,
}

/// What the backend has had to do.
#[derive(Default)]
pub(crate) struct Bill {
    pub(crate) requests: u64,
    pub(crate) retries: u64,
    /// In the calm, by server.
    pub(crate) served: Vec<u64>,
}

struct Worker {
    picker: Picker,
    seen: View,
}

impl Backend {
    pub(crate) fn new(
        plan: &Plan,
        backend: &BackendPlan,
        configured: Arc<EndpointSet<usize>>,
        dice: &mut Dice,
    ) -> Self {
        let BackendPlan { algorithm, limits, health, .. } = *backend;
        let servers = plan.servers.len();
        let view = View::new(configured.clone(), limits, algorithm, vec![false; servers]);
        let mut worker =
            || Worker { picker: Picker::new(algorithm, dice.seed()), seen: view.clone() };
        Self {
            algorithm,
            admission: Admission::new(),
            queue: Queue::new(configured.clone(), limits),
            workers: (0..plan.workers).map(|_| worker()).collect(),
            rng: Rng::new(dice.seed()),
            ward: Ward::new(),
            limiter: Limiter::new(),
            budget: RetryBudget::new(plan.workers),
            line: Line::default(),
            bill: Bill { served: vec![0; servers], ..Bill::default() },
            current: view,
            configured,
            limits,
            health,
        }
    }

    /// A request has come to this worker.
    pub(crate) fn request(&mut self, worker: usize, now: Time) {
        self.bill.requests += 1;
        self.budget.request(worker, now);
    }

    pub(crate) fn may_retry(&mut self, settings: &RetrySettings, now: Time) -> bool {
        let allowed = self.budget.allows(settings, now);
        self.bill.retries += u64::from(allowed);
        allowed
    }

    pub(crate) fn backoff(&mut self, settings: &RetrySettings, retry: u32) -> Duration {
        settings.backoff(retry, &mut self.rng)
    }

    /// Attempts never were more than the budget allows.
    pub(crate) fn check_budget(&self, settings: &RetrySettings, now: Time) {
        let Bill { requests, retries, .. } = self.bill;
        let windows = now.as_nanos() / 10_000_000_000 + 1;
        let floor = windows * 10 * u64::from(settings.budget_floor_per_second);
        let share = requests * u64::from(settings.budget_percent) / 100;
        assert!(retries <= share + floor, "{retries} retries of {requests} requests");
    }

    /// `endpoints` are the balancer's, by server.
    pub(crate) fn enter(
        &mut self,
        (id, want, until): (Id, Want, Time),
        worker: usize,
        endpoints: &[Arc<Endpoint>],
        now: Time,
    ) -> Entry<usize, Id> {
        let known = |server: Option<usize>| server.map(|server| &endpoints[server]);
        let rank = Rank { priority: want.priority, route: want.route, until };
        let tried: Vec<_> = want.tried.servers().map(|server| endpoints[server].clone()).collect();
        let wish = Wish { tried: &tried, only: known(want.only), key: want.key, now, rank };
        let Worker { picker, seen } = &mut self.workers[worker];
        let seen = &seen.as_of_now();
        let queue = &mut self.queue;
        let entry = self.admission.enter(picker, &seen.set, seen.limits, &wish, || queue, || id);
        self.line.entered((id, want), &entry, seen, &self.current);
        entry
    }

    pub(crate) fn release(&mut self, endpoint: &Endpoint, now: Time) -> Vec<Id> {
        let woken = self.admission.release(endpoint, || now, || &mut self.queue);
        if woken.granted.is_some() {
            self.current.granted_at(endpoint);
        }
        woken.into_iter().collect()
    }

    pub(crate) fn dispatch(&mut self, now: Time) -> Vec<Id> {
        if self.line.len() == 0 {
            return Vec::new();
        }
        let before = self.current.loads();
        let woken = self.admission.dispatch(|| now, || &mut self.queue);
        self.current.granted_since(&before, self.line.granted_of(&woken));
        woken
    }

    /// From now on this is configured. What is then to be in force?
    pub(crate) fn configure(
        &mut self,
        configured: Arc<EndpointSet<usize>>,
        limits: Limits,
        totals: &[Totals],
        now: Time,
    ) -> View {
        (self.configured, self.limits) = (configured, limits);
        let (_, out) = self.judgement(totals, now);
        self.view(out)
    }

    /// Judges the endpoints. Gives what happened, and what is to be in force if that has changed.
    pub(crate) fn judge(&mut self, totals: &[Totals], now: Time) -> (Vec<Event>, Option<View>) {
        let (judgement, out) = self.judgement(totals, now);
        let view = judgement.changed.then(|| self.view(out));
        (judgement.events, view)
    }

    fn judgement(&mut self, totals: &[Totals], now: Time) -> (Judgement, Vec<bool>) {
        let judgement =
            self.ward.judge(&self.configured, |endpoint| totals[endpoint.data], &self.health, now);
        let out = check_verdict(&self.ward, &self.configured, &self.health, now, totals.len());
        (judgement, out)
    }

    fn view(&self, out: Vec<bool>) -> View {
        let effective = Arc::new(self.ward.effective(&self.configured));
        View::new(effective, self.limits, self.algorithm, out)
    }

    pub(crate) fn configured(&self) -> Arc<EndpointSet<usize>> {
        self.configured.clone()
    }

    pub(crate) fn limits(&self) -> Limits {
        self.limits
    }

    /// Every endpoint serves, and all of its share.
    pub(crate) fn check_recovery(&self, now: Time) {
        let well = Condition { standing: Standing::Serving, fit: true, share_percent: 100 };
        for (address, condition) in self.ward.conditions(&self.health, now) {
            assert_eq!(condition, well, "{address} has not recovered");
        }
        assert!(!self.ward.is_panicking(), "there is no reason to panic");
        // A request that its key binds may wait for a slot that a probe holds.
        let limit = |endpoint: &Endpoint| endpoint.limit(self.limits.cap).unwrap_or(u32::MAX);
        let members = self.configured.members();
        let all_have_room = members.iter().all(|it| it.endpoint.in_flight() < limit(&it.endpoint));
        assert!(
            self.line.len() == 0 || !all_have_room,
            "requests wait, and each endpoint has room"
        );
    }

    /// The endpoints to be probed now.
    pub(crate) fn due_probes(&mut self, totals: &[Totals], now: Time) -> Vec<Arc<Endpoint>> {
        let totals = |endpoint: &Endpoint| totals[endpoint.data];
        let Self { ward, configured, health, rng, .. } = self;
        let due = ward.due_probes(configured, totals, health, now, rng);
        let endpoint = |address| configured.find(address).map(|member| member.endpoint.clone());
        due.into_iter().filter_map(endpoint).collect()
    }

    pub(crate) fn probed(
        &mut self,
        endpoint: &Endpoint,
        result: ProbeResult,
        now: Time,
    ) -> Option<Event> {
        self.ward.probed(endpoint.address, result, &self.health, now, &mut self.rng)
    }

    /// Makes limits of what was seen; then somebody may have more, here and elsewhere.
    pub(crate) fn limit(&mut self, now: Time) {
        if self.current.limits.cap != Cap::Learned {
            return;
        }
        let (waiting, round) = (self.admission.waiting(), now.as_nanos().max(1));
        let settings = LimitSettings::default();
        self.limiter.round(&self.current.set, &settings, waiting, round, now);
        for (address, limit, _) in self.limiter.limits() {
            let within = (settings.min..=settings.max).contains(&limit);
            assert!(within, "{address} has a limit of {limit}");
        }
    }

    /// An endpoint has been marked unreachable, or reachable: those who wait look again for what may serve them.
    pub(crate) fn reachability_changed(&mut self, now: Time) -> Vec<Id> {
        self.replace(self.current.as_of_now(), now)
    }

    pub(crate) fn replace(&mut self, view: View, now: Time) -> Vec<Id> {
        self.current = view;
        let before = self.current.loads();
        let (set, limits) = (self.current.set.clone(), self.current.limits);
        let woken = self.admission.replace(set, limits, now, || &mut self.queue);
        self.current.granted_since(&before, self.line.granted_of(&woken));
        woken
    }

    /// Holds who waits against who should.
    pub(crate) fn check(&self) {
        let waiting = self.admission.waiting() as usize;
        assert_eq!(waiting, self.line.len(), "who waits is counted");
        self.line.check(&self.current);
    }

    /// The slot, if it was granted all the same.
    pub(crate) fn give_up(&mut self, id: Id, ticket: &Ticket<usize>) -> Option<Arc<Endpoint>> {
        if self.admission.cancel(ticket) {
            self.line.gave_up(id);
            return None;
        }
        Some(ticket.granted().expect("a ticket that cannot be cancelled is granted"))
    }

    pub(crate) fn learn(&mut self, worker: usize) {
        self.workers[worker].seen = self.current.clone();
    }
}
