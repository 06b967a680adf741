//! Rates of requests that other replicas report, of backends and of routes.

use std::net::SocketAddr;

use super::newest::NewestReports;
use crate::demand::RequestRates;
use crate::hash::hash;
use crate::time::Time;

/// Maximum number of reports of routes in a message.
pub const MAX_ROUTE_REPORTS: usize = 256;

/// Maximum of each reported rate in thousandths of a request per second: ten million requests per
/// second, more than a replica serves.
pub const MAX_REPORTED_RATE_MILLI: u64 = 10_000_000_000;

/// Hash of a route's name: the same at each replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct RouteHash(pub u64);

impl RouteHash {
    /// Returns the hash of a route's name.
    pub fn of(name: &str) -> Self {
        Self(hash(name.as_bytes()))
    }
}

/// Rates of one route at one replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RouteReport {
    /// Route.
    pub route: RouteHash,
    /// Requests per second.
    pub rates: ReportedRates,
}

/// Requests per second, the mean over [`WINDOW`](crate::demand::WINDOW), in thousandths. So a rate
/// is never negative and always a number.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReportedRates {
    /// All requests.
    pub requests: u64,
    /// Those of them that were rejected.
    pub rejected: u64,
}

impl ReportedRates {
    /// Rounds up, so that a few requests are not none.
    pub fn of(rates: RequestRates) -> Self {
        let milli = |rate: f64| ((rate * 1e3).ceil() as u64).min(MAX_REPORTED_RATE_MILLI);
        Self { requests: milli(rates.requests), rejected: milli(rates.rejected) }
    }

    /// True unless there are no requests.
    pub fn is_some(&self) -> bool {
        self.requests > 0 || self.rejected > 0
    }

    pub(super) fn is_possible(&self) -> bool {
        self.requests.max(self.rejected) <= MAX_REPORTED_RATE_MILLI
    }
}

impl From<ReportedRates> for RequestRates {
    fn from(reported: ReportedRates) -> Self {
        let rate = |milli: u64| milli as f64 / 1e3;
        Self { requests: rate(reported.requests), rejected: rate(reported.rejected) }
    }
}

/// Rates of one route at the other replicas: the newest report of each.
#[derive(Debug, Default)]
pub struct PeerRates {
    reports: NewestReports<ReportedRates>,
}

impl PeerRates {
    /// Takes the report of a peer.
    pub fn record(&mut self, peer: SocketAddr, rates: ReportedRates, now: Time) {
        self.reports.record(peer, rates, now);
    }

    /// Returns the rates of all peers together.
    pub fn sum(&self, now: Time) -> RequestRates {
        self.reports.valid(now).map(|rates| RequestRates::from(*rates)).sum()
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    fn second(seconds: u64) -> Time {
        Time::from_nanos(seconds * 1_000_000_000)
    }

    fn peer(number: u8) -> SocketAddr {
        SocketAddr::from(([10, 0, 0, number], 9903))
    }

    #[test]
    fn newest_report_of_each_peer_counts_for_its_lifetime() {
        let mut peers = PeerRates::default();
        let rates = |requests, rejected| ReportedRates { requests, rejected };
        peers.record(peer(1), rates(9_000, 0), second(10));
        peers.record(peer(1), rates(2_000, 500), second(11));
        peers.record(peer(2), rates(1_000, 0), second(12));
        assert_eq!(peers.sum(second(12)), RequestRates { requests: 3.0, rejected: 0.5 });
        assert_eq!(peers.sum(second(14)), RequestRates { requests: 1.0, rejected: 0.0 });
        assert_eq!(peers.sum(second(15)), RequestRates::default());
        peers.record(peer(3), rates(1, 0), second(20));
        assert_eq!(peers.reports.len(), 1, "expired reports take no memory");
    }

    #[test]
    fn few_requests_are_not_none_and_no_rate_is_impossible() {
        let few = ReportedRates::of(RequestRates { requests: 0.0001, rejected: 0.0 });
        assert!(few.is_some() && few.requests == 1);
        assert!(!ReportedRates::default().is_some());
        assert!(ReportedRates::of(RequestRates { requests: 1e12, rejected: 1e12 }).is_possible());
    }
}
