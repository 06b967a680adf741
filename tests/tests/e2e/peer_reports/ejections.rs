//! Ejections: what one replica has ejected is ejected by the others after fewer failures of their own.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::{Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, eventually};

use super::lying_peer::LyingPeer;
use super::{ReplicaGroup, metric};

const FAILURE: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";

/// Failures in a row that eject an endpoint, and those that do if another replica has ejected it.
const FAILURES: usize = 8;
const SUSPECTED_FAILURES: usize = 4;

/// Returns the health of an endpoint at a replica, by the admin API.
async fn health(replica: &SheaveProcess, endpoint: SocketAddr) -> Result<String> {
    let views: Value = serde_json::from_slice(&replica.admin_get("/api/v1/backends").await?.body)?;
    let endpoints = views["backends"][0]["endpoints"].as_array().context("endpoints")?;
    let address = endpoint.to_string();
    let view = endpoints.iter().find(|view| view["address"] == address.as_str());
    Ok(view.context("the endpoint")?["health"].as_str().context("health")?.to_owned())
}

async fn wait_for_health(replica: &SheaveProcess, endpoint: SocketAddr, expected: &str) -> Result {
    let observe = async || health(replica, endpoint).await;
    eventually(expected, observe, |health| health == expected).await?;
    Ok(())
}

/// Sends requests until so many of them have failed.
async fn send_until_failures(replica: &SheaveProcess, failures: usize) -> Result {
    let mut client = Http1TestClient::connect(replica.address()).await?;
    let mut failed = 0;
    for _ in 0..failures * 20 {
        failed += usize::from(client.get("/").await?.status() == 500);
        if failed == failures {
            return Ok(());
        }
    }
    anyhow::bail!("{failed} of {failures} failures")
}

async fn wait_for_hints(replica: &SheaveProcess, hints: f64) -> Result {
    let observe = async || metric(replica, "sheave_replica_reports_total", "\"ejection\"").await;
    eventually("hints", observe, |it| *it >= hints).await?;
    Ok(())
}

fn policy() -> Value {
    let passive = json!({ "consecutiveFailures": FAILURES, "baseEjectionTime": "5m" });
    json!({ "algorithm": "RoundRobin", "health": { "passive": passive } })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ejection_at_one_replica_makes_failures_count_sooner_at_the_others() -> Result {
    let failing = Endpoint::start(EndpointBehaviour::answering(FAILURE)).await?;
    let bad = failing.address;
    let endpoints = [failing, Endpoint::start(EndpointBehaviour::ok()).await?];
    let group = ReplicaGroup::start(&endpoints, policy()).await?;
    // Without a hint, as many failures eject nothing.
    send_until_failures(&group.replicas[1], SUSPECTED_FAILURES - 1).await?;
    ensure!(health(&group.replicas[1], bad).await? == "serving");

    send_until_failures(&group.replicas[0], FAILURES).await?;
    wait_for_health(&group.replicas[0], bad, "ejected").await?;
    for replica in &group.replicas[1..] {
        wait_for_hints(replica, 1.0).await?;
        ensure!(health(replica, bad).await? == "serving", "a hint alone ejects nothing");
    }
    // The one that has seen failures needs one more, the other one all of them.
    send_until_failures(&group.replicas[1], 1).await?;
    wait_for_health(&group.replicas[1], bad, "ejected").await?;
    send_until_failures(&group.replicas[2], SUSPECTED_FAILURES).await?;
    wait_for_health(&group.replicas[2], bad, "ejected").await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn false_ejections_take_no_endpoint_away() -> Result {
    let mut endpoints = Vec::new();
    for _ in 0..3 {
        endpoints.push(Endpoint::start(EndpointBehaviour::ok()).await?);
    }
    let mut group = ReplicaGroup::start(&endpoints, policy()).await?;
    drop(group.replicas.pop());
    let replica = &group.replicas[0];
    let mut peer = LyingPeer::connect(group.members[2], group.members[0]).await?;
    let mut all: Vec<_> = endpoints.iter().map(|it| it.address).collect();
    all.push("192.0.2.1:80".parse()?);
    peer.report_ejections(&all).await?;
    wait_for_hints(replica, 3.0).await?;
    let refusals = async || {
        metric(replica, "sheave_replica_refusals_total", "\"report_unknown_endpoint\"").await
    };
    eventually("the refusal is counted", refusals, |it| *it == 1.0).await?;
    let mut client = Http1TestClient::connect(replica.address()).await?;
    for _ in 0..30 {
        ensure!(client.get("/").await?.status() == 200);
    }
    for endpoint in &endpoints {
        ensure!(health(replica, endpoint.address).await? == "serving");
        ensure!(endpoint.counts().requests >= 5, "requests are spread as before");
    }
    Ok(())
}
