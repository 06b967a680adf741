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
            let place = BackendId { balancer, backend };
            self.evaluate_health(place);
            self.send_probes(place);
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
            let place = BackendId { balancer, backend };
            let woken = self.backend(place).dispatch(now);
            self.wake_up(place, woken);
        }
    }

    pub(super) fn evaluate_health(&mut self, place: BackendId) {
        let now = self.now;
        let balancer = &mut self.balancers[place.balancer];
        let (events, view) = balancer.backends[place.backend].evaluate(&balancer.totals, now);
        for event in events {
            self.trace(format_args!("{place:?}: {event:?}"));
            assert!(self.phase < SimulationPhase::Calm, "a health event though there is no fault");
        }
        if let Some(view) = view {
            self.replace(place, view);
        }
    }

    pub(super) fn configure(
        &mut self,
        place: BackendId,
        set: Arc<EndpointSet<usize>>,
        limits: AdmissionLimits,
    ) {
        let now = self.now;
        let balancer = &mut self.balancers[place.balancer];
        let backend = &mut balancer.backends[place.backend];
        let view = backend.configure(set, limits, &balancer.totals, now);
        self.replace(place, view);
    }

    /// Sends the probes that are due. A probe takes a slot like a request; without a slot it has no
    /// result.
    fn send_probes(&mut self, place: BackendId) {
        let now = self.now;
        let balancer = &mut self.balancers[place.balancer];
        let backend = &mut balancer.backends[place.backend];
        let cap = backend.limits().cap;
        for endpoint in backend.due_probes(&balancer.totals, now) {
            if !endpoint.take(cap) {
                backend.record_probe(&endpoint, ProbeResult::Unknown, now);
                continue;
            }
            balancer.probing += 1;
            let server = endpoint.data;
            let result = self.servers[server].probe(now);
            let takes = self.plan.servers[server].service / 2;
            self.events.schedule(now + takes, SimulationEvent::Probed { place, server, result });
        }
    }

    pub(super) fn probe_finished(&mut self, place: BackendId, server: usize, result: ProbeResult) {
        let now = self.now;
        let balancer = &mut self.balancers[place.balancer];
        balancer.probing -= 1;
        let endpoint = balancer.endpoints[server].clone();
        let event = balancer.backends[place.backend].record_probe(&endpoint, result, now);
        self.trace(format_args!("{place:?}: {event:?}"));
        self.release(place, &endpoint);
        self.evaluate_health(place);
    }

    /// Puts a view in force; workers receive it late, each with its own delay.
    fn replace(&mut self, place: BackendId, view: ConfigView) {
        self.trace(format_args!("{place:?}: {:?}, {:?}", view.set, view.limits));
        let now = self.now;
        let woken = self.backend(place).replace(view, now);
        self.wake_up(place, woken);
        for worker in 0..self.plan.workers {
            let lag = self.plan.backends[place.backend].lag;
            let late = lag * self.dice.between(0, 100) / 100;
            self.after(late, SimulationEvent::UpdateWorker { place, worker });
        }
    }
}
