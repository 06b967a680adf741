//! Limits of clusters, divided among clients.
//!
//! gRPC has no limit of an endpoint. It has one of a cluster, for each client (`max_requests`, gRFC A32), which is
//! the client's share of the limits of all endpoints together. The shares follow the demand that clients report, so that a
//! busy client has what an idle one leaves; their sum is at most the limit, unless there are more clients than slots: each
//! may always have one request in flight.

/// Clients that share limits, and the demand of each.
mod claims;
/// The division of one limit.
mod division;

use std::collections::BTreeMap;
use std::num::NonZeroU32;
use std::sync::Arc;

pub(crate) use claims::{ClaimTable, ClusterClaim, ReportedDemand, StreamClaim, StreamNumber};
pub(crate) use division::{available, divide, settled};

/// The number of a client's connection. Over the connection of its resources a client reports its load too, which shows
/// whose load it is: the names of clients are often the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ConnectionNumber(pub u64);

/// Mean number of requests to a backend that have not come by the clients of this replica, or want to be sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CompetingDemand {
    /// Requests that pass through this replica's proxy.
    pub local: u64,
    /// Requests of other replicas: of their proxies and of their clients.
    pub peers: u64,
}

/// The replicas of Sheave that divide the same limits among their clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LimitReplicas {
    /// Their number, with this one.
    pub count: NonZeroU32,
    /// True if each knows the demand of all. If not, each has an equal part of the limit, whatever the demand.
    pub share_demand: bool,
}

impl Default for LimitReplicas {
    fn default() -> Self {
        Self { count: NonZeroU32::MIN, share_demand: false }
    }
}

/// The share of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct LimitShare {
    /// Number of the table in which it has changed last.
    pub(crate) version: u64,
    /// Requests that the client may have in flight.
    pub(crate) requests: u32,
}

/// The shares of all clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct LimitShares {
    streams: BTreeMap<StreamNumber, StreamShares>,
    /// Number of the clients of each cluster.
    clients: BTreeMap<Arc<str>, u32>,
}

/// The shares of one client, by cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct StreamShares {
    /// Number of the table in which one of them has changed last.
    version: u64,
    clusters: BTreeMap<Arc<str>, LimitShare>,
}

impl LimitShares {
    /// Returns the share of a client. One that has come after the division has what the next division would give it, if
    /// demand were equal.
    pub(crate) fn share(&self, stream: StreamNumber, cluster: &str, limit: u32) -> LimitShare {
        let known = self.streams.get(&stream).and_then(|it| it.clusters.get(cluster));
        match known {
            Some(share) => LimitShare { requests: share.requests.min(limit.max(1)), ..*share },
            None => {
                let others = self.clients.get(cluster).copied().unwrap_or_default();
                let requests = (limit / others.saturating_add(1)).max(1);
                LimitShare { version: 0, requests }
            }
        }
    }

    /// Returns the number of the table in which a share of the client has changed last.
    pub(crate) fn version(&self, stream: StreamNumber) -> u64 {
        self.streams.get(&stream).map_or(0, |it| it.version)
    }

    /// Returns the shares after another division, in which some stay as they are: an update for each request more or less
    /// would cost more than it gives.
    pub(crate) fn replaced(&self, version: u64, divided: &[DividedLimit]) -> Self {
        let mut new = Self::default();
        for DividedLimit { cluster, shares } in divided {
            new.clients
                .insert(Arc::clone(cluster), u32::try_from(shares.len()).unwrap_or(u32::MAX));
            for ClientShare { stream, requests, demand } in shares {
                let former = self.streams.get(stream);
                let own = new.streams.entry(*stream).or_insert_with(|| StreamShares {
                    version: former.map_or(0, |it| it.version),
                    clusters: BTreeMap::new(),
                });
                let known = former.and_then(|it| it.clusters.get(cluster)).copied();
                let requests = settled(known.map(|it| it.requests), *requests, *demand);
                let same = known.filter(|it| it.requests == requests);
                let share = same.unwrap_or_else(|| {
                    own.version = version;
                    LimitShare { version, requests }
                });
                own.clusters.insert(Arc::clone(cluster), share);
            }
        }
        new
    }

    /// Returns the sum of the shares of each cluster.
    pub(crate) fn sums(&self) -> BTreeMap<Arc<str>, u64> {
        let mut sums = BTreeMap::new();
        for (cluster, share) in self.streams.values().flat_map(|it| &it.clusters) {
            *sums.entry(Arc::clone(cluster)).or_default() += u64::from(share.requests);
        }
        sums
    }

    /// True if no limit is divided.
    pub(crate) fn is_empty(&self) -> bool {
        self.clients.is_empty()
    }
}

/// The limit of a cluster, as it was divided last.
pub(crate) struct DividedLimit {
    pub(crate) cluster: Arc<str>,
    pub(crate) shares: Vec<ClientShare>,
}

/// The share of one client, as it was divided last, with the client's demand.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientShare {
    pub(crate) stream: StreamNumber,
    pub(crate) requests: u32,
    pub(crate) demand: u64,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn divided(shares: &[(u64, u32)]) -> DividedLimit {
        let shares = shares.iter().map(|(stream, requests)| ClientShare {
            stream: StreamNumber(*stream),
            requests: *requests,
            demand: 0,
        });
        DividedLimit { cluster: "shop/web:80".into(), shares: shares.collect() }
    }

    fn requests(shares: &LimitShares, stream: u64) -> u32 {
        shares.share(StreamNumber(stream), "shop/web:80", 16).requests
    }

    #[test]
    fn shares_that_stay_keep_their_version() {
        let first = LimitShares::default().replaced(3, &[divided(&[(1, 8), (2, 8)])]);
        let second = first.replaced(4, &[divided(&[(1, 8), (2, 4), (3, 4)])]);
        let versions = [1, 2, 3].map(|stream| second.version(StreamNumber(stream)));
        assert_eq!(versions, [3, 4, 4]);
        assert_eq!([1, 2, 3].map(|stream| requests(&second, stream)), [8, 4, 4]);
        assert_eq!(second.sums()["shop/web:80"], 16);
        assert_eq!(second.replaced(5, &[divided(&[(1, 8), (2, 4), (3, 4)])]), second);
    }

    #[test]
    fn new_client_has_an_equal_share_until_the_next_division() {
        let none = LimitShares::default();
        assert_eq!(requests(&none, 1), 16, "the first");
        let shares = none.replaced(3, &[divided(&[(1, 8), (2, 8)])]);
        assert_eq!(requests(&shares, 3), 5, "the third");
        let many: Vec<_> = (0..40).map(|stream| (stream, 1)).collect();
        assert_eq!(requests(&none.replaced(3, &[divided(&many)]), 99), 1, "at least one");
    }

    #[test]
    fn share_is_never_above_a_limit_that_has_shrunk() {
        let shares = LimitShares::default().replaced(3, &[divided(&[(1, 16)])]);
        let share = |limit| shares.share(StreamNumber(1), "shop/web:80", limit).requests;
        assert_eq!([16, 4, 0].map(share), [16, 4, 1]);
    }
}
