//! Control thread of a balancer: evaluates health, sends probes, updates limits, puts configuration
//! in force.

use std::sync::Arc;

use balance::health::ProbeResult;
use balance::{AdmissionLimits, EndpointSet};

use super::{FaultSimulation, SimulationEvent, SimulationPhase};
use crate::invariants::ConfigView;
use crate::requests::BackendId;

impl FaultSimulation {
    pub(super) fn tick(&mut self, balancer: usize) {
        if self.phase == SimulationPhase::End {
            return;
        }
        // The interval is random: otherwise a probe may block every half-open request.
        let next = self.plan.tick * self.dice.between(50, 150) / 100;
        self.after(next, SimulationEvent::Tick { balancer });
        for backend in 0..self.plan.backends.len() {
            let backend_id = BackendId { balancer, backend };
            self.evaluate_health(backend_id);
            self.send_probes(backend_id);
        }
        self.update_limits(balancer);
    }

    /// Updates limits, restores reduced ones, and dispatches queued requests.
    fn update_limits(&mut self, balancer: usize) {
        let now = self.now;
        for endpoint in &self.balancers[balancer].endpoints {
            let full = endpoint.reduced_limit(now);
            assert!(
                full.is_none() || self.phase < SimulationPhase::Calm,
                "{endpoint:?} is still full"
            );
        }
        let backends = 0..self.plan.backends.len();
        for backend in backends.clone() {
            self.backend(BackendId { balancer, backend }).update_limits(now);
        }
        for backend in backends {
            let backend_id = BackendId { balancer, backend };
            let woken = self.backend(backend_id).dispatch(now);
            self.wake_up(backend_id, woken);
        }
    }

    pub(super) fn evaluate_health(&mut self, backend_id: BackendId) {
        let now = self.now;
        let balancer = &mut self.balancers[backend_id.balancer];
        let (events, view) = balancer.backends[backend_id.backend].evaluate(&balancer.totals, now);
        for event in events {
            self.trace(format_args!("{backend_id:?}: {event:?}"));
            assert!(self.phase < SimulationPhase::Calm, "a health event though there is no fault");
        }
        if let Some(view) = view {
            self.replace(backend_id, view);
        }
    }

    pub(super) fn configure(
        &mut self,
        backend_id: BackendId,
        set: Arc<EndpointSet<usize>>,
        limits: AdmissionLimits,
    ) {
        let now = self.now;
        let balancer = &mut self.balancers[backend_id.balancer];
        let backend = &mut balancer.backends[backend_id.backend];
        let view = backend.configure(set, limits, &balancer.totals, now);
        self.replace(backend_id, view);
    }

    /// Sends the probes that are due. A probe takes a slot like a request; without a slot it has no
    /// result.
    fn send_probes(&mut self, backend_id: BackendId) {
        let now = self.now;
        let balancer = &mut self.balancers[backend_id.balancer];
        let backend = &mut balancer.backends[backend_id.backend];
        let cap = backend.limits().cap;
        for endpoint in backend.due_probes(&balancer.totals, now) {
            if !endpoint.take(cap, now) {
                backend.record_probe(&endpoint, ProbeResult::Unknown, now);
                continue;
            }
            balancer.probing += 1;
            let server = endpoint.data;
            let result = self.servers[server].probe(now);
            let takes = self.plan.servers[server].service / 2;
            self.events
                .schedule(now + takes, SimulationEvent::Probed { backend_id, server, result });
        }
    }

    pub(super) fn probe_finished(
        &mut self,
        backend_id: BackendId,
        server: usize,
        result: ProbeResult,
    ) {
        let now = self.now;
        let balancer = &mut self.balancers[backend_id.balancer];
        balancer.probing -= 1;
        let endpoint = balancer.endpoints[server].clone();
        let event = balancer.backends[backend_id.backend].record_probe(&endpoint, result, now);
        self.trace(format_args!("{backend_id:?}: {event:?}"));
        self.release(backend_id, &endpoint);
        self.evaluate_health(backend_id);
    }

    /// Puts a view in force; workers receive it late, each with its own delay.
    fn replace(&mut self, backend_id: BackendId, view: ConfigView) {
        self.trace(format_args!("{backend_id:?}: {:?}, {:?}", view.set, view.limits));
        let now = self.now;
        let woken = self.backend(backend_id).replace(view, now);
        self.wake_up(backend_id, woken);
        for worker in 0..self.plan.workers {
            let lag = self.plan.backends[backend_id.backend].lag;
            let late = lag * self.dice.between(0, 100) / 100;
            self.after(late, SimulationEvent::UpdateWorker { backend_id, worker });
        }
    }
}
