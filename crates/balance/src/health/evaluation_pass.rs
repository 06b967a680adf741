//! One pass of passive health: ejects, makes half-open, unejects.

use crate::endpoint::{Endpoint, SetMember};
use crate::health::counters::HealthCounters;
use crate::health::ejection::{EjectionCause, EjectionState};
use crate::health::endpoint_health::EndpointHealth;
use crate::health::event::{HealthChange, HealthEvent};
use crate::health::outlier::{AttemptTotals, outliers};
use crate::health::settings::PassiveSettings;
use crate::time::Time;

/// State of one pass of passive health.
pub(crate) struct EvaluationPass<'a, T> {
    pub(crate) members: &'a [SetMember<T>],
    pub(crate) passive: &'a PassiveSettings,
    pub(crate) now: Time,
    /// True if health has been ignored since the last pass.
    pub(crate) was_panicking: bool,
    pub(crate) events: &'a mut Vec<HealthEvent>,
}

impl<T> EvaluationPass<'_, T> {
    /// Advances the endpoints that are ejected or half-open.
    ///
    /// An unreachable endpoint gets no requests anyway, so it is unejected. The process that
    /// returns may be another one, and the failures at the death of the one before would otherwise
    /// keep the endpoint out for longer than its absence.
    pub(crate) fn advance_ejected(&mut self, entries: &mut [EndpointHealth]) {
        for (entry, member) in entries.iter_mut().zip(self.members) {
            let health = &member.endpoint.health;
            if !entry.ejection.is_serving() && !member.endpoint.is_reachable() {
                self.uneject(entry);
            } else if entry.ejection.enter_half_open(health, self.now) {
                self.record(entry, HealthChange::HalfOpened);
            } else if entry.ejection.state() == EjectionState::HalfOpen {
                self.conclude_half_open(entry, &member.endpoint);
            }
        }
    }

    fn conclude_half_open(&mut self, entry: &mut EndpointHealth, endpoint: &Endpoint<T>) {
        if endpoint.health.failures() > 0 {
            self.eject(entry, &endpoint.health, EjectionCause::HalfOpenFailure);
        } else if endpoint.health.is_proven() || self.was_panicking {
            // While panicking, it gets requests like any other: a half-open request would add
            // nothing.
            self.uneject(entry);
        } else {
            entry.ejection.repeat_half_open(endpoint.in_flight(), self.now);
        }
    }

    pub(crate) fn eject_failing(&mut self, entries: &mut [EndpointHealth]) {
        let failures = |index: usize| self.members[index].endpoint.health.failures();
        let mut failing: Vec<usize> = (0..entries.len())
            .filter(|&index| entries[index].ejection.is_serving())
            .filter(|&index| self.members[index].endpoint.is_reachable())
            .filter(|&index| {
                failures(index) >= entries[index].ejecting_failures(self.passive, self.now)
            })
            .collect();
        failing.sort_by_key(|&index| std::cmp::Reverse(failures(index)));
        for index in failing {
            let failures = self.members[index].endpoint.health.failures();
            entries[index].was_suspected = failures < self.passive.consecutive_failures.get();
            let cause = EjectionCause::ConsecutiveFailures(failures);
            self.eject_if_allowed(entries, index, cause);
        }
    }

    pub(crate) fn eject_outliers(
        &mut self,
        entries: &mut [EndpointHealth],
        totals: impl Fn(&Endpoint<T>) -> AttemptTotals,
    ) {
        let mut seen = Vec::new();
        for (index, (entry, member)) in entries.iter_mut().zip(self.members).enumerate() {
            let totals = totals(&member.endpoint);
            if let Some(earlier) = entry.last_totals.replace(totals)
                && entry.ejection.is_serving()
            {
                seen.push((index, totals.since(earlier)));
            }
        }
        for index in outliers(&seen, self.passive) {
            entries[index].was_suspected = false;
            self.eject_if_allowed(entries, index, EjectionCause::Outlier);
        }
    }

    /// Unejects those that were ejected first, if more are ejected than the settings allow because
    /// the set has shrunk.
    pub(crate) fn uneject_excess(&mut self, entries: &mut [EndpointHealth]) {
        let excess = ejected(entries).saturating_sub(self.max_ejected(entries));
        let until = |entry: &EndpointHealth| match entry.ejection.state() {
            EjectionState::Ejected { until } => until,
            EjectionState::HalfOpen | EjectionState::Serving => Time::ZERO,
        };
        let mut out: Vec<usize> =
            (0..entries.len()).filter(|&index| entries[index].is_ejected()).collect();
        out.sort_by_key(|&index| until(&entries[index]));
        for index in out.into_iter().take(excess) {
            self.uneject(&mut entries[index]);
        }
    }

    fn eject_if_allowed(
        &mut self,
        entries: &mut [EndpointHealth],
        index: usize,
        cause: EjectionCause,
    ) {
        if entries[index].weight > 0 && ejected(entries) < self.max_ejected(entries) {
            self.eject(&mut entries[index], &self.members[index].endpoint.health, cause);
        }
    }

    /// Returns the maximum of endpoints ejected at the same time.
    fn max_ejected(&self, entries: &[EndpointHealth]) -> usize {
        let members = entries.iter().filter(|entry| entry.weight > 0).count();
        let share = members * self.passive.max_ejection_percent.min(100) as usize / 100;
        share.max(usize::from(members > 1))
    }

    fn eject(&mut self, entry: &mut EndpointHealth, health: &HealthCounters, cause: EjectionCause) {
        let until = entry.ejection.eject(health, self.passive, self.now);
        self.record(
            entry,
            HealthChange::Ejected { cause, lasts: until.saturating_since(self.now) },
        );
    }

    fn uneject(&mut self, entry: &mut EndpointHealth) {
        entry.ejection.uneject(self.now);
        entry.slow_start_from = Some(self.now);
        self.record(entry, HealthChange::Unejected);
    }

    fn record(&mut self, entry: &EndpointHealth, change: HealthChange) {
        self.events.push(HealthEvent::Endpoint(entry.address, change));
    }
}

/// Returns the number of ejected and half-open endpoints.
fn ejected(entries: &[EndpointHealth]) -> usize {
    entries.iter().filter(|entry| entry.is_ejected()).count()
}
