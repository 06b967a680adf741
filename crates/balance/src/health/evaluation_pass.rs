//! One round of passive health: who is ejected, who is tried, who comes back.

use crate::endpoint::{Endpoint, SetMember};
use crate::health::counters::HealthCounters;
use crate::health::ejection::{EjectionCause, EjectionState};
use crate::health::endpoint_health::EndpointHealth;
use crate::health::event::{HealthChange, HealthEvent};
use crate::health::outlier::{AttemptTotals, outliers};
use crate::health::settings::PassiveSettings;
use crate::time::Time;

/// One judgement's part about passive health.
pub(crate) struct EvaluationPass<'a, T> {
    pub(crate) members: &'a [SetMember<T>],
    pub(crate) passive: &'a PassiveSettings,
    pub(crate) now: Time,
    /// Health is ignored since the last round.
    pub(crate) was_panicking: bool,
    pub(crate) events: &'a mut Vec<HealthEvent>,
}

impl<T> EvaluationPass<'_, T> {
    /// What has become of those who are ejected or tried.
    ///
    /// An unreachable endpoint gets no requests anyway, and what returns may be another process: what broke at the death
    /// of the one before would keep it out for longer than its absence. So it is not ejected as well.
    pub(crate) fn advance_ejected(&mut self, cases: &mut [EndpointHealth]) {
        for (case, member) in cases.iter_mut().zip(self.members) {
            let health = &member.endpoint.health;
            if !case.ejection.is_serving() && !member.endpoint.is_reachable() {
                self.uneject(case);
            } else if case.ejection.enter_half_open(health, self.now) {
                self.record(case, HealthChange::HalfOpened);
            } else if case.ejection.state() == EjectionState::HalfOpen {
                self.conclude_half_open(case, &member.endpoint);
            }
        }
    }

    fn conclude_half_open(&mut self, case: &mut EndpointHealth, endpoint: &Endpoint<T>) {
        if endpoint.health.failures() > 0 {
            self.eject(case, &endpoint.health, EjectionCause::HalfOpenFailure);
        } else if endpoint.health.is_proven() || self.was_panicking {
            // In a panic it gets requests like any other: there is nothing left to try.
            self.uneject(case);
        } else {
            case.ejection.repeat_half_open(endpoint.in_flight(), self.now);
        }
    }

    pub(crate) fn eject_failing(&mut self, cases: &mut [EndpointHealth]) {
        let failures = |place: usize| self.members[place].endpoint.health.failures();
        let mut failing: Vec<usize> = (0..cases.len())
            .filter(|&place| cases[place].ejection.is_serving())
            .filter(|&place| self.members[place].endpoint.is_reachable())
            .filter(|&place| failures(place) >= self.passive.consecutive_failures.get())
            .collect();
        failing.sort_by_key(|&place| std::cmp::Reverse(failures(place)));
        for place in failing {
            let cause =
                EjectionCause::ConsecutiveFailures(self.members[place].endpoint.health.failures());
            self.eject_if_allowed(cases, place, cause);
        }
    }

    pub(crate) fn eject_outliers(
        &mut self,
        cases: &mut [EndpointHealth],
        totals: impl Fn(&Endpoint<T>) -> AttemptTotals,
    ) {
        let mut seen = Vec::new();
        for (place, (case, member)) in cases.iter_mut().zip(self.members).enumerate() {
            let totals = totals(&member.endpoint);
            if let Some(earlier) = case.last_totals.replace(totals)
                && case.ejection.is_serving()
            {
                seen.push((place, totals.since(earlier)));
            }
        }
        for place in outliers(&seen, self.passive) {
            self.eject_if_allowed(cases, place, EjectionCause::Outlier);
        }
    }

    /// More are out than the settings allow, because the set has shrunk: who was ejected first comes back.
    pub(crate) fn uneject_excess(&mut self, cases: &mut [EndpointHealth]) {
        let excess = ejected(cases).saturating_sub(self.max_ejected(cases));
        let until = |case: &EndpointHealth| match case.ejection.state() {
            EjectionState::Ejected { until } => until,
            EjectionState::HalfOpen | EjectionState::Serving => Time::ZERO,
        };
        let mut out: Vec<usize> =
            (0..cases.len()).filter(|&place| cases[place].is_ejected()).collect();
        out.sort_by_key(|&place| until(&cases[place]));
        for place in out.into_iter().take(excess) {
            self.uneject(&mut cases[place]);
        }
    }

    fn eject_if_allowed(
        &mut self,
        cases: &mut [EndpointHealth],
        place: usize,
        cause: EjectionCause,
    ) {
        if cases[place].weight > 0 && ejected(cases) < self.max_ejected(cases) {
            self.eject(&mut cases[place], &self.members[place].endpoint.health, cause);
        }
    }

    /// How many may be ejected at the same time.
    fn max_ejected(&self, cases: &[EndpointHealth]) -> usize {
        let members = cases.iter().filter(|case| case.weight > 0).count();
        let share = members * self.passive.max_ejection_percent.min(100) as usize / 100;
        share.max(usize::from(members > 1))
    }

    fn eject(&mut self, case: &mut EndpointHealth, health: &HealthCounters, cause: EjectionCause) {
        let until = case.ejection.eject(health, self.passive, self.now);
        self.record(case, HealthChange::Ejected { cause, lasts: until.saturating_since(self.now) });
    }

    fn uneject(&mut self, case: &mut EndpointHealth) {
        case.ejection.uneject(self.now);
        case.slow_start_from = Some(self.now);
        self.record(case, HealthChange::Unejected);
    }

    fn record(&mut self, case: &EndpointHealth, change: HealthChange) {
        self.events.push(HealthEvent::Endpoint(case.address, change));
    }
}

/// How many are out.
fn ejected(cases: &[EndpointHealth]) -> usize {
    cases.iter().filter(|case| case.is_ejected()).count()
}
