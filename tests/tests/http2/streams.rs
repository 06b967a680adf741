//! Each stream is a request of its own: where it goes, and how many there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use h2::client::ResponseFuture;
use serde_json::{Value, json};
use tests::random::Random;
use tests::scene::{addresses, endpoints};
use tests::{Behaviour, Endpoint, Result, Step, http2, objects, within};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};

use crate::site::Site;

/// So many GETs at once, each on a stream of its own.
async fn begin(client: &http2::Client, count: usize) -> Result<Vec<ResponseFuture>> {
    let mut responses = Vec::new();
    for _ in 0..count {
        responses.push(within("a stream", client.begin(http2::get("/"), true)).await??.0);
    }
    Ok(responses)
}

/// What the articles are about: one connection, and every endpoint works.
#[tokio::test]
async fn requests_of_one_connection_are_balanced() -> Result {
    let servers = endpoints(4, &Behaviour::gated()).await?;
    let site = Site::of(&addresses(&servers), &[]).await?;
    let client = site.client().await?;
    let responses = begin(&client, 32).await?;
    for server in &servers {
        server.until("its share", |counts| counts.in_flight == 8).await?;
        server.open_gate(8);
    }
    for response in responses {
        ensure!(within("an answer", http2::Client::response(response)).await??.status() == 200);
    }
    Ok(())
}

/// Long answers of one connection take turns, also with one that nobody reads.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_one_connection_share_its_bandwidth() -> Result {
    const LENGTH: u64 = 32 << 20;
    let server = Endpoint::start(vec![Step::AnswerPattern(LENGTH)]).await?;
    let site = Site::of(&[server.address], &[]).await?;
    let mut settings = h2::client::Builder::new();
    // What is not read takes its stream's part of it.
    settings.initial_connection_window_size(1 << 20);
    let client = http2::Client::connect_with(site.sheave.address(), &settings).await?;
    let mut answers = begin(&client, 4).await?;
    let unread = within("a head", answers.pop().expect("four")).await??;
    let given_up = answers.pop().expect("three");
    drop(within("a head", given_up).await??);
    let mut reading = JoinSet::new();
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    for (answer, count) in answers.into_iter().zip(&counts) {
        let count = count.clone();
        reading.spawn(async move {
            let mut body = within("a head", answer).await??.into_body();
            while let Some(piece) = within("a piece", body.data()).await? {
                let length = piece?.len();
                body.flow_control().release_capacity(length)?;
                count.fetch_add(length as u64, Ordering::Relaxed);
            }
            Ok::<_, anyhow::Error>(())
        });
    }
    within("the first to be done", reading.join_next()).await?.expect("two")??;
    let least = counts.iter().map(|count| count.load(Ordering::Relaxed)).min();
    ensure!(least > Some(LENGTH / 2), "{least:?} bytes of the other one");
    within("the other one", reading.join_next()).await?.expect("two")??;
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [LENGTH; 2]);
    drop(unread);
    Ok(())
}

#[tokio::test]
async fn requests_of_one_connection_are_balanced_over_http2_endpoints() -> Result {
    let gate = Arc::new(tokio::sync::Semaphore::new(0));
    let mut servers = Vec::new();
    for _ in 0..4 {
        let gate = gate.clone();
        let serve = move |call: http2::Call| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.expect("it is never closed").forget();
                call.answer("ok").await
            }
        };
        servers.push(http2::Endpoint::start(serve).await?);
    }
    let of = |server: &http2::Endpoint| server.address;
    let site = Site::of_http2(&servers.iter().map(of).collect::<Vec<_>>(), &[]).await?;
    let client = site.client().await?;
    let responses = begin(&client, 32).await?;
    for server in &servers {
        let counts = server.until("its share", |counts| counts.in_flight == 8).await?;
        ensure!(counts.accepted <= 2, "more connections than workers: {}", counts.accepted);
    }
    gate.add_permits(32);
    for response in responses {
        ensure!(within("an answer", http2::Client::response(response)).await??.status() == 200);
    }
    Ok(())
}

/// What a client may ask for at once is said in the settings, and what is more waits at the client.
#[tokio::test]
async fn concurrent_streams_are_limited_by_policy() -> Result {
    let server = Endpoint::start(Behaviour::gated()).await?;
    let policy = objects::client_policy(json!({ "http2": { "maxConcurrentStreams": 3 } }));
    let site = Site::of(&[server.address], &[policy]).await?;
    let client = site.client().await?;
    ensure!({
        server.open_gate(1);
        client.get("/").await?.status() == 200
    });
    assert_eq!(client.most_streams(), 3);
    let responses = begin(&client, 3).await?;
    server.until("three", |counts| counts.in_flight == 3).await?;
    server.open_gate(3);
    for response in responses {
        ensure!(within("an answer", http2::Client::response(response)).await??.status() == 200);
    }
    Ok(())
}

const CAP: usize = 2;

fn capped(queue: u32) -> Value {
    objects::backend_policy(
        "app",
        json!({
            "maxInFlightPerEndpoint": CAP,
            "queue": { "maxRequests": queue, "timeout": "1h" },
        }),
    )
}

/// What has been read of a response to its end is between us and the client: the endpoint has finished.
#[tokio::test]
async fn slow_response_reader_holds_no_slot() -> Result {
    let server = Endpoint::start(Behaviour::ok()).await?;
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
    let site = Site::of(&[server.address], &[objects::backend_policy("app", policy)]).await?;
    let mut settings = h2::client::Builder::new();
    settings.initial_window_size(1);
    let slow = http2::Client::connect_with(site.sheave.address(), &settings).await?;
    let response = begin(&slow, 1).await?.pop().expect("one");
    let mut body = within("a head", response).await??.into_body();

    let other = site.client().await?;
    ensure!(within("another's", other.get("/")).await??.status() == 200);
    let counts = server.counts();
    ensure!(counts.accepted == 1, "the connection is used again: {counts:?}");
    assert_eq!(within("the rest", http2::read(&mut body)).await??.bytes, "ok");
    Ok(())
}

/// Streams, aborted now and then, of several connections: never one over the cap at an endpoint of HTTP/1.1.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_holds_for_streams_to_http1_endpoints() -> Result {
    let steps = vec![Step::ReadBody, Step::WaitExponential(Duration::from_millis(3)), Step::Answer];
    let servers = endpoints(3, &steps.into()).await?;
    let site = Site::of(&addresses(&servers), &[capped(1000)]).await?;
    let served = storm(&site, 30).await?;
    site.sheave.idle().await?;
    for server in &servers {
        let counts = server.counts();
        ensure!(counts.most_in_flight == CAP && counts.most_connections <= CAP, "{counts:?}");
    }
    ensure!(served > 100, "{served}");
    Ok(())
}

/// The same at endpoints of HTTP/2, whose slots are streams. Nobody aborts: an endpoint may hear of the next stream
/// before it has noticed that one was reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn cap_holds_for_streams_to_http2_endpoints() -> Result {
    let mut servers = Vec::new();
    for _ in 0..3 {
        let serve = |call: http2::Call| async move {
            sleep(Duration::from_millis(call.number % 7)).await;
            call.answer("ok").await
        };
        servers.push(http2::Endpoint::start(serve).await?);
    }
    let of = |server: &http2::Endpoint| server.address;
    let addresses: Vec<_> = servers.iter().map(of).collect();
    let site = Site::of_http2(&addresses, &[capped(1000)]).await?;
    let served = storm(&site, 0).await?;
    site.sheave.idle().await?;
    for server in &servers {
        let counts = server.counts();
        ensure!(counts.most_in_flight == CAP, "{counts:?}");
    }
    assert_eq!(served, 4 * 16 * 40);
    Ok(())
}

/// Four connections with 16 streams at once each, 40 times; so many in a hundred are given up. How many were served.
async fn storm(site: &Site, aborted_percent: u64) -> Result<u64> {
    let mut clients = JoinSet::new();
    for seed in 0..4 {
        let client = Arc::new(site.client().await?);
        for stream in 0..16 {
            clients.spawn(ask(client.clone(), Random::new(seed << 8 | stream), aborted_percent));
        }
    }
    let mut served = 0;
    while let Some(part) = clients.join_next().await {
        served += part??;
    }
    Ok(served)
}

async fn ask(client: Arc<http2::Client>, mut random: Random, aborted: u64) -> Result<u64> {
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
