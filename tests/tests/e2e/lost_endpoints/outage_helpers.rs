//! Sheave in front of endpoints that can be killed.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;
use tests::endpoint::RecordedRequest;
use tests::fixture::start_endpoints;
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, SheaveProcess, eventually, http2};

/// Time that an endpoint takes for a request.
pub(crate) const SERVICE_TIME: Duration = Duration::from_millis(10);
/// Number of clients of a load.
pub(crate) const CLIENTS: usize = 20;
/// Number of responses between two events.
pub(crate) const ANSWERS: usize = 300;
pub(crate) const TWO_WORKERS: &[&str] = &["--workers", "2"];

/// Returns a fixture with this number of HTTP/1.1 endpoints that take [`SERVICE_TIME`], and these
/// policies.
pub(crate) async fn start_fixture(count: usize, policies: &[Value]) -> Result<HttpFixture> {
    let servers = start_endpoints(count, &EndpointBehaviour::slow(SERVICE_TIME)).await?;
    HttpFixture::with(servers, policies, TWO_WORKERS).await
}

/// Kills the endpoint and waits until its address refuses connections. Returns the recorded
/// requests.
pub(crate) async fn kill(endpoint: Endpoint) -> Result<Vec<RecordedRequest>> {
    let address = endpoint.address;
    let seen = endpoint.kill().await?;
    wait_until_connections_are_refused(address).await?;
    Ok(seen)
}

/// Does the same as [`kill`], for an HTTP/2 endpoint.
pub(crate) async fn kill_http2(endpoint: http2::Http2TestEndpoint) -> Result {
    let address = endpoint.address;
    endpoint.kill().await?;
    wait_until_connections_are_refused(address).await
}

/// Waits until no process listens at the address.
pub(crate) async fn wait_until_connections_are_refused(address: SocketAddr) -> Result {
    let connect = async || Ok(tokio::net::TcpStream::connect(address).await.is_err());
    eventually("connections are refused", connect, |refused| *refused).await?;
    Ok(())
}

/// Starts an endpoint at the address of one that has died.
pub(crate) async fn restart(
    address: SocketAddr,
    behaviour: &EndpointBehaviour,
) -> Result<Endpoint> {
    let mut restarted = None;
    let start = async || {
        restarted = Endpoint::start_at(address, behaviour.clone()).await.ok();
        Ok(restarted.is_some())
    };
    eventually("the address is free", start, |restarted| *restarted).await?;
    restarted.context("the endpoint did not start")
}

/// Returns the health of an endpoint, by the admin API.
pub(crate) async fn health(sheave: &SheaveProcess, endpoint: SocketAddr) -> Result<String> {
    let views: Value = serde_json::from_slice(&sheave.admin_get("/api/v1/backends").await?.body)?;
    let backends = views["backends"].as_array().context("backends")?.iter();
    let mut endpoints = backends.flat_map(|backend| backend["endpoints"].as_array()).flatten();
    let view = endpoints.find(|view| view["address"] == endpoint.to_string().as_str());
    Ok(view.context("the endpoint")?["health"].as_str().context("health")?.to_owned())
}

/// Waits until the admin API shows this health of the endpoint.
pub(crate) async fn wait_for_health(
    sheave: &SheaveProcess,
    endpoint: SocketAddr,
    expected: &str,
) -> Result {
    let observe = async || health(sheave, endpoint).await;
    eventually(expected, observe, |health| health == expected).await?;
    Ok(())
}

/// Returns the value of a metric of this endpoint.
pub(crate) async fn metric(
    sheave: &SheaveProcess,
    name: &str,
    endpoint: SocketAddr,
) -> Result<f64> {
    let label = format!("endpoint=\"{endpoint}\"");
    let samples = sheave.metric_samples(name).await?;
    let sample = samples.iter().find(|(labels, _)| labels.contains(&label));
    Ok(sample.with_context(|| format!("{name} of {endpoint} in {samples:?}"))?.1)
}

/// Returns the number of requests that each endpoint got.
pub(crate) fn requests(endpoints: &[Endpoint]) -> Vec<u64> {
    endpoints.iter().map(|endpoint| endpoint.counts().requests).collect()
}

/// Asserts that the retry budget has not refused a retry.
pub(crate) async fn assert_budget_is_left(sheave: &SheaveProcess) -> Result {
    let refused = sheave.metric_sum("sheave_backend_retries_refused_total").await?;
    anyhow::ensure!(refused == 0.0, "the budget refused {refused} retries");
    Ok(())
}
