//! Translation of messages between HTTP versions.

use anyhow::ensure;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use serde_json::json;
use tests::http2::{CompleteResponse, Http2TestEndpoint};
use tests::payload::{self, BodyDigest};
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, within};

use super::fixture::{MultiplexedClient, MultiplexedFixture};

test_each_version! {
    request_is_translated_to_http1,
    http1_response_is_translated,
    trailers_pass,
    large_bodies_pass_both_ways,
    head_response_has_no_body,
    oversized_request_gets_an_error_and_the_connection_stays_open,
    truncated_response_is_reset,
}

/// Returns a client, and an HTTP/1.1 endpoint of this behaviour.
async fn client_and_endpoint<F: MultiplexedFixture>(
    behaviour: impl Into<EndpointBehaviour>,
) -> Result<(F, Endpoint, F::Client)> {
    let endpoint = Endpoint::start(behaviour).await?;
    let fixture = F::start(&[endpoint.address]).await?;
    let client = fixture.connect().await?;
    Ok((fixture, endpoint, client))
}

async fn request_is_translated_to_http1<F: MultiplexedFixture>() -> Result {
    let (_fixture, endpoint, client) = client_and_endpoint::<F>(EndpointBehaviour::ok()).await?;
    let mut request = F::Client::request("POST", "/a/b?c=d");
    let fields = request.headers_mut();
    // Cookie crumbs are joined into one field (RFC 9113 §8.2.3).
    for crumb in ["a=1", "b=2", "c=3"] {
        fields.append("cookie", HeaderValue::from_static(crumb));
    }
    fields.insert("x-field", HeaderValue::from_static("value"));
    ensure!(client.exchange(request, Bytes::from_static(b"hello")).await?.text() == "ok");
    let seen = endpoint.only_request();
    assert_eq!(seen.head.start, "POST /a/b?c=d HTTP/1.1");
    assert_eq!(seen.head.field_values("host"), ["test"]);
    assert_eq!(seen.head.field_values("cookie"), ["a=1; b=2; c=3"]);
    assert_eq!(seen.head.field_values("x-field"), ["value"]);
    assert_eq!(seen.head.field_values("x-forwarded-for"), ["127.0.0.1"]);
    assert_eq!(seen.head.field_values("x-forwarded-proto"), [F::Client::SCHEME]);
    assert_eq!(seen.head.field_values("via"), [F::Client::VIA]);
    assert_eq!(seen.body, Some(BodyDigest::of(b"hello")));
    Ok(())
}

async fn http1_response_is_translated<F: MultiplexedFixture>() -> Result {
    let answer = "HTTP/1.1 404 Gone Fishing\r\nX-Field: value\r\nSet-Cookie: a=1\r\n\
        Set-Cookie: b=2\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: 4\r\n\r\nnope";
    let (_fixture, _endpoint, client) =
        client_and_endpoint::<F>(EndpointBehaviour::answering(answer)).await?;
    let response = client.get("/").await?;
    let fields = response.head.headers();
    ensure!(response.status() == 404 && response.text() == "nope", "{response:?}");
    assert_eq!(response.field("x-field"), Some("value"));
    assert_eq!(fields.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(response.field("content-length"), Some("4"));
    ensure!(!fields.contains_key("connection") && !fields.contains_key("x-hop"), "{fields:?}");
    Ok(())
}

/// Trailers pass in both directions, as gRPC requires, to endpoints of any version.
async fn trailers_pass<F: MultiplexedFixture>() -> Result {
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::send(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nSum: 2\r\n\r\n",
        ),
    ];
    let (_fixture, endpoint, client) = client_and_endpoint::<F>(steps).await?;
    let response = exchange_with_trailers(&client).await?;
    ensure!(response.text() == "ok" && response.trailer("sum") == Some("2"), "{response:?}");
    assert_eq!(endpoint.only_request().trailers, [("sum".to_owned(), "5".to_owned())]);

    let endpoint = Http2TestEndpoint::start(|call| async { call.echo().await }).await?;
    let fixture = F::start_with_http2_endpoints(&[endpoint.address]).await?;
    let response = exchange_with_trailers(&fixture.connect().await?).await?;
    ensure!(response.text() == "hello" && response.trailer("sum") == Some("5"), "{response:?}");
    Ok(())
}

/// Sends a POST of `hello` with the trailer `sum`.
async fn exchange_with_trailers<C: MultiplexedClient>(client: &C) -> Result<CompleteResponse> {
    let (mut sending, response) = client.begin(C::request("POST", "/")).await?;
    C::send(&mut sending, b"hello").await?;
    let sum = ("sum".parse()?, HeaderValue::from_static("5"));
    C::end(sending, Some(HeaderMap::from_iter([sum]))).await?;
    within("an answer", C::response(response)).await?
}

async fn large_bodies_pass_both_ways<F: MultiplexedFixture>() -> Result {
    const LENGTH: u64 = 3_000_000;
    let (_fixture, endpoint, client) = client_and_endpoint::<F>(vec![ServeStep::Echo]).await?;
    check_large_echo(&client, LENGTH).await?;
    assert_eq!(endpoint.only_request().body, Some(BodyDigest::of_pattern(LENGTH)));

    let endpoint = Http2TestEndpoint::start(|call| async { call.echo().await }).await?;
    let fixture = F::start_with_http2_endpoints(&[endpoint.address]).await?;
    check_large_echo(&fixture.connect().await?, LENGTH).await
}

/// Sends a body of this length, which the endpoint returns.
async fn check_large_echo<C: MultiplexedClient>(client: &C, length: u64) -> Result {
    let body: Vec<u8> = payload::pieces(length).flatten().copied().collect();
    let response = client.post("/", body).await?;
    ensure!(
        BodyDigest::of(&response.body) == BodyDigest::of_pattern(length),
        "{}",
        response.body.len()
    );
    Ok(())
}

async fn head_response_has_no_body<F: MultiplexedFixture>() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    let (_fixture, _endpoint, client) =
        client_and_endpoint::<F>(EndpointBehaviour::answering(answer)).await?;
    let response = client.exchange(F::Client::request("HEAD", "/"), Bytes::new()).await?;
    ensure!(response.body.is_empty() && response.field("content-length") == Some("10"));
    Ok(())
}

/// An oversized request gets an HTTP error status, and the connection stays open.
async fn oversized_request_gets_an_error_and_the_connection_stays_open<F: MultiplexedFixture>()
-> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let limits = json!({ "limits": { "bodyBytes": 10, "targetBytes": 64, "headerFields": 8 } });
    let fixture = F::start_with_policy(&[endpoint.address], limits).await?;
    let client = fixture.connect().await?;
    let mut request = F::Client::request("POST", "/");
    request.headers_mut().insert("content-length", HeaderValue::from_static("19"));
    let response = client.exchange(request, Bytes::from_static(b"more than ten bytes")).await?;
    ensure!(response.status() == 413, "{response:?}");
    ensure!(client.get(&format!("/{}", "a".repeat(64))).await?.status() == 414);
    let mut request = F::Client::request("GET", "/");
    for number in 0..9 {
        let name: http::HeaderName = format!("x-field-{number}").parse()?;
        request.headers_mut().insert(name, HeaderValue::from_static("value"));
    }
    ensure!(client.exchange(request, Bytes::new()).await?.status() == 431);
    ensure!(client.post("/", "ten bytes!").await?.status() == 200);
    assert_eq!(endpoint.counts().requests, 1);
    Ok(())
}

/// An incomplete response never looks complete.
async fn truncated_response_is_reset<F: MultiplexedFixture>() -> Result {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    let steps = vec![ServeStep::ReadBody, ServeStep::send(cut), ServeStep::Close];
    let (_fixture, _endpoint, client) = client_and_endpoint::<F>(steps).await?;
    let response = within("an end", F::Client::response(client.begin_get().await?)).await?;
    ensure!(response.is_err(), "{response:?}");
    Ok(())
}
