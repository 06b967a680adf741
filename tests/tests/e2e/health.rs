//! Failing endpoints, and the effect on their requests.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::fixture::start_endpoints;
use tests::load::{ClientPattern, LoadGenerator};
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, ServeStep, eventually, objects};

const ONE_WORKER: &[&str] = &["--workers", "1"];
const FAILURE: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// Returns two endpoints, chosen in round-robin order by a BackendPolicy with this `spec`; the
/// second is healthy.
async fn two_endpoint_fixture(
    first: impl Into<EndpointBehaviour>,
    mut spec: Value,
) -> Result<HttpFixture> {
    spec["algorithm"] = "RoundRobin".into();
    let servers =
        vec![Endpoint::start(first).await?, Endpoint::start(EndpointBehaviour::ok()).await?];
    HttpFixture::with(servers, &[objects::backend_policy("app", spec)], ONE_WORKER).await
}

/// Returns the health of an endpoint, by the admin API.
async fn endpoint_health(fixture: &HttpFixture, endpoint: usize) -> Result<String> {
    let address = fixture.endpoints[endpoint].address.to_string();
    let views: Value =
        serde_json::from_slice(&fixture.sheave.admin_get("/api/v1/backends").await?.body)?;
    let endpoints = views["backends"][0]["endpoints"].as_array().context("endpoints")?;
    let view = endpoints.iter().find(|view| view["address"] == address.as_str());
    Ok(view.context("the endpoint")?["health"].as_str().context("health")?.to_owned())
}

/// Sends requests until an endpoint has this health.
async fn send_until_health(fixture: &HttpFixture, endpoint: usize, expected: &str) -> Result {
    let mut client = fixture.client().await?;
    let observe = async || {
        client.get("/").await?;
        endpoint_health(fixture, endpoint).await
    };
    eventually(expected, observe, |health| health == expected).await?;
    Ok(())
}

/// Returns the statuses of this number of requests.
async fn request_statuses(
    fixture: &HttpFixture,
    method: &str,
    requests: usize,
) -> Result<Vec<u16>> {
    let mut client = fixture.client().await?;
    let mut statuses = Vec::new();
    for _ in 0..requests {
        statuses.push(client.exchange(method, "/", &[], b"").await?.status());
    }
    Ok(statuses)
}

#[tokio::test]
async fn endpoint_with_consecutive_failures_is_ejected() -> Result {
    let passive =
        json!({ "consecutiveFailures": 3, "baseEjectionTime": "1h", "maxEjectionTime": "1h" });
    let fixture = two_endpoint_fixture(
        EndpointBehaviour::answering(FAILURE),
        json!({ "health": { "passive": passive } }),
    )
    .await?;
    send_until_health(&fixture, 0, "ejected").await?;
    let before = fixture.endpoints[0].counts().requests;
    ensure!(before >= 3, "{before} failures");
    assert_eq!(request_statuses(&fixture, "GET", 20).await?, [200; 20]);
    assert_eq!(fixture.endpoints[0].counts().requests, before);
    assert_eq!(fixture.sheave.metric_sum("sheave_backend_ejections_total").await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn endpoint_refusing_connections_becomes_unreachable_without_failed_requests() -> Result {
    let mut fixture = two_endpoint_fixture(EndpointBehaviour::ok(), json!({})).await?;
    let address = fixture.endpoints[0].address;
    fixture.endpoints[0] = Endpoint::start(EndpointBehaviour::ok()).await?;
    fixture.endpoints[0].address = address;
    for method in ["GET", "POST"] {
        assert_eq!(request_statuses(&fixture, method, 10).await?, [200; 10]);
    }
    send_until_health(&fixture, 0, "unreachable").await
}

#[tokio::test]
async fn ejected_endpoint_returns_after_a_successful_half_open_trial() -> Result {
    let passive = json!({ "consecutiveFailures": 2, "baseEjectionTime": "50ms" });
    let mut fixture = two_endpoint_fixture(
        EndpointBehaviour::answering(FAILURE),
        json!({ "health": { "passive": passive } }),
    )
    .await?;
    send_until_health(&fixture, 0, "ejected").await?;
    let address = fixture.endpoints[0].address;
    let failing = fixture.endpoints.remove(0);
    drop(failing);
    let mut restarted = None;
    let restart = async || {
        restarted = Endpoint::start_at(address, EndpointBehaviour::ok()).await.ok();
        Ok(restarted.is_some())
    };
    eventually("the address is free", restart, |restarted| *restarted).await?;
    fixture.endpoints.insert(0, restarted.context("the endpoint did not start")?);
    send_until_health(&fixture, 0, "serving").await?;
    let before = fixture.endpoints[0].counts().requests;
    assert_eq!(request_statuses(&fixture, "GET", 20).await?, [200; 20]);
    assert_eq!(fixture.endpoints[0].counts().requests - before, 10);
    Ok(())
}

/// If no endpoint is healthy, health is ignored: a response that may be an error is better than
/// none.
#[tokio::test]
async fn panic_mode_uses_all_endpoints_when_all_fail() -> Result {
    let passive = json!({ "consecutiveFailures": 1, "baseEjectionTime": "1h", "maxEjectionPercent": 100, "maxEjectionTime": "1h" });
    let policy = json!({ "algorithm": "RoundRobin", "health": { "passive": passive } });
    let servers = start_endpoints(2, &EndpointBehaviour::answering(FAILURE)).await?;
    let policies = [objects::backend_policy("app", policy)];
    let fixture = HttpFixture::with(servers, &policies, ONE_WORKER).await?;
    let mut client = fixture.client().await?;
    let panics = async || {
        client.get("/").await?;
        fixture.sheave.metric_sum("sheave_backend_panic").await
    };
    eventually("panic", panics, |panic| *panic == 1.0).await?;
    assert_eq!(request_statuses(&fixture, "GET", 10).await?, [500; 10]);
    Ok(())
}

#[tokio::test]
async fn endpoint_with_failing_probes_gets_no_requests() -> Result {
    let active = json!({ "path": "/healthz", "interval": "10ms", "fall": 2, "rise": 2 });
    let fixture = two_endpoint_fixture(
        EndpointBehaviour::answering(UNAVAILABLE),
        json!({ "health": { "active": active } }),
    )
    .await?;
    let observe = async || endpoint_health(&fixture, 0).await;
    eventually("probes fail", observe, |health| health == "unhealthy").await?;
    assert_eq!(request_statuses(&fixture, "GET", 20).await?, [200; 20]);
    ensure!(fixture.endpoints[0].requests().iter().all(|seen| seen.head.target() == "/healthz"));
    Ok(())
}

/// A probe port that answers garbage makes all endpoints look unhealthy, which puts the backend
/// into panic mode.
#[tokio::test]
async fn probes_failing_on_all_endpoints_do_not_stop_traffic() -> Result {
    let garbage =
        Endpoint::start(vec![ServeStep::send("\0garbage\r\n\r\n"), ServeStep::Close]).await?;
    let port = garbage.address.port();
    let active = json!({ "path": "/", "port": port, "interval": "5ms", "fall": 1 });
    let policy = json!({ "health": { "active": active } });
    let servers = start_endpoints(3, &EndpointBehaviour::ok()).await?;
    let fixture =
        HttpFixture::with(servers, &[objects::backend_policy("app", policy)], &[]).await?;
    let panics = async || fixture.sheave.metric_sum("sheave_backend_panic").await;
    eventually("panic mode", panics, |panic| *panic == 1.0).await?;
    assert_eq!(request_statuses(&fixture, "GET", 50).await?, [200; 50]);
    Ok(())
}

/// A probe takes a slot, and the connection of that slot.
#[tokio::test]
async fn probes_respect_the_cap() -> Result {
    let active = json!({ "path": "/healthz", "interval": "2ms", "fall": 1 });
    let policy = json!({ "maxInFlightPerEndpoint": 1, "health": { "active": active } });
    let work = vec![
        ServeStep::ReadBody,
        ServeStep::Wait(Duration::from_millis(1)),
        ServeStep::send(FAILURE),
    ];
    let fixture = HttpFixture::with_backend_policy(work, policy).await?;
    // Pauses leave slots to probes; failures trigger probes.
    let load = LoadGenerator::start(
        fixture.sheave.address(),
        2,
        ClientPattern::GET.with_pause(Duration::from_millis(5)),
    );
    let observe = async || {
        let seen = fixture.endpoint().requests();
        let probes = seen.iter().filter(|seen| seen.head.target() == "/healthz").count();
        Ok((probes, seen.len() - probes))
    };
    let observed = eventually("requests and probes", observe, |(probes, requests)| {
        *probes >= 5 && *requests >= 50
    })
    .await;
    load.stop().await;
    observed?;
    let counts = fixture.endpoint().counts();
    assert_eq!((counts.max_in_flight, counts.max_connections), (1, 1), "{counts:?}");
    Ok(())
}

#[tokio::test]
async fn configured_status_is_retried() -> Result {
    let retry = json!({ "statuses": [503], "backoffBase": "1ms", "budgetFloorPerSecond": 1000 });
    let fixture =
        two_endpoint_fixture(EndpointBehaviour::answering(UNAVAILABLE), json!({ "retry": retry }))
            .await?;
    // This runs before the endpoint is known to fail, while it still gets its full share.
    let posts = request_statuses(&fixture, "POST", 4).await?;
    assert_eq!(posts.iter().filter(|status| **status == 503).count(), 2, "a POST is sent once");
    assert_eq!(request_statuses(&fixture, "GET", 20).await?, [200; 20]);
    Ok(())
}

#[tokio::test]
async fn attempt_timeout_retries_on_another_endpoint() -> Result {
    let policy = json!({ "timeouts": { "perAttempt": "50ms" } });
    let fixture =
        two_endpoint_fixture(vec![ServeStep::ReadBody, ServeStep::WaitForever], policy).await?;
    // This runs before the endpoint is known to fail, while it still gets its full share.
    let posts = request_statuses(&fixture, "POST", 4).await?;
    assert_eq!(posts.iter().filter(|status| **status == 504).count(), 2, "{posts:?}");
    assert_eq!(request_statuses(&fixture, "GET", 10).await?, [200; 10]);
    Ok(())
}

#[tokio::test]
async fn zero_retry_budget_retries_only_requests_in_flight_at_an_endpoint_death() -> Result {
    let policy = json!({ "retry": { "budgetPercent": 0, "budgetFloorPerSecond": 0 } });
    let fixture = two_endpoint_fixture(vec![ServeStep::ReadBody, ServeStep::Close], policy).await?;
    // The endpoint gets every second request. Its first broken connection may be the death of the
    // endpoint; its second may not.
    let statuses = request_statuses(&fixture, "GET", 4).await?;
    assert_eq!(statuses.iter().filter(|status| **status == 502).count(), 1, "{statuses:?}");
    assert_eq!(fixture.sheave.metric_sum("sheave_backend_retries_refused_total").await?, 1.0);
    Ok(())
}

#[tokio::test]
async fn new_endpoint_gets_slow_start() -> Result {
    let policy = json!({ "slowStart": { "window": "1h", "floorPercent": 10 } });
    let mut fixture = two_endpoint_fixture(EndpointBehaviour::ok(), policy).await?;
    assert_eq!(request_statuses(&fixture, "GET", 20).await?, [200; 20]);
    fixture.endpoints.push(Endpoint::start(EndpointBehaviour::ok()).await?);
    let addresses: Vec<_> = fixture.endpoints.iter().map(|endpoint| endpoint.address).collect();
    fixture.configuration.set_endpoints(&addresses)?;
    fixture.sheave.wait_for_endpoints(&addresses).await?;
    assert_eq!(request_statuses(&fixture, "GET", 210).await?, [200; 210]);
    let got = fixture.endpoints[2].counts().requests;
    ensure!((9..=11).contains(&got), "{got} of 210 instead of about 10");
    Ok(())
}

/// A malformed response is a response: a second endpoint gets the request, a third one does not.
#[tokio::test]
async fn malformed_response_is_retried_once_at_another_endpoint() -> Result {
    for (count, attempts) in [(1, 1), (2, 2), (3, 2)] {
        let servers =
            start_endpoints(count, &EndpointBehaviour::answering("HTTP/9.9 what\r\n\r\n")).await?;
        let fixture = HttpFixture::with(servers, &[], ONE_WORKER).await?;
        assert_eq!(request_statuses(&fixture, "GET", 1).await?, [502]);
        assert_eq!(request_statuses(&fixture, "POST", 1).await?, [502]);
        let requests: u64 = fixture.endpoints.iter().map(|it| it.counts().requests).sum();
        assert_eq!(requests, attempts + 1, "of {count} endpoints");
    }
    Ok(())
}
