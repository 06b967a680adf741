//! Health of endpoints: reads the workers' counters, and keeps ejections and weights.
//!
//! All of this runs on one thread, which no request waits for. The decisions are made in [`balance::health`]. A
//! decision takes effect as a new endpoint set of the backend, like a change of the configuration.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};

use balance::health::{
    AttemptTotals, EjectionState, HealthChange, HealthEvaluator, HealthEvent, HealthSettings,
    HealthStatus,
};
use balance::{EndpointSet, Rng, Time};
use gateway::snapshot::BackendKey;
use tokio::sync::Notify;

use crate::clock;
use crate::dial::pool::{Endpoint, EndpointData};
use crate::mutex::lock;

/// The thread that evaluates and probes.
pub(crate) mod thread;

/// Wake-up of the health thread.
#[derive(Default)]
pub(crate) struct HealthWaker {
    notify: Notify,
    stopped: AtomicBool,
}

impl HealthWaker {
    /// Wakes the health thread for an immediate evaluation.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }
}

/// Health state of one backend's endpoints.
pub(crate) struct BackendHealth {
    state: Mutex<HealthState>,
    pub(crate) ejections: AtomicU64,
    /// True if a worker has asked for an immediate evaluation.
    evaluation_requested: AtomicBool,
    /// True while an endpoint is ejected, half-open or suspected.
    is_pending: AtomicBool,
}

struct HealthState {
    configured: Arc<EndpointSet<EndpointData>>,
    evaluator: HealthEvaluator,
    rng: Rng,
}

impl BackendHealth {
    pub(crate) fn new() -> Self {
        let wall = clock::wall().duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let rng = Rng::new(u64::try_from(wall.as_nanos()).unwrap_or_default());
        let configured = Arc::new(EndpointSet::empty());
        let state = Mutex::new(HealthState { configured, evaluator: HealthEvaluator::new(), rng });
        Self {
            state,
            ejections: AtomicU64::new(0),
            evaluation_requested: AtomicBool::new(false),
            is_pending: AtomicBool::new(false),
        }
    }

    /// Requests an evaluation; the caller wakes the health thread.
    pub(crate) fn request_evaluation(&self) {
        self.evaluation_requested.store(true, Ordering::Release);
    }

    /// True if there is something to evaluate or to probe now. By default an endpoint is evaluated only after a
    /// failure.
    fn is_due(&self, settings: &HealthSettings) -> bool {
        let asked = self.evaluation_requested.swap(false, Ordering::AcqRel);
        let compares = settings.passive.is_some_and(|passive| passive.server_errors);
        let always = compares || settings.active.is_some() || settings.slow_start.is_some();
        always || asked || self.is_pending.load(Ordering::Relaxed)
    }

    /// Replaces the configured endpoints. `put_in_force` gets the effective set before the next evaluation can change
    /// it.
    pub(crate) fn configure_endpoints<R>(
        &self,
        key: &BackendKey,
        configured: EndpointSet<EndpointData>,
        settings: &HealthSettings,
        put_in_force: impl FnOnce(Arc<EndpointSet<EndpointData>>) -> R,
    ) -> R {
        let mut state = lock(&self.state);
        state.configured = Arc::new(configured);
        if !is_watched(settings) {
            state.evaluator = HealthEvaluator::new();
            return put_in_force(Arc::clone(&state.configured));
        }
        let (_, events) = state.evaluate(settings);
        self.is_pending.store(state.evaluator.is_pending(), Ordering::Relaxed);
        self.log_events(key, &events, None);
        put_in_force(state.effective())
    }

    /// Returns the endpoints as they are configured.
    pub(crate) fn configured(&self) -> Arc<EndpointSet<EndpointData>> {
        Arc::clone(&lock(&self.state).configured)
    }

    /// Suspects endpoints until these times. They are evaluated more often meanwhile.
    fn suspect(&self, until: &BTreeMap<SocketAddr, Time>) {
        if lock(&self.state).evaluator.suspect(until, clock::now()) {
            self.request_evaluation();
        }
    }

    /// Returns the endpoints that are ejected by observations of this replica alone.
    pub(crate) fn own_ejections(&self) -> Vec<SocketAddr> {
        if !self.is_pending.load(Ordering::Relaxed) {
            return Vec::new();
        }
        lock(&self.state).evaluator.own_ejections().collect()
    }

    /// Returns the health status of each endpoint as a label.
    pub(crate) fn status_labels(
        &self,
        settings: &HealthSettings,
    ) -> BTreeMap<SocketAddr, &'static str> {
        let state = lock(&self.state);
        let statuses = state.evaluator.statuses(settings, clock::now());
        statuses.map(|(address, status)| (address, status_label(&status))).collect()
    }

    /// Returns the endpoints that serve no requests, or trial requests alone.
    pub(crate) fn troubled(&self, settings: &HealthSettings) -> BTreeSet<SocketAddr> {
        let state = lock(&self.state);
        let statuses = state.evaluator.statuses(settings, clock::now());
        let is_troubled = |status: &HealthStatus| {
            status.ejection != EjectionState::Serving || !status.passes_probes
        };
        let troubled = statuses.filter(|(_, status)| is_troubled(status));
        troubled.map(|(address, _)| address).collect()
    }

    pub(crate) fn is_panicking(&self) -> bool {
        lock(&self.state).evaluator.is_panicking()
    }

    /// Logs one event for each change; `cause`: the finding of the probe that caused it.
    fn log_events(&self, key: &BackendKey, events: &[HealthEvent], cause: Option<&str>) {
        for event in events {
            match event {
                HealthEvent::PanicBegins => {
                    tracing::warn!(backend = %key, "too few healthy endpoints: health is ignored (panic mode)");
                }
                HealthEvent::PanicEnds => {
                    tracing::info!(backend = %key, "enough healthy endpoints: panic mode ends")
                }
                HealthEvent::Endpoint(endpoint, change) => {
                    let taken_out = matches!(change, HealthChange::Ejected { .. });
                    self.ejections.fetch_add(u64::from(taken_out), Ordering::Relaxed);
                    tracing::info!(backend = %key, %endpoint, ?change, cause, "endpoint health changed");
                }
            }
        }
    }
}

impl HealthState {
    /// Evaluates all endpoints. Returns true if weights have changed, and the events to log.
    fn evaluate(&mut self, settings: &HealthSettings) -> (bool, Vec<HealthEvent>) {
        let evaluation = self.evaluator.evaluate(&self.configured, totals, settings, clock::now());
        (evaluation.changed, evaluation.events)
    }

    fn effective(&self) -> Arc<EndpointSet<EndpointData>> {
        Arc::new(self.evaluator.effective_set(&self.configured))
    }

    fn due_probes(&mut self, settings: &HealthSettings) -> Vec<Arc<Endpoint>> {
        let Self { configured, evaluator, rng } = self;
        let due = evaluator.due_probes(configured, totals, settings, clock::now(), rng);
        let members = configured.members().iter();
        members
            .filter(|member| due.contains(&member.endpoint.address))
            .map(|member| Arc::clone(&member.endpoint))
            .collect()
    }
}

fn is_watched(settings: &HealthSettings) -> bool {
    settings.passive.is_some() || settings.active.is_some() || settings.slow_start.is_some()
}

/// Sums up the results of an endpoint's attempts.
fn totals(endpoint: &Endpoint) -> AttemptTotals {
    let mut totals = AttemptTotals::default();
    for shard in &endpoint.data.counters {
        let failures = shard.failures.value();
        totals.failures += failures;
        // A worker counts the attempt first: an attempt that is being counted may be in one figure and not yet in
        // another.
        let conclusive = shard.attempts.value().saturating_sub(shard.inconclusive.value());
        totals.successes += conclusive.saturating_sub(failures);
    }
    totals
}

fn status_label(status: &HealthStatus) -> &'static str {
    match status.ejection {
        EjectionState::Ejected { .. } => "ejected",
        EjectionState::HalfOpen => "half_open",
        EjectionState::Serving if !status.passes_probes => "unhealthy",
        EjectionState::Serving if status.share_percent < 100 => "slow_start",
        EjectionState::Serving => "serving",
    }
}
