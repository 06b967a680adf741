//! Load that clients report: requests that do not pass through this process.
//!
//! A report has the requests that are in progress when it is made, and counts since the report before. The former count
//! until the next report of the client, for [`REPORT_LIFETIME`] at most; the latter are added up.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use gateway::snapshot::BackendKey;
use thiserror::Error;

use crate::limit::ReportedDemand;
use crate::message::{ClusterStats, LocalityStats};
use crate::name;

/// Interval of the reports of a client.
pub const REPORT_INTERVAL: Duration = Duration::from_secs(2);
/// Time for which the requests in progress of a report count, unless another report replaces it.
pub const REPORT_LIFETIME: Duration = REPORT_INTERVAL.saturating_mul(2);
/// Maximum number of clusters in a report.
pub const MAX_REPORTED_CLUSTERS: usize = 2_000;
/// Maximum number of requests in progress of one client to one cluster.
const MAX_IN_PROGRESS: u64 = 1_000_000;
/// Growth of the demand of a client that drops requests, from one report to the next.
const MAX_GROWTH: u64 = 8;
/// Maximum of each count of a report.
const MAX_COUNT: u64 = 1_000_000_000;

/// Requests of clients to a cluster.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClusterLoad {
    /// Requests in progress now, as far as reports say.
    pub in_progress: u64,
    /// Requests that were sent.
    pub issued: u64,
    /// Requests that have succeeded.
    pub succeeded: u64,
    /// Requests that have failed.
    pub failed: u64,
    /// Requests that clients have not sent, because the limit of the cluster was reached.
    pub dropped: u64,
    /// Requests that clients may have in progress, by their shares of the limit; 0: there is no limit.
    pub shares: u64,
}

/// The load of all clusters, and its sources.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadStatus {
    /// Clients with a stream of reports.
    pub clients: u64,
    /// Streams that were refused, because there were too many.
    pub refused_streams: u64,
    /// Reports that were taken.
    pub reports: u64,
    /// Reports that were refused, because they exceeded a limit.
    pub refused_reports: u64,
    /// Clusters in reports that are not known (any more).
    pub unknown_clusters: u64,
    /// Load since the start, of backends that clients know.
    pub clusters: Vec<(BackendKey, ClusterLoad)>,
}

/// A report that exceeds a limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Error)]
pub(crate) enum ReportFault {
    /// Too many clusters.
    #[error("a report of more than {MAX_REPORTED_CLUSTERS} clusters")]
    TooManyClusters,
    /// An impossible number.
    #[error("a report of more than {MAX_IN_PROGRESS} requests in progress, or {MAX_COUNT} others")]
    Absurd,
}

/// The load of each cluster, which all streams add to.
#[derive(Debug, Default)]
pub(crate) struct LoadTable {
    pub(crate) clients: AtomicU64,
    pub(crate) refused_streams: AtomicU64,
    reports: AtomicU64,
    refused_reports: AtomicU64,
    unknown_clusters: AtomicU64,
    clusters: Mutex<BTreeMap<Arc<str>, ClusterEntry>>,
}

#[derive(Clone, Debug)]
struct ClusterEntry {
    backend: BackendKey,
    counters: Arc<LoadCounters>,
}

#[derive(Debug, Default)]
struct LoadCounters {
    in_progress: AtomicU64,
    issued: AtomicU64,
    succeeded: AtomicU64,
    failed: AtomicU64,
    dropped: AtomicU64,
    shares: AtomicU64,
    /// Requests issued and dropped that [`LoadTable::take`] has not returned yet.
    new_issued: AtomicU64,
    new_dropped: AtomicU64,
}

impl LoadTable {
    /// Replaces the clusters; those that stay keep their load.
    pub(crate) fn set_backends<'k>(&self, backends: impl Iterator<Item = &'k BackendKey>) {
        let mut clusters = self.clusters();
        let mut former = std::mem::take(&mut *clusters);
        *clusters = backends
            .map(|key| {
                let new = || {
                    let counters = Arc::default();
                    (name::cluster(key), ClusterEntry { backend: key.clone(), counters })
                };
                former.remove_entry(&name::cluster(key)).unwrap_or_else(new)
            })
            .collect();
    }

    /// Returns the requests in progress of each backend now, with those that were issued and dropped since the last call.
    pub(crate) fn take(&self) -> BTreeMap<BackendKey, ClusterLoad> {
        let take = |entry: &ClusterEntry| ClusterLoad {
            in_progress: entry.counters.in_progress.load(Ordering::Relaxed),
            issued: entry.counters.new_issued.swap(0, Ordering::Relaxed),
            dropped: entry.counters.new_dropped.swap(0, Ordering::Relaxed),
            ..ClusterLoad::default()
        };
        self.clusters().values().map(|entry| (entry.backend.clone(), take(entry))).collect()
    }

    /// Replaces the sums of the shares of limits; a cluster without one has none.
    pub(crate) fn set_shares(&self, sums: &BTreeMap<Arc<str>, u64>) {
        for (name, entry) in &*self.clusters() {
            let sum = sums.get(name).copied().unwrap_or_default();
            entry.counters.shares.store(sum, Ordering::Relaxed);
        }
    }

    pub(crate) fn status(&self) -> LoadStatus {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let load = |of: &LoadCounters| ClusterLoad {
            in_progress: read(&of.in_progress),
            issued: read(&of.issued),
            succeeded: read(&of.succeeded),
            failed: read(&of.failed),
            dropped: read(&of.dropped),
            shares: read(&of.shares),
        };
        let clusters = self.clusters();
        let clusters = clusters.values().map(|it| (it.backend.clone(), load(&it.counters)));
        LoadStatus {
            clients: read(&self.clients),
            refused_streams: read(&self.refused_streams),
            reports: read(&self.reports),
            refused_reports: read(&self.refused_reports),
            unknown_clusters: read(&self.unknown_clusters),
            clusters: clusters.collect(),
        }
    }

    fn clusters(&self) -> MutexGuard<'_, BTreeMap<Arc<str>, ClusterEntry>> {
        self.clusters.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The requests in progress of one client, which count until it reports others, or is dropped.
#[derive(Debug)]
pub(crate) struct ClientLoad {
    table: Arc<LoadTable>,
    in_progress: BTreeMap<Arc<str>, (Arc<LoadCounters>, u64)>,
    /// Requests that the client demands, for its shares of limits.
    demands: BTreeMap<Arc<str>, u64>,
    reported: Option<ReportedDemand>,
}

impl ClientLoad {
    /// Returns a client that has reported nothing; `reported` takes its demand, if the client can be told from others.
    pub(crate) fn new(table: Arc<LoadTable>, reported: Option<ReportedDemand>) -> Self {
        Self { table, in_progress: BTreeMap::new(), demands: BTreeMap::new(), reported }
    }

    /// Takes a report. A cluster that it does not name has no requests in progress.
    ///
    /// # Errors
    /// If it exceeds a limit; then nothing has changed.
    pub(crate) fn record(&mut self, stats: &[ClusterStats]) -> Result<(), ReportFault> {
        if let Err(fault) = check(stats) {
            self.table.refused_reports.fetch_add(1, Ordering::Relaxed);
            return Err(fault);
        }
        self.table.reports.fetch_add(1, Ordering::Relaxed);
        let mut in_progress = BTreeMap::<Arc<str>, (Arc<LoadCounters>, u64)>::new();
        let mut counts = BTreeMap::new();
        {
            let clusters = self.table.clusters();
            for ClusterStats { cluster_name, locality_stats, total_dropped_requests } in stats {
                let Some((name, entry)) = clusters.get_key_value(cluster_name.as_str()) else {
                    self.table.unknown_clusters.fetch_add(1, Ordering::Relaxed);
                    continue;
                };
                entry.counters.add(locality_stats, *total_dropped_requests);
                let now = in_progress
                    .entry(Arc::clone(name))
                    .or_insert_with(|| (Arc::clone(&entry.counters), 0));
                now.1 += sum(locality_stats, |it| it.total_requests_in_progress);
                let counts: &mut (u64, u64) = counts.entry(Arc::clone(name)).or_default();
                counts.0 += sum(locality_stats, |it| it.total_issued_requests);
                counts.1 += total_dropped_requests;
            }
        }
        let demands = counts.into_iter().map(|(name, (issued, dropped))| {
            let in_progress = in_progress[&name].1;
            (name, demand(in_progress, issued, dropped))
        });
        let demands = demands.collect();
        self.replace(in_progress);
        self.replace_demands(demands);
        Ok(())
    }

    /// Forgets the requests in progress: the client has not reported in time.
    pub(crate) fn expire(&mut self) {
        self.replace(BTreeMap::new());
        self.demands.clear();
        if let Some(reported) = &self.reported {
            reported.set(None);
        }
    }

    /// Replaces the demand. It falls by a quarter with each report at most: a report shows one moment.
    fn replace_demands(&mut self, mut demands: BTreeMap<Arc<str>, u64>) {
        let Some(reported) = &self.reported else { return };
        for (name, former) in &self.demands {
            let rest = former - former.div_ceil(4);
            if rest > 0 {
                let demand = demands.entry(Arc::clone(name)).or_default();
                *demand = rest.max(*demand);
            }
        }
        self.demands.clone_from(&demands);
        reported.set(Some(demands));
    }

    fn replace(&mut self, in_progress: BTreeMap<Arc<str>, (Arc<LoadCounters>, u64)>) {
        // The new ones first: a reader in between sees a little more rather than a gap.
        for (counters, count) in in_progress.values() {
            counters.in_progress.fetch_add(*count, Ordering::Relaxed);
        }
        for (counters, count) in self.in_progress.values() {
            counters.in_progress.fetch_sub(*count, Ordering::Relaxed);
        }
        self.in_progress = in_progress;
    }
}

impl Drop for ClientLoad {
    fn drop(&mut self) {
        self.expire();
    }
}

impl LoadCounters {
    fn add(&self, localities: &[LocalityStats], dropped: u64) {
        let add = |to: &AtomicU64, count: u64| {
            to.fetch_add(count, Ordering::Relaxed);
        };
        let issued = sum(localities, |it| it.total_issued_requests);
        add(&self.issued, issued);
        add(&self.new_issued, issued);
        add(&self.succeeded, sum(localities, |it| it.total_successful_requests));
        add(&self.failed, sum(localities, |it| it.total_error_requests));
        add(&self.dropped, dropped);
        add(&self.new_dropped, dropped);
    }
}

/// Returns the requests that a client wants to have in progress, by a report: so many more as it has dropped of those that
/// it wanted to send, since all take the same time on average. Without a request that it could send, that is not known.
fn demand(in_progress: u64, issued: u64, dropped: u64) -> u64 {
    if dropped == 0 {
        return in_progress;
    }
    let wanted = in_progress.saturating_mul(issued.saturating_add(dropped)) / issued.max(1);
    wanted.clamp(in_progress + 1, in_progress.max(1) * MAX_GROWTH)
}

fn sum(localities: &[LocalityStats], of: impl Fn(&LocalityStats) -> u64) -> u64 {
    localities.iter().map(of).fold(0, u64::saturating_add)
}

fn check(stats: &[ClusterStats]) -> Result<(), ReportFault> {
    if stats.len() > MAX_REPORTED_CLUSTERS {
        return Err(ReportFault::TooManyClusters);
    }
    let is_possible = |it: &ClusterStats| {
        let localities = &it.locality_stats;
        let counts = [
            sum(localities, |it| it.total_issued_requests),
            sum(localities, |it| it.total_successful_requests),
            sum(localities, |it| it.total_error_requests),
            it.total_dropped_requests,
        ];
        sum(localities, |it| it.total_requests_in_progress) <= MAX_IN_PROGRESS
            && counts.into_iter().all(|count| count <= MAX_COUNT)
    };
    if stats.iter().all(is_possible) { Ok(()) } else { Err(ReportFault::Absurd) }
}

#[cfg(test)]
mod tests {
    use gateway::snapshot::TransportProtocol;

    use super::*;
    use crate::limit::{ConnectionNumber, StreamClaim};

    fn backend(service: &str) -> BackendKey {
        let (namespace, service) = ("shop".into(), service.into());
        BackendKey { namespace, service, port: 80, transport: TransportProtocol::Tcp, node: None }
    }

    fn table() -> Arc<LoadTable> {
        let table = Arc::<LoadTable>::default();
        table.set_backends([backend("web"), backend("api")].iter());
        table
    }

    fn stats(name: &str, in_progress: u64, issued: u64) -> ClusterStats {
        let locality = |in_progress, issued| LocalityStats {
            total_successful_requests: issued,
            total_requests_in_progress: in_progress,
            total_error_requests: 1,
            total_issued_requests: issued,
        };
        ClusterStats {
            cluster_name: name.to_owned(),
            // Two zones.
            locality_stats: vec![locality(in_progress, issued), locality(1, 1)],
            total_dropped_requests: 3,
        }
    }

    fn load(table: &LoadTable, service: &str) -> ClusterLoad {
        let status = table.status();
        status.clusters.into_iter().find(|(key, _)| *key == backend(service)).unwrap().1
    }

    #[test]
    fn requests_in_progress_are_those_of_the_newest_report_of_each_client() {
        let table = table();
        let (mut some, mut other) =
            (ClientLoad::new(table.clone(), None), ClientLoad::new(table.clone(), None));
        some.record(&[stats("shop/web:80", 4, 10)]).unwrap();
        other.record(&[stats("shop/web:80", 1, 5), stats("shop/api:80", 7, 1)]).unwrap();
        assert_eq!((load(&table, "web").in_progress, load(&table, "api").in_progress), (7, 8));
        other.record(&[stats("shop/web:80", 2, 0)]).unwrap();
        assert_eq!((load(&table, "web").in_progress, load(&table, "api").in_progress), (8, 0));
        some.expire();
        assert_eq!(load(&table, "web").in_progress, 3);
        drop((some, other));
        let expected = ClusterLoad {
            issued: 18,
            succeeded: 18,
            failed: 6,
            dropped: 9,
            ..ClusterLoad::default()
        };
        assert_eq!(load(&table, "web"), expected, "counts stay");
    }

    #[test]
    fn what_was_issued_is_taken_once() {
        let table = table();
        let mut client = ClientLoad::new(table.clone(), None);
        client.record(&[stats("shop/web:80", 4, 10)]).unwrap();
        let taken = table.take()[&backend("web")];
        assert_eq!((taken.in_progress, taken.issued, taken.dropped), (5, 11, 3));
        let taken = table.take()[&backend("web")];
        assert_eq!((taken.in_progress, taken.issued, taken.dropped), (5, 0, 0));
    }

    #[test]
    fn demand_grows_with_dropped_requests_and_falls_slowly() {
        assert_eq!(demand(4, 10, 0), 4);
        assert_eq!(demand(4, 10, 10), 8);
        assert_eq!(demand(4, 10, 1_000), 32);
        assert_eq!([demand(4, 0, 3), demand(0, 0, 3), demand(4, 1_000, 1)], [12, 1, 5]);
        let (loads, claims) = (table(), Arc::default());
        let reported = ReportedDemand::new(&claims, ConnectionNumber(1));
        let claim = StreamClaim::new(&claims, Some(ConnectionNumber(1)));
        claim.set_clusters([Arc::from("shop/web:80")].into_iter());
        let mut client = ClientLoad::new(loads, Some(reported));
        let demand = || claims.by_cluster(|_| true)["shop/web:80"][0].demand;
        assert_eq!(demand(), None);
        let report = |in_progress| {
            let stats =
                ClusterStats { total_dropped_requests: 0, ..stats("shop/web:80", in_progress, 1) };
            [stats]
        };
        client.record(&report(15)).unwrap();
        assert_eq!(demand(), Some(16));
        client.record(&[]).unwrap();
        assert_eq!(demand(), Some(12));
        client.record(&report(10)).unwrap();
        assert_eq!(demand(), Some(11));
        client.expire();
        assert_eq!(demand(), None);
    }

    #[test]
    fn cluster_that_goes_and_comes_back_has_no_load() {
        let table = table();
        let mut client = ClientLoad::new(table.clone(), None);
        client.record(&[stats("shop/web:80", 4, 10)]).unwrap();
        table.set_backends([backend("api")].iter());
        table.set_backends([backend("api"), backend("web")].iter());
        assert_eq!(load(&table, "web"), ClusterLoad::default());
        client.record(&[stats("shop/web:80", 2, 0), stats("shop/gone:80", 9, 9)]).unwrap();
        assert_eq!(load(&table, "web").in_progress, 3);
        assert_eq!(table.status().unknown_clusters, 1);
    }

    #[test]
    fn absurd_report_is_refused_as_a_whole() {
        let table = table();
        let mut client = ClientLoad::new(table.clone(), None);
        client.record(&[stats("shop/web:80", 4, 10)]).unwrap();
        let impossible =
            [stats("shop/web:80", u64::MAX, 1), stats("shop/web:80", 1, MAX_COUNT + 1)];
        for report in impossible {
            let report = [stats("shop/api:80", 1, 1), report];
            assert_eq!(client.record(&report), Err(ReportFault::Absurd));
        }
        let many = vec![stats("shop/web:80", 0, 0); MAX_REPORTED_CLUSTERS + 1];
        assert_eq!(client.record(&many), Err(ReportFault::TooManyClusters));
        assert_eq!((load(&table, "web").in_progress, load(&table, "api").in_progress), (5, 0));
        let status = table.status();
        assert_eq!((status.reports, status.refused_reports), (1, 3));
    }
}
