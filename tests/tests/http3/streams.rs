//! Each stream is a request of its own: where it goes, and how many there may be.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use bytes::Buf;
use serde_json::json;
use tests::http3::Receiving;
use tests::scene::{addresses, endpoints};
use tests::{Behaviour, Endpoint, Result, Step, http3, within};
use tokio::task::JoinSet;

use crate::site::Site;

/// So many GETs at once, each on a stream of its own.
async fn begin(client: &http3::Client, count: usize) -> Result<Vec<Receiving>> {
    let mut responses = Vec::new();
    for _ in 0..count {
        let (mut sending, receiving) = within("a stream", client.begin(http3::get("/"))).await??;
        sending.finish().await?;
        responses.push(receiving);
    }
    Ok(responses)
}

/// What the articles are about: one connection, and every endpoint works.
#[tokio::test]
async fn requests_of_one_connection_are_balanced() -> Result {
    let servers = endpoints(4, &Behaviour::gated()).await?;
    let site = Site::of(&addresses(&servers)).await?;
    let client = site.client().await?;
    let responses = begin(&client, 32).await?;
    for server in &servers {
        server.until("its share", |counts| counts.in_flight == 8).await?;
        server.open_gate(8);
    }
    for response in responses {
        ensure!(within("an answer", http3::Client::response(response)).await??.status() == 200);
    }
    Ok(())
}

/// Of two long answers on one connection the one that the client needs first comes first (RFC 9218), though it was asked
/// for last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_response_comes_first() -> Result {
    const LENGTH: u64 = 32 << 20;
    let server = Endpoint::start(vec![Step::AnswerPattern(LENGTH)]).await?;
    let site = Site::of(&[server.address]).await?;
    let client = site.client().await?;
    let mut late = answer_of(&client, "u=7").await?;
    let mut urgent = answer_of(&client, "u=0").await?;

    let of_late = Arc::new(AtomicU64::new(0));
    let counted = of_late.clone();
    let reading = tokio::spawn(async move { read(&mut late, &counted).await });
    let of_urgent = AtomicU64::new(0);
    read(&mut urgent, &of_urgent).await?;
    let of_late_then = of_late.load(Ordering::Relaxed);
    reading.await??;
    assert_eq!((of_urgent.into_inner(), of_late.load(Ordering::Relaxed)), (LENGTH, LENGTH));
    ensure!(of_late_then < LENGTH / 2, "{of_late_then} bytes of what could wait");
    Ok(())
}

/// Two long answers that are as urgent take turns, though one was asked for first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_equal_priority_share_the_bandwidth() -> Result {
    const LENGTH: u64 = 32 << 20;
    let server = Endpoint::start(vec![Step::AnswerPattern(LENGTH)]).await?;
    let site = Site::of(&[server.address]).await?;
    let client = site.client().await?;
    let mut reading = JoinSet::new();
    let counts = [Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0))];
    for count in &counts {
        let (mut answer, count) = (answer_of(&client, "u=3").await?, count.clone());
        reading.spawn(async move { read(&mut answer, &count).await });
    }
    within("the first to be done", reading.join_next()).await?.expect("two")??;
    let least = counts.iter().map(|count| count.load(Ordering::Relaxed)).min();
    ensure!(least > Some(LENGTH / 2), "{least:?} bytes of the other one");
    within("the other one", reading.join_next()).await?.expect("two")??;
    assert_eq!(counts.map(|count| count.load(Ordering::Relaxed)), [LENGTH; 2]);
    Ok(())
}

/// The answer to a GET of this priority, of which the head has come.
async fn answer_of(client: &http3::Client, priority: &'static str) -> Result<Receiving> {
    let head = http3::get_by_priority("/", priority);
    let (mut sending, mut receiving) = within("a stream", client.begin(head)).await??;
    sending.finish().await?;
    within("a head", receiving.recv_response()).await??;
    Ok(receiving)
}

/// Reads a body to its end, and counts what has come.
async fn read(receiving: &mut Receiving, count: &AtomicU64) -> Result {
    while let Some(piece) = within("a piece", receiving.recv_data()).await?? {
        count.fetch_add(piece.remaining() as u64, Ordering::Relaxed);
    }
    Ok(())
}

/// What a client may ask for at once is said in the handshake, and what is more waits at the client.
#[tokio::test]
async fn concurrent_streams_are_limited_by_policy() -> Result {
    let server = Endpoint::start(Behaviour::gated()).await?;
    let policy = json!({ "http3": { "maxConcurrentStreams": 3 } });
    let site = Site::guarded(&[server.address], policy).await?;
    let client = Arc::new(site.client().await?);
    let responses = begin(&client, 3).await?;
    let fourth = tokio::spawn({
        let client = client.clone();
        async move { client.get("/").await }
    });
    server.until("three", |counts| counts.in_flight == 3).await?;
    server.open_gate(4);
    for response in responses {
        ensure!(within("an answer", http3::Client::response(response)).await??.status() == 200);
    }
    ensure!(fourth.await??.status() == 200);
    ensure!(server.counts().most_in_flight == 3, "{:?}", server.counts());
    Ok(())
}

/// Many connections, many streams: every request is served, and once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_streams_on_many_connections_are_served() -> Result {
    let servers = endpoints(3, &Behaviour::ok()).await?;
    let site = Site::of(&addresses(&servers)).await?;
    let mut asking = JoinSet::new();
    for _ in 0..8 {
        let client = Arc::new(site.client().await?);
        for _ in 0..16 {
            let client = client.clone();
            asking.spawn(async move {
                for _ in 0..25 {
                    let response = client.post("/", "hello").await?;
                    ensure!(response.status() == 200 && response.text() == "ok", "{response:?}");
                }
                Ok(())
            });
        }
    }
    for outcome in asking.join_all().await {
        outcome?;
    }
    let served: u64 = servers.iter().map(|server| server.counts().requests).sum();
    ensure!(served == 8 * 16 * 25, "{served}");
    Ok(())
}
