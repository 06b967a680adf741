//! The newest report of each other replica.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use crate::time::Time;

/// Time for which a report counts from its receipt on, unless another one replaces it.
pub const DEMAND_LIFETIME: Duration = Duration::from_secs(3);

/// Newest report of each peer, which counts for [`DEMAND_LIFETIME`].
#[derive(Debug)]
pub(super) struct NewestReports<T> {
    /// Reports with the time until which they count.
    reports: BTreeMap<SocketAddr, (T, Time)>,
}

impl<T> Default for NewestReports<T> {
    fn default() -> Self {
        Self { reports: BTreeMap::new() }
    }
}

impl<T> NewestReports<T> {
    /// Takes the report of a peer, and forgets those that count no longer.
    pub(super) fn record(&mut self, peer: SocketAddr, report: T, now: Time) {
        self.reports.retain(|_, (_, until)| now < *until);
        self.reports.insert(peer, (report, now + DEMAND_LIFETIME));
    }

    /// Returns the reports that count.
    pub(super) fn valid(&self, now: Time) -> impl Iterator<Item = &T> {
        self.reports.values().filter(move |(_, until)| now < *until).map(|(report, _)| report)
    }

    /// Returns the number of reports in memory.
    #[cfg(all(test, not(loom)))]
    pub(super) fn len(&self) -> usize {
        self.reports.len()
    }
}
