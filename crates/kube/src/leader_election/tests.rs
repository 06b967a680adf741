//! Tests of the Lease: its holder, and its release.

use super::*;
use crate::api_server::ApiServer;
use crate::{ClusterObjects, WatchSelection};

const LEASES: &str = "/apis/coordination.k8s.io/v1/leases";

fn join(server: &ApiServer, name: &str) -> ClusterObjects {
    let identity = ReplicaIdentity::for_tests(name);
    ClusterObjects::new(&server.cluster(), identity, WatchSelection::default())
}

/// Returns the holder of the Lease in the API server; empty: it was released.
fn holder(server: &ApiServer) -> Option<String> {
    let lease = server.object(LEASES, "sheave", "sheave")?;
    Some(lease["spec"]["holderIdentity"].as_str()?.to_owned())
}

/// Waits until this replica holds the Lease; returns the time taken, in virtual time.
async fn until_held_by(server: &ApiServer, name: &str) -> Duration {
    let begun = Instant::now();
    while holder(server).as_deref() != Some(name) {
        assert!(begun.elapsed() < 10 * LEADER_TIMING.duration, "{name} does not acquire it");
        sleep(Duration::from_millis(10)).await;
    }
    begun.elapsed()
}

#[tokio::test(start_paused = true)]
async fn resigning_leader_releases_the_lease_for_good() {
    let server = ApiServer::default();
    let mut first = join(&server, "first");
    until_held_by(&server, "first").await;
    first.resign().await;
    assert_eq!(holder(&server).as_deref(), Some(""));
    sleep(2 * LEADER_TIMING.duration).await;
    assert_eq!(holder(&server).as_deref(), Some(""));
}

#[tokio::test(start_paused = true)]
async fn another_replica_takes_a_released_lease_at_once() {
    let server = ApiServer::default();
    let mut first = join(&server, "first");
    until_held_by(&server, "first").await;
    let _second = join(&server, "second");
    first.resign().await;
    assert!(until_held_by(&server, "second").await < 2 * LEADER_TIMING.retry_period);
}

#[tokio::test(start_paused = true)]
async fn resign_is_bounded_if_the_api_server_does_not_answer() {
    let server = ApiServer::default();
    let mut first = join(&server, "first");
    until_held_by(&server, "first").await;
    server.ignore("sheave");
    let begun = Instant::now();
    first.resign().await;
    assert!(begun.elapsed() <= Duration::from_secs(1));
    assert_eq!(holder(&server).as_deref(), Some("first"));
}
