//! Rates of requests of one route: at this replica, from counters that exist anyway, and at the others, as they report
//! them.

use std::net::SocketAddr;
use std::sync::Mutex;

use balance::Time;
use balance::demand::{RateAverager, RequestCounts, RequestRates};
use balance::peer_reports::{PeerRates, ReportedRates};

use crate::clock;
use crate::mutex::lock;
use crate::observe::RouteCounters;

/// Rates of one route.
pub(crate) struct RouteRates {
    averager: Mutex<RateAverager>,
    /// Rates at other replicas, as they report them.
    peers: Mutex<PeerRates>,
}

impl RouteRates {
    pub(crate) fn new() -> Self {
        Self { averager: Mutex::new(RateAverager::new(clock::now())), peers: Mutex::default() }
    }

    /// Returns the rates at this replica, with everything that has been counted.
    pub(crate) fn read(&self, counters: &[RouteCounters]) -> RequestRates {
        let mut averager = lock(&self.averager);
        averager.record(clock::now(), counts(counters));
        averager.rates()
    }

    /// Returns the rates at all replicas together.
    pub(crate) fn of_all(&self, counters: &[RouteCounters]) -> RequestRates {
        self.read(counters) + lock(&self.peers).sum(clock::now())
    }

    /// Takes the report of another replica.
    pub(crate) fn record_peer(&self, peer: SocketAddr, rates: ReportedRates, now: Time) {
        lock(&self.peers).record(peer, rates, now);
    }
}

/// Counts the requests, connections and flows of a route that have ended.
fn counts(counters: &[RouteCounters]) -> RequestCounts {
    let mut counts = RequestCounts::default();
    for shard in counters {
        let responses = shard.responses.iter().map(|count| count.value());
        counts.requests = responses.fold(counts.requests, u64::wrapping_add);
        counts.requests = counts.requests.wrapping_add(shard.l4_sessions.value());
        counts.rejected = counts.rejected.wrapping_add(shard.refused.value());
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_are_those_of_all_workers_and_replicas() {
        let (rates, counters) = (RouteRates::new(), [(); 2].map(|()| RouteCounters::default()));
        assert_eq!(rates.of_all(&counters), RequestRates::default());
        for shard in &counters {
            shard.responses[2].add(3);
            shard.responses[4].add(1);
            shard.refused.add(1);
        }
        // The mean is over a second at least.
        let own = rates.read(&counters);
        assert!(own.requests > 0.0 && own.requests <= 8.0, "{own:?}");
        assert_eq!(own.rejected * 4.0, own.requests);
        let (peer, now) = (([10, 0, 0, 1], 9903).into(), clock::now());
        rates.record_peer(peer, ReportedRates { requests: 100_000, rejected: 50_000 }, now);
        let all = rates.of_all(&counters);
        assert!((100.0..=108.0).contains(&all.requests), "{all:?}");
        assert!((50.0..=52.0).contains(&all.rejected), "{all:?}");
    }
}
