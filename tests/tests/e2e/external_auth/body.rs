//! Bodies that authorizers get with requests.

use anyhow::ensure;
use bytes::Bytes;
use serde_json::json;
use tests::http2::{Http2TestClient, post};
use tests::payload::BodyDigest;
use tests::{EndpointBehaviour, Result, ServeStep, objects};

use super::AuthFixture;

const ALLOWED: &str = "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nX-User: alice\r\n\r\n";
const DENIED: &str = "HTTP/1.1 403 F\r\nContent-Length: 2\r\n\r\nno";

/// Reads the body before it answers.
fn answering(answer: &str) -> EndpointBehaviour {
    vec![ServeStep::ReadBody, ServeStep::send(answer)].into()
}

async fn fixture(answer: &str, most: u32) -> Result<AuthFixture> {
    let auth = json!({ "path": "/check", "forwardBody": { "maxSize": most } });
    AuthFixture::new(answering(answer), auth).await
}

/// Checks that authorizer and endpoint have got these bodies.
async fn expect_bodies(fixture: &AuthFixture, bodies: &[&[u8]]) -> Result {
    let expected: Vec<_> = bodies.iter().map(|it| Some(BodyDigest::of(it))).collect();
    for endpoint in [&fixture.authorizer, fixture.http.endpoint()] {
        let requests = endpoint.requests();
        let found: Vec<_> = requests.iter().map(|it| it.body).collect();
        ensure!(found == expected, "{requests:?}");
    }
    Ok(())
}

#[tokio::test]
async fn authorizer_and_endpoint_get_the_same_body() -> Result {
    let fixture = fixture(ALLOWED, 65535).await?;
    let mut client = fixture.client().await?;
    let large = vec![b'x'; 65535];
    let fields = [("Content-Type", "text/plain"), ("X-Secret", "s")];
    for body in [&b"small"[..], &large] {
        let response = client.exchange("POST", "/a", &fields, body).await?;
        ensure!(response.status() == 200, "{response:?}");
    }
    // Two requests at once, the first of them in chunks.
    let chunked = "POST /b HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\nTrailer: X-End\r\n\r\n\
                   3\r\nabc\r\n2\r\nde\r\n0\r\nX-End: 1\r\n\r\n";
    let next = "PUT /c HTTP/1.1\r\nHost: a\r\nContent-Length: 4\r\n\r\nnext";
    client.send(format!("{chunked}{next}")).await?;
    for method in ["POST", "PUT"] {
        let response = client.response(method).await?;
        ensure!(response.status() == 200, "{response:?}");
    }
    expect_bodies(&fixture, &[b"small", &large, b"abcde", b"next"]).await?;
    let asked = &fixture.authorizer.requests()[0].head;
    ensure!(asked.start == "POST /check HTTP/1.1", "{asked:?}");
    ensure!(asked.field("content-length").as_deref() == Some("5"), "{asked:?}");
    ensure!(asked.field("content-type").as_deref() == Some("text/plain"), "{asked:?}");
    ensure!(!asked.has_field("x-secret"), "{asked:?}");
    let served = &fixture.http.endpoint().requests()[2].head;
    ensure!(served.field("content-length").as_deref() == Some("5"), "{served:?}");
    Ok(())
}

#[tokio::test]
async fn bodies_of_http2_are_forwarded_whole() -> Result {
    let fixture = fixture(ALLOWED, 65535).await?;
    let client = Http2TestClient::connect(fixture.http.sheave.address()).await?;
    let large = Bytes::from(vec![b'y'; 60_000]);
    let response = client.post("/a", large.clone()).await?;
    ensure!(response.status() == 200, "{response:?}");
    let response = client.get("/b").await?;
    ensure!(response.status() == 200, "{response:?}");
    let of_first = [&fixture.authorizer, fixture.http.endpoint()];
    for requests in of_first.map(|it| it.requests()) {
        ensure!(requests[0].body == Some(BodyDigest::of(&large)), "{requests:?}");
        ensure!(requests[1].body == Some(BodyDigest::default()), "{requests:?}");
    }
    let (response, mut body) = client.send_request(post("/c"), false).await?;
    body.send_data(vec![b'z'; 40_000].into(), false)?;
    body.send_data(vec![b'z'; 25_000].into(), false)?;
    body.send_data(vec![b'z'; 600].into(), true)?;
    let response = Http2TestClient::response(response).await?;
    ensure!(response.status() == 413, "{response:?}");
    Ok(())
}

#[tokio::test]
async fn a_body_that_is_too_large_is_rejected_unasked() -> Result {
    let fixture = fixture(ALLOWED, 4).await?;
    let chunked =
        "POST / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nabcde\r\n0\r\n\r\n";
    let expecting =
        "POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 5\r\n\r\n";
    for request in [chunked, expecting] {
        let mut client = fixture.client().await?;
        client.send(request).await?;
        let response = client.response("POST").await?;
        ensure!(response.status() == 413 && response.informational.is_empty(), "{response:?}");
    }
    ensure!(fixture.client().await?.post("/", b"abcd").await?.status() == 200);
    expect_bodies(&fixture, &[b"abcd"]).await?;
    let labels = ["body_too_large"];
    fixture.http.sheave.wait_for_sum("sheave_failures_total", &labels, 2.0).await?;
    Ok(())
}

#[tokio::test]
async fn a_client_that_waits_is_told_to_send_its_body() -> Result {
    let fixture = fixture(ALLOWED, 100).await?;
    let mut client = fixture.client().await?;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nExpect: 100-continue\r\nContent-Length: 2\r\n\r\n")
        .await?;
    ensure!(client.reader.head().await?.status() == 100);
    client.send("hi").await?;
    let response = client.response("POST").await?;
    ensure!(response.status() == 200 && response.informational.is_empty(), "{response:?}");
    expect_bodies(&fixture, &[b"hi"]).await?;
    let served = fixture.http.endpoint().only_request().head;
    ensure!(!served.has_field("expect"), "{served:?}");
    Ok(())
}

#[tokio::test]
async fn a_denial_leaves_the_connection_at_the_next_request() -> Result {
    let fixture = fixture(DENIED, 100).await?;
    let mut client = fixture.client().await?;
    for _ in 0..2 {
        let response = client.post("/", b"body").await?;
        ensure!(response.status() == 403 && !response.closes(), "{response:?}");
    }
    ensure!(fixture.http.endpoint().counts().requests == 0);
    Ok(())
}

#[tokio::test]
async fn a_body_that_does_not_arrive_asks_nothing() -> Result {
    let auth = json!({ "path": "/check", "forwardBody": { "maxSize": 100 } });
    let timeouts = json!({ "timeouts": { "body": "100ms" } });
    let policies = [objects::client_policy(timeouts)];
    let fixture =
        AuthFixture::with(answering(ALLOWED), EndpointBehaviour::ok(), auth, &policies, &[])
            .await?;
    let mut client = fixture.client().await?;
    client.send("POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\npart").await?;
    let response = client.response("POST").await?;
    ensure!(response.status() == 408, "{response:?}");
    ensure!(fixture.authorizer.counts().requests == 0);
    ensure!(fixture.http.endpoint().counts().requests == 0);
    Ok(())
}
