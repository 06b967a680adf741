//! Endpoints that answer errors faster than others answer: they attract no requests.

use anyhow::{Context, ensure};
use tests::load::{ClientPattern, LoadGenerator};
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, eventually};

use super::outage_helpers::{CLIENTS, SERVICE_TIME, TWO_WORKERS, requests};

const FAILURE: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
const REQUESTS: u64 = 1500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_failing_endpoint_gets_at_most_its_share() -> Result {
    let mut servers = vec![Endpoint::start(EndpointBehaviour::answering(FAILURE)).await?];
    servers
        .extend(tests::fixture::start_endpoints(2, &EndpointBehaviour::slow(SERVICE_TIME)).await?);
    let fixture = HttpFixture::with(servers, &[], TWO_WORKERS).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), CLIENTS, ClientPattern::GET);
    let observe = async || Ok(requests(&fixture.endpoints).iter().sum::<u64>());
    eventually("requests", observe, |requests| *requests >= REQUESTS).await?;
    let report = load.stop().await;
    ensure!(report.failed.is_empty(), "{report:?}");
    let failures = report.answered.get(&500).copied().context("some failures")?;
    let share = failures as f64 / report.requests() as f64;
    ensure!(share <= 0.35, "{failures} of {} answers are 500", report.requests());
    Ok(())
}
