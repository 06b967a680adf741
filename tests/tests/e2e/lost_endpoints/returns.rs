//! Endpoints that return at the same address: their reported health meanwhile, and the time until
//! they get their share again.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::fixture::start_endpoints;
use tests::{EndpointBehaviour, HttpFixture, Result, objects};
use tokio::time::Instant;

use super::load::{LoadProtocol, RecordedLoad, assert_all_served};
use super::outage_helpers::{
    ANSWERS, CLIENTS, SERVICE_TIME, TWO_WORKERS, health, kill, metric, requests, restart,
    start_fixture, wait_for_health,
};

/// Added to an upper bound of time, for a machine that is busy with other tests.
const MARGIN: Duration = Duration::from_millis(500);
/// Maximum time until a returning endpoint is detected.
const MAX_RETURN_TIME: Duration = Duration::from_secs(1);

/// Returns the number of log lines about the endpoint that contain this text.
fn lines(fixture: &HttpFixture, text: &str, endpoint: SocketAddr) -> usize {
    let (log, address) = (fixture.sheave.log(), endpoint.to_string());
    log.lines().filter(|line| line.contains(text) && line.contains(&address)).count()
}

async fn wait_for_reachability_metrics(
    fixture: &HttpFixture,
    endpoint: SocketAddr,
    unreachable: bool,
    outages: u32,
) -> Result {
    let (gauge, counter) = ("sheave_endpoint_unreachable", "sheave_endpoint_outages_total");
    let word = if unreachable { "unreachable" } else { "serving" };
    ensure!(health(&fixture.sheave, endpoint).await? == word);
    let shown = metric(&fixture.sheave, gauge, endpoint).await?;
    ensure!(shown == f64::from(u8::from(unreachable)), "{gauge}: {shown}");
    let counted = metric(&fixture.sheave, counter, endpoint).await?;
    ensure!(counted == f64::from(outages), "{counter}: {counted}");
    let lost = lines(fixture, "endpoint is unreachable", endpoint);
    let back = lines(fixture, "endpoint is reachable again", endpoint);
    let returns = outages - u32::from(unreachable);
    ensure!(lost == outages as usize && back == returns as usize, "log: {lost} and {back}");
    Ok(())
}

/// The endpoint's requests fail before a connection attempt does: it is ejected first, for an hour,
/// so no further request would detect that it is unreachable.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoint_ejected_at_its_death_becomes_unreachable_and_returns() -> Result {
    let passive = json!({ "baseEjectionTime": "1h", "maxEjectionTime": "1h" });
    let policy = objects::backend_policy("app", json!({ "health": { "passive": passive } }));
    let servers = start_endpoints(3, &EndpointBehaviour::gated()).await?;
    let mut fixture = HttpFixture::with(servers, &[policy], TWO_WORKERS).await?;
    let load = RecordedLoad::start(fixture.sheave.address(), CLIENTS, &LoadProtocol::Http1("GET"));
    for endpoint in &fixture.endpoints {
        endpoint.wait_for_counts("requests", |counts| counts.in_flight >= 6).await?;
    }
    let address = fixture.endpoints[0].address;
    kill(fixture.endpoints.remove(0)).await?;
    wait_for_health(&fixture.sheave, address, "unreachable").await?;
    fixture.endpoints.iter().for_each(|endpoint| endpoint.open_gate(1_000_000));
    load.wait_for_responses(ANSWERS).await?;

    let begun = Instant::now();
    let endpoint = restart(address, &EndpointBehaviour::slow(SERVICE_TIME)).await?;
    wait_for_health(&fixture.sheave, address, "serving").await?;
    endpoint.wait_for_counts("requests", |counts| counts.requests > 0).await?;
    ensure!(begun.elapsed() < MAX_RETURN_TIME + MARGIN, "after {:?}", begun.elapsed());
    assert_all_served(&load.stop().await)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn returning_endpoint_gets_its_share_within_a_second() -> Result {
    let mut fixture = start_fixture(3, &[]).await?;
    let address = fixture.endpoints[0].address;
    wait_for_reachability_metrics(&fixture, address, false, 0).await?;
    let load = RecordedLoad::start(fixture.sheave.address(), CLIENTS, &LoadProtocol::Http1("GET"));
    for outage in 1..=2 {
        // Serving for as long as the first ejection makes the next ejection as short.
        let serving = Instant::now();
        while serving.elapsed() < Duration::from_millis(1200) {
            load.wait_for_responses(ANSWERS).await?;
        }
        kill(fixture.endpoints.remove(0)).await?;
        wait_for_health(&fixture.sheave, address, "unreachable").await?;
        load.wait_for_responses(ANSWERS).await?;
        fixture.sheave.wait_for_log(0, "endpoint is unreachable").await?;
        wait_for_reachability_metrics(&fixture, address, true, outage).await?;

        let begun = Instant::now();
        fixture
            .endpoints
            .insert(0, restart(address, &EndpointBehaviour::slow(SERVICE_TIME)).await?);
        wait_for_health(&fixture.sheave, address, "serving").await?;
        let took = begun.elapsed();
        ensure!(took < MAX_RETURN_TIME + MARGIN, "the endpoint is reachable after {took:?}");
        // The requests that were in flight when the endpoint came back are at the other endpoints.
        load.wait_for_responses(2 * CLIENTS).await?;
        wait_for_reachability_metrics(&fixture, address, false, outage).await?;
        let before = requests(&fixture.endpoints);
        load.wait_for_responses(2 * ANSWERS).await?;
        let after = requests(&fixture.endpoints);
        let got: Vec<u64> =
            after.iter().zip(before).map(|(after, before)| after - before).collect();
        let share = got[0] as f64 / got.iter().sum::<u64>() as f64;
        ensure!(share >= 0.8 / 3.0, "a share of {share:.3}: {got:?}");
    }
    assert_all_served(&load.stop().await)
}
