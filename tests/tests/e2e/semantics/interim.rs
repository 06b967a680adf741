//! Interim (1xx) responses: 100, 103, and 101 with the tunnel after it.

use anyhow::ensure;
use serde_json::json;
use tests::payload::BodyDigest;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, ServeStep};

const EXPECTING: &str =
    "POST / HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
const UPGRADE_REQUEST: &str =
    "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n";
const SWITCHING: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";

#[tokio::test]
async fn expect_continue_is_answered_by_the_endpoint() -> Result {
    let fixture =
        HttpFixture::of(vec![ServeStep::WaitForGate, ServeStep::ReadBody, ServeStep::Answer])
            .await?;
    let mut client = fixture.client().await?;
    for _ in 0..2 {
        client.send(EXPECTING).await?;
        fixture.endpoint().wait_for_counts("the head", |counts| counts.in_flight == 1).await?;
        fixture.endpoint().open_gate(1);
        ensure!(client.reader.head().await?.status() == 100);
        client.send("hello").await?;
        ensure!(client.response("POST").await?.status() == 200);
    }
    for seen in fixture.endpoint().requests() {
        ensure!(seen.head.field_lists("expect", "100-continue"), "{seen:?}");
        ensure!(seen.body == Some(BodyDigest::of(b"hello")));
    }
    Ok(())
}

#[tokio::test]
async fn expect_continue_may_be_refused_without_the_body() -> Result {
    let refusal = "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n";
    let fixture = HttpFixture::of(vec![ServeStep::send(refusal)]).await?;
    let mut client = fixture.client().await?;
    client.send(EXPECTING).await?;
    let response = client.response("POST").await?;
    ensure!(response.status() == 417 && response.informational.is_empty());
    let body = fixture.endpoint().only_request().body;
    ensure!(body.is_none(), "a body that was never sent: {body:?}");

    // Either the connection is closed, or the body is still expected: a new request must not be
    // taken for the body.
    let mut next = fixture.client().await?;
    next.send(EXPECTING).await?;
    ensure!(next.response("POST").await?.status() == 417);
    Ok(())
}

#[tokio::test]
async fn body_sent_without_waiting_for_100_is_served() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = fixture.client().await?;
    client.send(format!("{EXPECTING}hello")).await?;
    ensure!(client.response("POST").await?.status() == 200);
    ensure!(fixture.endpoint().only_request().body == Some(BodyDigest::of(b"hello")));
    ensure!(client.get("/").await?.status() == 200, "the connection stays open");
    Ok(())
}

#[tokio::test]
async fn informational_responses_pass() -> Result {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n";
    let more = "HTTP/1.1 102 Processing\r\n\r\n";
    let steps = vec![
        ServeStep::send(hints),
        ServeStep::send(more),
        ServeStep::WaitForGate,
        ServeStep::Answer,
    ];
    let fixture = HttpFixture::of(steps).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    let head = client.reader.head().await?;
    ensure!(head.status() == 103 && head.has_field("link"), "{head:?}");
    ensure!(client.reader.head().await?.status() == 102);
    fixture.endpoint().open_gate(1);
    ensure!(client.response("GET").await?.status() == 200);
    Ok(())
}

/// RFC 9110 §15.2: HTTP/1.0 has no 1xx responses.
#[tokio::test]
async fn http10_client_gets_no_informational_response() -> Result {
    let hints = "HTTP/1.1 103 Early Hints\r\n\r\n";
    let fixture = HttpFixture::of(vec![ServeStep::send(hints), ServeStep::Answer]).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.0\r\nHost: test\r\n\r\n").await?;
    let response = client.response("GET").await?;
    ensure!(response.status() == 200 && response.informational.is_empty(), "{response:?}");
    Ok(())
}

/// Returns a client that has switched protocols, after checking the endpoint's response.
async fn switch_protocols(fixture: &HttpFixture) -> Result<Http1TestClient> {
    let mut client = fixture.client().await?;
    client.send(UPGRADE_REQUEST).await?;
    let (head, _) = client.read_final_head().await?;
    ensure!(head.status() == 101, "{head:?}");
    ensure!(head.field_lists("connection", "upgrade"), "{head:?}");
    ensure!(head.field("upgrade").as_deref() == Some("echo"), "{head:?}");
    Ok(client)
}

#[tokio::test]
async fn an_upgrade_becomes_a_tunnel() -> Result {
    let fixture =
        HttpFixture::of(vec![ServeStep::send(SWITCHING), ServeStep::Tunnel, ServeStep::Close])
            .await?;
    let mut client = switch_protocols(&fixture).await?;
    let head = fixture.endpoint().only_request().head;
    ensure!(head.field_lists("connection", "upgrade"), "{head:?}");
    ensure!(head.field("upgrade").as_deref() == Some("echo"), "{head:?}");

    for message in ["\0 not HTTP \r\n\r\n", "more"] {
        client.send(message).await?;
        assert_eq!(client.reader.read_exact(message.len()).await?, message.as_bytes());
    }
    let long: Vec<u8> = tests::payload::pieces(3_000_000).flatten().copied().collect();
    let Http1TestClient { reader, writer, .. } = &mut client;
    let (sent, received) =
        tokio::join!(tests::client::send_pattern(writer, 3_000_000), reader.read_exact(long.len()));
    sent?;
    ensure!(received? == long, "the tunnel changed the data");
    Ok(())
}

#[tokio::test]
async fn tunnel_supports_half_close() -> Result {
    let steps = vec![
        ServeStep::send(SWITCHING),
        ServeStep::FinishSending,
        ServeStep::WaitForClose,
        ServeStep::Close,
    ];
    let fixture =
        HttpFixture::of(vec![ServeStep::send(SWITCHING), ServeStep::Tunnel, ServeStep::Close])
            .await?;
    let mut client = switch_protocols(&fixture).await?;
    client.send("last bytes").await?;
    client.finish_sending().await?;
    assert_eq!(client.reader.read_exact(10).await?, b"last bytes");
    client.expect_end().await?;

    let fixture = HttpFixture::of(steps).await?;
    let mut client = switch_protocols(&fixture).await?;
    client.expect_end().await?;
    fixture
        .endpoint()
        .wait_for_counts("the connection is half-closed", |counts| counts.in_flight == 0)
        .await?;
    client.finish_sending().await?;
    fixture
        .endpoint()
        .wait_for_counts("both sides are closed", |counts| counts.connections == 0)
        .await?;
    Ok(())
}

#[tokio::test]
async fn bytes_sent_right_after_the_upgrade_are_not_lost() -> Result {
    let greeting = format!("{SWITCHING}welcome");
    let fixture =
        HttpFixture::of(vec![ServeStep::send(&greeting), ServeStep::Tunnel, ServeStep::Close])
            .await?;
    let mut client = fixture.client().await?;
    client.send(format!("{UPGRADE_REQUEST}hello")).await?;
    ensure!(client.read_final_head().await?.0.status() == 101);
    assert_eq!(client.reader.read_exact(12).await?, b"welcomehello");
    Ok(())
}

#[tokio::test]
async fn tunnel_holds_its_slot_while_open() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "maxRequests": 0 } });
    let steps = vec![ServeStep::send(SWITCHING), ServeStep::Tunnel, ServeStep::Close];
    let fixture = HttpFixture::with_backend_policy(steps, policy).await?;
    let mut client = switch_protocols(&fixture).await?;
    client.send("x").await?;
    client.reader.read_exact(1).await?;
    ensure!(fixture.client().await?.get("/").await?.status() == 429);
    ensure!(fixture.sheave.active_requests().await? == 1);
    drop(client);
    fixture.sheave.wait_until_idle().await?;
    switch_protocols(&fixture).await?;
    Ok(())
}

#[tokio::test]
async fn a_refused_upgrade_is_an_ordinary_response() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = fixture.client().await?;
    for _ in 0..2 {
        client.send(UPGRADE_REQUEST).await?;
        ensure!(client.response("GET").await?.text() == "ok");
    }
    Ok(())
}

#[tokio::test]
async fn unsolicited_101_is_a_bad_gateway() -> Result {
    let fixture = HttpFixture::of(vec![ServeStep::send(SWITCHING), ServeStep::Tunnel]).await?;
    let response = fixture.client().await?.get("/").await?;
    ensure!(response.status() == 502, "{response:?}");
    Ok(())
}
