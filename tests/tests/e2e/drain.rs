//! Graceful shutdown: running requests finish, and a client that honours `Connection: close` or
//! GOAWAY loses no request.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, Result as Outcome, ensure};
use rustix::process::Signal;
use serde_json::json;
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::random::SeededRandom;
use tests::{Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, ServeStep};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

async fn start_fixture(
    behaviour: impl Into<EndpointBehaviour>,
    arguments: &[&str],
) -> Result<HttpFixture> {
    HttpFixture::with(vec![Endpoint::start(behaviour).await?], &[], arguments).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_honoring_connection_close_lose_no_request() -> Result {
    let mut fixture =
        start_fixture(EndpointBehaviour::slow(Duration::from_millis(3)), &["--workers", "2"])
            .await?;
    let address = fixture.sheave.address();
    let clients: JoinSet<_> =
        (0..32).map(|seed| send_until_connection_close(address, seed)).collect();
    fixture.endpoint().wait_for_counts("load", |counts| counts.requests > 1000).await?;
    fixture.sheave.signal(Signal::TERM)?;
    for outcome in clients.join_all().await {
        outcome?;
    }
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

/// Sends requests with small gaps until the server announces that it closes the connection.
async fn send_until_connection_close(address: SocketAddr, seed: u64) -> Outcome<()> {
    let mut random = SeededRandom::new(seed);
    let mut client = Http1TestClient::connect(address).await?;
    loop {
        let response = client.get("/").await?;
        ensure!(response.status() == 200, "{response:?}");
        if response.closes() {
            return Ok(());
        }
        // The pause of a client.
        sleep(random.between(Duration::ZERO, Duration::from_millis(20))).await;
    }
}

async fn wait_until_draining(fixture: &HttpFixture) -> Result {
    let refused = async || Ok(Http1TestClient::connect(fixture.sheave.address()).await.is_err());
    tests::eventually("new connections are refused", refused, |refused| *refused).await?;
    Ok(())
}

#[tokio::test]
async fn running_request_is_finished_during_drain() -> Result {
    let mut fixture = start_fixture(EndpointBehaviour::gated(), &["--drain-timeout", "3s"]).await?;
    let mut client = fixture.client().await?;
    let mut idle = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    fixture.endpoint().wait_for_counts("the request", |counts| counts.in_flight == 1).await?;

    fixture.sheave.signal(Signal::TERM)?;
    wait_until_draining(&fixture).await?;
    let ready = async || Ok(fixture.sheave.admin_get("/readyz").await?.status());
    tests::eventually("readiness is lost", ready, |status| *status == 503).await?;
    fixture.endpoint().open_gate(1);
    let response = client.response("GET").await?;
    ensure!(response.status() == 200 && response.closes(), "{response:?}");
    client.expect_end().await?;
    idle.expect_end().await?;
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

#[tokio::test]
async fn queued_requests_are_served_during_drain() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
    let mut fixture = HttpFixture::with_backend_policy(EndpointBehaviour::gated(), policy).await?;
    let mut clients = Vec::new();
    for waiting in 0..3 {
        let mut client = fixture.client().await?;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
        fixture
            .endpoint()
            .wait_for_counts("the first request", |counts| counts.in_flight == 1)
            .await?;
        fixture.sheave.wait_for_queue_length(waiting).await?;
        clients.push(client);
    }
    fixture.sheave.signal(Signal::TERM)?;
    wait_until_draining(&fixture).await?;
    fixture.endpoint().open_gate(3);
    for client in &mut clients {
        let response = client.response("GET").await?;
        ensure!(response.status() == 200 && response.closes(), "{response:?}");
    }
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

#[tokio::test]
async fn idle_connections_do_not_delay_shutdown() -> Result {
    let mut fixture = start_fixture(EndpointBehaviour::ok(), &["--drain-timeout", "3s"]).await?;
    let mut clients = Vec::new();
    for _ in 0..10 {
        let mut client = fixture.client().await?;
        ensure!(client.get("/").await?.status() == 200);
        clients.push(client);
    }
    fixture.sheave.signal(Signal::INT)?;
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

/// Load balancers need a while to notice the lost readiness: until then new connections are served.
#[tokio::test]
async fn new_connections_are_served_with_connection_close_during_drain_delay() -> Result {
    let mut fixture = start_fixture(EndpointBehaviour::ok(), &["--drain-delay", "1h"]).await?;
    let mut old = fixture.client().await?;
    ensure!(!old.get("/").await?.closes());
    fixture.sheave.signal(Signal::TERM)?;
    let ready = async || Ok(fixture.sheave.admin_get("/readyz").await?.status());
    tests::eventually("readiness is lost", ready, |status| *status == 503).await?;
    fixture.sheave.wait_for_log(0, "shutting down").await?;
    ensure!(old.get("/").await?.closes());
    old.expect_end().await?;
    for _ in 0..3 {
        let mut new = fixture.client().await?;
        ensure!(new.get("/").await?.closes());
        new.expect_end().await?;
    }
    fixture.sheave.signal(Signal::TERM)?;
    ensure!(
        fixture.sheave.wait_for_exit().await?.code() == Some(2),
        "a second signal stops at once"
    );
    Ok(())
}

/// A client that receives GOAWAY before its first request would only reconnect.
#[tokio::test]
async fn http2_connection_serves_a_first_request_before_goaway() -> Result {
    let fixture = start_fixture(EndpointBehaviour::ok(), &["--drain-delay", "1h"]).await?;
    fixture.sheave.signal(Signal::TERM)?;
    fixture.sheave.wait_for_log(0, "shutting down").await?;
    let mut wire = RawHttp2Connection::connect(fixture.sheave.address(), &[]).await?;
    wire.write(&RawHttp2Frame::new(frames::PING, 0, 0, [0; 8])).await?;
    while let Some(frame) = wire.reader.next_frame().await?
        && frame.kind != frames::PING
    {
        ensure!(frame.kind != frames::GOAWAY, "GOAWAY before the first request");
    }
    wire.write(&RawHttp2Frame::get(1)).await?;
    let (mut got_goaway, mut is_answered) = (false, false);
    while !(got_goaway && is_answered) {
        let frame = wire.reader.next_frame().await?.context("a response and a GOAWAY")?;
        got_goaway |= frame.kind == frames::GOAWAY;
        is_answered |= frame.stream == 1 && frame.flags & frames::END_STREAM != 0;
    }
    Ok(())
}

#[tokio::test]
async fn drain_begins_after_the_delay() -> Result {
    let mut fixture = start_fixture(EndpointBehaviour::ok(), &["--drain-delay", "300ms"]).await?;
    let begun = Instant::now();
    fixture.sheave.signal(Signal::TERM)?;
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(0));
    ensure!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn second_signal_stops_immediately() -> Result {
    let mut fixture =
        start_fixture(vec![ServeStep::WaitForever], &["--drain-timeout", "1h"]).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    fixture.endpoint().wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    fixture.sheave.signal(Signal::TERM)?;
    fixture.sheave.wait_for_log(0, "draining").await?;
    fixture.sheave.signal(Signal::TERM)?;
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(2), "requests were cut off");
    Ok(())
}

#[tokio::test]
async fn drain_timeout_cuts_running_requests() -> Result {
    let mut fixture =
        start_fixture(vec![ServeStep::WaitForever], &["--drain-timeout", "300ms"]).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    fixture.endpoint().wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    let begun = Instant::now();
    fixture.sheave.signal(Signal::TERM)?;
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(2), "requests were cut off");
    ensure!(begun.elapsed() >= Duration::from_millis(300), "{:?}", begun.elapsed());
    Ok(())
}
