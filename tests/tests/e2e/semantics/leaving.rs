//! Clients that disconnect: the fate of the request and of its slot.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::{ConnectionReuse, EndpointBehaviour, Http1TestClient, HttpFixture, Result, ServeStep};
use tokio::time::Instant;

/// Returns a client whose request is in progress at the endpoint.
async fn begin_request(fixture: &HttpFixture) -> Result<Http1TestClient> {
    let requests = fixture.endpoint().counts().requests;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    fixture
        .endpoint()
        .wait_for_counts("the request", |counts| counts.requests == requests + 1)
        .await?;
    Ok(client)
}

/// A synchronous worker does not notice that its client has disconnected: it is busy until it has
/// finished.
#[tokio::test]
async fn slot_of_a_disconnected_client_is_kept_until_the_endpoint_finishes() -> Result {
    for method in ["reset", "close"] {
        let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
        let fixture = HttpFixture::with_backend_policy(EndpointBehaviour::gated(), policy).await?;
        let leaving = begin_request(&fixture).await?;
        if method == "reset" {
            leaving.reset()
        } else {
            drop(leaving)
        }

        let mut next = fixture.client().await?;
        next.send("GET /next HTTP/1.1\r\nHost: test\r\n\r\n").await?;
        fixture.sheave.wait_for_queue_length(1).await?;
        ensure!(fixture.endpoint().counts().in_flight == 1);
        ensure!(fixture.sheave.metric_sum("sheave_endpoint_in_flight").await? >= 1.0);

        fixture.endpoint().open_gate(2);
        ensure!(next.response("GET").await?.status() == 200);
        let counts = fixture.endpoint().counts();
        ensure!(counts.max_in_flight == 1 && counts.max_connections == 1, "{counts:?}");
        assert_eq!(
            counts.accepted, 1,
            "the rest of the response was not read, or its connection not kept"
        );
        fixture.sheave.wait_until_idle().await?;
    }
    Ok(())
}

#[tokio::test]
async fn slot_of_a_disconnected_client_is_released_after_a_timeout() -> Result {
    let policy = json!({
        "maxInFlightPerEndpoint": 1,
        "queue": { "timeout": "1h" },
        "timeouts": { "abandoned": "300ms" },
    });
    let fixture = HttpFixture::with_backend_policy(vec![ServeStep::WaitForever], policy).await?;
    let leaving = begin_request(&fixture).await?;
    let begun = Instant::now();
    leaving.reset();
    let next = begin_request(&fixture).await?;
    ensure!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    drop(next);
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn disconnected_client_cancels_the_request_without_a_cap() -> Result {
    let fixture = HttpFixture::of(vec![ServeStep::WaitForever]).await?;
    begin_request(&fixture).await?.reset();
    fixture
        .endpoint()
        .wait_for_counts("the connection is closed", |counts| counts.connections == 0)
        .await?;
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn client_disconnect_during_the_response_frees_its_slot() -> Result {
    for cap in [json!({}), json!({ "maxInFlightPerEndpoint": 1 })] {
        let steps = vec![ServeStep::ReadBody, ServeStep::AnswerPattern(3_000_000)];
        let fixture = HttpFixture::with_backend_policy(steps, cap).await?;
        for _ in 0..5 {
            let mut client = fixture.client().await?;
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
            client.read_final_head().await?;
            client.reset();
        }
        let mut client = fixture.client().await?;
        ensure!(client.get("/").await?.body.len() == 3_000_000);
        fixture.sheave.wait_until_idle().await?;
    }
    Ok(())
}

#[tokio::test]
async fn client_disconnect_during_the_request_body_frees_its_slot() -> Result {
    for cap in [json!({}), json!({ "maxInFlightPerEndpoint": 1 })] {
        let fixture = HttpFixture::with_backend_policy(EndpointBehaviour::ok(), cap).await?;
        for _ in 0..5 {
            let mut client = fixture.client().await?;
            client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 200000\r\n\r\n").await?;
            // More than arrives before the request has a slot.
            client.send(vec![b'x'; 100_000]).await?;
            fixture.endpoint().wait_for_counts("the head", |counts| counts.in_flight == 1).await?;
            client.reset();
            fixture
                .endpoint()
                .wait_for_counts("the end of the request", |counts| counts.in_flight == 0)
                .await?;
        }
        ensure!(fixture.client().await?.post("/", b"whole").await?.status() == 200);
        ensure!(
            fixture.endpoint().requests().iter().filter(|seen| seen.body.is_some()).count() == 1
        );
        fixture.sheave.wait_until_idle().await?;
    }
    Ok(())
}

/// The endpoint finishes and closes its connection: the slot's next connection must not overlap
/// with this one.
#[tokio::test]
async fn connection_closed_after_a_disconnect_is_replaced_without_overlap() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
    let behaviour =
        EndpointBehaviour::gated().with_connection_reuse(ConnectionReuse::CloseAnnounced);
    let fixture = HttpFixture::with_backend_policy(behaviour, policy).await?;
    for _ in 0..10 {
        begin_request(&fixture).await?.reset();
        fixture.endpoint().open_gate(1);
    }
    fixture.endpoint().open_gate(1);
    ensure!(fixture.client().await?.get("/").await?.status() == 200);
    let counts = fixture.endpoint().counts();
    ensure!(counts.max_in_flight == 1 && counts.max_connections == 1, "{counts:?}");
    Ok(())
}

const SWITCHING: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";

/// A browser tab that is closed during a WebSocket handshake can cause this. After the 101 the
/// connection is a tunnel of the new protocol: no request of another client may be written to it.
#[tokio::test]
async fn upgraded_connection_carries_no_other_request() -> Result {
    let steps = vec![ServeStep::WaitForGate, ServeStep::send(SWITCHING)];
    let fixture =
        HttpFixture::with_backend_policy(steps, json!({ "maxInFlightPerEndpoint": 1 })).await?;
    let mut leaving = fixture.client().await?;
    leaving
        .send("GET /chat HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
        .await?;
    fixture.endpoint().wait_for_counts("the upgrade", |counts| counts.requests == 1).await?;
    leaving.reset();

    let mut next = fixture.client().await?;
    next.send("GET /next HTTP/1.1\r\nHost: test\r\nCookie: secret\r\n\r\n").await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    fixture.endpoint().open_gate(1);
    fixture.endpoint().wait_for_counts("the next request", |counts| counts.requests == 2).await?;
    assert_eq!(fixture.endpoint().counts().accepted, 2, "the tunnel carried another request");
    Ok(())
}

/// The same for an endpoint that switches protocols without a request to do so. A retry uses a
/// fresh connection too.
#[tokio::test]
async fn connection_with_unsolicited_101_carries_no_other_request() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1 });
    let fixture =
        HttpFixture::with_backend_policy(vec![ServeStep::send(SWITCHING)], policy).await?;
    for _ in 0..3 {
        ensure!(fixture.client().await?.get("/").await?.status() == 502);
    }
    fixture.sheave.wait_until_idle().await?;
    let counts = fixture.endpoint().counts();
    ensure!(counts.requests >= 3, "{counts:?}");
    assert_eq!(counts.accepted, counts.requests, "a tunnel carried another request");
    Ok(())
}
