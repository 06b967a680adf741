//! Evaluates the health of one backend's endpoints: ejected, half-open or in slow start, and the
//! resulting weights.
//!
//! It belongs to one thread, beside the workers. The observations (`HealthCounters`) are shared by
//! all backends that name an endpoint. The result is each backend's own, because its settings and
//! caps are.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::endpoint::{Endpoint, EndpointSet, SetMember};
use crate::health::ejection::{EjectionState, EjectionTracker};
use crate::health::endpoint_health::{EndpointHealth, HealthStatus};
use crate::health::evaluation_pass::EvaluationPass;
use crate::health::event::{HealthChange, HealthEvaluation, HealthEvent};
use crate::health::outlier::AttemptTotals;
use crate::health::probe::{ProbeResult, ProbeState};
use crate::health::settings::HealthSettings;
use crate::rng::Rng;
use crate::time::Time;

/// Health of a backend's endpoints, and the weights that follow from it.
#[derive(Debug, Default)]
pub struct HealthEvaluator {
    /// One for each member of the configured set, in its order.
    endpoints: Vec<EndpointHealth>,
    /// Resulting weight of each endpoint, in the same order.
    effective_weights: Vec<EffectiveWeight>,
    panic: bool,
    /// Time of the next comparison of success rates.
    compares_at: Option<Time>,
    /// Time of the last evaluation.
    evaluated_at: Time,
}

/// Weight of one endpoint after health is applied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct EffectiveWeight {
    weight: u32,
    /// Time since which it is half-open: a further half-open request takes a new set.
    half_open_since: Option<Time>,
}

impl HealthEvaluator {
    /// Returns an evaluator without endpoints.
    pub fn new() -> Self {
        Self::default()
    }

    /// Evaluates all observations of the configured endpoints. To be called when these change, when
    /// [`HealthCounters::learn`](crate::HealthCounters::learn) asks for it, and several times a
    /// second. `totals` returns the attempt totals of an endpoint.
    ///
    /// A new endpoint starts slowly, except for those of the first call.
    pub fn evaluate<T>(
        &mut self,
        configured: &EndpointSet<T>,
        totals: impl Fn(&Endpoint<T>) -> AttemptTotals,
        settings: &HealthSettings,
        now: Time,
    ) -> HealthEvaluation {
        let members = configured.members();
        self.evaluated_at = now;
        self.sync_members(members, settings, now);
        let mut evaluation = HealthEvaluation::default();
        match &settings.passive {
            Some(passive) => {
                let (panic, events) = (self.panic, &mut evaluation.events);
                let mut pass =
                    EvaluationPass { members, passive, now, was_panicking: panic, events };
                pass.advance_ejected(&mut self.endpoints);
                pass.eject_failing(&mut self.endpoints);
                if passive.server_errors && self.compares_at.is_none_or(|at| at <= now) {
                    self.compares_at = Some(now + passive.interval);
                    pass.eject_outliers(&mut self.endpoints, totals);
                }
                pass.uneject_excess(&mut self.endpoints);
            }
            None => self
                .endpoints
                .iter_mut()
                .for_each(|entry| entry.ejection = EjectionTracker::default()),
        }
        if settings.active.is_none() {
            self.endpoints.iter_mut().for_each(|entry| entry.probe = None);
        }
        self.apply(settings, now, &mut evaluation);
        evaluation
    }

    /// Returns the configured set with the weights of the last evaluation, which must have been of
    /// this very set.
    pub fn effective_set<T>(&self, configured: &EndpointSet<T>) -> EndpointSet<T> {
        let members = configured.members();
        assert_eq!(members.len(), self.effective_weights.len(), "the set has been evaluated");
        let part = |(member, part): (&SetMember<T>, &EffectiveWeight)| SetMember {
            weight: part.weight,
            half_open: part.half_open_since.is_some(),
            ..member.clone()
        };
        EndpointSet::new(members.iter().zip(&self.effective_weights).map(part).collect())
    }

    /// True if an endpoint is ejected or half-open, so that time alone changes something; or if one
    /// is suspected, so that fewer failures than usual do.
    pub fn is_pending(&self) -> bool {
        let is_pending = |entry: &EndpointHealth| {
            !entry.ejection.is_serving() || self.evaluated_at < entry.suspected_until
        };
        self.endpoints.iter().any(is_pending)
    }

    /// Suspects endpoints until these times: half of the usual number of consecutive failures
    /// ejects them, two at least, and their next probe is due. An endpoint that serves is not
    /// affected. Returns true if one of them is known.
    pub fn suspect(&mut self, until: &BTreeMap<SocketAddr, Time>, now: Time) -> bool {
        let mut is_known = false;
        for entry in &mut self.endpoints {
            let Some(&until) = until.get(&entry.address) else { continue };
            is_known = true;
            let begins = entry.suspected_until <= now;
            if begins && let Some(probe) = &mut entry.probe {
                probe.hasten(now);
            }
            entry.suspected_until = entry.suspected_until.max(until);
        }
        is_known
    }

    /// Returns the endpoints that are ejected by observations of this replica alone.
    pub fn own_ejections(&self) -> impl Iterator<Item = SocketAddr> {
        let ejected = self.endpoints.iter().filter(|entry| entry.is_ejected());
        let own = ejected.filter(|entry| !entry.was_suspected);
        own.filter(|entry| entry.ejection.state() != EjectionState::HalfOpen)
            .map(|entry| entry.address)
    }

    /// True if health is ignored because too few endpoints are usable.
    pub fn is_panicking(&self) -> bool {
        self.panic
    }

    /// Returns the health of each endpoint, in the order of the configured set.
    pub fn statuses(
        &self,
        settings: &HealthSettings,
        now: Time,
    ) -> impl Iterator<Item = (SocketAddr, HealthStatus)> {
        self.endpoints.iter().map(move |entry| (entry.address, entry.status(settings, now)))
    }

    /// Returns the endpoints to be probed now. For each the caller must call
    /// [`record_probe`](Self::record_probe).
    pub fn due_probes<T>(
        &mut self,
        configured: &EndpointSet<T>,
        totals: impl Fn(&Endpoint<T>) -> AttemptTotals,
        settings: &HealthSettings,
        now: Time,
        rng: &mut Rng,
    ) -> Vec<SocketAddr> {
        let Some(active) = &settings.active else { return Vec::new() };
        let mut due = Vec::new();
        self.sync_members(configured.members(), settings, now);
        for (entry, member) in self.endpoints.iter_mut().zip(configured.members()) {
            let probe = entry.probe.get_or_insert_with(|| ProbeState::new(active, now, rng));
            if probe.should_send(totals(&member.endpoint), active, now, rng) {
                due.push(entry.address);
            }
        }
        due
    }

    /// Records the result of a probe. Returns the change if there is one; the next evaluation
    /// applies it.
    pub fn record_probe(
        &mut self,
        address: SocketAddr,
        result: ProbeResult,
        settings: &HealthSettings,
        now: Time,
        rng: &mut Rng,
    ) -> Option<HealthEvent> {
        let entry = self.endpoints.iter_mut().find(|entry| entry.address == address)?;
        let probe = entry.probe.as_mut()?;
        if !probe.report(result, settings.active.as_ref()?, now, rng) {
            return None;
        }
        if !probe.passes() {
            return Some(HealthEvent::Endpoint(address, HealthChange::ProbesFail));
        }
        entry.slow_start_from = Some(now);
        Some(HealthEvent::Endpoint(address, HealthChange::ProbesSucceed))
    }

    /// Keeps one entry for each member, in their order; known endpoints keep their state.
    fn sync_members<T>(&mut self, members: &[SetMember<T>], settings: &HealthSettings, now: Time) {
        let addresses = members.iter().map(|member| member.endpoint.address);
        if !self.endpoints.iter().map(|entry| entry.address).eq(addresses) {
            let known = std::mem::take(&mut self.endpoints);
            let started = (!known.is_empty() && settings.slow_start.is_some()).then_some(now);
            let mut known: BTreeMap<_, _> =
                known.into_iter().map(|entry| (entry.address, entry)).collect();
            let entry = |member: &SetMember<T>| {
                let address = member.endpoint.address;
                known.remove(&address).unwrap_or_else(|| EndpointHealth::new(address, started))
            };
            self.endpoints = members.iter().map(entry).collect();
        }
        for (entry, member) in self.endpoints.iter_mut().zip(members) {
            entry.weight = member.own_weight();
        }
    }

    /// Applies the panic threshold and computes the weights.
    fn apply(&mut self, settings: &HealthSettings, now: Time, evaluation: &mut HealthEvaluation) {
        let counted = || self.endpoints.iter().filter(|entry| entry.weight > 0);
        let usable = counted().filter(|entry| entry.is_usable()).count();
        let panic = usable * 100 < settings.panic_percent as usize * counted().count();
        if panic != self.panic {
            self.panic = panic;
            evaluation.events.push(if panic {
                HealthEvent::PanicBegins
            } else {
                HealthEvent::PanicEnds
            });
        }
        let parts = self.weights_now(settings, now);
        evaluation.changed = parts != self.effective_weights;
        self.effective_weights = parts;
    }

    /// Returns the current weights. Percentages become whole weights in the lowest terms: without
    /// slow start, weights are as configured.
    fn weights_now(&self, settings: &HealthSettings, now: Time) -> Vec<EffectiveWeight> {
        let shares: Vec<u32> =
            self.endpoints.iter().map(|entry| entry.share_percent(settings, now)).collect();
        let divisor = shares.iter().fold(100, |divisor, share| gcd(divisor, *share));
        let part = |(entry, share): (&EndpointHealth, u32)| {
            let serves = self.panic || entry.is_usable();
            let weight = if serves { entry.weight.saturating_mul(share / divisor) } else { 0 };
            EffectiveWeight {
                weight,
                half_open_since: entry.half_open_since().filter(|_| !serves && entry.weight > 0),
            }
        };
        self.endpoints.iter().zip(shares).map(part).collect()
    }
}

fn gcd(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { gcd(other, one % other) }
}
