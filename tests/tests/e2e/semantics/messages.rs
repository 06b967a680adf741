//! Message framing: keep-alive, pipelining, bodies, versions.

use std::time::Duration;

use anyhow::ensure;
use tests::http1::RemainingBody;
use tests::payload::BodyDigest;
use tests::{Endpoint, EndpointBehaviour, Http1Error, HttpFixture, Result, ServeStep, client};

/// Returns a fixture with one worker: each worker has its own idle connections to an uncapped
/// endpoint, so that these can be counted.
async fn one_worker(behaviour: EndpointBehaviour) -> Result<HttpFixture> {
    HttpFixture::with(vec![Endpoint::start(behaviour).await?], &[], &["--workers", "1"]).await
}

#[tokio::test]
async fn connections_are_kept_alive_on_both_sides() -> Result {
    let scene = one_worker(EndpointBehaviour::ok()).await?;
    let mut client = scene.client().await?;
    for _ in 0..10 {
        let response = client.get("/").await?;
        ensure!(response.status() == 200 && !response.closes());
    }
    let mut another = scene.client().await?;
    ensure!(another.get("/").await?.status() == 200);
    assert_eq!(scene.endpoint().counts().accepted, 1);
    Ok(())
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() -> Result {
    let scene = HttpFixture::of(vec![
        ServeStep::WaitExponential(Duration::from_millis(2)),
        ServeStep::Echo,
    ])
    .await?;
    let mut client = scene.client().await?;
    let bodies: Vec<String> = (0..50).map(|number| format!("body {number}")).collect();
    let request = |body: &String| client::request("POST", "/", &[], body.as_bytes());
    let requests: Vec<u8> = bodies.iter().flat_map(request).collect();
    client.send(&requests).await?;
    for body in bodies {
        assert_eq!(client.response("POST").await?.text(), body);
    }
    Ok(())
}

#[tokio::test]
async fn request_sent_byte_by_byte_is_parsed() -> Result {
    let scene = HttpFixture::of(vec![ServeStep::Echo]).await?;
    let mut client = scene.client().await?;
    let sized = client::request("POST", "/", &[], b"hello");
    client.send_slowly(&sized, Duration::from_micros(100)).await?;
    assert_eq!(client.response("POST").await?.text(), "hello");
    let chunked = b"POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n\
        5\r\nhello\r\n6\r\n world\r\n0\r\n\r\n";
    client.send_slowly(chunked, Duration::from_micros(100)).await?;
    assert_eq!(client.response("POST").await?.text(), "hello world");
    Ok(())
}

#[tokio::test]
async fn connection_close_of_the_client_is_honored() -> Result {
    let scene = one_worker(EndpointBehaviour::ok()).await?;
    let mut client = scene.client().await?;
    let response = client.exchange("GET", "/", &[("Connection", "close")], b"").await?;
    ensure!(response.closes(), "{response:?}");
    client.expect_end().await?;
    let mut another = scene.client().await?;
    ensure!(another.get("/").await?.status() == 200);
    assert_eq!(scene.endpoint().counts().accepted, 1, "the endpoint's connection is not kept");
    Ok(())
}

#[tokio::test]
async fn responses_without_a_body_have_none() -> Result {
    let length = "Content-Length: 5\r\n";
    for (method, status, fields, declared) in [
        ("HEAD", "200 OK", length, Some("5")),
        ("HEAD", "200 OK", "Transfer-Encoding: chunked\r\n", None),
        ("GET", "304 Not Modified", length, Some("5")),
        ("GET", "304 Not Modified", "ETag: \"a\"\r\n", None),
        ("GET", "204 No Content", "", None),
    ] {
        let answer = format!("HTTP/1.1 {status}\r\n{fields}\r\n");
        let scene = one_worker(EndpointBehaviour::answering(&answer)).await?;
        let mut client = scene.client().await?;
        for _ in 0..2 {
            let response = client.exchange(method, "/", &[], b"").await?;
            assert!(response.head.start.ends_with(status), "{response:?}");
            assert_eq!(response.field("content-length").as_deref(), declared, "{answer}");
        }
        assert_eq!(scene.endpoint().counts().accepted, 1, "{answer}");
    }
    Ok(())
}

#[tokio::test]
async fn chunked_bodies_and_trailers_pass_both_ways() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nTrailer: Sum\r\n\r\n\
        3\r\nabc\r\n4;note=\"x\"\r\ndefg\r\n0\r\nSum: 7\r\n\r\n";
    let scene = HttpFixture::of(EndpointBehaviour::answering(answer)).await?;
    let mut client = scene.client().await?;
    for _ in 0..2 {
        client.send("POST / HTTP/1.1\r\nHost: test\r\nTE: trailers\r\n").await?;
        client.send("Transfer-Encoding: chunked\r\nTrailer: Check\r\n\r\n").await?;
        client.send("5\r\nhello\r\n1\r\n!\r\n0\r\nCheck: 6\r\n\r\n").await?;
        let response = client.response("POST").await?;
        assert_eq!(response.text(), "abcdefg");
        assert_eq!(response.trailers, [("Sum".to_owned(), "7".to_owned())]);
    }
    for seen in scene.endpoint().requests() {
        assert_eq!(seen.body, Some(BodyDigest::of(b"hello!")));
        assert_eq!(seen.trailers, [("Check".to_owned(), "6".to_owned())]);
        assert_eq!(seen.head.field("transfer-encoding").as_deref(), Some("chunked"));
    }
    Ok(())
}

#[tokio::test]
async fn close_delimited_body_is_forwarded_chunked() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\n\r\nuntil the end";
    let steps = vec![ServeStep::ReadBody, ServeStep::send(answer), ServeStep::Close];
    let scene = HttpFixture::of(steps).await?;
    let mut client = scene.client().await?;
    for _ in 0..3 {
        let response = client.get("/").await?;
        assert_eq!(response.text(), "until the end");
        assert_eq!(response.field("transfer-encoding").as_deref(), Some("chunked"));
    }
    Ok(())
}

#[tokio::test]
async fn http10_endpoint_gets_a_new_connection_per_request() -> Result {
    let answer = "HTTP/1.0 200 OK\r\nContent-Length: 2\r\n\r\nok";
    let steps = vec![ServeStep::ReadBody, ServeStep::send(answer), ServeStep::Close];
    let scene = HttpFixture::of(steps).await?;
    let mut client = scene.client().await?;
    for _ in 0..3 {
        let response = client.get("/").await?;
        assert_eq!((response.status(), response.text().as_str()), (200, "ok"));
        ensure!(!response.closes(), "the client's connection is closed");
    }
    assert_eq!(scene.endpoint().counts().accepted, 3);
    Ok(())
}

#[tokio::test]
async fn http10_client_gets_http10_framing() -> Result {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let scene = HttpFixture::of(EndpointBehaviour::answering(chunked)).await?;
    let mut client = scene.client().await?;
    client.send("GET / HTTP/1.0\r\nHost: test\r\nConnection: keep-alive\r\n\r\n").await?;
    let response = client.response("GET").await?;
    ensure!(!response.head.has_field("transfer-encoding"), "{response:?}");
    assert_eq!(response.text(), "hello", "the body is delimited by the end of the connection");

    let scene = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = scene.client().await?;
    client.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n").await?;
    let response = client.response("GET").await?;
    ensure!(response.head.field_lists("connection", "keep-alive"), "{response:?}");
    client.send("GET / HTTP/1.0\r\n\r\n").await?;
    let response = client.response("GET").await?;
    ensure!(!response.head.field_lists("connection", "keep-alive"), "{response:?}");
    client.expect_end().await?;
    for seen in scene.endpoint().requests() {
        ensure!(seen.head.start == "GET / HTTP/1.1", "{seen:?}");
        ensure!(seen.head.field_values("host").len() == 1, "HTTP/1.1 needs a Host: {seen:?}");
    }
    Ok(())
}

#[tokio::test]
async fn target_is_forwarded_in_origin_form() -> Result {
    let scene = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = scene.client().await?;
    for (line, target, host) in [
        ("GET /a%2Fb/c?d=e/../&f HTTP/1.1\r\nHost: a.test", "/a%2Fb/c?d=e/../&f", "a.test"),
        ("GET http://b.test/x?y HTTP/1.1\r\nHost: a.test", "/x?y", "b.test"),
        ("GET http://b.test:81 HTTP/1.1\r\nHost: a.test", "/", "b.test:81"),
        ("GET http://b.test?q HTTP/1.1\r\nHost: a.test", "/?q", "b.test"),
        ("OPTIONS * HTTP/1.1\r\nHost: a.test", "*", "a.test"),
    ] {
        client.send(format!("{line}\r\n\r\n")).await?;
        let response = client.response("GET").await?;
        assert_eq!(response.status(), 200, "{line}: {response:?}");
        let head = scene.endpoint().requests().pop().unwrap().head;
        assert_eq!((head.target(), head.field_values("host")), (target, vec![host]), "{line}");
    }
    Ok(())
}

#[tokio::test]
async fn early_response_arrives_before_the_body_is_sent() -> Result {
    let early = "HTTP/1.1 403 Forbidden\r\nConnection: close\r\nContent-Length: 2\r\n\r\nno";
    let scene = HttpFixture::of(vec![
        ServeStep::send(early),
        ServeStep::FinishSending,
        ServeStep::WaitForClose,
    ])
    .await?;
    let mut client = scene.client().await?;
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 50000000\r\n\r\n").await?;
    client.send_pattern(1000).await?;
    let response = client.response("POST").await?;
    assert_eq!((response.status(), response.text().as_str()), (403, "no"));
    Ok(())
}

/// The client is still sending when the response arrives, and must not lose it to a reset.
#[tokio::test]
async fn early_response_arrives_while_the_body_is_sent() -> Result {
    const LENGTH: u64 = 5_000_000;
    let early = "HTTP/1.1 413 Content Too Large\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
    for steps in [
        vec![ServeStep::send(early), ServeStep::Close],
        vec![ServeStep::send(early), ServeStep::FinishSending, ServeStep::WaitForClose],
    ] {
        let scene = HttpFixture::of(steps).await?;
        let mut client = scene.client().await?;
        client
            .send(format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {LENGTH}\r\n\r\n"))
            .await?;
        // Bytes that can no longer be sent are lost, which does not matter.
        drop(client.send_pattern(LENGTH).await);
        assert_eq!(client.response("POST").await?.status(), 413);
    }
    Ok(())
}

/// Both connections may continue if the endpoint reads the body after all.
#[tokio::test]
async fn early_response_is_whole_if_the_body_is_read_later() -> Result {
    const LENGTH: u64 = 2_000_000;
    let early = "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nearly";
    let scene = HttpFixture::of(vec![ServeStep::send(early), ServeStep::ReadBody]).await?;
    let mut client = scene.client().await?;
    client
        .send(format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {LENGTH}\r\n\r\n"))
        .await?;
    let (sent, response) = {
        let tests::Http1TestClient { reader, writer, .. } = &mut client;
        tokio::join!(client::send_pattern(writer, LENGTH), async {
            let head = reader.head().await?;
            reader.body(head.response_body("POST")?).await
        })
    };
    assert_eq!(response?.bytes, b"early");
    if sent.is_ok() {
        // The body may be cut only if the connection is closed.
        let whole =
            scene.endpoint().wait_for_counts("the body", |counts| counts.in_flight == 0).await?;
        ensure!(whole.requests == 1);
    }
    Ok(())
}

#[tokio::test]
async fn response_is_streamed() -> Result {
    let steps = vec![
        ServeStep::send("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\none\r\n"),
        ServeStep::WaitForGate,
        ServeStep::send("3\r\ntwo\r\n0\r\n\r\n"),
    ];
    let scene = HttpFixture::of(steps).await?;
    let mut client = scene.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    let (head, _) = client.read_final_head().await?;
    let mut left = head.response_body("GET")?;
    assert_eq!(client.read_body_piece(&mut left).await?.as_deref(), Some(&b"one"[..]));
    scene.endpoint().open_gate(1);
    assert_eq!(client.read_body_piece(&mut left).await?.as_deref(), Some(&b"two"[..]));
    assert_eq!(client.read_body_piece(&mut left).await?, None);
    Ok(())
}

#[tokio::test]
async fn request_is_streamed() -> Result {
    let scene = HttpFixture::of(vec![ServeStep::Echo]).await?;
    let mut client = scene.client().await?;
    client.send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    client.send("3\r\none\r\n").await?;
    let (head, _) = client.read_final_head().await?;
    let mut left = head.response_body("POST")?;
    assert_eq!(client.read_body_piece(&mut left).await?.as_deref(), Some(&b"one"[..]));
    client.send("3\r\ntwo\r\n").await?;
    assert_eq!(client.read_body_piece(&mut left).await?.as_deref(), Some(&b"two"[..]));
    client.send("0\r\n\r\n").await?;
    assert_eq!(client.read_body_piece(&mut left).await?, None);
    assert_eq!(left, RemainingBody::Nothing);
    Ok(())
}

/// RFC 9112 §8: a message that ends too early is not forwarded as if it were complete.
#[tokio::test]
async fn truncated_request_never_looks_complete() -> Result {
    let cut = [
        "Content-Length: 10\r\n\r\nhello",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhel",
        "Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n",
    ];
    for rest in cut {
        let scene = HttpFixture::of(EndpointBehaviour::ok()).await?;
        let mut client = scene.client().await?;
        client.send(format!("POST / HTTP/1.1\r\nHost: test\r\n{rest}")).await?;
        scene.endpoint().wait_for_counts("the head", |counts| counts.requests == 1).await?;
        client.finish_sending().await?;
        match client.response("POST").await {
            Ok(response) => assert_eq!(response.status(), 400, "{rest}"),
            Err(error) => assert!(error.is_connection_end(), "{rest}: {error}"),
        }
        scene
            .endpoint()
            .wait_for_counts("the end of the request", |counts| counts.in_flight == 0)
            .await?;
        assert_eq!(scene.endpoint().only_request().body, None, "{rest}");
    }
    Ok(())
}

#[tokio::test]
async fn half_closed_client_still_gets_its_response() -> Result {
    let scene = HttpFixture::of(EndpointBehaviour::gated()).await?;
    let mut client = scene.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\nConnection: close\r\n\r\n").await?;
    scene.endpoint().wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    client.finish_sending().await?;
    scene.endpoint().open_gate(1);
    match client.response("GET").await {
        Ok(response) => assert_eq!(response.text(), "ok"),
        // Treating a half-closed client as disconnected is allowed, although not ideal.
        Err(error) => assert!(matches!(error, Http1Error::Closed | Http1Error::Io(_)), "{error}"),
    }
    Ok(())
}
