//! Connections close without losing requests: first a warning, then the identifier of the last
//! processed request.

use std::time::Duration;

use anyhow::ensure;
use h3::error::Code;
use rustix::process::Signal;
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result, http3, within};

use super::fixture::Http3Fixture;

/// Requests sent before the client got the GOAWAY are served; then the connection is closed.
#[tokio::test]
async fn drain_finishes_running_requests() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::gated()).await?;
    let mut site = Http3Fixture::of(&[endpoint.address]).await?;
    let client = site.client().await?;
    let (mut sending, receiving) = client.send_request(http3::get("/")).await?;
    sending.finish().await?;
    endpoint.wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    site.sheave.signal(Signal::TERM)?;
    site.sheave.wait_for_log(0, "draining").await?;
    endpoint.open_gate(1);
    let response = within("an answer", http3::Http3TestClient::response(receiving)).await??;
    ensure!(response.status() == 200, "{response:?}");
    let end = client.wait_for_close().await?;
    ensure!(end.is_h3_no_error(), "{end:?}");
    ensure!(site.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

/// A connection that is idle for too long gets a GOAWAY and is closed.
#[tokio::test]
async fn an_idle_connection_is_closed() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let policy = json!({ "connections": { "idleTimeout": "200ms" } });
    let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    let client = site.client().await?;
    ensure!(client.get("/").await?.status() == 200);
    let end = client.wait_for_close().await?;
    ensure!(end.is_h3_no_error(), "{end:?}");
    Ok(())
}

/// A connection with a running request is not idle, even if the request takes longer than the idle
/// timeout.
#[tokio::test]
async fn running_request_prevents_the_idle_timeout() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::slow(Duration::from_millis(900))).await?;
    let policy = json!({ "connections": { "idleTimeout": "200ms" } });
    let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    ensure!(site.client().await?.get("/").await?.status() == 200);
    Ok(())
}

/// A cancelled request frees its slot, and the connection stays open.
#[tokio::test]
async fn cancelled_request_frees_its_slot() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::gated()).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let client = site.client().await?;
    let (mut sending, mut receiving) = client.send_request(http3::get("/")).await?;
    sending.finish().await?;
    endpoint.wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    receiving.stop_sending(Code::H3_REQUEST_CANCELLED);
    site.sheave.wait_until_idle().await?;
    endpoint.open_gate(2);
    ensure!(client.get("/").await?.status() == 200);
    let line = site.sheave.wait_for_access_log(1).await?.remove(0);
    assert_eq!(line["error.type"], "client_disconnected");
    Ok(())
}
