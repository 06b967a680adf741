//! The concurrency cap and the connection cap are never exceeded, regardless of clients, timers and
//! configuration changes.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::fixture::addresses;
use tests::load::LoadResults;
use tests::random::SeededRandom;
use tests::{
    ConfigDirectory, ConnectionReuse, Endpoint, EndpointBehaviour, Http1Error, Http1TestClient,
    Http1TestResponse, Result, ServeStep, SheaveProcess,
};
use tests::{client, objects};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep, timeout};

const CLIENTS: u64 = 48;
const STORM_DURATION: Duration = Duration::from_secs(20);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_of_one_holds_under_request_storm() -> Result {
    check_cap_under_storm(1).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_of_four_holds_under_request_storm() -> Result {
    check_cap_under_storm(4).await
}

async fn check_cap_under_storm(cap: usize) -> Result {
    let endpoints = endpoints().await?;
    let configuration = ConfigDirectory::for_endpoints(&addresses(&endpoints))?;
    reconfigure(&configuration, &addresses(&endpoints), cap, 0)?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--workers", "8"]).await?;

    let address = sheave.address();
    let end = Instant::now() + STORM_DURATION;
    let clients: JoinSet<_> =
        (0..CLIENTS).map(|seed| run_misbehaving_client(address, seed, end)).collect();
    change_endpoints_repeatedly(&configuration, &addresses(&endpoints), cap, end).await?;
    let report =
        clients.join_all().await.into_iter().fold(LoadResults::default(), LoadResults::merge);

    sheave.wait_until_idle().await?;
    let mut busiest = 0;
    for endpoint in &endpoints {
        let counts = endpoint
            .wait_for_counts("no request in flight", |counts| counts.in_flight == 0)
            .await?;
        ensure!(counts.max_in_flight <= cap, "over the cap of {cap}: {counts:?}");
        ensure!(counts.max_connections <= cap, "connections over the cap of {cap}: {counts:?}");
        busiest = busiest.max(counts.max_in_flight);
    }
    ensure!(busiest == cap, "no endpoint reached the cap of {cap}: {busiest}");
    let expected = |status: &u16| [200, 429, 504].contains(status);
    ensure!(report.answered.keys().all(expected), "{:?}", report.answered);
    ensure!(report.failed.is_empty(), "{:?}", report.failed);
    ensure!(report.answered[&200] > 100, "too few requests were served: {:?}", report.answered);
    check_recovery(&sheave, &endpoints).await
}

/// Returns endpoints that work for 10 ms on average: often less, and sometimes longer than the
/// attempt timeout.
async fn endpoints() -> Result<Vec<Endpoint>> {
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::WaitExponential(Duration::from_millis(10)),
        ServeStep::Answer,
    ];
    let idle = ConnectionReuse::CloseWhenIdle(Duration::from_millis(15));
    let mut endpoints = Vec::new();
    for keep in [
        ConnectionReuse::KeepAlive,
        ConnectionReuse::KeepAlive,
        idle,
        ConnectionReuse::CloseSilently,
        ConnectionReuse::CloseAnnounced,
    ] {
        endpoints.push(
            Endpoint::start(EndpointBehaviour::from(steps.clone()).with_connection_reuse(keep))
                .await?,
        );
    }
    Ok(endpoints)
}

/// Writes two Services with the same endpoints: a cap applies to the endpoint, whichever Service a
/// request came through.
fn reconfigure(
    configuration: &ConfigDirectory,
    endpoints: &[SocketAddr],
    cap: usize,
    revision: u64,
) -> Result {
    let policy = |service| {
        let spec = json!({
            "maxInFlightPerEndpoint": cap,
            "queue": { "maxRequests": 30 + revision % 2, "timeout": "200ms" },
            "timeouts": { "perAttempt": "40ms" },
        });
        objects::backend_policy(service, spec)
    };
    let mut written = vec![objects::service("other"), objects::host_route("other.test", "other")];
    written.extend([policy("app"), policy("other")]);
    written.extend(objects::slices("other", endpoints));
    Ok(configuration.write("other.yaml", &written)?)
}

/// Removes and restores endpoints, and sometimes changes a policy.
async fn change_endpoints_repeatedly(
    configuration: &ConfigDirectory,
    endpoints: &[SocketAddr],
    cap: usize,
    end: Instant,
) -> Result {
    let mut random = SeededRandom::new(cap as u64);
    let mut revision = 0;
    while Instant::now() < end {
        let first = endpoints[random.below(endpoints.len() as u64) as usize];
        let others = endpoints.iter().copied().filter(|other| *other != first && random.chance(60));
        let chosen: Vec<SocketAddr> = others.chain([first]).collect();
        configuration.set_endpoints(&chosen)?;
        revision += 1;
        if revision % 5 == 0 {
            reconfigure(configuration, endpoints, cap, revision)?;
        }
        // Changes come at random times.
        sleep(random.between(Duration::from_millis(5), Duration::from_millis(60))).await;
    }
    configuration.set_endpoints(endpoints)?;
    Ok(())
}

/// Runs a client that often leaves early.
async fn run_misbehaving_client(address: SocketAddr, seed: u64, end: Instant) -> LoadResults {
    let mut random = SeededRandom::new(seed);
    let mut report = LoadResults::default();
    while Instant::now() < end {
        if let Some(outcome) = misbehave_once(address, &mut random).await {
            let failed = outcome.is_err();
            report.add_result(outcome);
            if failed {
                break;
            }
        }
    }
    report
}

/// Opens one connection of such a client. Returns the outcome, if the client waited for the
/// response.
async fn misbehave_once(
    address: SocketAddr,
    random: &mut SeededRandom,
) -> Option<Result<Http1TestResponse, Http1Error>> {
    let host = if random.chance(50) { "other.test" } else { "app.test" };
    let method = if random.chance(50) { "POST" } else { "GET" };
    let body = if method == "POST" { &b"a small body"[..] } else { b"" };
    let request = client::request(method, "/", &[("Host", host)], body);
    let mut client = match Http1TestClient::connect(address).await {
        Ok(client) => client,
        Err(error) => return Some(Err(error)),
    };
    let patience = random.between(Duration::ZERO, Duration::from_millis(30));
    match random.below(10) {
        0 => {
            let part = random.below(request.len() as u64) as usize;
            drop(client.send(&request[..part]).await);
            sleep(patience).await; // The patience of a client.
            None
        }
        1 => {
            drop(client.send(&request).await);
            sleep(patience).await; // The patience of a client.
            client.reset();
            None
        }
        2 => {
            drop(client.send(&request).await);
            timeout(patience, client.response(method)).await.ok()
        }
        3 => {
            // Two pipelined requests. The client does not wait for the second response.
            drop(client.send([request.as_slice(), &request].concat()).await);
            Some(client.response(method).await)
        }
        _ => Some(client.exchange(method, "/", &[("Host", host)], body).await),
    }
}

async fn check_recovery(sheave: &SheaveProcess, endpoints: &[Endpoint]) -> Result {
    let before: Vec<u64> = endpoints.iter().map(|endpoint| endpoint.counts().requests).collect();
    let mut served = 0;
    let end = Instant::now() + Duration::from_secs(10);
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let all_used = || {
        let pairs = endpoints.iter().zip(&before);
        pairs.into_iter().all(|(endpoint, before)| endpoint.counts().requests > *before)
    };
    while !all_used() {
        ensure!(Instant::now() < end, "an endpoint gets no requests, after {served} served");
        // 504: the work happened to take longer than the attempt timeout.
        let status = client.get("/").await?.status();
        ensure!(status == 200 || status == 504, "{status}");
        served += 1;
    }
    Ok(())
}
