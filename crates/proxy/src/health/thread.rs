//! The health thread: evaluates endpoints when a worker asks for it and at intervals, and sends probes.

use std::future::pending;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use balance::ConcurrencyCap;
use balance::health::{HealthChange, HealthEvent, HealthSettings};
use gateway::snapshot::BackendKey;
use tokio::task::JoinSet;

use super::{BackendHealth, HealthState};
use crate::backend::{Backend, BackendConfig};
use crate::clock;
use crate::demand::averaging;
use crate::dial::pool::Endpoint;
use crate::mutex::lock;
use crate::probe::{self, ProbeFinding, ProbeSlot};
use crate::reachability::attempts::BackgroundAttempts;
use crate::worker::ProxyState;

/// Interval of evaluations that no event triggers: ejections end, slow starts advance, probes become due.
const TICK: Duration = Duration::from_millis(100);

/// Runs the health thread until [`HealthWaker::stop`](super::HealthWaker::stop).
pub(crate) fn run(shared: &Arc<ProxyState>) -> io::Result<()> {
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_io().enable_time().build()?;
    // Demand is averaged at a fixed interval, and on this thread so that no worker spends time on it.
    runtime.spawn(averaging::run(Arc::clone(shared)));
    runtime.block_on(watch(shared));
    Ok(())
}

async fn watch(shared: &Arc<ProxyState>) {
    let mut probes = JoinSet::new();
    let mut attempts = BackgroundAttempts::default();
    let mut limits_due = clock::now();
    while !shared.health_waker.stopped.load(Ordering::Acquire) {
        let active_config = shared.config.load();
        let now = clock::now();
        for address in shared.leases.iter().flat_map(|leases| leases.take_checks()) {
            attempts.check_address(&active_config.backends, address);
        }
        let suspected = shared.leases.as_ref().map(|leases| leases.take_suspected());
        if let Some(suspected) = suspected.filter(|it| !it.is_empty()) {
            active_config.backends.iter().for_each(|backend| backend.health.suspect(&suspected));
        }
        let (mut wait, mut raised) = (attempts.begin_due(shared, now), false);
        for backend in &active_config.backends {
            let watched = evaluate_backend(shared, backend, &mut probes, &mut attempts);
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
            active_config.backends.iter().for_each(|backend| backend.dispatch());
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
    shared: &ProxyState,
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
            if let Some(leases) = &shared.leases {
                leases.record_outage();
            }
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
    let asked = probe::send_probe(probe, endpoint, current);
    match tokio::time::timeout(active.timeout, asked).await {
        Ok(finding) => finding,
        Err(_) => ProbeFinding::Bad("timeout"),
    }
}
