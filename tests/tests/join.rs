//! Endpoints that come and go while clients keep their connections: a new one gets its share at once.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::load::{Habit, Load};
use tests::scene::{addresses, endpoints};
use tests::{Behaviour, Endpoint, Result, Scene, objects};
use tokio::time::{Instant, sleep_until};

/// From the write of its EndpointSlice to an endpoint's first request, and from the removal to the last.
const AT_ONCE: Duration = Duration::from_millis(100);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn least_load_gives_a_new_endpoint_its_share_on_kept_connections() -> Result {
    joins("LeastLoad").await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn round_robin_gives_a_new_endpoint_its_share_on_kept_connections() -> Result {
    joins("RoundRobin").await
}

async fn joins(algorithm: &str) -> Result {
    const CLIENTS: usize = 24;
    let behaviour = Behaviour::slow(Duration::from_millis(20));
    let policy = objects::backend_policy("app", json!({ "algorithm": algorithm }));
    let servers = endpoints(3, &behaviour).await?;
    let mut scene = Scene::with(servers, &[policy], &["--workers", "2"]).await?;
    let load = Load::start(scene.sheave.address(), CLIENTS, Habit::GET);
    scene.endpoints[0].until("load", |counts| counts.requests > 100).await?;

    scene.endpoints.push(Endpoint::start(behaviour).await?);
    scene.configuration.set_endpoints(&addresses(&scene.endpoints))?;
    let written = Instant::now();
    let end = written + Duration::from_secs(6);
    sleep_until(end).await;
    load.stop().await.assert_all_served();

    let [.., new] = &scene.endpoints[..] else { unreachable!("there are four") };
    let first = new.seen().first().context("the new endpoint got nothing")?.at;
    ensure!(first - written <= AT_ONCE, "first request after {:?}", first - written);

    let joined = written + AT_ONCE;
    let half = Duration::from_millis(500);
    for start in (0..11).map(|number| joined + half * number) {
        // What it works on at the border of two windows is counted in one of them alone.
        let (got, fair) = share(&scene, start, start + half);
        let border = (CLIENTS / scene.endpoints.len()) as f64;
        ensure!(got >= fair - border, "{got} and not {fair} {:?} after joining", start - joined);
    }
    let (got, fair) = share(&scene, joined, joined + Duration::from_secs(5));
    ensure!((0.9..=1.1).contains(&(got / fair)), "{got} and not {fair} over five seconds");
    Ok(())
}

/// The requests that the last endpoint got between these times, and what a fair share of all was.
fn share(scene: &Scene, from: Instant, to: Instant) -> (f64, f64) {
    let got = |endpoint: &Endpoint| {
        let seen = endpoint.seen();
        seen.iter().filter(|seen| (from..to).contains(&seen.at)).count() as f64
    };
    let all: f64 = scene.endpoints.iter().map(got).sum();
    let new = scene.endpoints.last().map_or(0.0, got);
    (new, all / scene.endpoints.len() as f64)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn removed_endpoint_gets_no_new_request() -> Result {
    let servers = endpoints(3, &Behaviour::slow(Duration::from_millis(5))).await?;
    let scene = Scene::with(servers, &[], &["--workers", "2"]).await?;
    let load = Load::start(scene.sheave.address(), 16, Habit::GET);
    let [leaving, staying @ ..] = &scene.endpoints[..] else { unreachable!("there are three") };
    leaving.until("load", |counts| counts.requests > 100).await?;

    scene.configuration.set_endpoints(&addresses(staying))?;
    let written = Instant::now();
    sleep_until(written + Duration::from_secs(1)).await;
    load.stop().await.assert_all_served();
    let last = leaving.seen().last().context("it was used")?.at;
    ensure!(last <= written + AT_ONCE, "a request {:?} after it left", last - written);
    leaving.until("idle connections are closed", |counts| counts.connections == 0).await?;
    Ok(())
}

#[tokio::test]
async fn running_request_at_a_removed_endpoint_completes() -> Result {
    let leaving = Endpoint::start(Behaviour::gated()).await?;
    let mut scene = Scene::with(vec![leaving], &[], &[]).await?;
    let mut client = scene.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    scene.endpoint().until("the request", |counts| counts.in_flight == 1).await?;

    let leaving = scene.endpoints.pop().context("the only one")?;
    scene.endpoints.push(Endpoint::start(Behaviour::ok()).await?);
    scene.configuration.set_endpoints(&addresses(&scene.endpoints))?;
    scene.sheave.uses(&addresses(&scene.endpoints)).await?;
    ensure!(scene.client().await?.get("/").await?.status() == 200);
    assert_eq!(scene.endpoint().counts().requests, 1);
    leaving.open_gate(1);
    ensure!(client.response("GET").await?.text() == "ok");
    Ok(())
}

#[tokio::test]
async fn unready_and_terminating_endpoints_are_used_only_as_a_last_resort() -> Result {
    let servers = endpoints(3, &Behaviour::ok()).await?;
    let scene = Scene::with(servers, &[], &[]).await?;
    let conditions = [
        json!({ "ready": true }),
        json!({ "ready": false, "serving": true, "terminating": true }),
        json!({ "ready": false, "serving": false }),
    ];
    let slices = |from: usize| -> Vec<_> {
        let pairs = scene.endpoints.iter().zip(&conditions).skip(from);
        pairs.map(|(it, conditions)| objects::slice("app", it.address, conditions)).collect()
    };
    let counts = || scene.endpoints.iter().map(|it| it.counts().requests).collect::<Vec<_>>();
    for (from, used) in [(0, 0), (1, 1)] {
        scene.configuration.write("endpoints.yaml", &slices(from))?;
        scene.sheave.uses(&[scene.endpoints[used].address]).await?;
        let before = counts();
        let mut client = scene.client().await?;
        for _ in 0..10 {
            ensure!(client.get("/").await?.status() == 200);
        }
        let served: Vec<u64> = counts().iter().zip(&before).map(|(now, then)| now - then).collect();
        ensure!(served[used] == 10, "{served:?}");
    }
    Ok(())
}
