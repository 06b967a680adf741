//! Translation of messages between HTTP versions.

use anyhow::ensure;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::payload::{self, BodyDigest};
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, http2, within};

use super::fixture::Http2Fixture;

/// Returns a client, and an HTTP/1.1 endpoint of this behaviour.
async fn http2_client_fixture(
    behaviour: impl Into<EndpointBehaviour>,
) -> Result<(Http2Fixture, Endpoint, http2::Http2TestClient)> {
    let endpoint = Endpoint::start(behaviour).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
    let client = site.client().await?;
    Ok((site, endpoint, client))
}

#[tokio::test]
async fn http2_request_is_translated_to_http1() -> Result {
    let (_site, endpoint, client) = http2_client_fixture(EndpointBehaviour::ok()).await?;
    let mut request = http2::post("/a/b?c=d");
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
    assert_eq!(seen.body, Some(BodyDigest::of(b"hello")));
    Ok(())
}

#[tokio::test]
async fn http1_response_is_translated_to_http2() -> Result {
    let answer = "HTTP/1.1 404 Gone Fishing\r\nX-Field: value\r\nSet-Cookie: a=1\r\n\
        Set-Cookie: b=2\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: 4\r\n\r\nnope";
    let (_site, _endpoint, client) =
        http2_client_fixture(EndpointBehaviour::answering(answer)).await?;
    let response = client.get("/").await?;
    let fields = response.head.headers();
    ensure!(response.status() == 404 && response.text() == "nope", "{response:?}");
    assert_eq!(response.field("x-field"), Some("value"));
    assert_eq!(fields.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(response.field("content-length"), Some("4"));
    ensure!(!fields.contains_key("connection") && !fields.contains_key("x-hop"), "{fields:?}");
    Ok(())
}

/// Trailers pass in both directions, between any two versions.
#[tokio::test]
async fn trailers_pass() -> Result {
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::send(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nSum: 2\r\n\r\n",
        ),
    ];
    let (_site, endpoint, client) = http2_client_fixture(steps).await?;
    let response = exchange_with_trailers(&client).await?;
    ensure!(response.text() == "ok" && response.trailer("sum") == Some("2"), "{response:?}");
    assert_eq!(endpoint.only_request().trailers, [("sum".to_owned(), "5".to_owned())]);

    let endpoint = http2::Http2TestEndpoint::start(|call| async { call.echo().await }).await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let response = exchange_with_trailers(&site.client().await?).await?;
    ensure!(response.text() == "hello" && response.trailer("sum") == Some("5"), "{response:?}");
    let mut client = tests::Http1TestClient::connect(site.sheave.address()).await?;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await?;
    client.send("5\r\nhello\r\n0\r\nSum: 5\r\n\r\n").await?;
    let response = client.response("POST").await?;
    ensure!(response.text() == "hello", "{response:?}");
    assert_eq!(response.trailers, [("sum".to_owned(), "5".to_owned())]);
    Ok(())
}

/// Sends a POST of `hello` with the trailer `sum`.
async fn exchange_with_trailers(
    client: &http2::Http2TestClient,
) -> Result<http2::CompleteResponse> {
    let (response, mut sending) = client.send_request(http2::post("/"), false).await?;
    http2::send(&mut sending, Bytes::from_static(b"hello")).await?;
    let sum = ("sum".parse()?, HeaderValue::from_static("5"));
    sending.send_trailers(HeaderMap::from_iter([sum]))?;
    Ok(within("an answer", http2::Http2TestClient::response(response)).await??)
}

#[tokio::test]
async fn large_bodies_pass_both_ways() -> Result {
    const LENGTH: u64 = 3_000_000;
    let (_site, endpoint, client) = http2_client_fixture(vec![ServeStep::Echo]).await?;
    let body: Vec<u8> = payload::pieces(LENGTH).flatten().copied().collect();
    let response = client.post("/", body.clone()).await?;
    ensure!(
        BodyDigest::of(&response.body) == BodyDigest::of_pattern(LENGTH),
        "{}",
        response.body.len()
    );
    assert_eq!(endpoint.only_request().body, Some(BodyDigest::of_pattern(LENGTH)));

    let endpoint = http2::Http2TestEndpoint::start(|call| async { call.echo().await }).await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let response = site.client().await?.post("/", body).await?;
    ensure!(
        BodyDigest::of(&response.body) == BodyDigest::of_pattern(LENGTH),
        "{}",
        response.body.len()
    );
    Ok(())
}

#[tokio::test]
async fn head_response_has_no_body() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    let (_site, _endpoint, client) =
        http2_client_fixture(EndpointBehaviour::answering(answer)).await?;
    let request = Request::head("http://test/").body(())?;
    let response = client.exchange(request, Bytes::new()).await?;
    ensure!(response.body.is_empty() && response.field("content-length") == Some("10"));
    Ok(())
}

/// The host is named by `:authority`; a Host field may repeat it, not contradict it (RFC 9113
/// §8.3.1).
#[tokio::test]
async fn authority_and_host_agree_or_the_request_is_malformed() -> Result {
    let (site, endpoint, _client) = http2_client_fixture(EndpointBehaviour::ok()).await?;
    let base = [(":method", "GET"), (":scheme", "http"), (":path", "/")];
    type FieldList<'a> = &'a [(&'a str, &'a str)];
    let cases: [(FieldList<'_>, Option<&str>); 5] = [
        (&[(":authority", "a.test")], Some("a.test")),
        (&[("host", "b.test")], Some("b.test")),
        (&[(":authority", "c.test"), ("host", "c.test")], Some("c.test")),
        (&[(":authority", "d.test"), ("host", "e.test")], None),
        (&[], None),
    ];
    let mut expected = Vec::new();
    for (fields, host) in cases {
        let block = frames::block(&[&base[..], fields].concat());
        let mut wire = RawHttp2Connection::connect(site.sheave.address(), &[]).await?;
        let flags = frames::END_STREAM | frames::END_HEADERS;
        wire.write(&RawHttp2Frame::new(frames::HEADERS, flags, 1, block)).await?;
        let answered = is_answered_200(&mut wire).await?;
        ensure!(answered == host.is_some(), "{fields:?}");
        expected.extend(host);
    }
    let seen = endpoint.requests();
    let hosts: Vec<_> = seen.iter().flat_map(|seen| seen.head.field_values("host")).collect();
    assert_eq!(hosts, expected);
    Ok(())
}

/// RFC 9113 §8.2.1 and §8.3.1: the same as over HTTP/1.1, although the library accepts more.
#[tokio::test]
async fn malformed_names_and_schemes_are_refused() -> Result {
    let (site, endpoint, _client) = http2_client_fixture(EndpointBehaviour::ok()).await?;
    let base = [(":method", "GET"), (":path", "/"), (":authority", "test")];
    let cases: [&[(&str, &str)]; 3] = [
        &[(":scheme", "http"), ("x\"y", "1")],
        &[(":scheme", "http"), ("x y", "1")],
        &[(":scheme", "")],
    ];
    for fields in cases {
        let block = frames::block(&[&base[..], fields].concat());
        let mut wire = RawHttp2Connection::connect(site.sheave.address(), &[]).await?;
        let flags = frames::END_STREAM | frames::END_HEADERS;
        wire.write(&RawHttp2Frame::new(frames::HEADERS, flags, 1, block)).await?;
        ensure!(!is_answered_200(&mut wire).await?, "{fields:?}");
    }
    ensure!(endpoint.counts().requests == 0);
    Ok(())
}

/// Browsers send each cookie as a field of its own; over HTTP/1.1 all would be one.
#[tokio::test]
async fn pieces_of_the_cookie_count_as_one_field() -> Result {
    let (_site, endpoint, client) = http2_client_fixture(EndpointBehaviour::ok()).await?;
    let mut request = http2::get("/");
    for number in 0..300 {
        request.headers_mut().append("cookie", format!("c{number}=1").parse()?);
    }
    ensure!(client.exchange(request, Bytes::new()).await?.status() == 200);
    let cookie = endpoint.only_request().head.field("cookie").unwrap_or_default();
    ensure!(cookie.split("; ").count() == 300, "{cookie}");
    // The limit of all bytes holds.
    let mut request = http2::get("/");
    for number in 0..300 {
        request.headers_mut().append("cookie", format!("c{number}={}", "a".repeat(200)).parse()?);
    }
    let refused = client.exchange(request, Bytes::new()).await;
    ensure!(!refused.is_ok_and(|response| response.status() == 200), "too large");
    Ok(())
}

/// Returns true if the only stream is answered with 200, entry 8 of the static table; false if it
/// is reset, or answered otherwise.
async fn is_answered_200(wire: &mut RawHttp2Connection) -> Result<bool> {
    while let Some(frame) = wire.reader.next_frame().await? {
        match frame.kind {
            frames::HEADERS => return Ok(frame.payload.first() == Some(&frames::STATUS_200)),
            frames::RST_STREAM | frames::GOAWAY => return Ok(false),
            _ => {}
        }
    }
    Ok(false)
}
