//! How connections end without losing anything: a warning first, then which requests count.

use std::time::Duration;

use anyhow::ensure;
use h3::error::{Code, StreamError};
use rustix::process::Signal;
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result, http3, within};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fixture::Http3Fixture;

/// What was sent before the client knew is served, and then the connection is closed.
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

/// Clients that listen lose nothing: requests go on until the warning, and each that was begun is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_drain_loses_no_request() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::slow(Duration::from_millis(3))).await?;
    let mut site = Http3Fixture::of(&[endpoint.address]).await?;
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        clients.spawn(send_until_goaway(site.client().await?));
    }
    endpoint.wait_for_counts("load", |counts| counts.requests > 500).await?;
    site.sheave.signal(Signal::TERM)?;
    for outcome in clients.join_all().await {
        outcome?;
    }
    ensure!(site.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

/// Requests, until the connection takes no more of them.
async fn send_until_goaway(client: http3::Http3TestClient) -> Result {
    loop {
        let (mut sending, receiving) = match client.send_request(http3::get("/")).await {
            Ok(begun) => begun,
            Err(StreamError::RemoteClosing { .. }) => return Ok(()),
            Err(error) if error.is_h3_no_error() => return Ok(()),
            Err(error) => return Err(error.into()),
        };
        // Who has been rejected hears that when it reads.
        drop(sending.finish().await);
        match within("an answer", http3::Http3TestClient::response(receiving)).await? {
            Ok(response) => ensure!(response.status() == 200, "{response:?}"),
            // Not begun at all: a client may send it elsewhere.
            Err(StreamError::RemoteTerminate { code: Code::H3_REQUEST_REJECTED, .. }) => {
                return Ok(());
            }
            Err(error) => return Err(error.into()),
        }
    }
}

/// A connection has its age and then goes, request by request, so that clients spread anew over replicas.
#[tokio::test]
async fn connection_over_max_age_closes_without_losing_requests() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::slow(Duration::from_millis(1))).await?;
    let policy = json!({ "connections": { "maxAge": "300ms" } });
    let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    for _ in 0..3 {
        let begun = Instant::now();
        send_until_goaway(site.client().await?).await?;
        // Give or take a tenth.
        ensure!(begun.elapsed() > Duration::from_millis(250), "{:?}", begun.elapsed());
    }
    Ok(())
}

/// One that is idle for too long is told so, and closed.
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

/// A request that takes longer than connections may be idle is no idle connection.
#[tokio::test]
async fn running_request_prevents_the_idle_timeout() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::slow(Duration::from_millis(900))).await?;
    let policy = json!({ "connections": { "idleTimeout": "200ms" } });
    let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    ensure!(site.client().await?.get("/").await?.status() == 200);
    Ok(())
}

/// A client that gives up its request is a client that has left: the slot is free, and the connection goes on.
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
