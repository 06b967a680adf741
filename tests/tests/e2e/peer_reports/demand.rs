//! Demand: each replica answers an autoscaler for all of them.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::keda::KedaClient;
use tests::machine::CpuWaitMeter;
use tests::{Endpoint, EndpointBehaviour, Result, SheaveProcess, eventually};
use tokio::time::Instant;

use super::{ReplicaGroup, metric};

/// Maximum time from the first queued request at one replica until an autoscaler is notified by another.
const MAX_PUSH_DELAY: Duration = Duration::from_millis(100);

async fn keda(replica: &SheaveProcess) -> Result<KedaClient> {
    KedaClient::connect(replica, &[("service", "app"), ("window", "1s"), ("target", "4")]).await
}

pub(super) async fn wait_for_demand(replica: &SheaveProcess, expected: f64) -> Result {
    let mut keda = keda(replica).await?;
    let near = |demand: &f64| (demand - expected).abs() < 0.02;
    eventually("demand of all replicas", async || Ok(keda.demand().await?), near).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_replica_answers_for_all() -> Result {
    let endpoints = [Endpoint::start(EndpointBehaviour::gated()).await?];
    let queue = json!({ "maxRequests": 20, "timeout": "60s" });
    let spec = json!({ "maxInFlightPerEndpoint": 6, "queue": queue });
    let group = ReplicaGroup::start(&endpoints, spec).await?;
    let mut clients = group.begin_requests(0, 7).await?;
    clients.extend(group.begin_requests(1, 2).await?);
    for replica in &group.replicas {
        wait_for_demand(replica, 9.0).await?;
    }
    // The metrics say which is this replica's, and which is that of all.
    let idle = &group.replicas[2];
    ensure!(metric(idle, "sheave_backend_demand", "").await? == 0.0);
    let all = metric(idle, "sheave_backend_demand_all_replicas", "").await?;
    ensure!(all > 0.0 && all < 9.1, "{all}");
    let views = idle.admin_get("/api/v1/backends").await?;
    let views: Value = serde_json::from_slice(&views.body)?;
    let rates = &views["backends"][0]["rates_all_replicas"];
    let rate = rates["requests_per_second"].as_f64().context("a rate")?;
    ensure!(rate > 0.0 && rate <= 9.1, "nine requests within the window: {rate}");
    endpoints[0].open_gate(9);
    for client in &mut clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    for replica in &group.replicas {
        wait_for_demand(replica, 0.0).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn demand_of_a_killed_replica_ends() -> Result {
    let endpoints = [Endpoint::start(EndpointBehaviour::gated()).await?];
    let mut group = ReplicaGroup::start(&endpoints, json!({})).await?;
    let _clients = group.begin_requests(0, 4).await?;
    let _others = group.begin_requests(1, 2).await?;
    wait_for_demand(&group.replicas[2], 6.0).await?;
    drop(group.replicas.remove(0));
    for replica in &group.replicas {
        wait_for_demand(replica, 2.0).await?;
    }
    Ok(())
}

/// An autoscaler that listens to one replica wakes a Service of which another replica has the first request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_request_at_one_replica_activates_at_another() -> Result {
    let queue = json!({ "maxRequests": 8, "timeout": "60s" });
    let group = ReplicaGroup::start(&[], json!({ "queue": queue })).await?;
    let listening = &group.replicas[2];
    let mut stream = keda(listening).await?.activity_stream().await?;
    ensure!(!stream.next().await??, "active without any request");
    let mut shortest = Duration::MAX;
    for attempt in 0..3 {
        let meters = [&group.replicas[0], listening].map(CpuWaitMeter::start);
        let sent = Instant::now();
        let clients = group.begin_requests(0, 1).await?;
        ensure!(stream.next().await??, "inactive though a request is queued");
        let (took, mut starved) = (sent.elapsed(), Duration::ZERO);
        for meter in meters {
            starved += meter?.waited()?;
        }
        eprintln!("{attempt}: notified after {took:?}; threads waited {starved:?} for a CPU");
        shortest = shortest.min(took.saturating_sub(starved));
        drop(clients);
        ensure!(!stream.next().await??, "active though the client has gone");
    }
    ensure!(shortest <= MAX_PUSH_DELAY, "notified after {shortest:?}");
    Ok(())
}
