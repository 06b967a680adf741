//! Watches the health of endpoints: judges what workers saw, probes, and puts the consequences in force.
//!
//! One thread, which no request waits for. What is decided is decided in [`balance::health`]; a consequence is a new set of
//! endpoints for a backend, as a change of the configuration is.

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
use crate::dial::pool::{Endpoint, EndpointData, lock};
use crate::probe::{self, ProbeFinding};
use crate::reachability::BackgroundAttempts;
use crate::worker::ProxyState;

/// How often health is judged when nobody asks for it: ejections end, slow starts go on, probes fall due.
const TICK: Duration = Duration::from_millis(100);

/// Calls the thread that watches.
#[derive(Default)]
pub(crate) struct HealthWaker {
    notify: Notify,
    stopped: AtomicBool,
}

impl HealthWaker {
    /// Something has happened that should be judged now.
    pub(crate) fn wake(&self) {
        self.notify.notify_one();
    }

    pub(crate) fn stop(&self) {
        self.stopped.store(true, Ordering::Release);
        self.wake();
    }
}

/// What is known of the health of one backend's endpoints.
pub(crate) struct BackendHealth {
    state: Mutex<HealthState>,
    pub(crate) ejections: AtomicU64,
    /// A worker has seen what is to be judged now.
    evaluation_requested: AtomicBool,
    /// An endpoint is ejected or on trial.
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

    /// Asks for a judgement; the caller rings the bell.
    pub(crate) fn request_evaluation(&self) {
        self.evaluation_requested.store(true, Ordering::Release);
    }

    /// True if there is something to judge or to probe now: by default an endpoint is looked at only once it has failed.
    fn is_due(&self, settings: &HealthSettings) -> bool {
        let asked = self.evaluation_requested.swap(false, Ordering::AcqRel);
        let compares = settings.passive.is_some_and(|passive| passive.server_errors);
        let always = compares || settings.active.is_some() || settings.slow_start.is_some();
        always || asked || self.is_pending.load(Ordering::Relaxed)
    }

    /// These are the endpoints from now on; `put_in_force` gets those to choose among, before anything else is judged.
    pub(crate) fn configure_endpoints<R>(
        &self,
        key: &BackendKey,
        configured: EndpointSet<EndpointData>,
        settings: &HealthSettings,
        put_in_force: impl FnOnce(Arc<EndpointSet<EndpointData>>) -> R,
    ) -> R {
        let mut cases = lock(&self.state);
        cases.configured = Arc::new(configured);
        if !is_watched(settings) {
            cases.evaluator = HealthEvaluator::new();
            return put_in_force(Arc::clone(&cases.configured));
        }
        let (_, events) = cases.evaluate(settings);
        self.is_pending.store(cases.evaluator.is_pending(), Ordering::Relaxed);
        self.log_events(key, &events, None);
        put_in_force(cases.effective())
    }

    /// The endpoints as they are configured.
    pub(crate) fn configured(&self) -> Arc<EndpointSet<EndpointData>> {
        Arc::clone(&lock(&self.state).configured)
    }

    /// How each endpoint stands, in a word.
    pub(crate) fn status_words(
        &self,
        settings: &HealthSettings,
    ) -> BTreeMap<SocketAddr, &'static str> {
        let cases = lock(&self.state);
        let conditions = cases.evaluator.statuses(settings, clock::now());
        conditions.map(|(address, condition)| (address, status_word(&condition))).collect()
    }

    pub(crate) fn is_panicking(&self) -> bool {
        lock(&self.state).evaluator.is_panicking()
    }

    /// One event of the log for each change; `fault`: what the probe found that brought it about.
    fn log_events(&self, key: &BackendKey, events: &[HealthEvent], fault: Option<&str>) {
        for event in events {
            match event {
                HealthEvent::PanicBegins => {
                    tracing::warn!(backend = %key, "too few endpoints are well: health is ignored");
                }
                HealthEvent::PanicEnds => {
                    tracing::info!(backend = %key, "enough endpoints are well")
                }
                HealthEvent::Endpoint(endpoint, change) => {
                    let taken_out = matches!(change, HealthChange::Ejected { .. });
                    self.ejections.fetch_add(u64::from(taken_out), Ordering::Relaxed);
                    tracing::info!(backend = %key, %endpoint, ?change, fault, "health of an endpoint");
                }
            }
        }
    }
}

impl HealthState {
    /// Whether weights have changed by it, and what there is to tell.
    fn evaluate(&mut self, settings: &HealthSettings) -> (bool, Vec<HealthEvent>) {
        let judgement = self.evaluator.evaluate(&self.configured, totals, settings, clock::now());
        (judgement.changed, judgement.events)
    }

    fn effective(&self) -> Arc<EndpointSet<EndpointData>> {
        Arc::new(self.evaluator.effective_set(&self.configured))
    }

    fn due_probes(&mut self, settings: &HealthSettings) -> Vec<Arc<Endpoint>> {
        let Self { configured, evaluator: ward, rng } = self;
        let due = ward.due_probes(configured, totals, settings, clock::now(), rng);
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

/// What has come of an endpoint's requests.
fn totals(endpoint: &Endpoint) -> AttemptTotals {
    let mut totals = AttemptTotals::default();
    for shard in &endpoint.data.counters {
        let failures = shard.failures.value();
        totals.failures += failures;
        // A worker counts the attempt first: what it is counting just now may be in one figure and not yet in another.
        let told = shard.attempts.value().saturating_sub(shard.inconclusive.value());
        totals.successes += told.saturating_sub(failures);
    }
    totals
}

fn status_word(condition: &HealthStatus) -> &'static str {
    match condition.ejection {
        EjectionState::Ejected { .. } => "ejected",
        EjectionState::HalfOpen => "trial",
        EjectionState::Serving if !condition.passes_probes => "unfit",
        EjectionState::Serving if condition.share_percent < 100 => "starting",
        EjectionState::Serving => "serving",
    }
}

/// Watches until the bell says to stop.
pub(crate) fn run(shared: &Arc<ProxyState>) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    // What is asked for is looked at as often, and by nobody else's time.
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
            // Whoever rings the bell does not make limits change faster.
            let current = backend.current();
            let is_learning = current.limits.cap == ConcurrencyCap::Learned;
            raised |= is_learning && limits_due <= now && backend.update_limits(&current, now);
            let full = backend.restore_limits();
            raised |= full.is_some();
            let tick = (watched || is_learning || expects_answers).then_some(TICK);
            wait = [wait, tick, full].into_iter().flatten().min();
        }
        if raised {
            // Endpoints may be shared, so others may have waited for the room.
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

/// Judges a backend's endpoints and probes those that are due; says whether there is anything to watch.
fn evaluate_backend(
    backend: &Arc<Backend>,
    probes: &mut JoinSet<()>,
    attempts: &mut BackgroundAttempts,
) -> bool {
    if !backend.health.is_due(&backend.current().settings.health) {
        return false;
    }
    let mut cases = lock(&backend.health.state);
    // Read under the lock: whoever puts something in force holds it.
    let current = backend.current();
    let settings = &current.settings.health;
    let (changed, events) = cases.evaluate(settings);
    backend.health.is_pending.store(cases.evaluator.is_pending(), Ordering::Relaxed);
    backend.health.log_events(&backend.key, &events, None);
    for event in events {
        if let HealthEvent::Endpoint(address, HealthChange::Ejected { .. }) = event
            && let Some(member) = cases.configured.find(address)
        {
            attempts.check(backend, &member.endpoint);
        }
    }
    if changed {
        let (settings, trust) = current.policy();
        backend.replace(BackendConfig::new(cases.effective(), settings, trust));
    }
    for endpoint in cases.due_probes(settings) {
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
        let mut cases = lock(&self.state);
        let HealthState { evaluator: ward, rng, .. } = &mut *cases;
        let event = ward.record_probe(endpoint, finding.result(), settings, clock::now(), rng);
        self.log_events(key, event.as_slice(), finding.failure_reason());
    }
}

/// Probes an endpoint; at a capped one within a slot, so that no more is asked of it than it was said to bear.
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
        Err(_) => ProbeFinding::Bad("no answer in time"),
    }
}

/// A slot that a probe holds; an uncapped endpoint has none to hold.
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
