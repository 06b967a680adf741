//! Clients that leave: what becomes of the request and of its slot.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::{Behaviour, Client, Keep, Result, Scene, Step};
use tokio::time::Instant;

/// A client whose request is being worked on.
async fn begin(scene: &Scene) -> Result<Client> {
    let requests = scene.endpoint().counts().requests;
    let mut client = scene.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    scene.endpoint().until("the request", |counts| counts.requests == requests + 1).await?;
    Ok(client)
}

/// A synchronous worker does not notice that its client has gone: until it has finished it can do nothing else.
#[tokio::test]
async fn slot_of_a_disconnected_client_is_kept_until_the_endpoint_finishes() -> Result {
    for method in ["reset", "close"] {
        let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
        let scene = Scene::governed(Behaviour::gated(), policy).await?;
        let gone = begin(&scene).await?;
        if method == "reset" {
            gone.reset()
        } else {
            drop(gone)
        }

        let mut next = scene.client().await?;
        next.send("GET /next HTTP/1.1\r\nHost: test\r\n\r\n").await?;
        scene.sheave.waiting(1).await?;
        ensure!(scene.endpoint().counts().in_flight == 1);
        ensure!(scene.sheave.sum("sheave_endpoint_in_flight").await? >= 1.0);

        scene.endpoint().open_gate(2);
        ensure!(next.response("GET").await?.status() == 200);
        let counts = scene.endpoint().counts();
        ensure!(counts.most_in_flight == 1 && counts.most_connections == 1, "{counts:?}");
        assert_eq!(counts.accepted, 1, "the rest was read and the connection kept");
        scene.sheave.idle().await?;
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
    let scene = Scene::governed(vec![Step::Hold], policy).await?;
    let gone = begin(&scene).await?;
    let begun = Instant::now();
    gone.reset();
    let next = begin(&scene).await?;
    ensure!(begun.elapsed() >= Duration::from_millis(250), "{:?}", begun.elapsed());
    drop(next);
    scene.sheave.idle().await
}

#[tokio::test]
async fn disconnected_client_cancels_the_request_without_a_cap() -> Result {
    let scene = Scene::of(vec![Step::Hold]).await?;
    begin(&scene).await?.reset();
    scene.endpoint().until("the connection is closed", |counts| counts.connections == 0).await?;
    scene.sheave.idle().await
}

#[tokio::test]
async fn client_disconnect_during_the_response_frees_its_slot() -> Result {
    for cap in [json!({}), json!({ "maxInFlightPerEndpoint": 1 })] {
        let steps = vec![Step::ReadBody, Step::AnswerPattern(3_000_000)];
        let scene = Scene::governed(steps, cap).await?;
        for _ in 0..5 {
            let mut client = scene.client().await?;
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
            client.final_head().await?;
            client.reset();
        }
        let mut client = scene.client().await?;
        ensure!(client.get("/").await?.body.len() == 3_000_000);
        scene.sheave.idle().await?;
    }
    Ok(())
}

#[tokio::test]
async fn client_disconnect_during_the_request_body_frees_its_slot() -> Result {
    for cap in [json!({}), json!({ "maxInFlightPerEndpoint": 1 })] {
        let scene = Scene::governed(Behaviour::ok(), cap).await?;
        for _ in 0..5 {
            let mut client = scene.client().await?;
            client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100\r\n\r\npart").await?;
            scene.endpoint().until("the head", |counts| counts.in_flight == 1).await?;
            client.reset();
            scene.endpoint().until("its end", |counts| counts.in_flight == 0).await?;
        }
        ensure!(scene.client().await?.post("/", b"whole").await?.status() == 200);
        ensure!(scene.endpoint().seen().iter().filter(|seen| seen.body.is_some()).count() == 1);
        scene.sheave.idle().await?;
    }
    Ok(())
}

/// The endpoint finishes and closes: the slot's next connection must not overlap with this one.
#[tokio::test]
async fn connection_closed_after_a_disconnect_is_replaced_without_overlap() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1, "queue": { "timeout": "1h" } });
    let behaviour = Behaviour::gated().keeping(Keep::CloseAnnounced);
    let scene = Scene::governed(behaviour, policy).await?;
    for _ in 0..10 {
        begin(&scene).await?.reset();
        scene.endpoint().open_gate(1);
    }
    scene.endpoint().open_gate(1);
    ensure!(scene.client().await?.get("/").await?.status() == 200);
    let counts = scene.endpoint().counts();
    ensure!(counts.most_in_flight == 1 && counts.most_connections == 1, "{counts:?}");
    Ok(())
}

const SWITCHING: &str =
    "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: echo\r\n\r\n";

/// A browser tab that is closed during a WebSocket handshake is enough. After the 101 the connection is a tunnel to whatever
/// the endpoint has switched to: no other client's request may be written into it.
#[tokio::test]
async fn upgraded_connection_carries_no_other_request() -> Result {
    let steps = vec![Step::Gate, Step::send(SWITCHING)];
    let scene = Scene::governed(steps, json!({ "maxInFlightPerEndpoint": 1 })).await?;
    let mut gone = scene.client().await?;
    gone.send("GET /chat HTTP/1.1\r\nHost: test\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n")
        .await?;
    scene.endpoint().until("the upgrade", |counts| counts.requests == 1).await?;
    gone.reset();

    let mut next = scene.client().await?;
    next.send("GET /next HTTP/1.1\r\nHost: test\r\nCookie: secret\r\n\r\n").await?;
    scene.sheave.waiting(1).await?;
    scene.endpoint().open_gate(1);
    scene.endpoint().until("the next request", |counts| counts.requests == 2).await?;
    assert_eq!(scene.endpoint().counts().accepted, 2, "the tunnel carried another request");
    Ok(())
}

/// The same for an endpoint that switches without being asked. A request that is tried again goes by a fresh connection too.
#[tokio::test]
async fn connection_with_unsolicited_101_carries_no_other_request() -> Result {
    let policy = json!({ "maxInFlightPerEndpoint": 1 });
    let scene = Scene::governed(vec![Step::send(SWITCHING)], policy).await?;
    for _ in 0..3 {
        ensure!(scene.client().await?.get("/").await?.status() == 502);
    }
    scene.sheave.idle().await?;
    let counts = scene.endpoint().counts();
    ensure!(counts.requests >= 3, "{counts:?}");
    assert_eq!(counts.accepted, counts.requests, "a tunnel carried another request");
    Ok(())
}
