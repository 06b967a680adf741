//! One round of passive health: who is ejected, who is tried, who comes back.

use crate::endpoint::{Endpoint, Member};
use crate::health::case::Case;
use crate::health::ejection::{Cause, Standing};
use crate::health::event::{Change, Event};
use crate::health::evidence::Health;
use crate::health::outlier::{Totals, outliers};
use crate::health::settings::PassiveSettings;
use crate::time::Time;

/// One judgement's part about passive health.
pub(crate) struct Round<'a, T> {
    pub(crate) members: &'a [Member<T>],
    pub(crate) passive: &'a PassiveSettings,
    pub(crate) now: Time,
    /// Health is ignored since the last round.
    pub(crate) panic: bool,
    pub(crate) events: &'a mut Vec<Event>,
}

impl<T> Round<'_, T> {
    /// What has become of those who are ejected or tried.
    ///
    /// An unreachable endpoint gets no requests anyway, and what returns may be another process: what broke at the death
    /// of the one before would keep it out for longer than its absence. So it is not ejected as well.
    pub(crate) fn follow_up(&mut self, cases: &mut [Case]) {
        for (case, member) in cases.iter_mut().zip(self.members) {
            let health = &member.endpoint.health;
            if !case.ejection.is_serving() && !member.endpoint.is_reachable() {
                self.readmit(case);
            } else if case.ejection.try_again(health, self.now) {
                self.tell(case, Change::Tried);
            } else if case.ejection.standing() == Standing::Trial {
                self.conclude_trial(case, &member.endpoint);
            }
        }
    }

    fn conclude_trial(&mut self, case: &mut Case, endpoint: &Endpoint<T>) {
        if endpoint.health.failures() > 0 {
            self.eject(case, &endpoint.health, Cause::Trial);
        } else if endpoint.health.is_proven() || self.panic {
            // In a panic it gets requests like any other: there is nothing left to try.
            self.readmit(case);
        } else {
            case.ejection.repeat_trial(endpoint.in_flight(), self.now);
        }
    }

    pub(crate) fn eject_failing(&mut self, cases: &mut [Case]) {
        let failures = |place: usize| self.members[place].endpoint.health.failures();
        let mut failing: Vec<usize> = (0..cases.len())
            .filter(|&place| cases[place].ejection.is_serving())
            .filter(|&place| self.members[place].endpoint.is_reachable())
            .filter(|&place| failures(place) >= self.passive.consecutive_failures.get())
            .collect();
        failing.sort_by_key(|&place| std::cmp::Reverse(failures(place)));
        for place in failing {
            let cause = Cause::Failures(self.members[place].endpoint.health.failures());
            self.eject_if_allowed(cases, place, cause);
        }
    }

    pub(crate) fn eject_outliers(
        &mut self,
        cases: &mut [Case],
        totals: impl Fn(&Endpoint<T>) -> Totals,
    ) {
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
    pub(crate) fn pardon(&mut self, cases: &mut [Case]) {
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

/// How many are out.
fn ejected(cases: &[Case]) -> usize {
    cases.iter().filter(|case| case.is_ejected()).count()
}
