//! Clients of HTTP/1.1: each connection has one request at a time.

use std::time::Duration;

use anyhow::ensure;
use rustix::process::Signal;
use serde_json::json;
use tests::payload::BodyDigest;
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, ServeStep, eventually,
    within,
};
use tokio::time::sleep;

use super::{CAP, CappedFixture, LONG, capped_policy, post};

/// The audit's attack: as many connections as there are slots, each with a byte of its body now and then.
#[tokio::test]
async fn slow_bodies_hold_no_slot() -> Result {
    let chunked = "POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n30\r\n";
    for head in [post(48), chunked.to_owned()] {
        let target = CappedFixture::new().await?;
        let mut slow = Vec::new();
        for _ in 0..CAP {
            let mut client = target.fixture.client().await?;
            client.send(&head).await?;
            slow.push(client);
        }
        for _ in 0..47 {
            for client in &mut slow {
                client.send("x").await?;
            }
            target.check_others_are_served(0).await?;
        }
        let rest = if head == chunked { "x\r\n0\r\n\r\n" } else { "x" };
        for mut client in slow {
            client.send(rest).await?;
            ensure!(client.response("POST").await?.status() == 200);
        }
        target.fixture.sheave.wait_until_idle().await?;
        let uploads = target.fixture.endpoint().requests().into_iter();
        let whole = Some(BodyDigest::of(&[b'x'; 48]));
        assert_eq!(uploads.filter(|seen| seen.body == whole).count() as u64, CAP);
    }
    Ok(())
}

/// A client that expects 100 has sent nothing: at most half of the slots wait for such clients. Beyond that Sheave
/// answers itself, and the request waits for its body without a slot.
#[tokio::test]
async fn expectations_hold_at_most_half_of_the_slots() -> Result {
    let target = CappedFixture::new().await?;
    let mut clients = Vec::new();
    for _ in 0..2 * CAP {
        let mut client = target.fixture.client().await?;
        let head = post(5).replace("Content-Length", "Expect: 100-continue\r\nContent-Length");
        client.send(head).await?;
        ensure!(client.reader.head().await?.status() == 100);
        clients.push(client);
        target.check_others_are_served(CAP / 2).await?;
    }
    for mut client in clients {
        client.send("hello").await?;
        let response = client.response("POST").await?;
        ensure!(response.status() == 200 && response.informational.is_empty(), "{response:?}");
    }
    let uploads = target.fixture.endpoint().requests().into_iter();
    let uploads: Vec<_> = uploads.filter(|seen| seen.head.method() == "POST").collect();
    let passed = uploads.iter().filter(|seen| seen.head.has_field("expect")).count() as u64;
    assert_eq!((uploads.len() as u64, passed), (2 * CAP, CAP / 2));
    ensure!(uploads.iter().all(|seen| seen.body == Some(BodyDigest::of(b"hello"))));
    Ok(())
}

/// While slots are free, the endpoint answers an expectation, and may refuse the body.
#[tokio::test]
async fn endpoint_refuses_an_expected_body() -> Result {
    let refusal = "HTTP/1.1 417 Expectation Failed\r\nContent-Length: 0\r\n\r\n";
    let target = CappedFixture::with(vec![ServeStep::send(refusal)], json!({}), json!({})).await?;
    let mut client = target.fixture.client().await?;
    client
        .send(post(5).replace("Content-Length", "Expect: 100-continue\r\nContent-Length"))
        .await?;
    let response = client.response("POST").await?;
    ensure!(response.status() == 417 && response.informational.is_empty(), "{response:?}");
    Ok(())
}

/// A body that is longer than what is kept holds a slot, and has to keep the minimum rate. The endpoint's connection
/// is not used again.
#[tokio::test]
async fn long_body_below_the_minimum_rate_is_ended() -> Result {
    let limits = json!({ "limits": { "minBodyRate": 1_000_000 }, "timeouts": { "body": "500ms" } });
    let target = CappedFixture::with(EndpointBehaviour::ok(), limits, json!({})).await?;
    let mut client = target.fixture.client().await?;
    client.send(post(10 * LONG)).await?;
    client.send(vec![b'x'; LONG]).await?;
    let endpoint = target.fixture.endpoint();
    endpoint.wait_for_counts("the upload", |counts| counts.in_flight == 1).await?;
    let Http1TestClient { reader, writer, .. } = &mut client;
    let trickle = async {
        while tokio::io::AsyncWriteExt::write_all(writer, b"x").await.is_ok() {
            sleep(Duration::from_millis(20)).await; // The client is too slow.
        }
    };
    let head = tokio::select! {
        head = within("an answer", reader.head()) => head??,
        () = trickle => anyhow::bail!("the connection was closed without an answer"),
    };
    ensure!(head.status() == 408, "{head:?}");
    let proxy_status = head.field("proxy-status").unwrap_or_default();
    ensure!(proxy_status.contains("too slowly"), "{proxy_status}");
    target.wait_for_failures("body_rate", 1.0).await?;
    target.fixture.sheave.wait_until_idle().await?;
    endpoint.wait_for_counts("its connection is closed", |counts| counts.connections == 0).await?;
    Ok(())
}

/// An upload that is slow and keeps the rate is served, with pauses shorter than `timeouts.body`.
#[tokio::test]
async fn long_body_at_the_minimum_rate_is_served() -> Result {
    let limits = json!({ "limits": { "minBodyRate": 20_000 }, "timeouts": { "body": "3s" } });
    let target = CappedFixture::with(EndpointBehaviour::ok(), limits, json!({})).await?;
    let mut client = target.fixture.client().await?;
    client.send(post(LONG)).await?;
    for _ in 0..LONG / 1000 {
        client.send([b'x'; 1000]).await?;
        sleep(Duration::from_millis(10)).await; // The client is slow.
    }
    ensure!(client.response("POST").await?.status() == 200);
    let body = target.fixture.endpoint().only_request().body;
    ensure!(body == Some(BodyDigest::of(&vec![b'x'; LONG])), "{body:?}");
    Ok(())
}

/// Time for which the endpoint does not read is not the client's.
#[tokio::test]
async fn endpoint_that_does_not_read_costs_the_client_nothing() -> Result {
    let limits =
        json!({ "limits": { "minBodyRate": 1_000_000_000 }, "timeouts": { "body": "300ms" } });
    let steps = vec![ServeStep::WaitForGate, ServeStep::ReadBody, ServeStep::Answer];
    let target = CappedFixture::with(steps, limits, json!({})).await?;
    let mut client = target.fixture.client().await?;
    // More than the buffers of all sockets on the way hold.
    const LENGTH: u64 = 64 << 20;
    client.send(post(LENGTH as usize)).await?;
    let Http1TestClient { writer, reader, .. } = &mut client;
    let open = async {
        sleep(Duration::from_secs(1)).await; // The endpoint is slow.
        target.fixture.endpoint().open_gate(1);
    };
    let (sent, ()) = tokio::join!(tests::client::send_pattern(writer, LENGTH), open);
    sent?;
    ensure!(within("an answer", reader.head()).await??.status() == 200);
    Ok(())
}

/// The wait for a body before the slot has a limit of its own.
#[tokio::test]
async fn body_that_does_not_arrive_in_time_is_answered_408() -> Result {
    let limits =
        json!({ "limits": { "minBodyRate": 0 }, "timeouts": { "bodyBuffering": "200ms" } });
    let target = CappedFixture::with(EndpointBehaviour::ok(), limits, json!({})).await?;
    let mut client = target.fixture.client().await?;
    client.send(post(5)).await?;
    client.send("hell").await?;
    let response = client.response("POST").await?;
    ensure!(response.status() == 408 && response.closes(), "{response:?}");
    target.wait_for_failures("body_buffering", 1.0).await?;
    assert_eq!(target.fixture.endpoint().counts().requests, 0);
    Ok(())
}

/// `bodyBuffering: 0s` restores that a request asks for its slot at once.
#[tokio::test]
async fn buffering_can_be_turned_off() -> Result {
    let limits = json!({ "timeouts": { "bodyBuffering": "0s" } });
    let target = CappedFixture::with(EndpointBehaviour::ok(), limits, json!({})).await?;
    let mut client = target.fixture.client().await?;
    client.send(post(5)).await?;
    let endpoint = target.fixture.endpoint();
    endpoint.wait_for_counts("the head", |counts| counts.in_flight == 1).await?;
    client.send("hello").await?;
    ensure!(client.response("POST").await?.status() == 200);
    Ok(())
}

/// A client that leaves while its body is awaited leaves nothing behind.
#[tokio::test]
async fn client_that_leaves_while_its_body_is_awaited() -> Result {
    let target = CappedFixture::new().await?;
    let mut client = target.fixture.client().await?;
    client.send(post(5)).await?;
    client.send("hell").await?;
    client.reset();
    target.wait_for_failures("client_disconnected", 1.0).await?;
    target.check_others_are_served(0).await?;
    assert_eq!(target.fixture.endpoint().counts().requests, 1);
    Ok(())
}

/// A request goes to the endpoints that exist when its body is complete.
#[tokio::test]
async fn endpoint_is_removed_while_a_body_is_awaited() -> Result {
    let mut endpoints = Vec::new();
    for _ in 0..2 {
        endpoints.push(Endpoint::start(EndpointBehaviour::ok()).await?);
    }
    let fixture = HttpFixture::with(endpoints, &[capped_policy()], &["--workers", "1"]).await?;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let mut client = fixture.client().await?;
        ensure!(client.get("/").await?.status() == 200);
        client.send(format!("{}hell", post(5))).await?;
        clients.push(client);
    }
    let left = fixture.endpoints[1].address;
    fixture.configuration.set_endpoints(&[left])?;
    fixture.sheave.wait_for_endpoints(&[left]).await?;
    for mut client in clients {
        client.send("o").await?;
        ensure!(client.response("POST").await?.status() == 200);
    }
    let uploads = fixture.endpoints.iter().map(|endpoint| {
        endpoint.requests().iter().filter(|seen| seen.head.method() == "POST").count()
    });
    assert_eq!(uploads.collect::<Vec<_>>(), [0, 2]);
    Ok(())
}

/// A request whose body is awaited is finished during the drain.
#[tokio::test]
async fn request_is_finished_during_drain() -> Result {
    let mut target = CappedFixture::new().await?;
    let mut client = target.fixture.client().await?;
    ensure!(client.get("/").await?.status() == 200);
    client.send(format!("{}hell", post(5))).await?;
    target.check_others_are_served(0).await?;
    target.fixture.sheave.signal(Signal::TERM)?;
    let refused = async || Ok(target.fixture.client().await.is_err());
    eventually("new connections are refused", refused, |refused| *refused).await?;
    client.send("o").await?;
    let response = client.response("POST").await?;
    ensure!(response.status() == 200 && response.closes(), "{response:?}");
    ensure!(target.fixture.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}
