//! Each stream is a request of its own: where it goes, and how many there may be.

use std::sync::Arc;

use anyhow::ensure;
use serde_json::json;
use tests::http3::Receiving;
use tests::scene::{addresses, endpoints};
use tests::{Behaviour, Endpoint, Result, http3, within};
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
async fn one_connection_is_balanced_by_requests() -> Result {
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

/// What a client may ask for at once is said in the handshake, and what is more waits at the client.
#[tokio::test]
async fn streams_at_once_are_bounded_by_policy() -> Result {
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
async fn many_streams_of_many_connections_are_served() -> Result {
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
