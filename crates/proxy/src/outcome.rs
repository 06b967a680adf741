//! The Outcome of an attempt: the only input of metrics, pickers and health.

use std::time::Duration;

use balance::limit::LimitSample;
use balance::outcome::{AttemptResult, HealthSignal, Outcome};
use balance::{Algorithm, ConcurrencyCap, Time};

use gateway::snapshot::HeededRefusals;

use crate::backend::{BackendConfig, Slot};
use crate::clock;
use crate::failure::Failure;
use crate::reachability::outages;
use crate::worker::Worker;

/// The end of one attempt, and what its durations say about the load of its endpoint.
pub(crate) struct AttemptConclusion {
    pub(crate) at: Time,
    pub(crate) result: AttemptResult,
    /// The latency of the response's head, if it reflects the load of the endpoint.
    pub(crate) head_after: Option<Duration>,
    /// True if the hold time of the slot reflects the load of the endpoint.
    pub(crate) hold_time_is_signal: bool,
}

impl AttemptConclusion {
    /// Returns the end at this moment of an attempt whose durations say nothing about the load of its endpoint.
    pub(crate) fn now(result: AttemptResult) -> Self {
        Self { at: clock::now(), result, head_after: None, hold_time_is_signal: false }
    }
}

impl Slot {
    /// Marks the endpoint unreachable, if a connection attempt failed in a way that suggests it.
    pub(crate) fn note_connect_failure(&self, worker: &Worker, failure: Failure) {
        let cannot_be_reached = matches!(
            failure,
            Failure::ConnectFailed | Failure::ConnectTimeout | Failure::ConnectSlow
        );
        if cannot_be_reached {
            let (backend, cause) = (self.backend.backend(), failure.details());
            outages::mark_unreachable(&worker.shared, backend, &self.endpoint, cause);
        }
    }

    /// Records the Outcome of one attempt: the only input of metrics, pickers and health.
    pub(crate) fn conclude(
        &self,
        worker: &Worker,
        current: &BackendConfig,
        end: AttemptConclusion,
    ) {
        let AttemptConclusion { at, result, head_after, hold_time_is_signal } = end;
        if hold_time_is_signal && current.limits.cap == ConcurrencyCap::Learned {
            let held = at.saturating_since(self.started);
            self.endpoint
                .limit_counters
                .learn(LimitSample { level: self.in_flight_at_start, slot_time: held }, result);
        }
        let result = heeded(result, current.settings.heed_refusals);
        let counters = &self.endpoint.data.counters[worker.index];
        counters.attempts.add(1);
        match result.health_signal() {
            HealthSignal::Positive => {}
            HealthSignal::Negative => counters.failures.add(1),
            HealthSignal::Neutral => counters.inconclusive.add(1),
        }
        let outcome = Outcome { started: self.started, head_after, result };
        match current.settings.algorithm {
            Algorithm::PeakEwma => self.endpoint.learn(&outcome, at),
            Algorithm::LeastLoad
            | Algorithm::RoundRobin
            | Algorithm::Random
            | Algorithm::ConsistentHash
            | Algorithm::Maglev => self.endpoint.learn_mean(&outcome, at),
        }
        if self.endpoint.health.learn(&outcome, &current.settings.health) {
            self.backend.health.request_evaluation();
            worker.shared.health_waker.wake();
        }
        if result == AttemptResult::Success && !self.endpoint.is_reachable() {
            outages::mark_reachable_if_newer(self.backend.backend(), &self.endpoint, self.started);
        }
        if let AttemptResult::Refused { retry_after } = result {
            self.handle_refusal(worker, retry_after);
        }
    }

    #[cold]
    fn handle_refusal(&self, worker: &Worker, retry_after: Option<Duration>) {
        let now = clock::now();
        let is_first = self.endpoint.own_refusal(now).is_none();
        let handling = self.endpoint.record_refusal(self.in_flight_at_start, retry_after, now);
        if is_first && let Some(leases) = &worker.shared.leases {
            leases.record_refusing(self.endpoint.address);
        }
        self.endpoint.data.counters[worker.index].count_refusal(handling);
        self.backend.adaptive_limits.mark_overloaded(&worker.shared.health_waker);
    }
}

/// Returns the result as the policy of the backend reads it: a refusal that is not heeded concerns one client.
fn heeded(end: AttemptResult, policy: HeededRefusals) -> AttemptResult {
    match (end, policy) {
        (AttemptResult::RateLimited { retry_after }, HeededRefusals::All) => {
            AttemptResult::Refused { retry_after }
        }
        (AttemptResult::Refused { retry_after }, HeededRefusals::None) => {
            AttemptResult::RateLimited { retry_after }
        }
        (as_it_is, _) => as_it_is,
    }
}
