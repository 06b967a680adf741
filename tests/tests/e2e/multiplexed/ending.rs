//! Connections close without losing requests.

use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result};
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fixture::{MultiplexedClient, MultiplexedFixture};

test_each_version! {
    a_drain_loses_no_request,
    connection_over_max_age_closes_without_losing_requests,
}

/// Clients that honour GOAWAY lose nothing: they send requests until the warning, and every request
/// sent is answered.
async fn a_drain_loses_no_request<F: MultiplexedFixture>() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::slow(Duration::from_millis(3))).await?;
    let mut fixture = F::start(&[endpoint.address]).await?;
    let mut clients = JoinSet::new();
    for _ in 0..8 {
        clients.spawn(send_until_goaway(fixture.connect().await?));
    }
    endpoint.wait_for_counts("load", |counts| counts.requests > 500).await?;
    fixture.sheave().signal(Signal::TERM)?;
    for outcome in clients.join_all().await {
        outcome?;
    }
    ensure!(fixture.sheave_mut().wait_for_exit().await?.code() == Some(0));
    Ok(())
}

/// Sends requests until the connection accepts no more of them.
async fn send_until_goaway(client: impl MultiplexedClient) -> Result {
    while let Some(response) = client.get_unless_closing().await? {
        ensure!(response.status() == 200, "{response:?}");
    }
    Ok(())
}

/// A connection over its maximum age closes gracefully, so that clients spread over the replicas
/// again.
async fn connection_over_max_age_closes_without_losing_requests<F: MultiplexedFixture>() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::slow(Duration::from_millis(1))).await?;
    let policy = json!({ "connections": { "maxAge": "300ms" } });
    let fixture = F::start_with_policy(&[endpoint.address], policy).await?;
    for _ in 0..3 {
        let begun = Instant::now();
        send_until_goaway(fixture.connect().await?).await?;
        // The age varies by a tenth.
        ensure!(begun.elapsed() > Duration::from_millis(250), "{:?}", begun.elapsed());
    }
    Ok(())
}
