//! Evaluates endpoint health: reads the workers' counters, sends probes, and applies ejections and weights.
//!
//! All of this runs on one thread, which no request waits for. The decisions are made in [`balance::health`]. A
//! decision takes effect as a new endpoint set of the backend, like a change of the configuration.

use std::collections::BTreeMap;
use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use balance::health::{
    AttemptTotals, EjectionState, HealthChange, HealthEvaluator, HealthEvent, HealthSettings,
    HealthStatus,
};
use balance::{ConcurrencyCap, EndpointSet, Rng};
use gateway::snapshot::BackendKey;
use tokio::sync::Notify;
use tokio::task::JoinSet;

use crate::backend::{Backend, BackendConfig};
use crate::clock;
use crate::demand;
use crate::dial::pool::{Endpoint, EndpointData};
use crate::mutex::lock;
use crate::probe::{self, ProbeFinding};
use crate::reachability::BackgroundAttempts;
use crate::worker::ProxyState;

/// Interval of evaluations that no event triggers: ejections end, slow starts advance, probes become due.
const TICK: Duration = Duration::from_millis(100);

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
    /// True while an endpoint is ejected or half-open.
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

    /// Returns the health status of each endpoint in a word.
    pub(crate) fn status_words(
        &self,
        settings: &HealthSettings,
    ) -> BTreeMap<SocketAddr, &'static str> {
        let state = lock(&self.state);
        let statuses = state.evaluator.statuses(settings, clock::now());
        statuses.map(|(address, status)| (address, status_word(&status))).collect()
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

fn status_word(status: &HealthStatus) -> &'static str {
    match status.ejection {
        EjectionState::Ejected { .. } => "ejected",
        EjectionState::HalfOpen => "trial",
        EjectionState::Serving if !status.passes_probes => "unfit",
        EjectionState::Serving if status.share_percent < 100 => "starting",
        EjectionState::Serving => "serving",
    }
}

/// Runs the health thread until [`HealthWaker::stop`].
pub(crate) fn run(shared: &Arc<ProxyState>) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    // Demand is averaged at a fixed interval, and on this thread so that no worker spends time on it.
    runtime.spawn(demand::run_averaging(Arc::clone(shared)));
    runtime.block_on(watch(shared));
    Ok(())
}

async fn watch(shared: &Arc<ProxyState>) {
    let mut probes = JoinSet::new();
    let mut attempts = BackgroundAttempts::default();
    let mut limits_due = clock::now();
    while !shared.health_waker.stopped.load(Ordering::Acquire) {
        let live = shared.config.load();
        let now = clock::now();
        let (mut wait, mut raised) = (attempts.begin_due(shared, now), false);
        for backend in &live.backends {
            let watched = evaluate_backend(backend, &mut probes, &mut attempts);
            let expects_answers = attempts.check_silent(backend, now);
            // Limits are updated once per tick, however often the thread is woken.
            let current = backend.current();
            let is_learning = current.limits.cap == ConcurrencyCap::Learned;
            raised |= is_learning && limits_due <= now && backend.update_limits(&current, now);
            let full = backend.restore_limits();
            raised |= full.is_some();
            let tick = (watched || is_learning || expects_answers).then_some(TICK);
            wait = [wait, tick, full].into_iter().flatten().min();
        }
        if raised {
            // Endpoints may be shared, so requests of other backends may be waiting for the new slots.
            live.backends.iter().for_each(|backend| backend.dispatch());
        }
        if limits_due <= now {
            limits_due = now + TICK;
        }
        let tick = async {
            match wait {
                Some(wait) => tokio::time::sleep(wait).await,
                None => pending().await,
            }
        };
        tokio::select! {
            () = shared.health_waker.notify.notified() => {}
            Some(_) = probes.join_next() => {}
            () = attempts.conclude_next(shared) => {}
            () = tick => {}
        }
    }
}

/// Evaluates a backend's endpoints and probes those that are due. Returns true if there is anything to watch.
fn evaluate_backend(
    backend: &Arc<Backend>,
    probes: &mut JoinSet<()>,
    attempts: &mut BackgroundAttempts,
) -> bool {
    if !backend.health.is_due(&backend.current().settings.health) {
        return false;
    }
    let mut state = lock(&backend.health.state);
    // Read under the lock: every change of the configuration in force holds it.
    let current = backend.current();
    let settings = &current.settings.health;
    let (changed, events) = state.evaluate(settings);
    backend.health.is_pending.store(state.evaluator.is_pending(), Ordering::Relaxed);
    backend.health.log_events(&backend.key, &events, None);
    for event in events {
        if let HealthEvent::Endpoint(address, HealthChange::Ejected { .. }) = event
            && let Some(member) = state.configured.find(address)
        {
            attempts.check(backend, &member.endpoint);
        }
    }
    if changed {
        let (settings, tls_context) = current.policy();
        backend.replace(BackendConfig::new(state.effective(), settings, tls_context));
    }
    for endpoint in state.due_probes(settings) {
        let (backend, current) = (Arc::clone(backend), Arc::clone(&current));
        probes.spawn(async move {
            let finding = run_probe(&backend, &endpoint, &current).await;
            backend.health.record_probe(
                &backend.key,
                endpoint.address,
                finding,
                &current.settings.health,
            );
        });
    }
    true
}

impl BackendHealth {
    fn record_probe(
        &self,
        key: &BackendKey,
        endpoint: SocketAddr,
        finding: ProbeFinding,
        settings: &HealthSettings,
    ) {
        let mut state = lock(&self.state);
        let HealthState { evaluator, rng, .. } = &mut *state;
        let event = evaluator.record_probe(endpoint, finding.result(), settings, clock::now(), rng);
        self.log_events(key, event.as_slice(), finding.failure_reason());
    }
}

/// Probes an endpoint. At a capped endpoint the probe takes a slot, so that the endpoint's limit is not exceeded.
async fn run_probe(
    backend: &Arc<Backend>,
    endpoint: &Arc<Endpoint>,
    current: &BackendConfig,
) -> ProbeFinding {
    let settings = &current.settings;
    let (Some(active), Some(probe)) = (&settings.health.active, &settings.probe) else {
        return ProbeFinding::Unknown;
    };
    let Some(_slot) = ProbeSlot::take(backend, endpoint, current) else {
        return ProbeFinding::Unknown;
    };
    let asked = probe::send_probe(probe, endpoint.address, current);
    match tokio::time::timeout(active.timeout, asked).await {
        Ok(finding) => finding,
        Err(_) => ProbeFinding::Bad("timeout"),
    }
}

/// A slot that a probe holds; empty for an uncapped endpoint.
pub(crate) struct ProbeSlot<'a>(Option<(&'a Backend, &'a Endpoint)>);

impl<'a> ProbeSlot<'a> {
    pub(crate) fn take(
        backend: &'a Backend,
        endpoint: &'a Endpoint,
        current: &BackendConfig,
    ) -> Option<Self> {
        let cap = current.limits.cap;
        if cap == ConcurrencyCap::None {
            return Some(Self(None));
        }
        current.set.find(endpoint.address)?.take(cap).then(|| {
            endpoint.data.close_oldest_idle();
            Self(Some((backend, endpoint)))
        })
    }
}

impl Drop for ProbeSlot<'_> {
    fn drop(&mut self) {
        if let Some((backend, endpoint)) = self.0 {
            backend.release(endpoint);
        }
    }
}
