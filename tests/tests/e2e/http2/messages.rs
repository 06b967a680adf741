//! Translation of messages between HTTP versions.

use anyhow::ensure;
use bytes::Bytes;
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::{Endpoint, EndpointBehaviour, Http1TestClient, Result, http2};

use super::fixture::Http2Fixture;

/// Trailers of an HTTP/1.1 client pass to an HTTP/2 endpoint and back.
#[tokio::test]
async fn trailers_pass_from_http1_to_http2() -> Result {
    let endpoint = http2::Http2TestEndpoint::start(|call| async { call.echo().await }).await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let mut client = Http1TestClient::connect(site.sheave.address()).await?;
    client
        .send("POST / HTTP/1.1\r\nHost: a\r\nTE: trailers\r\nTransfer-Encoding: chunked\r\n\r\n")
        .await?;
    client.send("5\r\nhello\r\n0\r\nSum: 5\r\n\r\n").await?;
    let response = client.response("POST").await?;
    ensure!(response.text() == "hello", "{response:?}");
    assert_eq!(response.trailers, [("sum".to_owned(), "5".to_owned())]);
    Ok(())
}

/// The host is named by `:authority`; a Host field may repeat it, not contradict it (RFC 9113
/// §8.3.1).
#[tokio::test]
async fn authority_and_host_agree_or_the_request_is_malformed() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
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
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
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

/// RFC 9113 §8.1 and §8.3.1 call for an error. The library shows neither to us, so that neither is routed or forwarded.
#[tokio::test]
async fn fragments_and_pseudo_fields_of_trailers_reach_no_endpoint() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
    let head =
        [(":method", "POST"), (":scheme", "http"), (":authority", "test"), (":path", "/a?b#c")];
    let trailers = [(":path", "/other"), (":method", "GET"), ("sum", "5")];
    let mut wire = RawHttp2Connection::connect(site.sheave.address(), &[]).await?;
    let frame = |kind, flags, payload: Vec<u8>| RawHttp2Frame::new(kind, flags, 1, payload);
    wire.write(&frame(frames::HEADERS, frames::END_HEADERS, frames::block(&head))).await?;
    wire.write(&frame(frames::DATA, 0, b"hello".to_vec())).await?;
    let flags = frames::END_STREAM | frames::END_HEADERS;
    wire.write(&frame(frames::HEADERS, flags, frames::block(&trailers))).await?;
    if !is_answered_200(&mut wire).await? {
        // A later version of the library may refuse it.
        return Ok(());
    }
    let seen = endpoint.only_request();
    assert_eq!((seen.head.method(), seen.head.target()), ("POST", "/a?b"));
    let names: Vec<_> = seen.trailers.iter().map(|(name, _)| name.as_str()).collect();
    ensure!(names.iter().all(|name| *name == "sum"), "{names:?}");
    Ok(())
}

/// Browsers send each cookie as a field of its own; over HTTP/1.1 all would be one.
#[tokio::test]
async fn pieces_of_the_cookie_count_as_one_field() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
    let client = site.client().await?;
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
