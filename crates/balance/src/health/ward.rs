//! Judges the endpoints of one backend: who is out, who is tried, who starts, and what weights follow.
//!
//! It belongs to one thread, beside the workers. Evidence is shared by all backends that name an endpoint (`Health`);
//! the verdict is each backend's own, because so are its settings and its caps.

use std::collections::BTreeMap;
use std::net::SocketAddr;

use crate::endpoint::{Endpoint, EndpointSet, Member};
use crate::health::case::{Case, Condition};
use crate::health::ejection::Ejection;
use crate::health::event::{Change, Event, Judgement};
use crate::health::outlier::Totals;
use crate::health::probe::{Probe, ProbeResult};
use crate::health::round::Round;
use crate::health::settings::HealthSettings;
use crate::rng::Rng;
use crate::time::Time;

/// Who of a backend's endpoints may serve, and for how much.
#[derive(Debug, Default)]
pub struct Ward {
    /// One for each member of the configured set, in its order.
    cases: Vec<Case>,
    /// What follows for each of them.
    parts: Vec<Part>,
    panic: bool,
    /// When success rates are compared next.
    compares_at: Option<Time>,
}

/// The part that an endpoint takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    weight: u32,
    /// Since when it is on trial: another trial takes another set.
    trial: Option<Time>,
}

impl Ward {
    /// A ward with nobody in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at all evidence, of the endpoints as they are configured. To be called when these change, when
    /// [`Health::learn`](crate::Health::learn) asks for it, and some times a second. `totals` is what came of an
    /// endpoint's requests.
    ///
    /// Who is new starts slowly, except for those that the ward begins with.
    pub fn judge<T>(
        &mut self,
        configured: &EndpointSet<T>,
        totals: impl Fn(&Endpoint<T>) -> Totals,
        settings: &HealthSettings,
        now: Time,
    ) -> Judgement {
        let members = configured.members();
        self.enrol(members, settings, now);
        let mut judgement = Judgement::default();
        match &settings.passive {
            Some(passive) => {
                let (panic, events) = (self.panic, &mut judgement.events);
                let mut round = Round { members, passive, now, panic, events };
                round.follow_up(&mut self.cases);
                round.eject_failing(&mut self.cases);
                if passive.server_errors && self.compares_at.is_none_or(|at| at <= now) {
                    self.compares_at = Some(now + passive.interval);
                    round.eject_outliers(&mut self.cases, totals);
                }
                round.pardon(&mut self.cases);
            }
            None => self.cases.iter_mut().for_each(|case| case.ejection = Ejection::default()),
        }
        if settings.active.is_none() {
            self.cases.iter_mut().for_each(|case| case.probe = None);
        }
        self.conclude(settings, now, &mut judgement);
        judgement
    }

    /// The configured set with the weights of the last judgement, which must have been about this very set.
    pub fn effective<T>(&self, configured: &EndpointSet<T>) -> EndpointSet<T> {
        let members = configured.members();
        assert_eq!(members.len(), self.parts.len(), "the set has been judged");
        let part = |(member, part): (&Member<T>, &Part)| Member {
            weight: part.weight,
            trial: part.trial.is_some(),
            ..member.clone()
        };
        EndpointSet::new(members.iter().zip(&self.parts).map(part).collect())
    }

    /// True if an endpoint is ejected or on trial, so that time alone changes something.
    pub fn is_pending(&self) -> bool {
        self.cases.iter().any(|case| !case.ejection.is_serving())
    }

    /// Whether health is ignored because too few endpoints are usable.
    pub fn is_panicking(&self) -> bool {
        self.panic
    }

    /// How each endpoint stands, in the order of the configured set.
    pub fn conditions(
        &self,
        settings: &HealthSettings,
        now: Time,
    ) -> impl Iterator<Item = (SocketAddr, Condition)> {
        self.cases.iter().map(move |case| (case.address, case.condition(settings, now)))
    }

    /// The endpoints to be probed now. For each the caller owes a [`probed`](Self::probed).
    pub fn due_probes<T>(
        &mut self,
        configured: &EndpointSet<T>,
        totals: impl Fn(&Endpoint<T>) -> Totals,
        settings: &HealthSettings,
        now: Time,
        rng: &mut Rng,
    ) -> Vec<SocketAddr> {
        let Some(active) = &settings.active else { return Vec::new() };
        let mut due = Vec::new();
        self.enrol(configured.members(), settings, now);
        for (case, member) in self.cases.iter_mut().zip(configured.members()) {
            let probe = case.probe.get_or_insert_with(|| Probe::new(active, now, rng));
            if probe.begins(totals(&member.endpoint), active, now, rng) {
                due.push(case.address);
            }
        }
        due
    }

    /// What came of a probe. Gives what has changed by it; the next judgement draws the consequence.
    pub fn probed(
        &mut self,
        address: SocketAddr,
        result: ProbeResult,
        settings: &HealthSettings,
        now: Time,
        rng: &mut Rng,
    ) -> Option<Event> {
        let case = self.cases.iter_mut().find(|case| case.address == address)?;
        let probe = case.probe.as_mut()?;
        if !probe.report(result, settings.active.as_ref()?, now, rng) {
            return None;
        }
        if !probe.is_fit() {
            return Some(Event::Endpoint(address, Change::ProbesFail));
        }
        case.started = Some(now);
        Some(Event::Endpoint(address, Change::ProbesSucceed))
    }

    /// One case for each member, in their order; who was known keeps what is known.
    fn enrol<T>(&mut self, members: &[Member<T>], settings: &HealthSettings, now: Time) {
        let addresses = members.iter().map(|member| member.endpoint.address);
        if !self.cases.iter().map(|case| case.address).eq(addresses) {
            let known = std::mem::take(&mut self.cases);
            let started = (!known.is_empty() && settings.slow_start.is_some()).then_some(now);
            let mut known: BTreeMap<_, _> =
                known.into_iter().map(|case| (case.address, case)).collect();
            let case = |member: &Member<T>| {
                let address = member.endpoint.address;
                known.remove(&address).unwrap_or_else(|| Case::new(address, started))
            };
            self.cases = members.iter().map(case).collect();
        }
        for (case, member) in self.cases.iter_mut().zip(members) {
            case.weight = member.own_weight();
        }
    }

    /// Draws the consequences.
    fn conclude(&mut self, settings: &HealthSettings, now: Time, judgement: &mut Judgement) {
        let counted = || self.cases.iter().filter(|case| case.weight > 0);
        let usable = counted().filter(|case| case.is_usable()).count();
        let panic = usable * 100 < settings.panic_percent as usize * counted().count();
        if panic != self.panic {
            self.panic = panic;
            judgement.events.push(if panic { Event::PanicBegins } else { Event::PanicEnds });
        }
        let parts = self.parts(settings, now);
        judgement.changed = parts != self.parts;
        self.parts = parts;
    }

    /// Shares of a hundred become whole weights, in the lowest terms: without a slow start weights are as configured.
    fn parts(&self, settings: &HealthSettings, now: Time) -> Vec<Part> {
        let shares: Vec<u32> =
            self.cases.iter().map(|case| case.share_percent(settings, now)).collect();
        let divisor = shares.iter().fold(100, |divisor, share| gcd(divisor, *share));
        let part = |(case, share): (&Case, u32)| {
            let serves = self.panic || case.is_usable();
            let weight = if serves { case.weight.saturating_mul(share / divisor) } else { 0 };
            Part { weight, trial: case.trial().filter(|_| !serves && case.weight > 0) }
        };
        self.cases.iter().zip(shares).map(part).collect()
    }
}

fn gcd(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { gcd(other, one % other) }
}
