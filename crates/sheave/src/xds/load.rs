//! Load that xDS clients report: it counts in the demand of backends, like requests that pass through the data plane.
//!
//! Autoscalers see the sum, and other replicas get it with the rest of the demand: a client reports to one replica.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use ::xds::{ClusterLoad, CompetingDemand, ResourcePublisher};
use gateway::snapshot::BackendKey;
use proxy::{Proxy, ProxylessRequests};
use tokio::time::{MissedTickBehavior, interval};

/// Interval at which reports are handed over. Clients report less often.
const LOAD_INTERVAL: Duration = Duration::from_millis(250);

/// Interval at which limits are divided among clients, by what they report.
const LIMIT_INTERVAL: Duration = Duration::from_secs(1);
/// Time over which the demand of others is averaged: short, as they get what the clients leave.
const LIMIT_WINDOW: Duration = Duration::from_secs(4);

/// Hands over what clients report.
pub(super) async fn follow(proxy: Arc<Proxy>, publisher: Arc<ResourcePublisher>) {
    let mut ticks = interval(LOAD_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        proxy.record_proxyless(&requests(publisher.take_load()));
    }
}

/// Divides the limits of backends among clients.
pub(super) async fn divide_limits(proxy: Arc<Proxy>, publisher: Arc<ResourcePublisher>) {
    let mut ticks = interval(LIMIT_INTERVAL);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        ticks.tick().await;
        publisher.divide_limits(|key| {
            let others = proxy.demand(key).map(|it| it.average_of_others(LIMIT_WINDOW));
            let others = others.unwrap_or_default();
            CompetingDemand { local: others.local.ceil() as u64, peers: others.peers.ceil() as u64 }
        });
    }
}

fn requests(load: BTreeMap<BackendKey, ClusterLoad>) -> BTreeMap<BackendKey, ProxylessRequests> {
    let requests = |load: ClusterLoad| ProxylessRequests {
        in_progress: load.in_progress,
        issued: load.issued,
        dropped: load.dropped,
    };
    load.into_iter().map(|(key, load)| (key, requests(load))).collect()
}
