//! Translation of messages between HTTP versions.

use anyhow::ensure;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Request};
use serde_json::json;
use tests::endpoint::refusing_address;
use tests::payload::{self, BodyDigest};
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, grpc, http2, http3, within};

use crate::fixture::Http3Fixture;

/// Returns a client, and an HTTP/1.1 endpoint of this behaviour.
async fn http3_client_fixture(
    behaviour: impl Into<EndpointBehaviour>,
) -> Result<(Http3Fixture, Endpoint, http3::Http3TestClient)> {
    let endpoint = Endpoint::start(behaviour).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let client = site.client().await?;
    Ok((site, endpoint, client))
}

#[tokio::test]
async fn http3_request_is_translated_to_http1() -> Result {
    let (site, endpoint, client) = http3_client_fixture(EndpointBehaviour::ok()).await?;
    let mut request = http3::post("/a/b?c=d");
    let fields = request.headers_mut();
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
    assert_eq!(seen.head.field_values("x-forwarded-proto"), ["https"]);
    assert_eq!(seen.head.field_values("via"), ["3 sheave"]);
    assert_eq!(seen.body, Some(BodyDigest::of(b"hello")));
    let line = site.sheave.wait_for_access_log(1).await?.remove(0);
    assert_eq!(line["network.protocol.version"], "3");
    assert_eq!(line["tls.protocol.version"], "1.3");
    assert_eq!(line["client.address"], "127.0.0.1");
    Ok(())
}

#[tokio::test]
async fn http1_response_is_translated_to_http3() -> Result {
    let answer = "HTTP/1.1 404 Gone Fishing\r\nX-Field: value\r\nSet-Cookie: a=1\r\n\
        Set-Cookie: b=2\r\nConnection: x-hop\r\nX-Hop: 1\r\nContent-Length: 4\r\n\r\nnope";
    let (_site, _endpoint, client) =
        http3_client_fixture(EndpointBehaviour::answering(answer)).await?;
    let response = client.get("/").await?;
    let fields = response.head.headers();
    ensure!(response.status() == 404 && response.text() == "nope", "{response:?}");
    assert_eq!(response.field("x-field"), Some("value"));
    assert_eq!(fields.get_all("set-cookie").iter().collect::<Vec<_>>(), ["a=1", "b=2"]);
    assert_eq!(response.field("content-length"), Some("4"));
    ensure!(!fields.contains_key("connection") && !fields.contains_key("x-hop"), "{fields:?}");
    Ok(())
}

/// Trailers pass in both directions, as gRPC requires.
#[tokio::test]
async fn trailers_pass() -> Result {
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::send(
            "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nok\r\n0\r\nSum: 2\r\n\r\n",
        ),
    ];
    let (_site, endpoint, client) = http3_client_fixture(steps).await?;
    let response = exchange_with_trailers(&client).await?;
    ensure!(response.text() == "ok" && response.trailer("sum") == Some("2"), "{response:?}");
    assert_eq!(endpoint.only_request().trailers, [("sum".to_owned(), "5".to_owned())]);

    let endpoint = http2::Http2TestEndpoint::start(|call| async { call.echo().await }).await?;
    let site = Http3Fixture::of_http2(&[endpoint.address]).await?;
    let response = exchange_with_trailers(&site.client().await?).await?;
    ensure!(response.text() == "hello" && response.trailer("sum") == Some("5"), "{response:?}");
    Ok(())
}

/// A gRPC call over HTTP/3 ends with its status: the server's in a trailer, Sheave's own in a
/// trailers-only response.
#[tokio::test]
async fn grpc_call_over_http3_ends_with_its_status() -> Result {
    let call = || {
        let mut head = http3::post("/test.Echo/Say");
        head.headers_mut().insert("content-type", HeaderValue::from_static("application/grpc"));
        (head, grpc::message(b"hello"))
    };
    let server = http2::Http2TestEndpoint::start(|call: http2::ReceivedRequest| async {
        call.reply(b"said").await
    })
    .await?;
    let site = Http3Fixture::of_http2(&[server.address]).await?;
    let (head, message) = call();
    let answer = site.client().await?.exchange(head, message).await?;
    ensure!(answer.status() == 200 && answer.trailer("grpc-status") == Some("0"), "{answer:?}");
    assert_eq!(grpc::messages(answer.body)?, ["said"]);

    let site = Http3Fixture::of_http2(&[refusing_address().await?]).await?;
    let (head, message) = call();
    let answer = site.client().await?.exchange(head, message).await?;
    ensure!(answer.status() == 200 && answer.field("grpc-status") == Some("14"), "{answer:?}");
    Ok(())
}

/// Sends a POST of `hello` with the trailer `sum`.
async fn exchange_with_trailers(
    client: &http3::Http3TestClient,
) -> Result<http3::CompleteResponse> {
    let (mut sending, receiving) = client.send_request(http3::post("/")).await?;
    sending.send_data(Bytes::from_static(b"hello")).await?;
    let sum = ("sum".parse()?, HeaderValue::from_static("5"));
    sending.send_trailers(HeaderMap::from_iter([sum])).await?;
    sending.finish().await?;
    Ok(within("an answer", http3::Http3TestClient::response(receiving)).await??)
}

#[tokio::test]
async fn large_bodies_pass_both_ways() -> Result {
    const LENGTH: u64 = 3_000_000;
    let (_site, endpoint, client) = http3_client_fixture(vec![ServeStep::Echo]).await?;
    let body: Vec<u8> = payload::pieces(LENGTH).flatten().copied().collect();
    let response = client.post("/", body.clone()).await?;
    ensure!(
        BodyDigest::of(&response.body) == BodyDigest::of_pattern(LENGTH),
        "{}",
        response.body.len()
    );
    assert_eq!(endpoint.only_request().body, Some(BodyDigest::of_pattern(LENGTH)));

    let endpoint = http2::Http2TestEndpoint::start(|call| async { call.echo().await }).await?;
    let site = Http3Fixture::of_http2(&[endpoint.address]).await?;
    let response = site.client().await?.post("/", body).await?;
    ensure!(
        BodyDigest::of(&response.body) == BodyDigest::of_pattern(LENGTH),
        "{}",
        response.body.len()
    );
    Ok(())
}

/// Responses pass with every congestion control that a policy can choose.
#[tokio::test]
async fn large_bodies_pass_with_cubic_and_bbr() -> Result {
    const LENGTH: u64 = 3_000_000;
    for control in ["Cubic", "Bbr"] {
        let endpoint = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
        let policy = json!({ "http3": { "congestionControl": control } });
        let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
        let response = site.client().await?.get("/").await?;
        ensure!(BodyDigest::of(&response.body) == BodyDigest::of_pattern(LENGTH), "{control}");
    }
    Ok(())
}

#[tokio::test]
async fn head_response_has_no_body() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\n";
    let (_site, _endpoint, client) =
        http3_client_fixture(EndpointBehaviour::answering(answer)).await?;
    let request = Request::head("https://test/").body(())?;
    let response = client.exchange(request, Bytes::new()).await?;
    ensure!(response.body.is_empty() && response.field("content-length") == Some("10"));
    Ok(())
}

/// An oversized request gets an HTTP error status, and the connection stays open.
#[tokio::test]
async fn oversized_request_gets_an_error_and_the_connection_stays_open() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let limits = json!({ "limits": { "bodyBytes": 10, "targetBytes": 64, "headerFields": 8 } });
    let site = Http3Fixture::with_client_policy(&[endpoint.address], limits).await?;
    let client = site.client().await?;
    let mut request = http3::post("/");
    request.headers_mut().insert("content-length", HeaderValue::from_static("19"));
    let response = client.exchange(request, Bytes::from_static(b"more than ten bytes")).await?;
    ensure!(response.status() == 413, "{response:?}");
    ensure!(client.get(&format!("/{}", "a".repeat(64))).await?.status() == 414);
    let mut request = http3::get("/");
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
#[tokio::test]
async fn truncated_response_is_reset() -> Result {
    let cut = "HTTP/1.1 200 OK\r\nContent-Length: 10\r\n\r\nhalf";
    let (_site, _endpoint, client) =
        http3_client_fixture(vec![ServeStep::ReadBody, ServeStep::send(cut), ServeStep::Close])
            .await?;
    let (mut sending, receiving) = client.send_request(http3::get("/")).await?;
    sending.finish().await?;
    let response = within("an end", http3::Http3TestClient::response(receiving)).await?;
    ensure!(response.is_err(), "{response:?}");
    Ok(())
}
