//! Outages: an endpoint that one replica cannot reach is checked by the others before a request of theirs fails.

use std::net::SocketAddr;

use anyhow::ensure;
use serde_json::json;
use tests::configuration::SERVICE;
use tests::endpoint::refusing_address;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess,
    eventually, objects,
};

use super::lying_peer::LyingPeer;
use super::{ReplicaGroup, metric};

/// Requests that a replica sends, so that some of them would go to an endpoint that is gone.
const REQUESTS: usize = 40;

async fn send_requests(replica: &SheaveProcess) -> Result {
    for _ in 0..REQUESTS {
        ensure!(Http1TestClient::connect(replica.address()).await?.get("/").await?.status() == 200);
    }
    Ok(())
}

async fn wait_for_unreachable(replica: &SheaveProcess, endpoint: SocketAddr) -> Result {
    let label = format!("\"{endpoint}\"");
    let observe = async || metric(replica, "sheave_endpoint_unreachable", &label).await;
    eventually("the endpoint is unreachable", observe, |it| *it == 1.0).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dead_endpoint_costs_the_others_no_failed_attempt() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let dead = refusing_address().await?;
    let policy = objects::backend_policy(SERVICE, json!({ "algorithm": "RoundRobin" }));
    let addresses = [endpoint.address, dead];
    let configuration = ConfigDirectory::for_endpoints_with(&addresses, &[policy])?;
    let group = ReplicaGroup::start_with(configuration).await?;
    send_requests(&group.replicas[0]).await?;
    let label = format!("\"{dead}\"");
    let failed = async |replica: &SheaveProcess| {
        metric(replica, "sheave_endpoint_failures_total", &label).await
    };
    ensure!(failed(&group.replicas[0]).await? > 0.0, "the first one has to find out");
    for replica in &group.replicas {
        wait_for_unreachable(replica, dead).await?;
    }
    for replica in &group.replicas[1..] {
        send_requests(replica).await?;
        ensure!(failed(replica).await? == 0.0, "an attempt has failed");
    }
    Ok(())
}

/// A replica that reaches no endpoint reports all of them. The others check each, and go on.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replica_that_is_cut_off_takes_no_endpoint_from_the_others() -> Result {
    let mut endpoints = Vec::new();
    for _ in 0..3 {
        endpoints.push(Endpoint::start(EndpointBehaviour::ok()).await?);
    }
    let mut group = ReplicaGroup::start(&endpoints, json!({})).await?;
    drop(group.replicas.pop());
    let replica = &group.replicas[0];
    let mut peer = LyingPeer::connect(group.members[2], group.members[0]).await?;
    let all: Vec<_> = endpoints.iter().map(|it| it.address).collect();
    peer.report_outages(&all).await?;
    let observe = async || metric(replica, "sheave_replica_reports_total", "\"outage\"").await;
    eventually("checks", observe, |it| *it == 3.0).await?;
    for endpoint in &endpoints {
        endpoint.wait_for_counts("a check", |it| it.accepted > 0).await?;
    }
    send_requests(replica).await?;
    ensure!(metric(replica, "sheave_endpoint_outages_total", "").await? == 0.0);
    ensure!(metric(replica, "sheave_endpoint_unreachable", "").await? == 0.0);
    peer.report_outages(&["192.0.2.1:80".parse()?]).await?;
    let refusals = async || {
        metric(replica, "sheave_replica_refusals_total", "\"report_unknown_endpoint\"").await
    };
    eventually("the refusal is counted", refusals, |it| *it == 1.0).await?;
    Ok(())
}
