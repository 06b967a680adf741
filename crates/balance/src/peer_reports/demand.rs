//! Demand that other replicas report, so that each replica knows the sum.
//!
//! A report has averages over fixed windows, computed by the sender from exact integrals. So the
//! receiver keeps no history, and a replica that has just started knows the whole sum.

use std::net::SocketAddr;
use std::time::Duration;

use super::ReportRefusal;
use super::newest::NewestReports;
use super::rates::{MAX_ROUTE_REPORTS, ReportedRates, RouteReport};
use crate::demand::{DemandAverager, LONGEST_WINDOW, RequestDemand, RequestRates};
use crate::hash::hash;
use crate::time::Time;

/// Maximum number of reports in a message. With as many
/// reports of routes, the largest message has 45 kB.
pub const MAX_DEMAND_REPORTS: usize = 256;

/// Maximum of each reported number in thousandths of a request: ten million requests, more than a
/// replica has connections and streams.
pub const MAX_REPORTED_DEMAND_MILLI: u64 = 10_000_000_000;

/// Windows over which a report has averages. An average over another window is interpolated.
pub const REPORTED_WINDOWS: [Duration; 7] = [
    Duration::from_secs(1),
    Duration::from_secs(2),
    Duration::from_secs(5),
    Duration::from_secs(10),
    Duration::from_secs(15),
    Duration::from_secs(30),
    LONGEST_WINDOW,
];

/// Hash of a backend's key: the same at each replica and in each version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct BackendHash(pub u64);

impl BackendHash {
    /// Returns the hash of a backend's name.
    pub fn of(name: &str) -> Self {
        Self(hash(name.as_bytes()))
    }
}

/// Demand of one replica for its backends. A backend without demand within the longest window is
/// left out; if there are too many, the sender reports them in turn.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DemandMessage {
    /// At most [`MAX_DEMAND_REPORTS`].
    pub reports: Vec<DemandReport>,
    /// Rates of routes with requests within the window, if the sender averages them; at most
    /// [`MAX_ROUTE_REPORTS`].
    pub routes: Vec<RouteReport>,
}

impl DemandMessage {
    /// Checks all numbers.
    ///
    /// # Errors
    ///
    /// Returns the reason if the message is to be refused as a whole.
    pub fn check(&self) -> Result<(), ReportRefusal> {
        let is_possible = |report: &DemandReport| {
            let numbers = report.averages.iter().chain([&report.present]);
            numbers.flat_map(|it| it.numbers()).all(|it| it <= MAX_REPORTED_DEMAND_MILLI)
                && report.rates.is_possible()
        };
        let is_short =
            self.reports.len() <= MAX_DEMAND_REPORTS && self.routes.len() <= MAX_ROUTE_REPORTS;
        let are_possible = is_short
            && self.reports.iter().all(is_possible)
            && self.routes.iter().all(|route| route.rates.is_possible());
        if are_possible { Ok(()) } else { Err(ReportRefusal::Absurd) }
    }
}

/// Demand of one replica for one backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DemandReport {
    /// Backend.
    pub backend: BackendHash,
    /// Demand when the report was made.
    pub present: ReportedDemand,
    /// Averages over the [`REPORTED_WINDOWS`].
    pub averages: [ReportedDemand; REPORTED_WINDOWS.len()],
    /// Requests per second.
    pub rates: ReportedRates,
}

impl DemandReport {
    /// Returns the report of a backend; `None` if it had no demand within the longest window.
    pub fn of(backend: BackendHash, averager: &DemandAverager) -> Option<Self> {
        let present = ReportedDemand::of(averager.present());
        let averages = REPORTED_WINDOWS.map(|it| ReportedDemand::of(averager.average(it)));
        let has_demand = present.is_some() || averages.iter().any(|it| it.is_some());
        let rates = ReportedRates::of(averager.rates());
        has_demand.then_some(Self { backend, present, averages, rates })
    }

    /// Returns the average over a window, interpolated between the time in request-seconds that
    /// requests took within the next shorter and the next longer window.
    fn average(&self, window: Duration) -> RequestDemand {
        let window = window.clamp(REPORTED_WINDOWS[0], LONGEST_WINDOW);
        let next = REPORTED_WINDOWS.partition_point(|it| *it < window);
        let spent = |at: usize| {
            let seconds = REPORTED_WINDOWS[at].as_secs_f64();
            self.averages[at].numbers().map(|milli| milli as f64 / 1e3 * seconds)
        };
        if REPORTED_WINDOWS[next] == window {
            return self.averages[next].into();
        }
        let (shorter, longer) = (REPORTED_WINDOWS[next - 1], REPORTED_WINDOWS[next]);
        let part = (window - shorter).as_secs_f64() / (longer - shorter).as_secs_f64();
        let (before, after) = (spent(next - 1), spent(next));
        let [in_flight, queued, rejected] = std::array::from_fn(|kind| {
            (before[kind] + part * (after[kind] - before[kind])) / window.as_secs_f64()
        });
        RequestDemand { in_flight, queued, rejected }
    }
}

/// Demand by kind, in thousandths of a request. So it is never negative and always a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedDemand {
    /// Requests that have a slot.
    pub in_flight: u64,
    /// Requests that wait for a slot.
    pub queued: u64,
    /// Rejected requests.
    pub rejected: u64,
}

impl ReportedDemand {
    /// Rounds up, so that a little demand is not none.
    fn of(demand: RequestDemand) -> Self {
        let milli = |requests: f64| ((requests * 1e3).ceil() as u64).min(MAX_REPORTED_DEMAND_MILLI);
        let RequestDemand { in_flight, queued, rejected } = demand;
        Self { in_flight: milli(in_flight), queued: milli(queued), rejected: milli(rejected) }
    }

    fn numbers(&self) -> [u64; 3] {
        [self.in_flight, self.queued, self.rejected]
    }

    /// True unless there is no demand.
    pub fn is_some(&self) -> bool {
        self.numbers() != [0; 3]
    }
}

impl From<ReportedDemand> for RequestDemand {
    fn from(reported: ReportedDemand) -> Self {
        let [in_flight, queued, rejected] = reported.numbers().map(|milli| milli as f64 / 1e3);
        Self { in_flight, queued, rejected }
    }
}

/// Demand for one backend at the other replicas: the newest report of each.
#[derive(Debug, Default)]
pub struct PeerDemand {
    reports: NewestReports<DemandReport>,
}

impl PeerDemand {
    /// Takes the report of a peer. True if the peers have demand now and had none before.
    pub fn record(&mut self, peer: SocketAddr, report: DemandReport, now: Time) -> bool {
        let had_demand = self.reports.valid(now).any(|it| it.present.is_some());
        self.reports.record(peer, report, now);
        !had_demand && report.present.is_some()
    }

    /// Returns the mean of all peers together over the last `window`.
    pub fn average(&self, window: Duration, now: Time) -> RequestDemand {
        self.reports.valid(now).map(|report| report.average(window)).sum()
    }

    /// Returns the demand of all peers together, as they have reported it last.
    pub fn present(&self, now: Time) -> RequestDemand {
        self.reports.valid(now).map(|report| RequestDemand::from(report.present)).sum()
    }

    /// Returns the rates of requests of all peers together.
    pub fn rates(&self, now: Time) -> RequestRates {
        self.reports.valid(now).map(|report| RequestRates::from(report.rates)).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;
    use crate::demand::{DemandShard, WINDOW};
    use crate::peer_reports::{MAX_REPORTED_RATE_MILLI, RouteHash};

    fn second(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn peer(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 9903))
    }

    /// Returns a report of a constant demand for the last minute.
    fn constant(in_flight: u64, queued: u64) -> DemandReport {
        let demand = ReportedDemand { in_flight, queued, rejected: 0 };
        let averages = [demand; REPORTED_WINDOWS.len()];
        let rates = ReportedRates { requests: 4_000, rejected: 500 };
        DemandReport { backend: BackendHash(1), present: demand, averages, rates }
    }

    #[test]
    fn newest_report_of_each_peer_counts_once() {
        let mut peers = PeerDemand::default();
        peers.record(peer(1), constant(2_000, 500), second(10));
        peers.record(peer(2), constant(1_000, 0), second(10));
        peers.record(peer(1), constant(3_000, 0), second(11));
        assert_eq!(peers.average(WINDOW, second(11)).total(), 4.0);
        assert_eq!(peers.present(second(11)).in_flight, 4.0);
        assert_eq!(peers.rates(second(11)), RequestRates { requests: 8.0, rejected: 1.0 });
    }

    #[test]
    fn report_of_a_silent_peer_ends_after_its_lifetime() {
        let mut peers = PeerDemand::default();
        peers.record(peer(1), constant(2_000, 0), second(10));
        peers.record(peer(2), constant(1_000, 0), second(12));
        assert_eq!(peers.average(WINDOW, second(12)).total(), 3.0);
        assert_eq!(peers.average(WINDOW, second(13)).total(), 1.0);
        assert_eq!(peers.average(WINDOW, second(15)).total(), 0.0);
        peers.record(peer(3), constant(1_000, 0), second(20));
        assert_eq!(peers.reports.len(), 1, "expired reports take no memory");
    }

    #[test]
    fn demand_begins_once_and_again_after_it_has_expired() {
        let mut peers = PeerDemand::default();
        let ended = DemandReport { present: ReportedDemand::default(), ..constant(0, 1_000) };
        assert!(!peers.record(peer(1), ended, second(10)), "demand before is none now");
        assert!(peers.record(peer(1), constant(0, 1_000), second(10)));
        assert!(!peers.record(peer(1), constant(0, 2_000), second(11)));
        assert!(!peers.record(peer(2), constant(0, 1_000), second(12)));
        assert!(peers.record(peer(2), constant(0, 1_000), second(15)));
    }

    #[test]
    fn average_over_any_window_is_that_of_the_sender() {
        // One request for 4 s, which ended 3 s ago: at 60 s it has taken 4 request-seconds.
        let (shard, mut averager) = (DemandShard::new(), DemandAverager::new(second(0)));
        for now in 0..=60 {
            if now == 53 {
                shard.take(second(53));
            }
            if now == 57 {
                shard.give_back(second(53), second(57));
            }
            averager.record(second(now), shard.read().unwrap());
        }
        let report = DemandReport::of(BackendHash(1), &averager).unwrap();
        let mut peers = PeerDemand::default();
        peers.record(peer(1), report, second(60));
        for window in [1, 2, 5, 10, 15, 20, 30, 60] {
            let window = Duration::from_secs(window);
            let (own, reported) = (averager.average(window), peers.average(window, second(60)));
            assert!((own.total() - reported.total()).abs() < 0.002, "{window:?}: {reported:?}");
        }
        // Between two windows the sender's figure may be anywhere between theirs.
        let between = peers.average(Duration::from_secs(6), second(60)).total();
        assert!((0.399..=0.501).contains(&between), "{between}");
    }

    #[test]
    fn backend_without_demand_is_not_reported() {
        let mut averager = DemandAverager::new(second(0));
        averager.record(second(1), DemandShard::new().read().unwrap());
        assert_eq!(DemandReport::of(BackendHash(1), &averager), None);
    }

    #[test]
    fn impossible_numbers_are_refused() {
        let message = |report| DemandMessage { reports: vec![report], routes: Vec::new() };
        let most = constant(MAX_REPORTED_DEMAND_MILLI, 0);
        assert_eq!(message(most).check(), Ok(()));
        let mut averages = most;
        averages.averages[3].rejected = MAX_REPORTED_DEMAND_MILLI + 1;
        let mut present = most;
        present.present.queued = u64::MAX;
        let mut rates = most;
        rates.rates.rejected = MAX_REPORTED_RATE_MILLI + 1;
        for report in [averages, present, rates] {
            assert_eq!(message(report).check(), Err(ReportRefusal::Absurd));
        }
        let many = DemandMessage { reports: vec![most; MAX_DEMAND_REPORTS + 1], routes: vec![] };
        assert_eq!(many.check(), Err(ReportRefusal::Absurd));
        let route = |requests| {
            let rates = ReportedRates { requests, rejected: 0 };
            RouteReport { route: RouteHash(1), rates }
        };
        let routes = |routes| DemandMessage { reports: vec![], routes };
        let possible = route(MAX_REPORTED_RATE_MILLI);
        assert_eq!(routes(vec![possible]).check(), Ok(()));
        for refused in
            [vec![route(MAX_REPORTED_RATE_MILLI + 1)], vec![possible; MAX_ROUTE_REPORTS + 1]]
        {
            assert_eq!(routes(refused).check(), Err(ReportRefusal::Absurd));
        }
    }
}
