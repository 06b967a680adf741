//! Judges the endpoints of one backend: who is out, who is tried, who starts, and what weights follow.
//!
//! It belongs to one thread, beside the workers. Evidence is shared by all backends that name an endpoint ([`Health`]);
//! the verdict is each backend's own, because so are its settings and its caps.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::endpoint::{Endpoint, EndpointSet, Member};
use crate::health::ejection::{Cause, Ejection, Standing};
use crate::health::evidence::Health;
use crate::health::outlier::{Totals, outliers};
use crate::health::probe::{Probe, ProbeResult};
use crate::health::settings::{HealthSettings, PassiveSettings};
use crate::health::slow_start::share_percent;
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

/// What is known of one endpoint.
#[derive(Clone, Copy, Debug)]
struct Case {
    address: SocketAddr,
    /// As configured.
    weight: u32,
    ejection: Ejection,
    /// When it began to serve, if it has to start slowly.
    started: Option<Time>,
    /// If endpoints are probed.
    probe: Option<Probe>,
    /// What had come of its requests when success rates were compared last; `None`: it was not there.
    seen: Option<Totals>,
}

/// The part that an endpoint takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Part {
    weight: u32,
    trial: bool,
}

/// What has changed by a judgement.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Judgement {
    /// Whether [`Ward::effective`] gives another set than before.
    pub changed: bool,
    /// What happened, in order, for the log.
    pub events: Vec<Event>,
}

/// Something that happened to a backend's health.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// To one endpoint.
    Endpoint(SocketAddr, Change),
    /// Too few endpoints are usable: from now on health is ignored.
    PanicBegins,
    /// Enough endpoints are usable again.
    PanicEnds,
}

/// What happened to an endpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// It gets nothing for a time.
    Ejected {
        /// Why.
        cause: Cause,
        /// How long.
        lasts: Duration,
    },
    /// Its time is over: it is tried with one request at a time.
    Tried,
    /// It serves again: it passed its trial, or the set has shrunk and cannot spare it.
    Readmitted,
    /// Probes say that it is not fit to serve.
    ProbesFail,
    /// Probes say that it is fit again.
    ProbesSucceed,
}

/// How an endpoint stands, to be shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Condition {
    /// Where it stands between ejection and serving.
    pub standing: Standing,
    /// Whether probes find it fit; as long as there are none, it is.
    pub fit: bool,
    /// The share of its weight in a hundred that its slow start allows.
    pub share_percent: u32,
}

impl Ward {
    /// A ward with nobody in it.
    pub fn new() -> Self {
        Self::default()
    }

    /// Looks at all evidence, of the endpoints as they are configured. To be called when these change, when
    /// [`Health::learn`] asks for it, and some times a second. `totals` is what came of an endpoint's requests.
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
                let mut round = Round { members, passive, now, events: &mut judgement.events };
                round.follow_up(&mut self.cases);
                round.eject_failing(&mut self.cases);
                if self.compares_at.is_none_or(|at| at <= now) {
                    self.compares_at = Some(now + passive.interval);
                    round.eject_outliers(&mut self.cases, totals);
                }
                round.pardon(&mut self.cases);
            }
            None => self.cases.iter_mut().for_each(|case| case.ejection = Ejection::default()),
        }
        self.conclude(settings, now, &mut judgement);
        judgement
    }

    /// The configured set with the weights of the last judgement, which must have been about this very set.
    pub fn effective<T>(&self, configured: &EndpointSet<T>) -> EndpointSet<T> {
        let members = configured.members();
        assert_eq!(members.len(), self.parts.len(), "the set has been judged");
        let part =
            |(member, part): (&Member<T>, &Part)| Member { weight: part.weight, ..member.clone() };
        EndpointSet::new(members.iter().zip(&self.parts).map(part).collect())
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
        let Some(active) = &settings.active else {
            self.cases.iter_mut().for_each(|case| case.probe = None);
            return Vec::new();
        };
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
            case.weight = member.weight;
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
            let trial = !serves && case.is_tried();
            let weight = case.weight.saturating_mul(share / divisor);
            Part { weight: if serves || trial { weight } else { 0 }, trial }
        };
        self.cases.iter().zip(shares).map(part).collect()
    }
}

/// One judgement's part about passive health.
struct Round<'a, T> {
    members: &'a [Member<T>],
    passive: &'a PassiveSettings,
    now: Time,
    events: &'a mut Vec<Event>,
}

impl<T> Round<'_, T> {
    /// What has become of those who are ejected or tried.
    fn follow_up(&mut self, cases: &mut [Case]) {
        for (case, member) in cases.iter_mut().zip(self.members) {
            let health = &member.endpoint.health;
            if case.ejection.try_again(health, self.now) {
                self.tell(case, Change::Tried);
            } else if case.ejection.standing() != Standing::Trial {
                continue;
            } else if health.failures() > 0 {
                self.eject(case, health, Cause::Trial);
            } else if health.is_proven() {
                self.readmit(case);
            }
        }
    }

    fn eject_failing(&mut self, cases: &mut [Case]) {
        let failures = |place: usize| self.members[place].endpoint.health.failures();
        let mut failing: Vec<usize> = (0..cases.len())
            .filter(|&place| cases[place].ejection.is_serving())
            .filter(|&place| failures(place) >= self.passive.consecutive_failures.get())
            .collect();
        failing.sort_by_key(|&place| std::cmp::Reverse(failures(place)));
        for place in failing {
            let cause = Cause::Failures(self.members[place].endpoint.health.failures());
            self.eject_if_allowed(cases, place, cause);
        }
    }

    fn eject_outliers(&mut self, cases: &mut [Case], totals: impl Fn(&Endpoint<T>) -> Totals) {
        let mut seen = Vec::new();
        for (place, (case, member)) in cases.iter_mut().zip(self.members).enumerate() {
            let totals = totals(&member.endpoint);
            if let Some(earlier) = case.seen.replace(totals)
                && case.ejection.is_serving()
            {
                seen.push((place, totals.since(earlier)));
            }
        }
        for place in outliers(&seen, self.passive) {
            self.eject_if_allowed(cases, place, Cause::Outlier);
        }
    }

    /// More are out than the settings allow, because the set has shrunk: who was ejected first comes back.
    fn pardon(&mut self, cases: &mut [Case]) {
        let excess = ejected(cases).saturating_sub(self.allowed(cases));
        let until = |case: &Case| match case.ejection.standing() {
            Standing::Ejected { until } => until,
            Standing::Trial | Standing::Serving => Time::ZERO,
        };
        let mut out: Vec<usize> =
            (0..cases.len()).filter(|&place| cases[place].is_ejected()).collect();
        out.sort_by_key(|&place| until(&cases[place]));
        for place in out.into_iter().take(excess) {
            self.readmit(&mut cases[place]);
        }
    }

    fn eject_if_allowed(&mut self, cases: &mut [Case], place: usize, cause: Cause) {
        if cases[place].weight > 0 && ejected(cases) < self.allowed(cases) {
            self.eject(&mut cases[place], &self.members[place].endpoint.health, cause);
        }
    }

    /// How many may be ejected at the same time.
    fn allowed(&self, cases: &[Case]) -> usize {
        let members = cases.iter().filter(|case| case.weight > 0).count();
        let share = members * self.passive.max_ejection_percent.min(100) as usize / 100;
        share.max(usize::from(members > 1))
    }

    fn eject(&mut self, case: &mut Case, health: &Health, cause: Cause) {
        let until = case.ejection.eject(health, self.passive, self.now);
        self.tell(case, Change::Ejected { cause, lasts: until.saturating_since(self.now) });
    }

    fn readmit(&mut self, case: &mut Case) {
        case.ejection.readmit(self.now);
        case.started = Some(self.now);
        self.tell(case, Change::Readmitted);
    }

    fn tell(&mut self, case: &Case, change: Change) {
        self.events.push(Event::Endpoint(case.address, change));
    }
}

impl Case {
    fn new(address: SocketAddr, started: Option<Time>) -> Self {
        Self { address, weight: 0, ejection: Ejection::default(), started, probe: None, seen: None }
    }

    fn is_fit(&self) -> bool {
        self.probe.is_none_or(|probe| probe.is_fit())
    }

    fn is_usable(&self) -> bool {
        self.ejection.is_serving() && self.is_fit()
    }

    fn is_tried(&self) -> bool {
        self.ejection.standing() == Standing::Trial && self.is_fit()
    }

    /// Ejected or tried, and missed for it: an endpoint without a weight is not.
    fn is_ejected(&self) -> bool {
        self.weight > 0 && !self.ejection.is_serving()
    }

    fn share_percent(&self, settings: &HealthSettings, now: Time) -> u32 {
        match (&settings.slow_start, self.started) {
            (Some(slow_start), Some(started)) => {
                share_percent(slow_start, now.saturating_since(started))
            }
            (Some(_) | None, Some(_) | None) => 100,
        }
    }

    fn condition(&self, settings: &HealthSettings, now: Time) -> Condition {
        Condition {
            standing: self.ejection.standing(),
            fit: self.is_fit(),
            share_percent: self.share_percent(settings, now),
        }
    }
}

/// How many are out.
fn ejected(cases: &[Case]) -> usize {
    cases.iter().filter(|case| case.is_ejected()).count()
}

fn gcd(one: u32, other: u32) -> u32 {
    if other == 0 { one } else { gcd(other, one % other) }
}
