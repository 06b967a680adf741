//! Streams are requests: balancing, and limits of concurrency.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use serde_json::json;
use tests::fixture::{addresses, start_endpoints};
use tests::{Endpoint, EndpointBehaviour, Result, within};
use tokio::task::JoinSet;

use super::fixture::{MultiplexedClient, MultiplexedFixture};

test_each_version! {
    requests_of_one_connection_are_balanced,
    concurrent_streams_are_limited_by_policy,
    many_streams_on_many_connections_are_served,
}

/// Begins concurrent GETs, each on a stream of its own.
pub(crate) async fn begin_requests<C: MultiplexedClient>(
    client: &C,
    count: usize,
) -> Result<Vec<C::PendingResponse>> {
    let mut responses = Vec::new();
    for _ in 0..count {
        responses.push(within("a stream", client.begin_get()).await??);
    }
    Ok(responses)
}

/// Reads responses, whose status must be 200.
pub(crate) async fn check_responses<C: MultiplexedClient>(
    responses: Vec<C::PendingResponse>,
) -> Result {
    for response in responses {
        ensure!(within("an answer", C::response(response)).await??.status() == 200);
    }
    Ok(())
}

/// The subject of the articles: requests of one connection are balanced over all endpoints.
async fn requests_of_one_connection_are_balanced<F: MultiplexedFixture>() -> Result {
    let servers = start_endpoints(4, &EndpointBehaviour::gated()).await?;
    let fixture = F::start(&addresses(&servers)).await?;
    let client = fixture.connect().await?;
    let responses = begin_requests(&client, 32).await?;
    for server in &servers {
        server.wait_for_counts("the endpoint's share", |counts| counts.in_flight == 8).await?;
        server.open_gate(8);
    }
    check_responses::<F::Client>(responses).await
}

/// Reads two responses of `length` bytes at the same time, and checks that they share the bandwidth.
pub(crate) async fn check_shared_bandwidth<C: MultiplexedClient>(
    bodies: [C::ResponseBody; 2],
    length: u64,
) -> Result {
    let mut reading = JoinSet::new();
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    for (mut body, count) in bodies.into_iter().zip(&counts) {
        let count = count.clone();
        reading.spawn(async move { read::<C>(&mut body, &count).await });
    }
    within("the first to be done", reading.join_next()).await?.expect("two")??;
    let least = counts.iter().map(|count| count.load(Ordering::Relaxed)).min();
    ensure!(least > Some(length / 2), "{least:?} bytes of the other response");
    within("the other one", reading.join_next()).await?.expect("two")??;
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [length; 2]);
    Ok(())
}

/// Reads a body to its end, and counts its bytes.
pub(crate) async fn read<C: MultiplexedClient>(
    body: &mut C::ResponseBody,
    count: &AtomicU64,
) -> Result {
    while let Some(length) = within("a piece", C::read(body)).await?? {
        count.fetch_add(length, Ordering::Relaxed);
    }
    Ok(())
}

/// The limit of concurrent streams is advertised in the SETTINGS or the handshake, and the client
/// holds back excess requests.
async fn concurrent_streams_are_limited_by_policy<F: MultiplexedFixture>() -> Result {
    let server = Endpoint::start(EndpointBehaviour::gated()).await?;
    let policy = json!({ F::Client::SETTINGS: { "maxConcurrentStreams": 3 } });
    let fixture = F::start_with_policy(&[server.address], policy).await?;
    let client = Arc::new(fixture.connect().await?);
    // The limit is known after the first response.
    server.open_gate(1);
    ensure!(client.get("/").await?.status() == 200);
    let responses = begin_requests(&*client, 3).await?;
    let fourth = tokio::spawn({
        let client = client.clone();
        async move { client.get("/").await }
    });
    server.wait_for_counts("three", |counts| counts.in_flight == 3).await?;
    server.open_gate(4);
    check_responses::<F::Client>(responses).await?;
    ensure!(fourth.await??.status() == 200);
    ensure!(server.counts().max_in_flight == 3, "{:?}", server.counts());
    Ok(())
}

/// Many connections with many streams: every request is served exactly once.
async fn many_streams_on_many_connections_are_served<F: MultiplexedFixture>() -> Result {
    let servers = start_endpoints(3, &EndpointBehaviour::ok()).await?;
    let fixture = F::start(&addresses(&servers)).await?;
    let mut requests = JoinSet::new();
    for _ in 0..8 {
        let client = Arc::new(fixture.connect().await?);
        for _ in 0..16 {
            let client = client.clone();
            requests.spawn(async move {
                for _ in 0..25 {
                    let response = client.post("/", "hello").await?;
                    ensure!(response.status() == 200 && response.text() == "ok", "{response:?}");
                }
                Ok(())
            });
        }
    }
    for outcome in requests.join_all().await {
        outcome?;
    }
    let served: u64 = servers.iter().map(|server| server.counts().requests).sum();
    ensure!(served == 8 * 16 * 25, "{served}");
    Ok(())
}
