//! Responses before the response: 100, 103, and 101 with what follows it.

use anyhow::ensure;
use serde_json::json;
use tests::payload::Digest;
use tests::{Behaviour, Client, Result, Scene, Step};

const EXPECTING: &str =
    "POST / HTTP/1.1\r\nHost: test\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
const ASKING: &str =
    "GET /chat HTTP/1.1\r\nHost: test\r\nConnection: keep-alive, Upgrade\r\nUpgrade: echo\r\n\r\n";
const SWITCHING: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";

#[tokio::test]
async fn expect_continue_is_answered_by_the_endpoint() -> Result {
    let scene = Scene::of(vec![Step::Gate, Step::ReadBody, Step::Answer]).await?;
    let mut client = scene.client().await?;
    for _ in 0..2 {
        client.send(EXPECTING).await?;
        scene.endpoint().until("the head", |counts| counts.in_flight == 1).await?;
        scene.endpoint().open_gate(1);
        ensure!(client.reader.head().await?.status() == 100);
        client.send("hello").await?;
        ensure!(client.response("POST").await?.status() == 200);
    }
    for seen in scene.endpoint().seen() {
        ensure!(seen.head.lists("expect", "100-continue"), "{seen:?}");
        ensure!(seen.body == Some(Digest::of(b"hello")));
    }
    Ok(())
}

#[tokio::test]
async fn expect_continue_may_be_refused_without_the_body() -> Result {
    let refusal = "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n";
    let scene = Scene::of(vec![Step::send(refusal)]).await?;
    let mut client = scene.client().await?;
    client.send(EXPECTING).await?;
    let response = client.response("POST").await?;
    ensure!(response.status() == 417 && response.informational.is_empty());
    let body = scene.endpoint().only().body;
    ensure!(body.is_none(), "a body that was never sent: {body:?}");

    // Either the connection ends, or the body is still owed: a new request must not be taken for it.
    let mut next = scene.client().await?;
    next.send(EXPECTING).await?;
    ensure!(next.response("POST").await?.status() == 417);
    Ok(())
}

#[tokio::test]
async fn body_sent_without_waiting_for_100_is_served() -> Result {
    let scene = Scene::of(Behaviour::ok()).await?;
    let mut client = scene.client().await?;
    client.send(format!("{EXPECTING}hello")).await?;
    ensure!(client.response("POST").await?.status() == 200);
    ensure!(scene.endpoint().only().body == Some(Digest::of(b"hello")));
    ensure!(client.get("/").await?.status() == 200, "the connection goes on");
    Ok(())
}

#[tokio::test]
async fn informational_responses_pass() -> Result {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a.css>; rel=preload\r\n\r\n";
    let more = "HTTP/1.1 102 Processing\r\n\r\n";
    let steps = vec![Step::send(hints), Step::send(more), Step::Gate, Step::Answer];
    let scene = Scene::of(steps).await?;
    let mut client = scene.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    let head = client.reader.head().await?;
    ensure!(head.status() == 103 && head.has("link"), "{head:?}");
    ensure!(client.reader.head().await?.status() == 102);
    scene.endpoint().open_gate(1);
    ensure!(client.response("GET").await?.status() == 200);
    Ok(())
}

/// RFC 9110 §15.2: HTTP/1.0 knows no 1xx.
#[tokio::test]
async fn http10_client_gets_no_informational_response() -> Result {
    let hints = "HTTP/1.1 103 Early Hints\r\n\r\n";
    let scene = Scene::of(vec![Step::send(hints), Step::Answer]).await?;
    let mut client = scene.client().await?;
    client.send("GET / HTTP/1.0\r\nHost: test\r\n\r\n").await?;
    let response = client.response("GET").await?;
    ensure!(response.status() == 200 && response.informational.is_empty(), "{response:?}");
    Ok(())
}

/// A client that has switched protocols, with what the endpoint sent.
async fn switched(scene: &Scene) -> Result<Client> {
    let mut client = scene.client().await?;
    client.send(ASKING).await?;
    let (head, _) = client.final_head().await?;
    ensure!(head.status() == 101, "{head:?}");
    ensure!(head.lists("connection", "upgrade"), "{head:?}");
    ensure!(head.field("upgrade").as_deref() == Some("echo"), "{head:?}");
    Ok(client)
}

#[tokio::test]
async fn an_upgrade_becomes_a_tunnel() -> Result {
    let scene = Scene::of(vec![Step::send(SWITCHING), Step::Tunnel, Step::Close]).await?;
    let mut client = switched(&scene).await?;
    let head = scene.endpoint().only().head;
    ensure!(head.lists("connection", "upgrade"), "{head:?}");
    ensure!(head.field("upgrade").as_deref() == Some("echo"), "{head:?}");

    for message in ["\0 not HTTP \r\n\r\n", "more"] {
        client.send(message).await?;
        assert_eq!(client.reader.exactly(message.len()).await?, message.as_bytes());
    }
    let long: Vec<u8> = tests::payload::pieces(3_000_000).flatten().copied().collect();
    let Client { reader, writer, .. } = &mut client;
    let (sent, received) =
        tokio::join!(tests::client::send_pattern(writer, 3_000_000), reader.exactly(long.len()));
    sent?;
    ensure!(received? == long, "the tunnel changed what it carried");
    Ok(())
}

#[tokio::test]
async fn tunnel_supports_half_close() -> Result {
    let steps = vec![Step::send(SWITCHING), Step::FinishSending, Step::AwaitEnd, Step::Close];
    let scene = Scene::of(vec![Step::send(SWITCHING), Step::Tunnel, Step::Close]).await?;
    let mut client = switched(&scene).await?;
    client.send("last words").await?;
    client.finish_sending().await?;
    assert_eq!(client.reader.exactly(10).await?, b"last words");
    client.end().await?;

    let scene = Scene::of(steps).await?;
    let mut client = switched(&scene).await?;
    client.end().await?;
    scene.endpoint().until("it is still open", |counts| counts.in_flight == 0).await?;
    client.finish_sending().await?;
    scene.endpoint().until("both have ended", |counts| counts.connections == 0).await?;
    Ok(())
}

#[tokio::test]
async fn bytes_sent_right_after_the_upgrade_are_not_lost() -> Result {
    let greeting = format!("{SWITCHING}welcome");
    let scene = Scene::of(vec![Step::send(&greeting), Step::Tunnel, Step::Close]).await?;
    let mut client = scene.client().await?;
    client.send(format!("{ASKING}hello")).await?;
    ensure!(client.final_head().await?.0.status() == 101);
    assert_eq!(client.reader.exactly(12).await?, b"welcomehello");
    Ok(())
}

#[tokio::test]
async fn tunnel_holds_its_slot_while_open() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "maxRequests": 0 } });
    let steps = vec![Step::send(SWITCHING), Step::Tunnel, Step::Close];
    let scene = Scene::governed(steps, policy).await?;
    let mut client = switched(&scene).await?;
    client.send("x").await?;
    client.reader.exactly(1).await?;
    ensure!(scene.client().await?.get("/").await?.status() == 429);
    ensure!(scene.sheave.busy().await? == 1);
    drop(client);
    scene.sheave.idle().await?;
    switched(&scene).await?;
    Ok(())
}

#[tokio::test]
async fn a_refused_upgrade_is_an_ordinary_response() -> Result {
    let scene = Scene::of(Behaviour::ok()).await?;
    let mut client = scene.client().await?;
    for _ in 0..2 {
        client.send(ASKING).await?;
        ensure!(client.response("GET").await?.text() == "ok");
    }
    Ok(())
}

#[tokio::test]
async fn unsolicited_101_is_a_bad_gateway() -> Result {
    let scene = Scene::of(vec![Step::send(SWITCHING), Step::Tunnel]).await?;
    let response = scene.client().await?.get("/").await?;
    ensure!(response.status() == 502, "{response:?}");
    Ok(())
}
