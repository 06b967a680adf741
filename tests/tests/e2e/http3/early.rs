//! Requests before the handshake is over: whoever has seen them pass can send them again.

use anyhow::{Context, ensure};
use bytes::Bytes;
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result, eventually, http3, within};

use super::fixture::Http3Fixture;

/// A site that takes early requests, and a client that brings what an earlier connection has left.
async fn connect_with_early_data(
    endpoint: &Endpoint,
) -> Result<(Http3Fixture, http3::Http3TestClient, quinn::ZeroRttAccepted)> {
    let policy = json!({ "http3": { "zeroRtt": true } });
    let mut site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    site.tls_options = site.tls_options.with_early_data();
    let mut early = None;
    // A ticket comes after the handshake: when it has come, the next connection can begin with it.
    let connect = async || {
        let first = site.client().await?;
        ensure!(first.get("/first").await?.status() == 200);
        early = http3::Http3TestClient::connect_early(site.sheave.address(), &site.tls_options)
            .await
            .ok();
        Ok(early.is_some())
    };
    eventually("a ticket", connect, |has_come| *has_come).await?;
    let (client, accepted) = early.context("it was waited for")?;
    Ok((site, client, accepted))
}

/// What changes nothing is served, and the endpoint is told; all else has to wait for the handshake.
#[tokio::test]
async fn only_safe_requests_are_served_from_early_data() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let (_site, client, accepted) = connect_with_early_data(&endpoint).await?;
    let (mut asking, asked) = client.send_request(http3::get("/early")).await?;
    let (mut posting, posted) = client.send_request(http3::post("/early")).await?;
    asking.finish().await?;
    posting.send_data(Bytes::from_static(b"hello")).await?;
    posting.finish().await?;
    ensure!(within("an answer", accepted).await?, "early data was refused");
    let asked = within("an answer", http3::Http3TestClient::response(asked)).await??;
    let posted = within("an answer", http3::Http3TestClient::response(posted)).await??;
    ensure!(asked.status() == 200, "{asked:?}");
    ensure!(posted.status() == 425, "{posted:?}");
    // What is sent once more when the handshake is over is served like anything else.
    ensure!(client.post("/late", "hello").await?.status() == 200);

    let seen = endpoint.requests();
    let early = |target: &str| -> Vec<_> {
        let of_target = seen.iter().filter(|seen| seen.head.target() == target);
        of_target.map(|seen| seen.head.field("early-data")).collect()
    };
    assert_eq!(early("/early"), [Some("1".to_owned())]);
    assert_eq!(early("/late"), [None]);
    Ok(())
}

/// Without being asked for it is not taken: the client sends it again, and nobody sees anything early.
#[tokio::test]
async fn early_data_is_disabled_by_default() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let mut site = Http3Fixture::of(&[endpoint.address]).await?;
    site.tls_options = site.tls_options.with_early_data();
    for _ in 0..3 {
        let client = site.client().await?;
        ensure!(client.get("/").await?.status() == 200);
        drop(client);
        let early =
            http3::Http3TestClient::connect_early(site.sheave.address(), &site.tls_options).await;
        ensure!(early.is_err(), "a ticket for early data");
    }
    let seen = endpoint.requests();
    ensure!(seen.iter().all(|seen| !seen.head.has_field("early-data")));
    Ok(())
}
