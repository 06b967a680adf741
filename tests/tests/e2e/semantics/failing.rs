//! Failing endpoints: the client's response, and retries.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use socket2::{Domain, Socket, Type};
use tests::configuration::SERVICE;
use tests::endpoint::{RecordedRequest, refusing_address};
use tests::fixture::start_endpoints;
use tests::payload::{self, BodyDigest};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1Error, Http1TestClient, HttpFixture, Result,
    ServeStep, SheaveProcess, eventually, objects,
};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

/// RFC 9112 §8: the client must be able to detect an incomplete response.
#[tokio::test]
async fn truncated_response_never_looks_complete() -> Result {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n";
    let halves = [
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello".to_owned(), ServeStep::Close),
        ("HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello".to_owned(), ServeStep::Reset),
        (format!("{chunked}5\r\nhel"), ServeStep::Close),
        (format!("{chunked}5\r\nhello\r\n"), ServeStep::Close),
        (format!("{chunked}5\r\nhello\r\n0\r\n"), ServeStep::Close),
        (format!("{chunked}5\r\nhello\r\nx\r\n"), ServeStep::WaitForever),
        (format!("{chunked}5\r\nhelloworld\r\n"), ServeStep::WaitForever),
    ];
    for (half, end) in halves {
        let steps = vec![
            ServeStep::ReadBody,
            ServeStep::send(&half),
            ServeStep::Wait(Duration::from_millis(5)),
            end,
        ];
        let fixture = HttpFixture::of(steps).await?;
        match fixture.client().await?.get("/").await {
            Err(error) => ensure!(error.is_connection_end(), "{half:?}: {error}"),
            Ok(response) => ensure!(response.status() == 502, "{half:?}: {response:?}"),
        }
        fixture.sheave.wait_until_idle().await?;
    }
    Ok(())
}

#[tokio::test]
async fn reset_in_a_close_delimited_body_is_an_error() -> Result {
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::send("HTTP/1.1 200 OK\r\n\r\nsome"),
        ServeStep::Wait(Duration::from_millis(20)),
        ServeStep::Reset,
    ];
    let fixture = HttpFixture::of(steps).await?;
    let outcome = fixture.client().await?.get("/").await;
    ensure!(matches!(outcome, Err(Http1Error::Truncated(_) | Http1Error::Io(_))), "{outcome:?}");
    Ok(())
}

#[tokio::test]
async fn endpoint_without_a_response_is_a_bad_gateway() -> Result {
    for answer in ["", "HTTP/1.1 200", "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n"] {
        let steps = vec![ServeStep::ReadBody, ServeStep::send(answer), ServeStep::Close];
        let fixture = HttpFixture::of(steps).await?;
        let mut client = fixture.client().await?;
        let response = client.post("/", b"x").await?;
        ensure!(response.status() == 502, "{answer:?}: {response:?}");
        ensure!(response.head.has_field("proxy-status"), "{answer:?}: {response:?}");
        assert_eq!(fixture.endpoint().counts().requests, 1, "a POST that was read was retried");
        ensure!(client.get("/").await?.status() == 502, "the client's connection stays open");
    }
    Ok(())
}

/// If an endpoint may have processed a request, it is retried only if it is idempotent.
#[tokio::test]
async fn post_read_by_the_endpoint_is_never_retried() -> Result {
    const ROUNDS: usize = 10;
    let steps = vec![ServeStep::ReadBody, ServeStep::CloseFor("/drop"), ServeStep::Answer];
    let fixture = HttpFixture::of(steps).await?;
    let mut client = fixture.client().await?;
    for _ in 0..ROUNDS {
        // These exchanges show that the endpoint keeps connections open, and for how long at least:
        // then POSTs reuse connections too.
        for method in ["GET", "GET", "POST"] {
            ensure!(client.exchange(method, "/", &[], b"").await?.status() == 200);
            sleep(Duration::from_millis(10)).await; // The pause of a client.
        }
        ensure!(client.get("/").await?.status() == 200);
        ensure!(client.post("/drop", b"once").await?.status() == 502);
    }
    let seen = fixture.endpoint().requests();
    let dropped: Vec<_> = seen.iter().filter(|seen| seen.head.target() == "/drop").collect();
    assert_eq!(dropped.len(), ROUNDS);
    let reused = |one: &&RecordedRequest| {
        let first = seen.iter().find(|it| it.connection == one.connection);
        first.is_some_and(|first| first.received_at < one.received_at)
    };
    ensure!(dropped.iter().any(reused), "all of them used fresh connections");
    Ok(())
}

#[tokio::test]
async fn idempotent_request_is_retried_a_few_times() -> Result {
    for method in ["GET", "PUT", "DELETE"] {
        let fixture = HttpFixture::of(vec![
            ServeStep::ReadBody,
            ServeStep::CloseFor("/drop"),
            ServeStep::Answer,
        ])
        .await?;
        let mut client = fixture.client().await?;
        ensure!(client.get("/").await?.status() == 200);
        ensure!(client.exchange(method, "/drop", &[], b"").await?.status() == 502);
        let attempts = fixture.endpoint().counts().requests - 1;
        // Three attempts, and possibly one before them on a reused connection.
        ensure!((2..=4).contains(&attempts), "{method}: {attempts} attempts");
    }
    Ok(())
}

/// A kept connection that turns out to be closed does not count as an attempt: endpoints die one
/// after another, each with idle connections.
#[tokio::test]
async fn get_survives_the_death_of_two_of_three_endpoints() -> Result {
    const ROUNDS: usize = 5;
    const CLIENTS: usize = 12;
    let wait = || ServeStep::Wait(Duration::from_millis(20));
    for _ in 0..ROUNDS {
        let dying =
            vec![ServeStep::ReadBody, wait(), ServeStep::CloseFor("/drop"), ServeStep::Answer];
        let staying = EndpointBehaviour::from(vec![ServeStep::ReadBody, wait(), ServeStep::Answer]);
        let mut servers = start_endpoints(2, &dying.into()).await?;
        servers.push(Endpoint::start(staying).await?);
        let fixture = HttpFixture::with(servers, &[], &["--workers", "1"]).await?;
        for target in ["/", "/drop"] {
            let address = fixture.sheave.address();
            let get = || async move { Http1TestClient::connect(address).await?.get(target).await };
            let clients: JoinSet<_> = (0..CLIENTS).map(|_| get()).collect();
            for response in clients.join_all().await {
                let response = response?;
                ensure!(response.status() == 200, "{target}: {response:?}");
            }
        }
    }
    Ok(())
}

/// If an endpoint leaves its backend during a connection attempt, the request goes to another
/// endpoint.
#[tokio::test]
async fn request_survives_the_replacement_of_all_endpoints() -> Result {
    let full = Socket::new(Domain::IPV4, Type::STREAM, None)?;
    full.bind(&SocketAddr::from(([127, 0, 0, 1], 0)).into())?;
    full.listen(0)?;
    let address = full.local_addr()?.as_socket().context("an address")?;
    // The backlog has room for one connection that has not been accepted.
    let _first = TcpStream::connect(address).await?;
    let configuration = ConfigDirectory::for_endpoints(&[address])?;
    let sheave = SheaveProcess::serve(&configuration).await?;

    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let get = tokio::spawn(async move { client.get("/").await });
    let active = async || sheave.active_requests().await;
    eventually("the request has a slot", active, |active| *active == 1).await?;
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    configuration.set_endpoints(&[endpoint.address])?;
    sheave.wait_for_endpoints(&[endpoint.address]).await?;
    ensure!(!get.is_finished(), "the request does not wait for a connection");
    // The next packet of the connection attempt is refused.
    drop(full);
    let response = get.await??;
    ensure!(response.status() == 200, "{response:?}");
    Ok(())
}

/// A body is buffered for a retry only if it is small.
#[tokio::test]
async fn request_with_an_unbuffered_body_is_not_retried() -> Result {
    for (length, may_fail) in [(10_000, false), (1_000_000, true)] {
        let body: Vec<u8> = payload::pieces(length).flatten().copied().collect();
        let dropping = Endpoint::start(vec![ServeStep::ReadBody, ServeStep::Close]).await?;
        let serving = Endpoint::start(EndpointBehaviour::ok()).await?;
        let fixture = HttpFixture::with(vec![dropping, serving], &[], &[]).await?;
        let mut client = fixture.client().await?;
        for _ in 0..10 {
            let status = client.exchange("PUT", "/", &[], &body).await?.status();
            ensure!(status == 200 || may_fail && status == 502, "{length} bytes: {status}");
        }
        for seen in fixture.endpoints[1].requests() {
            assert_eq!(seen.body, Some(BodyDigest::of_pattern(length)));
        }
    }
    Ok(())
}

#[tokio::test]
async fn dropped_request_is_retried_on_another_endpoint() -> Result {
    let dropping = Endpoint::start(vec![ServeStep::ReadBody, ServeStep::Close]).await?;
    let serving = Endpoint::start(EndpointBehaviour::ok()).await?;
    let fixture = HttpFixture::with(vec![dropping, serving], &[], &[]).await?;
    let mut client = fixture.client().await?;
    for _ in 0..20 {
        ensure!(client.get("/").await?.status() == 200);
    }
    Ok(())
}

#[tokio::test]
async fn refused_connection_is_retried_on_another_endpoint() -> Result {
    let serving = Endpoint::start(EndpointBehaviour::ok()).await?;
    let configuration =
        ConfigDirectory::for_endpoints(&[refusing_address().await?, serving.address])?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    for _ in 0..20 {
        // No byte was sent, so any request may be retried.
        ensure!(client.post("/", b"hello").await?.status() == 200);
    }
    Ok(())
}

#[tokio::test]
async fn all_endpoints_refusing_connections_is_a_bad_gateway() -> Result {
    let configuration = ConfigDirectory::for_endpoints(&[refusing_address().await?])?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let response = Http1TestClient::connect(sheave.address()).await?.get("/").await?;
    ensure!(response.status() == 502, "{response:?}");
    let reason = response.field("proxy-status").unwrap_or_default();
    ensure!(reason.contains("connection_refused"), "{reason}");
    sheave.wait_until_idle().await
}

#[tokio::test]
async fn endpoint_that_never_responds_times_out() -> Result {
    for (timeouts, reason) in [
        (json!({ "perAttempt": "200ms" }), "http_response_timeout"),
        (json!({ "request": "200ms" }), "http_response_timeout"),
        (json!({ "idle": "200ms" }), "connection_read_timeout"),
    ] {
        let policy = json!({ "timeouts": timeouts });
        let fixture = HttpFixture::with_backend_policy(
            vec![ServeStep::ReadBody, ServeStep::WaitForever],
            policy,
        )
        .await?;
        let mut client = fixture.client().await?;
        let begun = Instant::now();
        let response = client.post("/", b"x").await?;
        ensure!(response.status() == 504, "{timeouts}: {response:?}");
        ensure!(begun.elapsed() >= Duration::from_millis(190), "{timeouts}");
        let status = response.field("proxy-status").unwrap_or_default();
        ensure!(status.contains(reason), "{timeouts}: {status}");
        fixture.sheave.wait_until_idle().await?;
    }
    Ok(())
}

/// The timed-out attempt still holds its slot at a capped endpoint.
#[tokio::test]
async fn timed_out_attempt_does_not_exceed_the_cap() -> Result {
    let policy = json!({
        "maxInFlightPerEndpoint": 1,
        "queue": { "timeout": "1h" },
        "timeouts": { "perAttempt": "100ms" },
    });
    let fixture = HttpFixture::with_backend_policy(EndpointBehaviour::gated(), policy).await?;
    ensure!(fixture.client().await?.post("/", b"x").await?.status() == 504);
    let mut next = fixture.client().await?;
    next.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    fixture.sheave.wait_for_queue_length(1).await?;
    fixture.endpoint().open_gate(2);
    ensure!(next.response("GET").await?.status() == 200);
    let counts = fixture.endpoint().counts();
    ensure!(counts.max_in_flight == 1 && counts.max_connections == 1, "{counts:?}");
    Ok(())
}

#[tokio::test]
async fn a_stalled_response_is_cut() -> Result {
    let stalled = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhello";
    let policy = json!({ "timeouts": { "idle": "200ms" } });
    let fixture = HttpFixture::with_backend_policy(
        vec![ServeStep::ReadBody, ServeStep::send(stalled), ServeStep::WaitForever],
        policy,
    )
    .await?;
    let outcome = fixture.client().await?.get("/").await;
    ensure!(matches!(outcome, Err(Http1Error::Truncated(_) | Http1Error::Io(_))), "{outcome:?}");
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn endless_response_head_is_a_bad_gateway() -> Result {
    let endless = format!("HTTP/1.1 200 OK\r\nX: {}", "a".repeat(1_000_000));
    let fixture = HttpFixture::of(vec![
        ServeStep::ReadBody,
        ServeStep::send(&endless),
        ServeStep::WaitForever,
    ])
    .await?;
    let response = fixture.client().await?.get("/").await?;
    ensure!(response.status() == 502, "{response:?}");
    let reason = response.field("proxy-status").unwrap_or_default();
    ensure!(reason.contains("http_protocol_error"), "{reason}");
    Ok(())
}

/// Gateway API: a rule without a usable backend is answered 500.
#[tokio::test]
async fn rule_without_a_usable_backend_is_500() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let configuration = ConfigDirectory::empty()?;
    let mut main = objects::gateway();
    let references = json!([{ "name": SERVICE, "port": 80, "weight": 0 }]);
    main.push(objects::route_with("none", json!({ "rules": [{ "backendRefs": references }] })));
    main.push(objects::service(SERVICE));
    main.extend(objects::slices(SERVICE, &[endpoint.address]));
    configuration.write("main.yaml", &main)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let response = Http1TestClient::connect(sheave.address()).await?.get("/").await?;
    ensure!(response.status() == 500, "{response:?}");
    ensure!(response.head.has_field("proxy-status"), "{response:?}");
    Ok(())
}

#[tokio::test]
async fn requests_follow_backend_weights() -> Result {
    let (many, few) = (
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    );
    let configuration = ConfigDirectory::empty()?;
    let mut main = objects::gateway();
    let references = json!([
        { "name": "many", "port": 80, "weight": 90 },
        { "name": "few", "port": 80, "weight": 10 },
    ]);
    main.push(objects::route_with("canary", json!({ "rules": [{ "backendRefs": references }] })));
    for (name, endpoint) in [("many", &many), ("few", &few)] {
        main.push(objects::service(name));
        main.extend(objects::slices(name, &[endpoint.address]));
    }
    configuration.write("main.yaml", &main)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    for _ in 0..1000 {
        ensure!(client.get("/").await?.status() == 200);
    }
    let got = few.counts().requests;
    ensure!((50..=150).contains(&got), "{got} of 1000 instead of 100");
    Ok(())
}
