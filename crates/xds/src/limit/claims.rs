//! Clients that share limits: which clusters each uses, and how many requests it demands.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::ConnectionNumber;

/// Maximum number of Clusters that all clients together share the limits of. A client beyond that has an equal part, and is
/// not counted.
const MAX_CLAIMS: usize = 200_000;

/// The number of a stream: of a client's resources, or of its reports.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamNumber(pub(crate) u64);

/// All clients.
#[derive(Debug, Default)]
pub(crate) struct ClaimTable(Mutex<ClaimState>);

#[derive(Debug, Default)]
struct ClaimState {
    last_stream: u64,
    /// Number of the clusters of all streams.
    claims: usize,
    streams: BTreeMap<StreamNumber, StreamState>,
    /// Demand by the stream that reports it, with its connection.
    demands: BTreeMap<(ConnectionNumber, StreamNumber), BTreeMap<Arc<str>, u64>>,
}

#[derive(Debug)]
struct StreamState {
    connection: Option<ConnectionNumber>,
    clusters: BTreeSet<Arc<str>>,
}

/// A client of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClusterClaim {
    pub(crate) stream: StreamNumber,
    /// Requests that it demands; `None`: it does not report them.
    pub(crate) demand: Option<u64>,
}

impl ClaimTable {
    /// Returns the clients of each cluster that is meant, in the order of their streams.
    pub(crate) fn by_cluster(
        &self,
        is_meant: impl Fn(&str) -> bool,
    ) -> BTreeMap<Arc<str>, Vec<ClusterClaim>> {
        let state = self.state();
        let mut streams_of = BTreeMap::<(ConnectionNumber, &str), u64>::new();
        for StreamState { connection, clusters } in state.streams.values() {
            let Some(connection) = *connection else { continue };
            for cluster in clusters.iter().filter(|cluster| is_meant(cluster)) {
                *streams_of.entry((connection, cluster)).or_default() += 1;
            }
        }
        let mut claims = BTreeMap::<Arc<str>, Vec<ClusterClaim>>::new();
        for (stream, StreamState { connection, clusters }) in &state.streams {
            // The streams of one connection, as a forwarder has it, divide what is reported over it.
            let demand_of = |cluster: &str| {
                let connection = (*connection)?;
                let demand = state.demand(connection, cluster)?;
                Some(demand.div_ceil(streams_of[&(connection, cluster)]))
            };
            for cluster in clusters.iter().filter(|cluster| is_meant(cluster)) {
                let claim = ClusterClaim { stream: *stream, demand: demand_of(cluster) };
                claims.entry(Arc::clone(cluster)).or_default().push(claim);
            }
        }
        claims
    }

    fn state(&self) -> MutexGuard<'_, ClaimState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl ClaimState {
    fn next_stream(&mut self) -> StreamNumber {
        self.last_stream += 1;
        StreamNumber(self.last_stream)
    }

    /// Returns the demand that is reported over a connection; `None`: there are no reports.
    fn demand(&self, connection: ConnectionNumber, cluster: &str) -> Option<u64> {
        let (first, last) = ((connection, StreamNumber(0)), (connection, StreamNumber(u64::MAX)));
        let reports = self.demands.range(first..=last).map(|(_, reports)| reports);
        let demands = reports.map(|demands| demands.get(cluster).copied().unwrap_or_default());
        demands.reduce(u64::saturating_add)
    }
}

/// The clusters of one client, until it is dropped.
#[derive(Debug)]
pub(crate) struct StreamClaim {
    table: Arc<ClaimTable>,
    pub(crate) stream: StreamNumber,
}

impl StreamClaim {
    pub(crate) fn new(table: &Arc<ClaimTable>, connection: Option<ConnectionNumber>) -> Self {
        let mut state = table.state();
        let stream = state.next_stream();
        state.streams.insert(stream, StreamState { connection, clusters: BTreeSet::new() });
        Self { table: Arc::clone(table), stream }
    }

    /// Replaces the clusters.
    pub(crate) fn set_clusters(&self, names: impl Iterator<Item = Arc<str>>) {
        let mut clusters: BTreeSet<_> = names.collect();
        let mut state = self.table.state();
        let state = &mut *state;
        let Some(stream) = state.streams.get_mut(&self.stream) else { return };
        let others = state.claims - stream.clusters.len();
        if others + clusters.len() > MAX_CLAIMS {
            clusters.clear();
        }
        state.claims = others + clusters.len();
        stream.clusters = clusters;
    }
}

impl Drop for StreamClaim {
    fn drop(&mut self) {
        let mut state = self.table.state();
        if let Some(stream) = state.streams.remove(&self.stream) {
            state.claims -= stream.clusters.len();
        }
    }
}

/// The demand that one client reports, until it is dropped.
#[derive(Debug)]
pub(crate) struct ReportedDemand {
    table: Arc<ClaimTable>,
    key: (ConnectionNumber, StreamNumber),
}

impl ReportedDemand {
    pub(crate) fn new(table: &Arc<ClaimTable>, connection: ConnectionNumber) -> Self {
        let key = (connection, table.state().next_stream());
        Self { table: Arc::clone(table), key }
    }

    /// Replaces the demand of all clusters; `None`: there are no reports.
    pub(crate) fn set(&self, demand: Option<BTreeMap<Arc<str>, u64>>) {
        let mut state = self.table.state();
        match demand {
            Some(demand) => state.demands.insert(self.key, demand),
            None => state.demands.remove(&self.key),
        };
    }
}

impl Drop for ReportedDemand {
    fn drop(&mut self) {
        self.set(None);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WEB: &str = "shop/web:80";

    fn demands(table: &ClaimTable) -> Vec<Option<u64>> {
        let claims = table.by_cluster(|name| name == WEB);
        claims.into_values().flatten().map(|it| it.demand).collect()
    }

    fn claim(table: &Arc<ClaimTable>, connection: u64) -> StreamClaim {
        let claim = StreamClaim::new(table, Some(ConnectionNumber(connection)));
        claim.set_clusters([WEB.into(), "shop/api:80".into()].into_iter());
        claim
    }

    #[test]
    fn demand_is_that_of_the_connection() {
        let table = Arc::<ClaimTable>::default();
        let (some, other) = (claim(&table, 1), claim(&table, 2));
        assert_eq!(demands(&table), [None, None], "there are no reports");
        let report = ReportedDemand::new(&table, ConnectionNumber(2));
        report.set(Some([(Arc::from(WEB), 7)].into()));
        assert_eq!(demands(&table), [None, Some(7)]);
        report.set(Some(BTreeMap::new()));
        assert_eq!(demands(&table), [None, Some(0)]);
        drop(report);
        assert_eq!(demands(&table), [None, None]);
        drop((some, other));
        assert_eq!(demands(&table), []);
    }

    #[test]
    fn clients_behind_a_forwarder_divide_the_demand_of_its_connection() {
        let table = Arc::<ClaimTable>::default();
        let _claims = (claim(&table, 1), claim(&table, 1));
        let reports = [4, 5].map(|demand| {
            let report = ReportedDemand::new(&table, ConnectionNumber(1));
            report.set(Some([(Arc::from(WEB), demand)].into()));
            report
        });
        assert_eq!(demands(&table), [Some(5), Some(5)]);
        drop(reports);
    }

    #[test]
    fn clients_beyond_the_limit_are_not_counted() {
        let table = Arc::<ClaimTable>::default();
        let many = StreamClaim::new(&table, None);
        many.set_clusters((0..MAX_CLAIMS).map(|number| number.to_string().into()));
        let further = claim(&table, 1);
        assert_eq!(demands(&table), []);
        drop(many);
        further.set_clusters([WEB.into()].into_iter());
        assert_eq!(demands(&table), [None]);
    }

    #[test]
    fn client_without_a_connection_number_claims_without_demand() {
        let table = Arc::<ClaimTable>::default();
        let claim = StreamClaim::new(&table, None);
        claim.set_clusters([WEB.into()].into_iter());
        assert_eq!(demands(&table), [None]);
        claim.set_clusters([].into_iter());
        assert_eq!(demands(&table), []);
    }
}
