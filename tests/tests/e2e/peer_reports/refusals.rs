//! Refusals: an endpoint that refuses a request of one replica gets less from all.

use anyhow::ensure;
use serde_json::json;
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, Result, ServeStep, SheaveProcess, eventually,
};

use super::{ReplicaGroup, metric};

const REFUSAL: &str =
    "HTTP/1.1 503 Service Unavailable\r\nRetry-After: 4\r\nContent-Length: 0\r\n\r\n";

/// Returns an endpoint that refuses each request.
async fn refusing_endpoint() -> Result<Endpoint> {
    let steps = vec![ServeStep::ReadBody, ServeStep::RefuseBeyond(0, REFUSAL), ServeStep::Answer];
    Endpoint::start(EndpointBehaviour::from(steps)).await
}

async fn get(replica: &SheaveProcess) -> Result<u16> {
    Ok(Http1TestClient::connect(replica.address()).await?.get("/").await?.status())
}

/// Returns the limits of endpoints that are reduced because of a refusal.
async fn reduced(replica: &SheaveProcess) -> Result<Vec<f64>> {
    let samples = replica.metric_samples("sheave_endpoint_limit").await?;
    let full = samples.into_iter().filter(|(labels, _)| labels.contains("\"full\""));
    Ok(full.map(|(_, limit)| limit).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refusal_at_one_replica_lowers_the_limit_at_the_others() -> Result {
    let endpoints = [refusing_endpoint().await?];
    let group = ReplicaGroup::start(&endpoints, json!({})).await?;
    ensure!(get(&group.replicas[0]).await? == 503);
    for replica in &group.replicas {
        let observe = async || reduced(replica).await;
        eventually("a reduced limit", observe, |limits| *limits == [1.0]).await?;
    }
    for replica in &group.replicas[1..] {
        ensure!(metric(replica, "sheave_endpoint_refusals_total", "").await? == 0.0);
        let taken = async || metric(replica, "sheave_replica_reports_total", "\"refusal\"").await;
        eventually("the report is counted", taken, |it| *it > 0.0).await?;
    }
    ensure!(endpoints[0].requests().len() == 1, "the others have not asked it");
    for replica in &group.replicas {
        let observe = async || reduced(replica).await;
        eventually("the limit is restored", observe, Vec::is_empty).await?;
    }
    Ok(())
}
