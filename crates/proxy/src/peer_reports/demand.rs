//! Schedule and content of demand messages.
//!
//! Demand is reported every second, and at once if a backend without demand gets a request that waits or is rejected.
//! A message has at most `MAX_DEMAND_REPORTS`: first those of backends that have just got demand, then the others in
//! turn, in several messages within the second. Rates of routes with requests, if there are any, go with them.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use balance::Time;
use balance::peer_reports::{
    BackendHash, DemandMessage, DemandReport, MAX_DEMAND_REPORTS, MAX_ROUTE_REPORTS, ReportedRates,
    RouteHash, RouteReport,
};

use crate::active_config::Route;
use crate::backend::Backend;
use crate::demand::RiseListener;

/// Interval of reports.
const REPORT_INTERVAL: Duration = Duration::from_secs(1);
/// Shortest interval between two messages, also if demand rises.
const MESSAGE_INTERVAL: Duration = Duration::from_millis(20);
/// Shortest interval between the messages of one report.
const PART_INTERVAL: Duration = Duration::from_millis(50);

/// Makes the messages about the demand of this replica.
#[derive(Default)]
pub(super) struct DemandReporter {
    /// Backends that had demand at the last reading.
    active: BTreeSet<BackendHash>,
    /// Reports of the last reading that have not been sent.
    unsent: VecDeque<DemandReport>,
    /// Backend whose report was sent last.
    last_sent: Option<BackendHash>,
    /// Reports of routes of the last reading that have not been sent.
    unsent_routes: VecDeque<RouteReport>,
    /// Route whose report was sent last.
    last_route: Option<RouteHash>,
    /// True if demand has risen since the last reading.
    is_urgent: bool,
    read_due: Time,
    part_due: Time,
    /// Earliest time of the next message.
    earliest: Time,
}

impl DemandReporter {
    pub(super) fn next_step(&self) -> Time {
        let is_sent = self.unsent.is_empty() && self.unsent_routes.is_empty();
        let due = if is_sent { self.read_due } else { self.part_due };
        let due = if self.is_urgent { Time::ZERO } else { due.min(self.read_due) };
        due.max(self.earliest)
    }

    /// Returns the message that is due. `is_urgent`: demand has risen, or backends are new.
    pub(super) fn step(
        &mut self,
        backends: &BTreeMap<BackendHash, Arc<Backend>>,
        routes: &BTreeMap<RouteHash, Arc<Route>>,
        is_urgent: bool,
        now: Time,
    ) -> Option<DemandMessage> {
        self.is_urgent |= is_urgent;
        if now < self.next_step() {
            return None;
        }
        if self.is_urgent || self.read_due <= now {
            self.read(backends, now);
            self.read_routes(routes);
        }
        let count = self.unsent.len().min(MAX_DEMAND_REPORTS);
        let reports: Vec<_> = self.unsent.drain(..count).collect();
        self.last_sent = reports.last().map(|report| report.backend).or(self.last_sent);
        let count = self.unsent_routes.len().min(MAX_ROUTE_REPORTS);
        let routes: Vec<_> = self.unsent_routes.drain(..count).collect();
        self.last_route = routes.last().map(|report| report.route).or(self.last_route);
        let parts = self.unsent.len().div_ceil(MAX_DEMAND_REPORTS);
        let parts = 1 + parts.max(self.unsent_routes.len().div_ceil(MAX_ROUTE_REPORTS)) as u32;
        self.part_due = now + (REPORT_INTERVAL / parts).max(PART_INTERVAL);
        (!reports.is_empty() || !routes.is_empty()).then(|| {
            self.earliest = now + MESSAGE_INTERVAL;
            DemandMessage { reports, routes }
        })
    }

    /// Reads the rates of all routes; those after the one that was sent last come first.
    fn read_routes(&mut self, routes: &BTreeMap<RouteHash, Arc<Route>>) {
        let report = |(&hash, route): (&RouteHash, &Arc<Route>)| {
            let rates = ReportedRates::of(route.rates.read(&route.counters));
            rates.is_some().then_some(RouteReport { route: hash, rates })
        };
        let reports = routes.iter().filter_map(report);
        let (later, sooner): (Vec<_>, Vec<_>) =
            reports.partition(|report| self.last_route.is_some_and(|last| report.route <= last));
        self.unsent_routes = sooner.into_iter().chain(later).collect();
    }

    /// Reads the demand for all backends, and asks to be woken by the next rise at those without.
    fn read(&mut self, backends: &BTreeMap<BackendHash, Arc<Backend>>, now: Time) {
        self.is_urgent = false;
        self.read_due = now + REPORT_INTERVAL;
        let mut first = Vec::new();
        let (mut later, mut sooner) = (Vec::new(), Vec::new());
        let mut active = BTreeSet::new();
        for (&hash, backend) in backends {
            backend.demand.expect_rise(RiseListener::Replicas);
            let report = backend.demand.read(|averager| DemandReport::of(hash, averager));
            let Some(report) = report else { continue };
            if report.present.is_some() {
                backend.demand.ignore_rise(RiseListener::Replicas);
                active.insert(hash);
            }
            let begins = report.present.is_some() && !self.active.contains(&hash);
            let list = match begins {
                true => &mut first,
                false if self.last_sent.is_some_and(|last| hash <= last) => &mut later,
                false => &mut sooner,
            };
            list.push(report);
        }
        self.active = active;
        self.unsent = first.into_iter().chain(sooner).chain(later).collect();
    }
}

#[cfg(test)]
mod tests {
    use balance::EndpointSet;
    use gateway::snapshot::{BackendKey, BackendSettings, TransportProtocol};

    use super::*;
    use crate::affinity::AffinityKey;
    use crate::clock;
    use crate::demand::route_rates::RouteRates;
    use crate::observe::RouteCounters;

    fn backends(count: usize) -> BTreeMap<BackendHash, Arc<Backend>> {
        let backend = |number: usize| {
            let service = format!("app-{number}").into();
            let transport = TransportProtocol::Tcp;
            let namespace = "default".into();
            let key = BackendKey { namespace, service, port: 80, transport, node: None };
            let affinity = Arc::new(AffinityKey::new(None));
            let settings = BackendSettings::default();
            let set = EndpointSet::empty();
            Arc::new(Backend::new(key, set, settings, None, affinity, 1, None))
        };
        (0..count).map(backend).map(|it| (BackendHash::of(&it.name), it)).collect()
    }

    const NO_ROUTES: BTreeMap<RouteHash, Arc<Route>> = BTreeMap::new();

    fn hashes(message: Option<DemandMessage>) -> Vec<BackendHash> {
        message.into_iter().flat_map(|it| it.reports).map(|it| it.backend).collect()
    }

    #[test]
    fn rise_is_reported_at_once_and_demand_every_second() {
        let (backends, now) = (backends(2), clock::now());
        let mut reporter = DemandReporter::default();
        assert_eq!(reporter.step(&backends, &NO_ROUTES, true, now), None, "nothing to report");
        let (hash, risen) = backends.first_key_value().unwrap();
        risen.demand.shard(0).wait(now);
        let soon = now + MESSAGE_INTERVAL;
        assert_eq!(reporter.step(&backends, &NO_ROUTES, false, soon), None, "not due");
        assert_eq!(hashes(reporter.step(&backends, &NO_ROUTES, true, soon)), [*hash]);
        assert_eq!(reporter.step(&backends, &NO_ROUTES, true, soon), None, "too soon");
        assert_eq!(reporter.next_step(), soon + MESSAGE_INTERVAL);
        assert_eq!(
            hashes(reporter.step(&backends, &NO_ROUTES, false, soon + MESSAGE_INTERVAL)),
            [*hash]
        );
        let due = soon + MESSAGE_INTERVAL + REPORT_INTERVAL;
        assert_eq!(reporter.next_step(), due);
        assert_eq!(hashes(reporter.step(&backends, &NO_ROUTES, false, due)), [*hash]);
    }

    #[test]
    fn backends_beyond_one_message_are_reported_in_turn_within_the_interval() {
        let (backends, start) = (backends(2 * MAX_DEMAND_REPORTS + 10), clock::now());
        let mut reporter = DemandReporter::default();
        for backend in backends.values() {
            backend.demand.shard(0).wait(start);
        }
        let (mut now, mut seen) = (start, BTreeSet::new());
        while now <= start + REPORT_INTERVAL {
            let reported = hashes(reporter.step(&backends, &NO_ROUTES, false, now));
            assert!(reported.len() <= MAX_DEMAND_REPORTS);
            seen.extend(reported);
            now = reporter.next_step().max(now + MESSAGE_INTERVAL);
        }
        assert_eq!(seen.len(), backends.len());
    }

    #[test]
    fn new_demand_comes_first_and_the_others_have_their_turn() {
        let (backends, start) = (backends(2 * MAX_DEMAND_REPORTS), clock::now());
        let (risen, last) = backends.last_key_value().unwrap();
        for backend in backends.values().take(backends.len() - 1) {
            backend.demand.shard(0).wait(start);
        }
        let mut reporter = DemandReporter::default();
        let mut seen =
            BTreeSet::from_iter(hashes(reporter.step(&backends, &NO_ROUTES, true, start)));
        last.demand.shard(0).wait(start);
        let mut now = start + MESSAGE_INTERVAL;
        let urgent = hashes(reporter.step(&backends, &NO_ROUTES, true, now));
        assert_eq!(urgent.first(), Some(risen));
        seen.extend(urgent);
        // Demand that rises again and again delays no other report for long.
        for _ in 0..3 {
            now = now + MESSAGE_INTERVAL;
            seen.extend(hashes(reporter.step(&backends, &NO_ROUTES, true, now)));
        }
        assert_eq!(seen.len(), backends.len());
    }

    #[test]
    fn routes_with_requests_are_reported_in_turn() {
        let route = |number: usize| {
            let counters = Box::new([RouteCounters::default()]);
            counters[0].responses[2].add(u64::from(number > 0));
            Route { name: format!("shop/{number}/0").into(), counters, rates: RouteRates::new() }
        };
        let routes = (0..=2 * MAX_ROUTE_REPORTS).map(|it| Arc::new(route(it)));
        let routes: BTreeMap<_, _> = routes.map(|it| (RouteHash::of(&it.name), it)).collect();
        let idle = RouteHash::of("shop/0/0");
        let (backends, start) = (BTreeMap::new(), clock::now());
        let mut reporter = DemandReporter::default();
        let (mut now, mut seen) = (start, BTreeSet::new());
        while now <= start + REPORT_INTERVAL {
            let message = reporter.step(&backends, &routes, false, now).unwrap_or_default();
            assert!(message.routes.len() <= MAX_ROUTE_REPORTS && message.reports.is_empty());
            seen.extend(message.routes.iter().map(|report| report.route));
            now = reporter.next_step().max(now + MESSAGE_INTERVAL);
        }
        assert_eq!(seen.len(), 2 * MAX_ROUTE_REPORTS);
        assert!(!seen.contains(&idle), "a route without requests is not reported");
    }
}
