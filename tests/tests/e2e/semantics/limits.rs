//! Limits for slow clients, large requests and many connections.

use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, ServeStep, client};
use tokio::time::Instant;

/// Sends these bytes. The response must have this status, and the connection must end.
async fn check_refused(client: &mut Http1TestClient, bytes: &[u8], status: u16) -> Result {
    // The response may arrive before all bytes are sent.
    drop(client.send(bytes).await);
    let response = client.response("POST").await?;
    ensure!(response.status() == status, "{response:?}");
    ensure!(response.closes(), "{response:?}");
    ensure!(response.head.has_field("proxy-status"), "{response:?}");
    client.expect_end().await?;
    Ok(())
}

#[tokio::test]
async fn slow_head_is_answered_408() -> Result {
    let fixture = HttpFixture::with_client_policy(
        EndpointBehaviour::ok(),
        json!({ "timeouts": { "head": "200ms" } }),
    )
    .await?;
    let begun = Instant::now();
    let mut client = fixture.client().await?;
    check_refused(&mut client, b"GET / HTTP/1.1\r\nHost:", 408).await?;
    ensure!(begun.elapsed() >= Duration::from_millis(200));

    // One byte now and then does not extend the timeout.
    let mut client = fixture.client().await?;
    let head =
        b"GET / HTTP/1.1\r\nHost: test\r\nX-Slow: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";
    let trickle = client.send_slowly(head, Duration::from_millis(20)).await;
    ensure!(begun.elapsed() < Duration::from_secs(10), "{trickle:?}");
    let response = client.response("GET").await;
    match response {
        Ok(response) => ensure!(response.status() == 408, "{response:?}"),
        // Bytes sent after the response may have reset the connection.
        Err(error) => ensure!(error.is_connection_end(), "{error}"),
    }
    ensure!(fixture.endpoint().counts().requests == 0);
    Ok(())
}

#[tokio::test]
async fn slow_body_is_answered_408() -> Result {
    let fixture = HttpFixture::with_client_policy(
        EndpointBehaviour::ok(),
        json!({ "timeouts": { "body": "600ms" } }),
    )
    .await?;
    let mut client = fixture.client().await?;
    let part = b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 10\r\n\r\nhello";
    check_refused(&mut client, part, 408).await?;
    ensure!(fixture.endpoint().requests().iter().all(|seen| seen.body.is_none()));
    fixture.sheave.wait_until_idle().await?;

    // A body that makes progress is served, even if it is slow.
    let mut client = fixture.client().await?;
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 5\r\n\r\n").await?;
    client.send_slowly(b"hello", Duration::from_millis(150)).await?;
    ensure!(client.response("POST").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn idle_connection_is_closed_without_a_response() -> Result {
    let spec = json!({ "connections": { "idleTimeout": "200ms" } });
    let fixture = HttpFixture::with_client_policy(EndpointBehaviour::ok(), spec).await?;
    let mut silent = fixture.client().await?;
    let mut client = fixture.client().await?;
    let begun = Instant::now();
    ensure!(client.get("/").await?.status() == 200);
    client.expect_end().await?;
    ensure!(begun.elapsed() >= Duration::from_millis(200), "closed too early");
    silent.expect_end().await?;
    Ok(())
}

#[tokio::test]
async fn connection_over_max_age_is_closed_after_a_response() -> Result {
    let spec = json!({ "connections": { "maxAge": "200ms" } });
    let fixture = HttpFixture::with_client_policy(EndpointBehaviour::ok(), spec).await?;
    let begun = Instant::now();
    let mut client = fixture.client().await?;
    loop {
        let response = client.get("/").await?;
        ensure!(response.status() == 200);
        if response.closes() {
            break;
        }
        ensure!(begun.elapsed() < Duration::from_secs(5), "the connection is never closed");
    }
    ensure!(begun.elapsed() >= Duration::from_millis(150), "{:?}", begun.elapsed());
    client.expect_end().await?;
    Ok(())
}

#[tokio::test]
async fn oversized_requests_are_refused() -> Result {
    let limits = json!({
        "limits": { "headBytes": 1024, "headerFields": 10, "targetBytes": 256, "bodyBytes": 1000 },
    });
    let fixture = HttpFixture::with_client_policy(EndpointBehaviour::ok(), limits).await?;
    let long = "a".repeat(1100);
    let many = "X-Many: 1\r\n".repeat(11);
    let cases = [
        (431, format!("GET / HTTP/1.1\r\nHost: test\r\nX-Long: {long}\r\n\r\n")),
        // Refused before its end: Sheave does not wait for bytes over the limit.
        (431, format!("GET / HTTP/1.1\r\nHost: test\r\nX-Long: {long}")),
        (431, format!("GET / HTTP/1.1\r\nHost: test\r\n{many}\r\n")),
        (414, format!("GET /{} HTTP/1.1\r\nHost: test\r\n\r\n", &long[..300])),
        (413, "POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 1001\r\n\r\n".to_owned()),
    ];
    for (status, bytes) in cases {
        let mut client = fixture.client().await?;
        check_refused(&mut client, bytes.as_bytes(), status).await?;
    }
    ensure!(fixture.endpoint().counts().requests == 0, "a request was forwarded");

    let mut client = fixture.client().await?;
    ensure!(
        client.post("/", &[b'a'; 1000]).await?.status() == 200,
        "a body of exactly the limit is refused"
    );
    Ok(())
}

#[tokio::test]
async fn oversized_chunked_body_is_refused() -> Result {
    let limits = json!({ "limits": { "bodyBytes": 1000 } });
    let fixture = HttpFixture::with_client_policy(EndpointBehaviour::ok(), limits).await?;
    let mut client = fixture.client().await?;
    client.send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    let chunk = format!("190\r\n{}\r\n", "a".repeat(400));
    check_refused(&mut client, format!("{chunk}{chunk}{chunk}0\r\n\r\n").as_bytes(), 413).await?;
    ensure!(
        fixture.endpoint().requests().iter().all(|seen| seen.body.is_none()),
        "the body looked complete"
    );
    fixture.sheave.wait_until_idle().await
}

/// RFC 9112 §9.6: the client learns that its connection ends from the response, and not from a reset.
#[tokio::test]
async fn early_answer_of_an_endpoint_says_that_the_connection_closes() -> Result {
    for answer in [
        "HTTP/1.1 413 Content Too Large\r\nContent-Length: 2\r\n\r\nno",
        "HTTP/1.1 401 Unauthorized\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    ] {
        let steps = vec![ServeStep::send(answer), ServeStep::Close];
        let fixture = HttpFixture::of(steps).await?;
        let mut client = fixture.client().await?;
        client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 9\r\n\r\nhalf").await?;
        let response = client.response("POST").await?;
        ensure!(response.status() >= 400 && response.closes(), "{response:?}");
        client.expect_end().await?;
    }
    Ok(())
}

/// A client that sends `Expect: 100-continue` need not send a body that is too large.
#[tokio::test]
async fn oversized_body_with_expect_continue_is_refused_before_it_is_sent() -> Result {
    let limits = json!({ "limits": { "bodyBytes": 1000 } });
    let fixture = HttpFixture::with_client_policy(EndpointBehaviour::ok(), limits).await?;
    let mut client = fixture.client().await?;
    let head = client::request("POST", "/", &[("Expect", "100-continue")], &[0; 2000]);
    check_refused(&mut client, &head[..head.len() - 2000], 413).await?;
    ensure!(fixture.endpoint().counts().requests == 0);
    Ok(())
}

#[tokio::test]
async fn connections_over_the_limit_are_closed() -> Result {
    let fixture = HttpFixture::with_client_policy(
        EndpointBehaviour::ok(),
        json!({ "connections": { "max": 2 } }),
    )
    .await?;
    let mut first = fixture.client().await?;
    let mut second = fixture.client().await?;
    ensure!(first.get("/").await?.status() == 200 && second.get("/").await?.status() == 200);
    let mut third = fixture.client().await?;
    third.expect_end().await?;
    ensure!(first.get("/").await?.status() == 200, "an earlier connection is disturbed");

    drop(second);
    let reconnect = async || {
        let outcome = fixture.client().await?.get("/").await;
        Ok(outcome.is_ok_and(|response| response.status() == 200))
    };
    tests::eventually("a connection is accepted again", reconnect, |served| *served).await?;
    Ok(())
}
