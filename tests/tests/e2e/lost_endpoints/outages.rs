//! Outages of all endpoints of a backend at once.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::{EndpointBehaviour, Http1TestResponse, HttpFixture, Result, eventually, objects};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::outage_helpers::{kill, restart, start_fixture, wait_for_health};

/// Added to an upper bound of time, for a machine that is busy with other tests.
const MARGIN: Duration = Duration::from_millis(500);
/// Maximum time until a returning endpoint is detected.
const MAX_RETURN_TIME: Duration = Duration::from_secs(1);

async fn fixture_with_dead_endpoints(policies: &[Value]) -> Result<(HttpFixture, Vec<SocketAddr>)> {
    let mut fixture = start_fixture(3, policies).await?;
    ensure!(fixture.client().await?.get("/").await?.status() == 200);
    let mut addresses = Vec::new();
    for endpoint in fixture.endpoints.drain(..) {
        addresses.push(endpoint.address);
        kill(endpoint).await?;
    }
    Ok((fixture, addresses))
}

fn queue_policy(timeout: &str) -> Value {
    let queue = json!({ "timeout": timeout });
    objects::backend_policy("app", json!({ "maxInFlightPerEndpoint": 10, "queue": queue }))
}

/// Checks that Sheave itself answered, with this status and error.
fn check_local_error(response: &Http1TestResponse, status: u16, error: &str) -> Result {
    let reason = response.field("proxy-status").unwrap_or_default();
    ensure!(response.status() == status && reason.contains(error), "{response:?}");
    Ok(())
}

/// Waits until this number of requests has failed for this reason.
async fn wait_for_failures(fixture: &HttpFixture, reason: &str, expected: f64) -> Result {
    let label = format!("\"{reason}\"");
    let observe = async || {
        let samples = fixture.sheave.metric_samples("sheave_failures_total").await?.into_iter();
        let samples = samples.filter(|(labels, _)| labels.contains(&label));
        Ok(samples.map(|(_, count)| count).sum::<f64>())
    };
    eventually(reason, observe, |count| *count == expected).await?;
    Ok(())
}

#[tokio::test]
async fn total_outage_without_a_queue_is_answered_502_at_once() -> Result {
    let (fixture, addresses) = fixture_with_dead_endpoints(&[]).await?;
    let mut client = fixture.client().await?;
    for method in ["GET", "POST"] {
        for _ in 0..10 {
            let begun = Instant::now();
            let response = client.exchange(method, "/", &[], b"").await?;
            check_local_error(&response, 502, "error=connection_refused")?;
            ensure!(begun.elapsed() < MARGIN, "after {:?}", begun.elapsed());
        }
    }
    wait_for_failures(&fixture, "connect_failed", 20.0).await?;
    for address in &addresses {
        wait_for_health(&fixture.sheave, *address, "unreachable").await?;
    }
    let _back = restart(addresses[2], &EndpointBehaviour::ok()).await?;
    for _ in 0..10 {
        let response = client.get("/").await?;
        ensure!(response.status() == 200, "the endpoint is back: {response:?}");
    }
    Ok(())
}

#[tokio::test]
async fn queued_requests_wait_for_the_first_endpoint_to_return() -> Result {
    let (fixture, addresses) = fixture_with_dead_endpoints(&[queue_policy("1h")]).await?;
    let (mut clients, mut waiting) = (JoinSet::new(), 0);
    for method in ["GET", "POST"].repeat(5) {
        let mut client = fixture.client().await?;
        clients.spawn(async move { client.exchange(method, "/", &[], b"").await });
        // The first request finds out that no endpoint is reachable.
        waiting += 1;
        fixture.sheave.wait_for_queue_length(waiting).await?;
    }
    let begun = Instant::now();
    let _back = restart(addresses[1], &EndpointBehaviour::ok()).await?;
    while let Some(response) = clients.join_next().await {
        ensure!(response??.status() == 200);
    }
    ensure!(begun.elapsed() < MAX_RETURN_TIME + MARGIN, "after {:?}", begun.elapsed());
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn queued_requests_get_503_after_the_queue_timeout() -> Result {
    let (fixture, _) = fixture_with_dead_endpoints(&[queue_policy("300ms")]).await?;
    let mut client = fixture.client().await?;
    for _ in 0..3 {
        let begun = Instant::now();
        let response = client.get("/").await?;
        let took = begun.elapsed();
        check_local_error(&response, 503, "error=destination_unavailable")?;
        let wait = Duration::from_millis(300);
        ensure!(took >= wait && took <= wait + MARGIN, "after {took:?}");
    }
    wait_for_failures(&fixture, "unreachable", 3.0).await?;
    fixture.sheave.wait_until_idle().await
}
