//! Endpoints that join and leave while clients keep their connections: a new endpoint gets its
//! share at once.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::fixture::{addresses, start_endpoints};
use tests::load::{ClientPattern, LoadGenerator};
use tests::machine::CpuWaitMeter;
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, eventually, objects};
use tokio::time::Instant;

/// Maximum time from the write of an EndpointSlice to the first request of a new endpoint, and to
/// the last request of a removed one.
const MAX_JOIN_DELAY: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn least_load_gives_a_new_endpoint_its_share_on_kept_connections() -> Result {
    check_new_endpoint_share("LeastLoad").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_robin_gives_a_new_endpoint_its_share_on_kept_connections() -> Result {
    check_new_endpoint_share("RoundRobin").await
}

async fn check_new_endpoint_share(algorithm: &str) -> Result {
    const CLIENTS: usize = 24;
    const WINDOW: usize = 400;
    const WINDOWS: usize = 6;
    let behaviour = EndpointBehaviour::slow(Duration::from_millis(20));
    let policy = objects::backend_policy("app", json!({ "algorithm": algorithm }));
    let servers = start_endpoints(3, &behaviour).await?;
    let mut fixture = HttpFixture::with(servers, &[policy], &["--workers", "2"]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), CLIENTS, ClientPattern::GET);
    fixture.endpoints[0].wait_for_counts("load", |counts| counts.requests > 100).await?;

    fixture.endpoints.push(Endpoint::start(behaviour).await?);
    let meter = CpuWaitMeter::start(&fixture.sheave)?;
    fixture.configuration.set_endpoints(&addresses(&fixture.endpoints))?;
    let written = Instant::now();
    let [.., new] = &fixture.endpoints[..] else { unreachable!("there are four") };
    new.wait_for_counts("the first request", |counts| counts.requests > 0).await?;
    let starved = meter.waited()?;
    let (joined, before) = (new.requests()[0].received_at, total_requests(&fixture));
    let total = async || Ok(total_requests(&fixture));
    let enough = before + (WINDOW * WINDOWS) as u64;
    eventually("requests", total, |total| *total >= enough).await?;
    load.stop().await.assert_all_served();

    let took = joined - written;
    eprintln!("first request after {took:?}; threads waited {starved:?} for a CPU");
    ensure!(took <= MAX_JOIN_DELAY + starved, "first request after {took:?}");
    let order = endpoints_in_order(&fixture, joined);
    let got = |requests: &[usize]| requests.iter().filter(|endpoint| **endpoint == 3).count();
    for (number, window) in order.chunks_exact(WINDOW).take(WINDOWS).enumerate() {
        // A request at the border of two windows is counted in only one of them.
        let (got, fair, border) = (got(window), WINDOW / 4, CLIENTS / 4);
        ensure!(got >= fair - border, "{got} and not {fair} in window {number}");
    }
    let (got, fair) = (got(&order[..WINDOW * WINDOWS]), WINDOW * WINDOWS / 4);
    let share = got as f64 / fair as f64;
    ensure!((0.9..=1.1).contains(&share), "{got} and not {fair} of all");
    Ok(())
}

/// Returns the number of requests that all endpoints got.
fn total_requests(fixture: &HttpFixture) -> u64 {
    fixture.endpoints.iter().map(|endpoint| endpoint.counts().requests).sum()
}

/// Returns the index of the endpoint of each request since this time, in the order of arrival.
fn endpoints_in_order(fixture: &HttpFixture, from: Instant) -> Vec<usize> {
    let mut requests = Vec::new();
    for (index, endpoint) in fixture.endpoints.iter().enumerate() {
        let times = endpoint.requests().into_iter().map(|seen| seen.received_at);
        requests.extend(times.filter(|at| *at >= from).map(|at| (at, index)));
    }
    requests.sort_unstable();
    requests.into_iter().map(|(_, index)| index).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_endpoint_gets_no_new_request() -> Result {
    let servers = start_endpoints(3, &EndpointBehaviour::slow(Duration::from_millis(5))).await?;
    let fixture = HttpFixture::with(servers, &[], &["--workers", "2"]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 16, ClientPattern::GET);
    let [leaving, staying @ ..] = &fixture.endpoints[..] else { unreachable!("there are three") };
    leaving.wait_for_counts("load", |counts| counts.requests > 100).await?;

    let meter = CpuWaitMeter::start(&fixture.sheave)?;
    fixture.configuration.set_endpoints(&addresses(staying))?;
    let written = Instant::now();
    // Its idle connections are closed; those with a request, after the response.
    leaving.wait_for_counts("no connection", |counts| counts.connections == 0).await?;
    let (starved, left) = (meter.waited()?, leaving.requests());
    let before = staying[0].counts().requests;
    staying[0].wait_for_counts("load", |counts| counts.requests > before + 500).await?;
    load.stop().await.assert_all_served();
    ensure!(leaving.requests().len() == left.len(), "a request after its connections were closed");
    let last = left.last().context("the endpoint got no request")?.received_at;
    let took = last.saturating_duration_since(written);
    ensure!(took <= MAX_JOIN_DELAY + starved, "a request {took:?} after it left");
    Ok(())
}

#[tokio::test]
async fn running_request_at_a_removed_endpoint_completes() -> Result {
    let leaving = Endpoint::start(EndpointBehaviour::gated()).await?;
    let mut fixture = HttpFixture::with(vec![leaving], &[], &[]).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    fixture.endpoint().wait_for_counts("the request", |counts| counts.in_flight == 1).await?;

    let leaving = fixture.endpoints.pop().context("the only one")?;
    fixture.endpoints.push(Endpoint::start(EndpointBehaviour::ok()).await?);
    fixture.configuration.set_endpoints(&addresses(&fixture.endpoints))?;
    fixture.sheave.wait_for_endpoints(&addresses(&fixture.endpoints)).await?;
    ensure!(fixture.client().await?.get("/").await?.status() == 200);
    assert_eq!(fixture.endpoint().counts().requests, 1);
    leaving.open_gate(1);
    ensure!(client.response("GET").await?.text() == "ok");
    Ok(())
}

#[tokio::test]
async fn unready_and_terminating_endpoints_are_used_only_as_a_last_resort() -> Result {
    let servers = start_endpoints(3, &EndpointBehaviour::ok()).await?;
    let fixture = HttpFixture::with(servers, &[], &[]).await?;
    let conditions = [
        json!({ "ready": true }),
        json!({ "ready": false, "serving": true, "terminating": true }),
        json!({ "ready": false, "serving": false }),
    ];
    let slices = |from: usize| -> Vec<_> {
        let pairs = fixture.endpoints.iter().zip(&conditions).skip(from);
        pairs.map(|(it, conditions)| objects::slice("app", it.address, conditions)).collect()
    };
    let counts = || fixture.endpoints.iter().map(|it| it.counts().requests).collect::<Vec<_>>();
    for (from, used) in [(0, 0), (1, 1)] {
        fixture.configuration.write("endpoints.yaml", &slices(from))?;
        fixture.sheave.wait_for_endpoints(&[fixture.endpoints[used].address]).await?;
        let before = counts();
        let mut client = fixture.client().await?;
        for _ in 0..10 {
            ensure!(client.get("/").await?.status() == 200);
        }
        let served: Vec<u64> = counts().iter().zip(&before).map(|(now, then)| now - then).collect();
        ensure!(served[used] == 10, "{served:?}");
    }
    Ok(())
}
