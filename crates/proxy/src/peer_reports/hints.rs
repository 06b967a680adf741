//! Hints about endpoints: those that have refused requests of this replica, that it cannot reach, or that it has
//! ejected.
//!
//! Hints are sent at once when there is a new one, and every second while one holds, so that a lost message costs a
//! second.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use balance::Time;
use balance::peer_reports::{
    MAX_OUTAGE_REPORTS, MAX_REFUSAL_REPORTS, OutageMessage, RefusalMessage, RefusalReport,
};

use crate::backend::Backend;
use crate::dial::pool::Endpoint;
use crate::reachability::outages::OutageList;

/// Interval at which hints are repeated.
const REPEAT_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval between two messages of one kind.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(20);

/// Times of one kind of message.
#[derive(Default)]
pub(super) struct HintSchedule {
    /// True if there is a new hint.
    is_urgent: bool,
    /// True if there were hints last time.
    has_hints: bool,
    last: Time,
}

impl HintSchedule {
    pub(super) fn next(&self) -> Time {
        match (self.is_urgent, self.has_hints) {
            (true, _) => self.last + MESSAGE_INTERVAL,
            (false, true) => self.last + REPEAT_INTERVAL,
            (false, false) => Time::MAX,
        }
    }

    /// Returns the hints if they are due and there are any.
    pub(super) fn step<T>(
        &mut self,
        has_news: bool,
        now: Time,
        hints: impl FnOnce() -> Vec<T>,
    ) -> Option<Vec<T>> {
        self.is_urgent |= has_news;
        if now < self.next() {
            return None;
        }
        let hints = hints();
        (self.is_urgent, self.has_hints, self.last) = (false, !hints.is_empty(), now);
        self.has_hints.then_some(hints)
    }
}

/// Makes the messages about endpoints that refuse.
#[derive(Default)]
pub(super) struct RefusalReporter {
    /// Endpoints that have refused a request lately.
    refusing: Vec<Arc<Endpoint>>,
    schedule: HintSchedule,
}

impl RefusalReporter {
    pub(super) fn next_step(&self) -> Time {
        self.schedule.next()
    }

    /// Returns the message that is due; `news`: endpoints that have begun to refuse.
    pub(super) fn step(&mut self, news: Vec<Arc<Endpoint>>, now: Time) -> Option<RefusalMessage> {
        let has_news = !news.is_empty();
        for endpoint in news {
            if !self.refusing.iter().any(|it| Arc::ptr_eq(it, &endpoint)) {
                self.refusing.push(endpoint);
            }
        }
        let refusing = &mut self.refusing;
        let reports = self.schedule.step(has_news, now, || refusals(refusing, now))?;
        Some(RefusalMessage { reports })
    }
}

/// Returns the refusals that hold, those that last longest first, and forgets the other endpoints.
fn refusals(refusing: &mut Vec<Arc<Endpoint>>, now: Time) -> Vec<RefusalReport> {
    let mut reports = Vec::new();
    refusing.retain(|it| {
        let refusal = it.own_refusal(now);
        reports.extend(refusal.map(|own| RefusalReport {
            endpoint: it.address,
            limit: own.limit,
            remaining: own.remaining,
        }));
        refusal.is_some()
    });
    reports.sort_by_key(|it| std::cmp::Reverse(it.remaining));
    reports.truncate(MAX_REFUSAL_REPORTS);
    reports
}

/// Makes the messages about endpoints that cannot be reached or are ejected.
#[derive(Default)]
pub(super) struct OutageReporter(HintSchedule);

impl OutageReporter {
    pub(super) fn next_step(&self) -> Time {
        self.0.next()
    }

    /// Returns the message that is due; `has_news`: an endpoint has been marked unreachable, or ejected.
    pub(super) fn step<'b>(
        &mut self,
        has_news: bool,
        outages: &OutageList,
        backends: impl Iterator<Item = &'b Arc<Backend>>,
        now: Time,
    ) -> Option<OutageMessage> {
        let lists = self.0.step(has_news, now, || {
            let lists = [outages.newest(MAX_OUTAGE_REPORTS), own_ejections(backends)];
            if lists.iter().all(Vec::is_empty) { Vec::new() } else { lists.to_vec() }
        })?;
        let mut lists = lists.into_iter();
        let (endpoints, ejected) = (lists.next()?, lists.next()?);
        Some(OutageMessage { endpoints, ejected })
    }
}

/// Returns the endpoints that a backend has ejected by observations of this replica.
fn own_ejections<'b>(backends: impl Iterator<Item = &'b Arc<Backend>>) -> Vec<SocketAddr> {
    let ejected: BTreeSet<_> = backends.flat_map(|it| it.health.own_ejections()).collect();
    ejected.into_iter().take(MAX_OUTAGE_REPORTS).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_sent_at_once_and_repeated_while_they_hold() {
        let mut schedule = HintSchedule::default();
        let mut now = Time::from_nanos(1_000_000_000);
        assert_eq!((schedule.step(false, now, || vec![1]), schedule.next()), (None, Time::MAX));
        assert_eq!(schedule.step(true, now, || vec![1]), Some(vec![1]));
        assert_eq!(schedule.step(true, now, || vec![1, 2]), None, "too soon");
        assert_eq!(schedule.next(), now + MESSAGE_INTERVAL);
        now = now + MESSAGE_INTERVAL;
        assert_eq!(schedule.step(false, now, || vec![1, 2]), Some(vec![1, 2]));
        assert_eq!(schedule.next(), now + REPEAT_INTERVAL);
        now = now + REPEAT_INTERVAL;
        assert_eq!(schedule.step(false, now, || vec![2]), Some(vec![2]));
        now = now + REPEAT_INTERVAL;
        assert_eq!(schedule.step(false, now, Vec::<u32>::new), None, "none holds any more");
        assert_eq!(schedule.next(), Time::MAX);
    }
}
