//! Backend as the simulated workers use it: each call goes to the production `balance`, and its
//! result to the invariants.

use std::sync::Arc;
use std::time::Duration;

use balance::health::{
    AttemptTotals, EjectionState, HealthEvaluation, HealthEvent, HealthSettings, HealthStatus,
    ProbeResult,
};
use balance::retry::{RetrySettings, RetryWindow};
use balance::{
    Admission, AdmissionConfig, AdmissionDecision, AdmissionLimits, Algorithm, ConcurrencyCap,
    ConcurrencyLimiter, EndpointSet, HealthEvaluator, LimitSettings, PickRequest, Picker, Queue,
    QueueParameters, RetryBudget, Rng, Ticket, Time,
};

use crate::fault_simulation::ServerEndpoint;
use crate::invariants::{ConfigView, QueueModel, RequestConstraints, check_evaluation};
use crate::plan::{BackendPlan, SimulationPlan};
use crate::random::RandomSource;
use crate::requests::RequestId;

pub(crate) struct SimulatedBackend {
    algorithm: Algorithm,
    admission: Admission,
    queue: Queue<usize, RequestId>,
    /// Configured set, before health is applied.
    configured: Arc<EndpointSet<usize>>,
    limits: AdmissionLimits,
    limiter: ConcurrencyLimiter,
    health: HealthSettings,
    evaluator: HealthEvaluator,
    budget: RetryBudget,
    rng: Rng,
    /// Configuration in force.
    pub(crate) in_force: ConfigView,
    /// One entry for each worker.
    workers: Vec<SimulatedWorker>,
    pub(crate) queue_model: QueueModel,
    pub(crate) counts: BackendCounts,
}

/// Counts of a backend's requests.
#[derive(Default)]
pub(crate) struct BackendCounts {
    pub(crate) requests: u64,
    pub(crate) retries: u64,
    /// Requests served in the calm phase, by server.
    pub(crate) served: Vec<u64>,
}

struct SimulatedWorker {
    picker: Picker,
    view: ConfigView,
}

impl SimulatedBackend {
    pub(crate) fn new(
        plan: &SimulationPlan,
        backend: &BackendPlan,
        configured: Arc<EndpointSet<usize>>,
        dice: &mut RandomSource,
    ) -> Self {
        let BackendPlan { algorithm, limits, health, .. } = *backend;
        let servers = plan.servers.len();
        let view = ConfigView::new(configured.clone(), limits, algorithm, vec![false; servers]);
        let mut worker =
            || SimulatedWorker { picker: Picker::new(algorithm, dice.seed()), view: view.clone() };
        Self {
            algorithm,
            admission: Admission::new(),
            queue: Queue::new(configured.clone(), limits),
            workers: (0..plan.workers).map(|_| worker()).collect(),
            rng: Rng::new(dice.seed()),
            evaluator: HealthEvaluator::new(),
            limiter: ConcurrencyLimiter::new(),
            budget: RetryBudget::new(plan.workers),
            queue_model: QueueModel::default(),
            counts: BackendCounts { served: vec![0; servers], ..BackendCounts::default() },
            in_force: view,
            configured,
            limits,
            health,
        }
    }

    /// Counts a request at this worker.
    pub(crate) fn request(&mut self, worker: usize, now: Time) {
        self.counts.requests += 1;
        self.budget.request(RetryWindow::default(), worker, now);
    }

    pub(crate) fn may_retry(&mut self, settings: &RetrySettings, now: Time) -> bool {
        let allowed = self.budget.allows(settings, now);
        self.counts.retries += u64::from(allowed);
        allowed
    }

    pub(crate) fn backoff(&mut self, settings: &RetrySettings, retry: u32) -> Duration {
        settings.backoff(retry, &mut self.rng)
    }

    /// Checks that retries never exceeded the budget.
    pub(crate) fn check_budget(&self, settings: &RetrySettings, now: Time) {
        let BackendCounts { requests, retries, .. } = self.counts;
        let windows = now.as_nanos() / 10_000_000_000 + 1;
        let floor = windows * u64::from(settings.budget_floor);
        let share = requests * u64::from(settings.budget_percent) / 100;
        assert!(retries <= share + floor, "{retries} retries of {requests} requests");
    }

    /// Requests a slot. `endpoints` are the balancer's, by server.
    pub(crate) fn enter(
        &mut self,
        (id, constraints, until): (RequestId, RequestConstraints, Time),
        worker: usize,
        endpoints: &[Arc<ServerEndpoint>],
        now: Time,
    ) -> AdmissionDecision<usize, RequestId> {
        let known = |server: Option<usize>| server.map(|server| &endpoints[server]);
        let queueing = QueueParameters {
            priority: constraints.priority,
            route: constraints.route,
            deadline: until,
        };
        let tried: Vec<_> =
            constraints.tried.servers().map(|server| endpoints[server].clone()).collect();
        let request = PickRequest {
            tried: &tried,
            only: known(constraints.only),
            key: constraints.key,
            now,
            queueing,
        };
        let SimulatedWorker { picker, view } = &mut self.workers[worker];
        let view = &view.as_of_now();
        let queue = &mut self.queue;
        let config = AdmissionConfig { set: &view.set, limits: view.limits };
        let entry = self.admission.enter(picker, config, &request, || queue, || id);
        self.queue_model.check_entry((id, constraints), &entry, view, &self.in_force);
        entry
    }

    pub(crate) fn release(&mut self, endpoint: &ServerEndpoint, now: Time) -> Vec<RequestId> {
        let woken = self.admission.release(endpoint, || now, || &mut self.queue);
        if woken.granted.is_some() {
            self.in_force.check_grant_at(endpoint);
        }
        woken.into_iter().collect()
    }

    pub(crate) fn dispatch(&mut self, now: Time) -> Vec<RequestId> {
        if self.queue_model.len() == 0 {
            return Vec::new();
        }
        let before = self.in_force.loads();
        let woken = self.admission.dispatch(|| now, || &mut self.queue);
        self.in_force.check_grants_since(&before, self.queue_model.count_granted(&woken));
        woken
    }

    /// Configures the backend; returns the view that is then to be put in force.
    pub(crate) fn configure(
        &mut self,
        configured: Arc<EndpointSet<usize>>,
        limits: AdmissionLimits,
        totals: &[AttemptTotals],
        now: Time,
    ) -> ConfigView {
        (self.configured, self.limits) = (configured, limits);
        let (_, out) = self.health_evaluation(totals, now);
        self.view(out)
    }

    /// Evaluates the endpoints' health. Returns the events, and the view to put in force if it has
    /// changed.
    pub(crate) fn evaluate(
        &mut self,
        totals: &[AttemptTotals],
        now: Time,
    ) -> (Vec<HealthEvent>, Option<ConfigView>) {
        let (evaluation, out) = self.health_evaluation(totals, now);
        let view = evaluation.changed.then(|| self.view(out));
        (evaluation.events, view)
    }

    fn health_evaluation(
        &mut self,
        totals: &[AttemptTotals],
        now: Time,
    ) -> (HealthEvaluation, Vec<bool>) {
        let evaluation = self.evaluator.evaluate(
            &self.configured,
            |endpoint| totals[endpoint.data],
            &self.health,
            now,
        );
        let out =
            check_evaluation(&self.evaluator, &self.configured, &self.health, now, totals.len());
        (evaluation, out)
    }

    fn view(&self, out: Vec<bool>) -> ConfigView {
        let effective = Arc::new(self.evaluator.effective_set(&self.configured));
        ConfigView::new(effective, self.limits, self.algorithm, out)
    }

    pub(crate) fn configured(&self) -> Arc<EndpointSet<usize>> {
        self.configured.clone()
    }

    pub(crate) fn limits(&self) -> AdmissionLimits {
        self.limits
    }

    /// Checks that every endpoint serves with its full share.
    pub(crate) fn check_recovery(&self, now: Time) {
        let recovered = HealthStatus {
            ejection: EjectionState::Serving,
            passes_probes: true,
            share_percent: 100,
        };
        for (address, status) in self.evaluator.statuses(&self.health, now) {
            assert_eq!(status, recovered, "{address} has not recovered");
        }
        assert!(!self.evaluator.is_panicking(), "there is no reason to panic");
        // A request that is bound by its key may wait for a slot that a probe holds.
        let limit = |endpoint: &ServerEndpoint| endpoint.limit(self.limits.cap).unwrap_or(u32::MAX);
        let members = self.configured.members();
        let all_have_room = members.iter().all(|it| it.endpoint.in_flight() < limit(&it.endpoint));
        assert!(
            self.queue_model.len() == 0 || !all_have_room,
            "requests wait, and each endpoint has room"
        );
    }

    /// Returns the endpoints to be probed now.
    pub(crate) fn due_probes(
        &mut self,
        totals: &[AttemptTotals],
        now: Time,
    ) -> Vec<Arc<ServerEndpoint>> {
        let totals = |endpoint: &ServerEndpoint| totals[endpoint.data];
        let Self { evaluator, configured, health, rng, .. } = self;
        let due = evaluator.due_probes(configured, totals, health, now, rng);
        let endpoint = |address| configured.find(address).map(|member| member.endpoint.clone());
        due.into_iter().filter_map(endpoint).collect()
    }

    pub(crate) fn record_probe(
        &mut self,
        endpoint: &ServerEndpoint,
        result: ProbeResult,
        now: Time,
    ) -> Option<HealthEvent> {
        self.evaluator.record_probe(endpoint.address, result, &self.health, now, &mut self.rng)
    }

    /// Computes limits from observations; queued requests here and at other backends may then get
    /// slots.
    pub(crate) fn update_limits(&mut self, now: Time) {
        if self.in_force.limits.cap != ConcurrencyCap::Learned {
            return;
        }
        let (waiting, round) = (self.admission.waiting(), now.as_nanos().max(1));
        let settings = LimitSettings::default();
        self.limiter.update(&self.in_force.set, &settings, waiting, round, now);
        for (address, limit, _) in self.limiter.limits() {
            let within = (settings.min..=settings.max).contains(&limit);
            assert!(within, "{address} has a limit of {limit}");
        }
    }

    /// Reacts to an endpoint that has been marked unreachable, or reachable: queued requests look
    /// for an endpoint again.
    pub(crate) fn reachability_changed(&mut self, now: Time) -> Vec<RequestId> {
        self.replace(self.in_force.as_of_now(), now)
    }

    pub(crate) fn replace(&mut self, view: ConfigView, now: Time) -> Vec<RequestId> {
        self.in_force = view;
        let before = self.in_force.loads();
        let (set, limits) = (self.in_force.set.clone(), self.in_force.limits);
        let woken = self.admission.replace(set, limits, now, || &mut self.queue);
        self.in_force.check_grants_since(&before, self.queue_model.count_granted(&woken));
        woken
    }

    /// Compares the queue with its model.
    pub(crate) fn check(&self) {
        let waiting = self.admission.waiting() as usize;
        assert_eq!(waiting, self.queue_model.len(), "the queue length equals that of the model");
        self.queue_model.check(&self.in_force);
    }

    /// Cancels the wait; returns the slot if it was granted already.
    pub(crate) fn cancel(
        &mut self,
        id: RequestId,
        ticket: &Ticket<usize>,
    ) -> Option<Arc<ServerEndpoint>> {
        if self.admission.cancel(ticket) {
            self.queue_model.remove_cancelled(id);
            return None;
        }
        Some(ticket.granted().expect("a ticket that cannot be cancelled is granted"))
    }

    pub(crate) fn update_worker(&mut self, worker: usize) {
        self.workers[worker].view = self.in_force.clone();
    }
}
