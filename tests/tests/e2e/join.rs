//! Endpoints that join and leave while clients keep their connections: a new endpoint gets its
//! share at once.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::fixture::{addresses, start_endpoints};
use tests::load::{ClientPattern, LoadGenerator};
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, objects};
use tokio::time::{Instant, sleep_until};

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
    let behaviour = EndpointBehaviour::slow(Duration::from_millis(20));
    let policy = objects::backend_policy("app", json!({ "algorithm": algorithm }));
    let servers = start_endpoints(3, &behaviour).await?;
    let mut fixture = HttpFixture::with(servers, &[policy], &["--workers", "2"]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), CLIENTS, ClientPattern::GET);
    fixture.endpoints[0].wait_for_counts("load", |counts| counts.requests > 100).await?;

    fixture.endpoints.push(Endpoint::start(behaviour).await?);
    fixture.configuration.set_endpoints(&addresses(&fixture.endpoints))?;
    let written = Instant::now();
    let end = written + Duration::from_secs(6);
    sleep_until(end).await;
    load.stop().await.assert_all_served();

    let [.., new] = &fixture.endpoints[..] else { unreachable!("there are four") };
    let first = new.requests().first().context("the new endpoint got no request")?.received_at;
    ensure!(first - written <= MAX_JOIN_DELAY, "first request after {:?}", first - written);

    let joined = written + MAX_JOIN_DELAY;
    let half = Duration::from_millis(500);
    for start in (0..11).map(|number| joined + half * number) {
        // A request at the border of two windows is counted in only one of them.
        let (got, fair) = share(&fixture, start, start + half);
        let border = (CLIENTS / fixture.endpoints.len()) as f64;
        ensure!(got >= fair - border, "{got} and not {fair} {:?} after joining", start - joined);
    }
    let (got, fair) = share(&fixture, joined, joined + Duration::from_secs(5));
    ensure!((0.9..=1.1).contains(&(got / fair)), "{got} and not {fair} over five seconds");
    Ok(())
}

/// Returns the number of requests that the last endpoint got between these times, and the fair
/// share of all.
fn share(fixture: &HttpFixture, from: Instant, to: Instant) -> (f64, f64) {
    let got = |endpoint: &Endpoint| {
        let seen = endpoint.requests();
        seen.iter().filter(|seen| (from..to).contains(&seen.received_at)).count() as f64
    };
    let all: f64 = fixture.endpoints.iter().map(got).sum();
    let new = fixture.endpoints.last().map_or(0.0, got);
    (new, all / fixture.endpoints.len() as f64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_endpoint_gets_no_new_request() -> Result {
    let servers = start_endpoints(3, &EndpointBehaviour::slow(Duration::from_millis(5))).await?;
    let fixture = HttpFixture::with(servers, &[], &["--workers", "2"]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 16, ClientPattern::GET);
    let [leaving, staying @ ..] = &fixture.endpoints[..] else { unreachable!("there are three") };
    leaving.wait_for_counts("load", |counts| counts.requests > 100).await?;

    fixture.configuration.set_endpoints(&addresses(staying))?;
    let written = Instant::now();
    sleep_until(written + Duration::from_secs(1)).await;
    load.stop().await.assert_all_served();
    let last = leaving.requests().last().context("the endpoint got no request")?.received_at;
    ensure!(last <= written + MAX_JOIN_DELAY, "a request {:?} after it left", last - written);
    leaving
        .wait_for_counts("idle connections are closed", |counts| counts.connections == 0)
        .await?;
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
