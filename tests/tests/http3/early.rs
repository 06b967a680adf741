//! Early data (0-RTT): requests before the end of the handshake, which an observer can replay.

use anyhow::{Context, ensure};
use bytes::Bytes;
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result, eventually, http3, within};

use crate::fixture::Http3Fixture;

/// Returns a site that accepts early data, and a client with the ticket of an earlier connection.
async fn connect_with_early_data(
    endpoint: &Endpoint,
) -> Result<(Http3Fixture, http3::Http3TestClient, quinn::ZeroRttAccepted)> {
    let policy = json!({ "http3": { "zeroRtt": true } });
    let mut site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    site.tls_options = site.tls_options.with_early_data();
    let mut early = None;
    // The ticket arrives after the handshake; then the next connection can use it.
    let connect = async || {
        let first = site.client().await?;
        ensure!(first.get("/first").await?.status() == 200);
        early = http3::Http3TestClient::connect_early(site.sheave.address(), &site.tls_options)
            .await
            .ok();
        Ok(early.is_some())
    };
    eventually("a ticket", connect, |has_come| *has_come).await?;
    let (client, accepted) = early.context("no connection with early data")?;
    Ok((site, client, accepted))
}

/// Safe requests are served, and the endpoint gets `Early-Data: 1`. All others get 425 until the
/// handshake is complete.
#[tokio::test]
async fn only_safe_requests_are_served_from_early_data() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let (_site, client, accepted) = connect_with_early_data(&endpoint).await?;
    let (mut get_sending, get_response) = client.send_request(http3::get("/early")).await?;
    let (mut post_sending, post_response) = client.send_request(http3::post("/early")).await?;
    get_sending.finish().await?;
    post_sending.send_data(Bytes::from_static(b"hello")).await?;
    post_sending.finish().await?;
    ensure!(within("an answer", accepted).await?, "early data was refused");
    let get_response =
        within("an answer", http3::Http3TestClient::response(get_response)).await??;
    let post_response =
        within("an answer", http3::Http3TestClient::response(post_response)).await??;
    ensure!(get_response.status() == 200, "{get_response:?}");
    ensure!(post_response.status() == 425, "{post_response:?}");
    // A request that is sent again after the handshake is served normally.
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

/// By default early data is rejected: the client sends it again after the handshake.
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
        ensure!(early.is_err(), "Sheave issued a ticket for early data");
    }
    let seen = endpoint.requests();
    ensure!(seen.iter().all(|seen| !seen.head.has_field("early-data")));
    Ok(())
}
