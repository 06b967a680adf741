//! Streams are requests: balancing, and limits of concurrency.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use bytes::Buf;
use serde_json::json;
use tests::fixture::{addresses, start_endpoints};
use tests::http3::Http3ReceiveStream;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, http3, within};
use tokio::task::JoinSet;

use crate::fixture::Http3Fixture;

/// Begins concurrent GETs, each on a stream of its own.
async fn begin_requests(
    client: &http3::Http3TestClient,
    count: usize,
) -> Result<Vec<Http3ReceiveStream>> {
    let mut responses = Vec::new();
    for _ in 0..count {
        let (mut sending, receiving) =
            within("a stream", client.send_request(http3::get("/"))).await??;
        sending.finish().await?;
        responses.push(receiving);
    }
    Ok(responses)
}

/// The subject of the articles: requests of one connection are balanced over all endpoints.
#[tokio::test]
async fn requests_of_one_connection_are_balanced() -> Result {
    let servers = start_endpoints(4, &EndpointBehaviour::gated()).await?;
    let site = Http3Fixture::of(&addresses(&servers)).await?;
    let client = site.client().await?;
    let responses = begin_requests(&client, 32).await?;
    for server in &servers {
        server.wait_for_counts("the endpoint's share", |counts| counts.in_flight == 8).await?;
        server.open_gate(8);
    }
    for response in responses {
        ensure!(
            within("an answer", http3::Http3TestClient::response(response)).await??.status() == 200
        );
    }
    Ok(())
}

/// Of two long responses on one connection the more urgent one comes first (RFC 9218), although it
/// was requested last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_response_comes_first() -> Result {
    const LENGTH: u64 = 32 << 20;
    let server = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
    let site = Http3Fixture::of(&[server.address]).await?;
    let client = site.client().await?;
    let mut late = begin_response(&client, "u=7").await?;
    let mut urgent = begin_response(&client, "u=0").await?;

    let of_late = Arc::new(AtomicU64::new(0));
    let counted = of_late.clone();
    let reading = tokio::spawn(async move { read(&mut late, &counted).await });
    let of_urgent = AtomicU64::new(0);
    read(&mut urgent, &of_urgent).await?;
    let of_late_then = of_late.load(Ordering::Relaxed);
    reading.await??;
    assert_eq!((of_urgent.into_inner(), of_late.load(Ordering::Relaxed)), (LENGTH, LENGTH));
    ensure!(of_late_then < LENGTH / 2, "{of_late_then} bytes of the less urgent response");
    Ok(())
}

/// Two long responses of equal urgency share the bandwidth, although one was requested first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_equal_priority_share_the_bandwidth() -> Result {
    const LENGTH: u64 = 32 << 20;
    let server = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
    let site = Http3Fixture::of(&[server.address]).await?;
    let client = site.client().await?;
    let mut reading = JoinSet::new();
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    for count in &counts {
        let (mut answer, count) = (begin_response(&client, "u=3").await?, count.clone());
        reading.spawn(async move { read(&mut answer, &count).await });
    }
    within("the first to be done", reading.join_next()).await?.expect("two")??;
    let least = counts.iter().map(|count| count.load(Ordering::Relaxed)).min();
    ensure!(least > Some(LENGTH / 2), "{least:?} bytes of the other response");
    within("the other one", reading.join_next()).await?.expect("two")??;
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [LENGTH; 2]);
    Ok(())
}

/// Returns the response to a GET of this priority, after its head.
async fn begin_response(
    client: &http3::Http3TestClient,
    priority: &'static str,
) -> Result<Http3ReceiveStream> {
    let head = http3::get_by_priority("/", priority);
    let (mut sending, mut receiving) = within("a stream", client.send_request(head)).await??;
    sending.finish().await?;
    within("a head", receiving.recv_response()).await??;
    Ok(receiving)
}

/// Reads a body to its end, and counts its bytes.
async fn read(receiving: &mut Http3ReceiveStream, count: &AtomicU64) -> Result {
    while let Some(piece) = within("a piece", receiving.recv_data()).await?? {
        count.fetch_add(piece.remaining() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// The limit of concurrent streams is advertised in the handshake, and the client holds back excess
/// requests.
#[tokio::test]
async fn concurrent_streams_are_limited_by_policy() -> Result {
    let server = Endpoint::start(EndpointBehaviour::gated()).await?;
    let policy = json!({ "http3": { "maxConcurrentStreams": 3 } });
    let site = Http3Fixture::with_client_policy(&[server.address], policy).await?;
    let client = Arc::new(site.client().await?);
    let responses = begin_requests(&client, 3).await?;
    let fourth = tokio::spawn({
        let client = client.clone();
        async move { client.get("/").await }
    });
    server.wait_for_counts("three", |counts| counts.in_flight == 3).await?;
    server.open_gate(4);
    for response in responses {
        ensure!(
            within("an answer", http3::Http3TestClient::response(response)).await??.status() == 200
        );
    }
    ensure!(fourth.await??.status() == 200);
    ensure!(server.counts().max_in_flight == 3, "{:?}", server.counts());
    Ok(())
}

/// Many connections with many streams: every request is served exactly once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_on_many_connections_are_served() -> Result {
    let servers = start_endpoints(3, &EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::of(&addresses(&servers)).await?;
    let mut requests = JoinSet::new();
    for _ in 0..8 {
        let client = Arc::new(site.client().await?);
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
