//! Lifecycle of a request: it asks for a slot, waits, is sent, and ends or is retried.

use std::sync::Arc;
use std::time::Duration;

use balance::limit::LimitSample;
use balance::{AdmissionDecision, AttemptResult, Outcome, PriorityLevel, outcome::HealthSignal};

use super::{FaultSimulation, ServerEndpoint, SimulationEvent, SimulationPhase};
use crate::invariants::{RequestConstraints, RequestHistory, TriedServers};
use crate::plan::BackendPlan;
use crate::random::RandomSource;
use crate::requests::{AttemptId, BackendId, RequestId, RequestStage, SimulatedRequest};
use crate::server::ReceiveResult;

/// Timeout of a connection attempt.
const CONNECT_TIMEOUT: Duration = Duration::from_millis(250);

/// Account that a retry is charged to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum RetryAccount {
    /// None, because nothing was sent.
    Nothing,
    /// The endpoint's resend allowance, because it has died with the request.
    Endpoint,
    Budget,
}

impl FaultSimulation {
    pub(super) fn arrive(&mut self, backend: usize) {
        if self.phase == SimulationPhase::Safety {
            let next = self.dice.exponential(self.plan.backends[backend].interval);
            self.after(next, SimulationEvent::Arrive { backend });
            let balancer = self.dice.below(self.balancers.len());
            self.begin_request(BackendId { balancer, backend });
        }
    }

    pub(super) fn arrive_in_turn(&mut self, turn: usize) {
        if self.phase != SimulationPhase::End {
            let backend_ids = self.all_backends();
            self.after(self.plan.easy_interval(), SimulationEvent::ArriveInTurn { turn: turn + 1 });
            self.begin_request(backend_ids[turn % backend_ids.len()]);
        }
    }

    fn begin_request(&mut self, backend_id: BackendId) {
        self.counts.arrived += 1;
        let now = self.now;
        let plan = &self.plan.backends[backend_id.backend];
        let worker = self.dice.below(self.plan.workers);
        let faulty = self.phase == SimulationPhase::Safety;
        let bound = faulty && self.dice.percent(plan.bound_percent);
        let constraints = RequestConstraints {
            tried: TriedServers::default(),
            only: bound.then(|| self.dice.below(self.servers.len())),
            key: Some(self.dice.seed()),
            priority: draw_priority(&mut self.dice, plan),
            route: u64::from(self.dice.between(1, plan.routes)),
        };
        let stage = RequestStage::Entering;
        let history = RequestHistory::default();
        let request = SimulatedRequest {
            backend: backend_id,
            worker,
            stage,
            constraints,
            attempts: 0,
            history,
            client_gone: false,
        };
        let id = self.requests.add(request);
        if faulty && self.dice.percent(plan.leaving_percent) {
            let stays = self.dice.exponential(plan.patience / 2);
            self.after(stays, SimulationEvent::ClientDisconnect(id));
        }
        self.backend(backend_id).request(worker, now);
        self.request_slot(id);
    }

    pub(super) fn request_slot_again(&mut self, id: RequestId) {
        if self.requests.find(id).is_some() {
            self.request_slot(id);
        }
    }

    /// Requests a slot for a request.
    fn request_slot(&mut self, id: RequestId) {
        let SimulatedRequest { backend: backend_id, worker, constraints, .. } =
            *self.requests.get(id);
        let until = self.now + self.plan.backends[backend_id.backend].patience;
        let balancer = &mut self.balancers[backend_id.balancer];
        let backend = &mut balancer.backends[backend_id.backend];
        let entry = backend.enter((id, constraints, until), worker, &balancer.endpoints, self.now);
        // A probe may hold the slot that the request needs.
        let at_once = matches!(entry, AdmissionDecision::Slot(_)) || balancer.probing > 0;
        assert!(
            self.phase < SimulationPhase::Calm || at_once,
            "the effects of faults have not ended"
        );
        self.trace(format_args!("{id:?} asks: {entry:?}"));
        match entry {
            AdmissionDecision::Slot(endpoint) => self.start(id, endpoint),
            AdmissionDecision::Waiting { ticket, evicted: victim } => {
                self.requests.get(id).stage = RequestStage::Queued(ticket, None);
                self.events.schedule(until, SimulationEvent::WaitTimeout(id));
                if let Some(victim) = victim {
                    self.record_rejection(victim);
                }
            }
            AdmissionDecision::Rejected(_) => self.record_rejection(id),
        }
    }

    fn record_rejection(&mut self, id: RequestId) {
        self.check_loss();
        self.counts.refused += 1;
        self.requests.remove(id);
    }

    /// Sends a request that has a slot to its endpoint.
    fn start(&mut self, id: RequestId, endpoint: Arc<ServerEndpoint>) {
        let server = endpoint.data;
        let request = self.requests.get(id);
        request.attempts += 1;
        let level = endpoint.in_flight();
        request.stage = RequestStage::InFlight(endpoint, self.now, level);
        let job = AttemptId { id, attempt: request.attempts };
        let timeout = self.plan.backends[request.backend.backend].timeout;
        self.after(timeout, SimulationEvent::TimeOut(job));
        match self.servers[server].receive(job, &self.plan.servers[server], self.now) {
            ReceiveResult::Refused => {
                self.after(
                    Duration::from_micros(100),
                    SimulationEvent::Refuse(job, AttemptResult::ConnectFailed),
                );
            }
            ReceiveResult::Full(retry_after) => {
                let end = AttemptResult::Refused { retry_after };
                self.after(Duration::from_micros(100), SimulationEvent::Refuse(job, end));
            }
            ReceiveResult::Begins => self.serve(server, job),
            // On a kept-alive connection the attempt times out.
            ReceiveResult::Dropped if self.dice.percent(50) => {}
            ReceiveResult::Dropped => {
                self.after(
                    timeout.min(CONNECT_TIMEOUT),
                    SimulationEvent::Refuse(job, AttemptResult::ConnectFailed),
                );
            }
            ReceiveResult::Waits => {}
        }
    }

    /// Starts to serve a request in a thread of the server.
    fn serve(&mut self, server: usize, job: AttemptId) {
        let plan = &self.plan.servers[server];
        let varies = plan.varies && self.phase == SimulationPhase::Safety;
        let (takes, end) = self.servers[server].serve(plan, &mut self.dice, varies, self.now);
        self.after(takes, SimulationEvent::Finish { server, job, end });
    }

    /// Finishes a request in a thread of the server, whether or not a client still waits for the
    /// response.
    pub(super) fn finish(&mut self, server: usize, job: AttemptId, end: AttemptResult) {
        if let Some(until) = self.servers[server].paused_until(self.now) {
            self.events.schedule(until, SimulationEvent::Finish { server, job, end });
            return;
        }
        if !self.servers[server].finish(job) {
            return;
        }
        let requests = &mut self.requests;
        if let Some(next) = self.servers[server].next(|job| requests.is_in_flight(job)) {
            self.serve(server, next);
        }
        self.conclude(job, end);
    }

    /// Ends an attempt, unless it has ended before: records its outcome, releases its slot, and
    /// perhaps starts a retry.
    pub(super) fn conclude(&mut self, job: AttemptId, end: AttemptResult) {
        if !self.requests.is_in_flight(job) {
            return;
        }
        let request = self.requests.get(job.id);
        let RequestStage::InFlight(endpoint, started, level) =
            std::mem::replace(&mut request.stage, RequestStage::Entering)
        else {
            panic!("only a request in flight is concluded");
        };
        let in_flight = endpoint.in_flight();
        if end == AttemptResult::ConnectFailed && endpoint.mark_unreachable(self.now) {
            let (balancer, server) = (request.backend.balancer, endpoint.data);
            self.events
                .schedule(endpoint.attempt_due_at(), SimulationEvent::Attempt { balancer, server });
            self.reachability_changed(balancer);
        }
        let request = self.requests.get(job.id);
        let end = if request.client_gone { AttemptResult::Cancelled } else { end };
        let backend_id = request.backend;
        let took = self.now.saturating_since(started);
        let answered = matches!(end, AttemptResult::Success | AttemptResult::ServerError);
        let outcome = Outcome { started, head_after: answered.then_some(took), result: end };
        self.record_outcome(backend_id, &endpoint, &outcome);
        endpoint.limit_counters.learn(LimitSample { level, slot_time: took }, end);
        if let AttemptResult::Refused { retry_after } = end {
            endpoint.record_refusal(level, retry_after, self.now);
        }
        self.release(backend_id, &endpoint);
        self.finish_or_retry(job.id, end, &endpoint, in_flight);
    }

    /// Makes a background attempt of the control thread to connect to an endpoint that is marked
    /// unreachable.
    pub(super) fn attempt(&mut self, balancer: usize, server: usize) {
        let (now, accepts) = (self.now, self.servers[server].accepts(self.now));
        let endpoint = self.balancers[balancer].endpoints[server].clone();
        if accepts {
            if endpoint.mark_reachable(now) {
                self.reachability_changed(balancer);
            }
        } else {
            endpoint.attempt_failed(now);
            self.events
                .schedule(endpoint.attempt_due_at(), SimulationEvent::Attempt { balancer, server });
        }
    }

    /// Makes queued requests look for an endpoint again.
    fn reachability_changed(&mut self, balancer: usize) {
        let now = self.now;
        for backend in 0..self.plan.backends.len() {
            let backend_id = BackendId { balancer, backend };
            let woken = self.backend(backend_id).reachability_changed(now);
            self.wake_up(backend_id, woken);
        }
    }

    fn record_outcome(
        &mut self,
        backend_id: BackendId,
        endpoint: &ServerEndpoint,
        outcome: &Outcome,
    ) {
        endpoint.learn(outcome, self.now);
        let totals = &mut self.balancers[backend_id.balancer].totals[endpoint.data];
        match outcome.result.health_signal() {
            HealthSignal::Positive => totals.successes += 1,
            HealthSignal::Negative => totals.failures += 1,
            HealthSignal::Neutral => {}
        }
        if endpoint.health.learn(outcome, &self.plan.backends[backend_id.backend].health) {
            self.evaluate_health(backend_id);
        }
    }

    /// Finishes a request whose attempt has ended with this result, retries it, or fails it.
    fn finish_or_retry(
        &mut self,
        id: RequestId,
        end: AttemptResult,
        endpoint: &ServerEndpoint,
        in_flight: u32,
    ) {
        let (now, server) = (self.now, endpoint.data);
        let SimulatedRequest { backend: backend_id, client_gone, .. } = *self.requests.get(id);
        let calm = self.phase >= SimulationPhase::Calm;
        assert!(!calm || end == AttemptResult::Success, "a request fails though there is no fault");
        if end == AttemptResult::Success {
            self.counts.served += 1;
            if calm {
                self.backend(backend_id).counts.served[server] += 1;
            }
            return self.requests.remove(id);
        }
        let SimulatedRequest { constraints, history, .. } = self.requests.get(id);
        constraints.tried.add(server);
        history.record_failure(end);
        let (tried, sent) = (constraints.tried, history.sent);
        let retry = self.plan.backends[backend_id.backend].retry;
        let balancer = &mut self.balancers[backend_id.balancer];
        let backend = &mut balancer.backends[backend_id.backend];
        let charge = if client_gone {
            None
        } else if end == AttemptResult::ConnectFailed {
            (backend.in_force.untried(tried) > 0).then_some(RetryAccount::Nothing)
        } else if sent >= retry.attempts.get() {
            None
        } else if end == AttemptResult::ConnectionBroken && endpoint.resends.takes(in_flight, now) {
            balancer.resends[server].check_resend(in_flight, now);
            Some(RetryAccount::Endpoint)
        } else {
            backend.may_retry(&retry, now).then_some(RetryAccount::Budget)
        };
        let Some(charge) = charge else {
            if !client_gone {
                history.check_final_failure(tried, &backend.in_force);
                self.check_loss();
            }
            self.counts.failed += 1;
            return self.requests.remove(id);
        };
        history.budgeted += u32::from(charge == RetryAccount::Budget);
        self.counts.retried += 1;
        // The first retry is made at once.
        let waits = end != AttemptResult::ConnectFailed && sent > 1;
        let wait = if waits { backend.backoff(&retry, sent - 1) } else { Duration::ZERO };
        self.after(wait, SimulationEvent::RequestSlot(id));
    }

    pub(super) fn wake(&mut self, id: RequestId) {
        // It may have taken its slot at its timeout, or have left.
        if let Some(SimulatedRequest { stage: RequestStage::Queued(ticket, Some(grant)), .. }) =
            self.requests.find(id)
        {
            let endpoint = ticket.granted().expect("a woken request has a slot");
            grant.check_endpoint(&endpoint);
            self.start(id, endpoint);
        }
    }

    pub(super) fn wait_timed_out(&mut self, id: RequestId) {
        let Some(SimulatedRequest {
            backend: backend_id,
            stage: RequestStage::Queued(ticket, grant),
            ..
        }) = self.requests.find(id)
        else {
            return;
        };
        let backend = &mut self.balancers[backend_id.balancer].backends[backend_id.backend];
        match backend.cancel(id, ticket) {
            None => {
                self.check_loss();
                self.counts.out_of_patience += 1;
                self.requests.remove(id);
            }
            // A slot at the last moment is as good as any.
            Some(endpoint) => {
                grant.as_ref().expect("it was woken").check_endpoint(&endpoint);
                self.start(id, endpoint);
            }
        }
    }

    /// Handles a client's disconnect: an attempt in flight continues until the endpoint has
    /// finished; a request that waits or is about to ask for a slot is removed.
    pub(super) fn client_disconnects(&mut self, id: RequestId) {
        let Some(request) = self.requests.find(id) else { return };
        request.client_gone = true;
        let backend_id = request.backend;
        match &request.stage {
            RequestStage::InFlight(..) => return,
            RequestStage::Entering => {}
            RequestStage::Queued(ticket, grant) => {
                let backend = &mut self.balancers[backend_id.balancer].backends[backend_id.backend];
                if let Some(endpoint) = backend.cancel(id, ticket) {
                    grant.as_ref().expect("it was woken").check_endpoint(&endpoint);
                    self.release(backend_id, &endpoint);
                }
            }
        }
        self.counts.client_gone += 1;
        self.requests.remove(id);
    }

    /// Releases a slot through one backend, and dispatches requests queued at the balancer's
    /// others.
    pub(super) fn release(&mut self, backend_id: BackendId, endpoint: &ServerEndpoint) {
        let now = self.now;
        let woken = self.backend(backend_id).release(endpoint, now);
        self.wake_up(backend_id, woken);
        for backend in (0..self.plan.backends.len()).filter(|&other| other != backend_id.backend) {
            let backend_id = BackendId { backend, ..backend_id };
            let woken = self.backend(backend_id).dispatch(now);
            self.wake_up(backend_id, woken);
        }
    }

    pub(super) fn wake_up(
        &mut self,
        backend_id: BackendId,
        woken: impl IntoIterator<Item = RequestId>,
    ) {
        for id in woken {
            let backend = &mut self.balancers[backend_id.balancer].backends[backend_id.backend];
            let granted = backend.queue_model.check_wake(id, &backend.in_force);
            if granted.is_none() {
                self.trace(format_args!("{id:?} is shed"));
                self.record_rejection(id);
                continue;
            }
            self.trace(format_args!("{id:?} is granted a slot"));
            let RequestStage::Queued(_, grant @ None) = &mut self.requests.get(id).stage else {
                panic!("only a queued request is granted a slot, and once");
            };
            *grant = granted.map(Box::new);
            let late = Duration::from_micros(u64::from(self.dice.between(0, 100)));
            self.after(late, SimulationEvent::Wake(id));
        }
    }
}

fn draw_priority(dice: &mut RandomSource, plan: &BackendPlan) -> PriorityLevel {
    let other = dice.percent(plan.prioritised_percent);
    if other {
        PriorityLevel::ALL[dice.below(PriorityLevel::COUNT)]
    } else {
        PriorityLevel::default()
    }
}
