//! The choice of the endpoint for a request, and of the connection that carries it.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::fixture::start_endpoints;
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, objects};
use tokio::task::JoinSet;

const ONE_WORKER: &[&str] = &["--workers", "1"];

#[tokio::test]
async fn least_load_avoids_a_stuck_endpoint() -> Result {
    let (stuck, free) = (
        Endpoint::start(EndpointBehaviour::gated()).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    );
    let fixture = HttpFixture::with(vec![stuck, free], &[], &[]).await?;
    let [stuck, free] = &fixture.endpoints[..] else { unreachable!("there are two") };
    let mut held = Vec::new();
    while stuck.counts().in_flight == 0 {
        let mut client = fixture.client().await?;
        let before = free.counts().requests;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
        let either = async || Ok(stuck.counts().in_flight > 0 || free.counts().requests > before);
        tests::eventually("one endpoint has the request", either, |has| *has).await?;
        held.push(client);
    }
    let before = free.counts().requests;
    let mut client = fixture.client().await?;
    for _ in 0..50 {
        ensure!(client.get("/").await?.status() == 200);
    }
    assert_eq!(free.counts().requests - before, 50);
    stuck.open_gate(1);
    Ok(())
}

#[tokio::test]
async fn round_robin_is_even() -> Result {
    let policy = objects::backend_policy("app", json!({ "algorithm": "RoundRobin" }));
    let servers = start_endpoints(4, &EndpointBehaviour::ok()).await?;
    let fixture = HttpFixture::with(servers, &[policy], ONE_WORKER).await?;
    let mut client = fixture.client().await?;
    for _ in 0..100 {
        ensure!(client.get("/").await?.status() == 200);
    }
    let got: Vec<u64> = fixture.endpoints.iter().map(|it| it.counts().requests).collect();
    assert_eq!(got, [25; 4]);
    Ok(())
}

#[tokio::test]
async fn connection_is_closed_after_max_requests() -> Result {
    let policy = json!({ "connections": { "maxRequests": 3 } });
    let policies = [objects::backend_policy("app", policy)];
    let servers = start_endpoints(1, &EndpointBehaviour::ok()).await?;
    let fixture = HttpFixture::with(servers, &policies, ONE_WORKER).await?;
    let mut client = fixture.client().await?;
    for _ in 0..12 {
        ensure!(client.get("/").await?.status() == 200);
    }
    let mut carried = BTreeMap::new();
    for seen in fixture.endpoint().requests() {
        *carried.entry(seen.connection).or_insert(0) += 1;
    }
    assert_eq!(carried.into_values().collect::<Vec<_>>(), [3; 4]);
    Ok(())
}

#[tokio::test]
async fn idle_endpoint_connection_is_closed_after_the_timeout() -> Result {
    let policy = json!({ "connections": { "idleTimeout": "200ms" } });
    let fixture = HttpFixture::with_backend_policy(EndpointBehaviour::ok(), policy).await?;
    ensure!(fixture.client().await?.get("/").await?.status() == 200);
    fixture
        .endpoint()
        .wait_for_counts("the idle connection is closed", |counts| counts.connections == 0)
        .await?;
    Ok(())
}

#[tokio::test]
async fn connection_over_max_age_is_not_reused() -> Result {
    let policy = json!({ "connections": { "maxAge": "100ms" } });
    let servers = start_endpoints(1, &EndpointBehaviour::slow(Duration::from_millis(5))).await?;
    let policies = [objects::backend_policy("app", policy)];
    let fixture = HttpFixture::with(servers, &policies, ONE_WORKER).await?;
    let mut client = fixture.client().await?;
    for _ in 0..100 {
        ensure!(client.get("/").await?.status() == 200);
    }
    let seen = fixture.endpoint().requests();
    let last = seen.last().map(|seen| seen.connection);
    ensure!(last >= Some(3), "connection {last:?} after half a second");
    let mut opened = BTreeMap::new();
    for seen in seen {
        let first = *opened.entry(seen.connection).or_insert(seen.received_at);
        ensure!(
            seen.received_at - first < Duration::from_secs(1),
            "a connection is used beyond its maximum age"
        );
    }
    Ok(())
}

#[tokio::test]
async fn max_connections_is_respected() -> Result {
    let policy = json!({ "connections": { "max": 2 }, "queue": { "maxRequests": 100 } });
    let fixture =
        HttpFixture::with_backend_policy(EndpointBehaviour::slow(Duration::from_millis(5)), policy)
            .await?;
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        let mut client = fixture.client().await?;
        clients.spawn(async move {
            for _ in 0..10 {
                ensure!(client.get("/").await?.status() == 200);
            }
            Ok(())
        });
    }
    for outcome in clients.join_all().await {
        outcome?;
    }
    let counts = fixture.endpoint().counts();
    ensure!(counts.max_connections == 2, "{counts:?}");
    Ok(())
}
