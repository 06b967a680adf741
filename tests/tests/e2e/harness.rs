//! The test clients and endpoints, checked against each other: their records are correct.

use std::time::Duration;

use tests::payload::BodyDigest;
use tests::{
    ConnectionReuse, Endpoint, EndpointBehaviour, Http1Error, Http1TestClient, Result, ServeStep,
};

#[tokio::test]
async fn endpoint_records_requests() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let mut client = Http1TestClient::connect(endpoint.address).await?;
    assert_eq!(client.get("/a").await?.text(), "ok");
    assert_eq!(client.post("/b", b"hello").await?.text(), "ok");

    let seen = endpoint.requests();
    assert_eq!(seen[0].head.start, "GET /a HTTP/1.1");
    assert_eq!(seen[1].head.field("content-length").as_deref(), Some("5"));
    assert_eq!(seen[1].body, Some(BodyDigest::of(b"hello")));
    assert_eq!((seen[0].connection, seen[1].connection), (1, 1));
    let counts = endpoint.counts();
    assert_eq!((counts.requests, counts.in_flight, counts.connections), (2, 0, 1));
    Ok(())
}

#[tokio::test]
async fn endpoint_counts_concurrent_requests() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::gated()).await?;
    let mut clients = Vec::new();
    for _ in 0..3 {
        let mut client = Http1TestClient::connect(endpoint.address).await?;
        client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
        clients.push(client);
    }
    endpoint.wait_for_counts("three in flight", |counts| counts.in_flight == 3).await?;
    clients.pop().unwrap().reset();
    endpoint.wait_for_counts("two connections", |counts| counts.connections == 2).await?;
    assert_eq!(
        endpoint.counts().in_flight,
        3,
        "the endpoint does not notice that its client has gone"
    );
    endpoint.open_gate(3);
    endpoint.wait_for_counts("nothing in flight", |counts| counts.in_flight == 0).await?;
    assert_eq!(endpoint.counts().max_in_flight, 3);
    Ok(())
}

#[tokio::test]
async fn endpoint_stops_counting_a_closed_connection() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    for _ in 0..200 {
        assert_eq!(Http1TestClient::connect(endpoint.address).await?.get("/").await?.status(), 200);
        endpoint.wait_for_counts("no connection", |counts| counts.connections == 0).await?;
    }
    assert_eq!(endpoint.counts().max_connections, 1);
    Ok(())
}

#[tokio::test]
async fn endpoint_closes_connections_as_configured() -> Result {
    let silent = Endpoint::start(
        EndpointBehaviour::ok().with_connection_reuse(ConnectionReuse::CloseSilently),
    )
    .await?;
    let mut client = Http1TestClient::connect(silent.address).await?;
    assert!(!client.get("/").await?.closes());
    client.expect_end().await?;

    let idle = ConnectionReuse::CloseWhenIdle(Duration::from_millis(5));
    let idle = Endpoint::start(EndpointBehaviour::ok().with_connection_reuse(idle)).await?;
    let mut client = Http1TestClient::connect(idle.address).await?;
    assert!(!client.get("/").await?.closes());
    client.expect_end().await?;

    let announced = Endpoint::start(
        EndpointBehaviour::ok().with_connection_reuse(ConnectionReuse::CloseAnnounced),
    )
    .await?;
    let mut client = Http1TestClient::connect(announced.address).await?;
    assert!(client.get("/").await?.closes());
    client.expect_end().await?;
    Ok(())
}

#[tokio::test]
async fn endpoint_echoes_large_bodies_in_both_framings() -> Result {
    const LENGTH: u64 = 3_000_000;
    let endpoint = Endpoint::start(vec![ServeStep::Echo]).await?;
    let mut client = Http1TestClient::connect(endpoint.address).await?;
    client.send(format!("POST / HTTP/1.1\r\nContent-Length: {LENGTH}\r\n\r\n")).await?;
    let Http1TestClient { reader, writer, .. } = &mut client;
    let (sent, received) = tokio::join!(tests::client::send_pattern(writer, LENGTH), async {
        let head = reader.head().await?;
        reader.digest(head.response_body("POST")?).await
    });
    sent?;
    assert_eq!(received?, BodyDigest::of_pattern(LENGTH));

    client.send("POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    client.send("5;note=1\r\nhello\r\n1\r\n!\r\n0\r\nSum: 6\r\n\r\n").await?;
    assert_eq!(client.response("POST").await?.text(), "hello!");
    assert_eq!(endpoint.requests()[1].trailers, [("Sum".to_owned(), "6".to_owned())]);
    Ok(())
}

#[tokio::test]
async fn client_detects_broken_responses() -> Result {
    let truncated = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
    let cases = [
        ("HTTP/1.1 200 OK\r\nContent-Le", "truncated"),
        (truncated, "truncated"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel", "truncated"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", "truncated"),
        ("HTTP/1.1 200 OK\nContent-Length: 0\r\n\r\n", "malformed"),
        ("HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Length: 0\r\n\r\n", "malformed"),
        ("HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n-5\r\nhello\r\n", "malformed"),
        ("", "closed"),
    ];
    for (answer, expected) in cases {
        let steps = vec![ServeStep::ReadBody, ServeStep::send(answer), ServeStep::Close];
        let endpoint = Endpoint::start(steps).await?;
        let outcome = Http1TestClient::connect(endpoint.address).await?.get("/").await;
        let kind = match outcome.expect_err(answer) {
            Http1Error::Truncated(_) => "truncated",
            Http1Error::Malformed(_) => "malformed",
            Http1Error::Closed => "closed",
            Http1Error::Silent | Http1Error::Io(_) => "other",
        };
        assert_eq!(kind, expected, "{answer:?}");
    }
    Ok(())
}

#[tokio::test]
async fn informational_responses_and_tunnels_pass() -> Result {
    let hints = "HTTP/1.1 103 Early Hints\r\nLink: </a>\r\n\r\n";
    let steps = vec![ServeStep::send(hints), ServeStep::ReadBody, ServeStep::Answer];
    let endpoint = Endpoint::start(steps).await?;
    let mut client = Http1TestClient::connect(endpoint.address).await?;
    client.send("POST / HTTP/1.1\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n").await?;
    assert_eq!(client.reader.head().await?.status(), 103);
    assert_eq!(client.reader.head().await?.status(), 100);
    client.send("hi").await?;
    assert_eq!(client.response("POST").await?.status(), 200);

    let switch = "HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n";
    let endpoint =
        Endpoint::start(vec![ServeStep::send(switch), ServeStep::Tunnel, ServeStep::Close]).await?;
    let mut client = Http1TestClient::connect(endpoint.address).await?;
    client.send("GET / HTTP/1.1\r\nConnection: upgrade\r\nUpgrade: echo\r\n\r\n").await?;
    assert_eq!(client.read_final_head().await?.0.status(), 101);
    client.send("ping").await?;
    assert_eq!(client.reader.read_exact(4).await?, b"ping");
    client.finish_sending().await?;
    client.expect_end().await?;
    Ok(())
}
