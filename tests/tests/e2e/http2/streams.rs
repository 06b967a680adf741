//! Streams are requests: balancing, and limits of concurrency.

use std::sync::Arc;
use std::time::Duration;

use anyhow::ensure;
use serde_json::{Value, json};
use tests::fixture::{addresses, start_endpoints};
use tests::random::SeededRandom;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, http2, objects, within};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use super::fixture::Http2Fixture;
use crate::multiplexed::streams::{begin_requests, check_responses, check_shared_bandwidth};

/// Long responses of one connection share its bandwidth, even if one of them is not read.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_one_connection_share_its_bandwidth() -> Result {
    const LENGTH: u64 = 32 << 20;
    let server = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
    let site = Http2Fixture::of(&[server.address], &[]).await?;
    let mut settings = h2::client::Builder::new();
    // Unread data takes its stream's part of the connection window.
    settings.initial_connection_window_size(1 << 20);
    let client = http2::Http2TestClient::connect_with(site.sheave.address(), &settings).await?;
    let mut answers = begin_requests(&client, 4).await?;
    let unread = within("a head", answers.pop().expect("four")).await??;
    let given_up = answers.pop().expect("three");
    drop(within("a head", given_up).await??);
    let mut bodies = Vec::new();
    for answer in answers {
        bodies.push(within("a head", answer).await??.into_body());
    }
    let bodies = bodies.try_into().expect("two");
    check_shared_bandwidth::<http2::Http2TestClient>(bodies, LENGTH).await?;
    drop(unread);
    Ok(())
}

#[tokio::test]
async fn requests_of_one_connection_are_balanced_over_http2_endpoints() -> Result {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let mut servers = Vec::new();
    for _ in 0..4 {
        let gate = gate.clone();
        let serve = move |call: http2::ReceivedRequest| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.expect("the semaphore is never closed").forget();
                call.answer("ok").await
            }
        };
        servers.push(http2::Http2TestEndpoint::start(serve).await?);
    }
    let of = |server: &http2::Http2TestEndpoint| server.address;
    let site = Http2Fixture::of_http2(&servers.iter().map(of).collect::<Vec<_>>(), &[]).await?;
    let client = site.client().await?;
    let responses = begin_requests(&client, 32).await?;
    for server in &servers {
        let counts =
            server.wait_for_counts("the endpoint's share", |counts| counts.in_flight == 8).await?;
        ensure!(counts.accepted <= 2, "more connections than workers: {}", counts.accepted);
    }
    gate.add_permits(32);
    check_responses::<http2::Http2TestClient>(responses).await
}

/// The limit of concurrent streams is advertised in SETTINGS.
#[tokio::test]
async fn stream_limit_is_advertised_in_settings() -> Result {
    let server = Endpoint::start(EndpointBehaviour::ok()).await?;
    let policy = objects::client_policy(json!({ "http2": { "maxConcurrentStreams": 3 } }));
    let site = Http2Fixture::of(&[server.address], &[policy]).await?;
    let client = site.client().await?;
    ensure!(client.get("/").await?.status() == 200);
    assert_eq!(client.max_concurrent_streams(), 3);
    Ok(())
}

const CAP: usize = 2;

fn policy_with_cap(queue: u32) -> Value {
    objects::backend_policy(
        "app",
        json!({
            "maxInFlightPerEndpoint": CAP,
            "queue": { "maxRequests": queue, "timeout": "1h" },
        }),
    )
}

/// Once a response has been read to its end, the endpoint has finished: a slow client holds no
/// slot.
#[tokio::test]
async fn slow_response_reader_holds_no_slot() -> Result {
    let server = Endpoint::start(EndpointBehaviour::ok()).await?;
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
    let site =
        Http2Fixture::of(&[server.address], &[objects::backend_policy("app", policy)]).await?;
    let mut settings = h2::client::Builder::new();
    settings.initial_window_size(1);
    let slow = http2::Http2TestClient::connect_with(site.sheave.address(), &settings).await?;
    let response = begin_requests(&slow, 1).await?.pop().expect("one");
    let mut body = within("a head", response).await??.into_body();

    let other = site.client().await?;
    ensure!(within("another client's response", other.get("/")).await??.status() == 200);
    let counts = server.counts();
    ensure!(counts.accepted == 1, "the connection is used again: {counts:?}");
    assert_eq!(within("the rest", http2::read(&mut body)).await??.bytes, "ok");
    Ok(())
}

/// Streams of several connections, some of them aborted: an HTTP/1.1 endpoint never gets more
/// requests than its cap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_holds_for_streams_to_http1_endpoints() -> Result {
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::WaitExponential(Duration::from_millis(3)),
        ServeStep::Answer,
    ];
    let servers = start_endpoints(3, &steps.into()).await?;
    let site = Http2Fixture::of(&addresses(&servers), &[policy_with_cap(1000)]).await?;
    let served = send_streams_concurrently(&site, 30).await?;
    site.sheave.wait_until_idle().await?;
    for server in &servers {
        let counts = server.counts();
        ensure!(counts.max_in_flight == CAP && counts.max_connections <= CAP, "{counts:?}");
    }
    ensure!(served > 100, "{served}");
    Ok(())
}

/// The same for HTTP/2 endpoints, whose slots are streams. No stream is aborted: an endpoint may
/// see the next stream before it has noticed a reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_holds_for_streams_to_http2_endpoints() -> Result {
    let mut servers = Vec::new();
    for _ in 0..3 {
        let serve = |call: http2::ReceivedRequest| async move {
            sleep(Duration::from_millis(call.number % 7)).await; // The work of an endpoint.
            call.answer("ok").await
        };
        servers.push(http2::Http2TestEndpoint::start(serve).await?);
    }
    let of = |server: &http2::Http2TestEndpoint| server.address;
    let addresses: Vec<_> = servers.iter().map(of).collect();
    let site = Http2Fixture::of_http2(&addresses, &[policy_with_cap(1000)]).await?;
    let served = send_streams_concurrently(&site, 0).await?;
    site.sheave.wait_until_idle().await?;
    for server in &servers {
        let counts = server.counts();
        ensure!(counts.max_in_flight == CAP, "{counts:?}");
    }
    assert_eq!(served, 4 * 16 * 40);
    Ok(())
}

/// Sends 40 requests on each of 16 concurrent streams of four connections, and aborts this
/// percentage. Returns the number of served requests.
async fn send_streams_concurrently(site: &Http2Fixture, aborted_percent: u64) -> Result<u64> {
    let mut clients = JoinSet::new();
    for seed in 0..4 {
        let client = Arc::new(site.client().await?);
        for stream in 0..16 {
            clients.spawn(send_requests(
                client.clone(),
                SeededRandom::new(seed << 8 | stream),
                aborted_percent,
            ));
        }
    }
    let mut served = 0;
    while let Some(part) = clients.join_next().await {
        served += part??;
    }
    Ok(served)
}

async fn send_requests(
    client: Arc<http2::Http2TestClient>,
    mut random: SeededRandom,
    aborted: u64,
) -> Result<u64> {
    let mut served = 0;
    for _ in 0..40 {
        let exchange = client.get("/");
        if random.chance(aborted) {
            let patience = random.between(Duration::ZERO, Duration::from_millis(4));
            drop(timeout(patience, exchange).await);
            continue;
        }
        ensure!(exchange.await?.status() == 200);
        served += 1;
    }
    Ok(served)
}
