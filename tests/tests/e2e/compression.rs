//! Compression of responses by TrafficPolicies. Responses are decoded by decoders that are not those of Sheave.

use std::io::Read;

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{
    Endpoint, EndpointBehaviour, Http1TestResponse, HttpFixture, Result, ServeStep, objects,
};

use crate::grpc::fixture::{GrpcFixture, METHOD};
use crate::http2::fixture::Http2Fixture;
use crate::http3::Http3Fixture;

const ALL: &str = "gzip, deflate, br, zstd";

fn policy(target: &Value, compression: &Value) -> Value {
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": { "name": format!("of-{}", target["kind"]).to_lowercase().replace('"', "") },
        "spec": { "targetRefs": [target], "compression": compression },
    })
}

/// Returns a policy for all requests.
fn of_gateway(compression: &Value) -> Value {
    policy(&json!({ "kind": "Gateway", "name": "edge" }), compression)
}

/// Returns lines that are worth to be compressed.
fn page(bytes: usize) -> String {
    let lines = (0_u64..).map(|n| format!("<li>order {} is on its way\n", n * n % 7919));
    let mut page: String = lines.take(bytes / 20).collect();
    page.truncate(bytes);
    page
}

/// Returns a behaviour that answers with these fields and body.
fn answering(fields: &str, body: &str) -> EndpointBehaviour {
    let length = body.len();
    let head = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n{fields}\r\n");
    EndpointBehaviour::answering(&(head + body))
}

async fn fixture(behaviour: EndpointBehaviour) -> Result<HttpFixture> {
    let endpoints = vec![Endpoint::start(behaviour).await?];
    HttpFixture::with(endpoints, &[of_gateway(&json!({}))], &["--workers", "1"]).await
}

async fn get(fixture: &HttpFixture, accepted: &str) -> Result<Http1TestResponse> {
    let fields = [("Accept-Encoding", accepted)];
    Ok(fixture.client().await?.exchange("GET", "/", &fields, b"").await?)
}

fn decoded(coding: &str, body: &[u8]) -> Result<String> {
    let mut text = Vec::new();
    match coding {
        "gzip" => drop(flate2::read::GzDecoder::new(body).read_to_end(&mut text)?),
        "br" => drop(brotli::Decompressor::new(body, 4096).read_to_end(&mut text)?),
        "zstd" => {
            text.reserve(16 << 20);
            let code = zstd_safe::decompress(&mut text, body);
            code.map_err(|code| anyhow::anyhow!("{}", zstd_safe::get_error_name(code)))?;
        }
        other => anyhow::bail!("unknown coding {other}"),
    }
    Ok(String::from_utf8(text)?)
}

#[tokio::test]
async fn each_coding_is_decoded_to_the_body_of_the_endpoint() -> Result {
    for bytes in [1024, 50_000, 4 << 20] {
        let page = page(bytes);
        let fields = "Content-Type: text/html; charset=utf-8\r\nETag: \"v1\"\r\n";
        let fixture = fixture(answering(fields, &page)).await?;
        let mut client = fixture.client().await?;
        for (accepted, coding) in
            [("gzip", "gzip"), ("br;q=1.0, gzip;q=0.8", "br"), (ALL, "zstd"), ("br", "br")]
        {
            // The connection is kept.
            let fields = [("Accept-Encoding", accepted)];
            let response = client.exchange("GET", "/", &fields, b"").await?;
            ensure!(
                response.field("content-encoding").as_deref() == Some(coding),
                "{:?}",
                response.head
            );
            ensure!(response.field("vary").as_deref() == Some("Accept-Encoding"));
            ensure!(response.field("etag").as_deref() == Some("W/\"v1\""));
            ensure!(response.field("content-length").is_none(), "{:?}", response.head);
            ensure!(response.body.len() < bytes / 2, "{coding}: {}", response.body.len());
            ensure!(decoded(coding, &response.body)? == page, "{coding}, {bytes}");
        }
        for accepted in ["identity", "gzip;q=0", "deflate"] {
            let response = get(&fixture, accepted).await?;
            ensure!(response.field("content-encoding").is_none(), "{:?}", response.head);
            ensure!(response.field("vary").as_deref() == Some("Accept-Encoding"));
            ensure!(response.field("etag").as_deref() == Some("\"v1\""));
            ensure!(response.text() == page, "{accepted}");
        }
        let outcome = ["\"compressed\""];
        fixture.sheave.wait_for_sum("sheave_backend_compressions_total", &outcome, 4.0).await?;
        ensure!(fixture.endpoint().counts().connections == 1, "{:?}", fixture.endpoint().counts());
    }
    Ok(())
}

#[tokio::test]
async fn head_describes_what_get_would_send() -> Result {
    let behaviour = EndpointBehaviour::answering(
        "HTTP/1.1 200 OK\r\nContent-Type: text/css\r\nContent-Length: 5000\r\n\r\n",
    );
    let fixture = fixture(behaviour).await?;
    let mut client = fixture.client().await?;
    for (accepted, coding, length) in [("gzip", Some("gzip"), None), ("", None, Some("5000"))] {
        let fields = [("Accept-Encoding", accepted)];
        let response = client.exchange("HEAD", "/", &fields, b"").await?;
        ensure!(response.field("content-encoding").as_deref() == coding, "{response:?}");
        ensure!(response.field("content-length").as_deref() == length, "{response:?}");
        ensure!(response.field("vary").as_deref() == Some("Accept-Encoding"), "{response:?}");
    }
    Ok(())
}

#[tokio::test]
async fn responses_that_must_not_change_do_not_change() -> Result {
    let page = page(5000);
    for fields in [
        "Content-Type: image/png\r\n",
        "Content-Type: text/html\r\nContent-Encoding: gzip\r\n",
        "Content-Type: text/html\r\nCache-Control: private, no-transform\r\n",
        "Content-Type: text/html\r\nContent-Digest: sha-256=:AAAA:\r\n",
        "",
    ] {
        let fixture = fixture(answering(fields, &page)).await?;
        let response = get(&fixture, ALL).await?;
        ensure!(response.text() == page, "{fields}");
        ensure!(response.field("content-length").as_deref() == Some("5000"), "{fields}");
        ensure!(response.field("vary").is_none(), "{fields}");
    }
    let partial = "HTTP/1.1 206 Partial Content\r\nContent-Type: text/html\r\n\
        Content-Range: bytes 0-4999/9000\r\nContent-Length: 5000\r\n\r\n";
    let fixture = fixture(EndpointBehaviour::answering(&(partial.to_owned() + &page))).await?;
    let response = get(&fixture, ALL).await?;
    ensure!(response.status() == 206 && response.text() == page, "{response:?}");
    Ok(())
}

#[tokio::test]
async fn responses_are_compressed_over_http2_and_http3() -> Result {
    let page = page(300_000);
    let endpoint = Endpoint::start(answering("Content-Type: text/html\r\n", &page)).await?;
    let policies = [of_gateway(&json!({}))];
    let http2 = Http2Fixture::of(&[endpoint.address], &policies).await?;
    let http3 = Http3Fixture::with_policies(&[endpoint.address], &policies).await?;
    let (client2, client3) = (http2.client().await?, http3.client().await?);
    for coding in ["gzip", "br", "zstd"] {
        let request = |scheme: &str| {
            let request = Request::builder().uri(format!("{scheme}://test/a"));
            request.header("accept-encoding", coding).body(()).context("a request")
        };
        let answers = [
            client2.exchange(request("http")?, Bytes::new()).await?,
            client3.exchange(request("https")?, Bytes::new()).await?,
        ];
        for answer in answers {
            ensure!(answer.field("content-encoding") == Some(coding), "{answer:?}");
            ensure!(answer.field("content-length").is_none(), "{answer:?}");
            ensure!(decoded(coding, &answer.body)? == page, "{coding}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn trailers_follow_a_compressed_body() -> Result {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nTransfer-Encoding: chunked\r\n\r\n";
    let body = "5\r\nhello\r\n0\r\nX-Sum: 532\r\n\r\n";
    let fixture = fixture(EndpointBehaviour::answering(&(head.to_owned() + body))).await?;
    let response = get(&fixture, "gzip").await?;
    ensure!(decoded("gzip", &response.body)? == "hello", "{response:?}");
    ensure!(response.trailers == [("X-Sum".to_owned(), "532".to_owned())], "{response:?}");
    Ok(())
}

/// The second event is only sent after the client has seen the first.
#[tokio::test]
async fn events_arrive_at_once_if_their_type_is_compressed() -> Result {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n";
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::send(&format!("{head}data: 1\n\n")),
        ServeStep::WaitForGate,
        ServeStep::send("data: 2\n\n"),
        ServeStep::Close,
    ];
    let settings = json!({ "contentTypes": ["text/*"], "algorithms": ["Gzip"] });
    let endpoints = vec![Endpoint::start(steps).await?];
    let fixture = HttpFixture::with(endpoints, &[of_gateway(&settings)], &[]).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\nAccept-Encoding: gzip\r\n\r\n").await?;
    let (head, _) = client.read_final_head().await?;
    ensure!(head.field("content-encoding").as_deref() == Some("gzip"), "{head:?}");
    let mut left = head.response_body("GET")?;
    let mut decoder = flate2::write::GzDecoder::new(Vec::new());
    let mut has_opened = false;
    while let Some(piece) = client.read_body_piece(&mut left).await? {
        std::io::Write::write_all(&mut decoder, &piece)?;
        std::io::Write::flush(&mut decoder)?;
        if decoder.get_ref() == b"data: 1\n\n" && !has_opened {
            has_opened = true;
            fixture.endpoint().open_gate(1);
        }
    }
    ensure!(decoder.finish()? == b"data: 1\n\ndata: 2\n\n");
    Ok(())
}

/// By default only listed types are compressed, and the most specific policy applies alone.
#[tokio::test]
async fn the_policy_of_a_route_replaces_that_of_its_gateway() -> Result {
    let mut other = objects::host_route("other.test", SERVICE);
    other["metadata"]["name"] = "other".into();
    let settings =
        json!({ "contentTypes": ["application/*"], "algorithms": ["Brotli"], "minBytes": 9000 });
    let of_route = policy(&json!({ "kind": "HTTPRoute", "name": "other" }), &settings);
    let behaviour = EndpointBehaviour::from(vec![
        ServeStep::ReadBody,
        ServeStep::AnswerFor(
            "/short",
            "HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}",
        ),
        ServeStep::send(&format!(
            "HTTP/1.1 200 OK\r\nContent-Type: Application/JSON\r\nContent-Length: 9000\r\n\r\n{}",
            page(9000)
        )),
    ]);
    let endpoints = vec![Endpoint::start(behaviour).await?];
    let policies = [of_gateway(&json!({})), other, of_route];
    let fixture = HttpFixture::with(endpoints, &policies, &[]).await?;
    for (host, target, accepted, coding) in [
        ("app.test", "/", ALL, Some("zstd")),
        ("other.test", "/", ALL, Some("br")),
        ("other.test", "/", "gzip", None),
        ("other.test", "/short", ALL, None),
        ("app.test", "/short", ALL, None),
        ("app.test", "/short", "br, identity;q=0", Some("br")),
    ] {
        let fields = [("Host", host), ("Accept-Encoding", accepted)];
        let response = fixture.client().await?.exchange("GET", target, &fields, b"").await?;
        let found = response.field("content-encoding");
        ensure!(found.as_deref() == coding, "{host} {target} {accepted}: {response:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_response_that_breaks_off_looks_incomplete() -> Result {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9000\r\n\r\n";
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::send(&(head.to_owned() + &page(8000))),
        ServeStep::Close,
    ];
    let fixture = fixture(steps.into()).await?;
    let outcome = get(&fixture, "gzip").await;
    ensure!(outcome.is_err(), "{outcome:?}");
    fixture.sheave.wait_for_sum("sheave_failures_total", &["\"response_cut\""], 1.0).await
}

/// Each response waits in its midst, with an encoder.
#[tokio::test]
async fn a_worker_compresses_a_bounded_number_of_responses_at_a_time() -> Result {
    let head = "HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: 9000\r\n\r\n";
    let (start, end) = (page(9000)[..4500].to_owned(), page(9000)[4500..].to_owned());
    let steps = vec![
        ServeStep::ReadBody,
        ServeStep::send(&(head.to_owned() + &start)),
        ServeStep::WaitForGate,
        ServeStep::send(&end),
    ];
    let fixture = fixture(steps.into()).await?;
    let mut clients = Vec::new();
    for number in 0..66 {
        let mut client = fixture.client().await?;
        client.send("GET / HTTP/1.1\r\nHost: test\r\nAccept-Encoding: br\r\n\r\n").await?;
        let (head, _) = client.read_final_head().await?;
        let coding = head.field("content-encoding");
        ensure!(coding.is_some() == (number < 64), "{number}: {head:?}");
        clients.push((client, head));
    }
    fixture.endpoint().open_gate(67);
    for (mut client, head) in clients {
        let body = client.reader.body(head.response_body("GET")?).await?.bytes;
        let text = match head.field("content-encoding") {
            Some(coding) => decoded(&coding, &body)?,
            None => String::from_utf8(body)?,
        };
        ensure!(text == page(9000));
    }
    ensure!(get(&fixture, "br").await?.field("content-encoding").is_some());
    let skipped = ["\"skipped\""];
    fixture.sheave.wait_for_sum("sheave_backend_compressions_total", &skipped, 2.0).await
}

#[tokio::test]
async fn grpc_is_never_compressed() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let settings = json!({ "contentTypes": ["application/*"], "minBytes": 1 });
    let fixture = GrpcFixture::of(&[&server], &[of_gateway(&settings)]).await?;
    let request = tests::http2::post(METHOD);
    let (mut head, ()) = request.into_parts();
    head.headers.insert("content-type", "application/grpc".parse()?);
    head.headers.insert("accept-encoding", ALL.parse()?);
    head.headers.insert("te", "trailers".parse()?);
    let message = Bytes::from_static(b"\0\0\0\0\x03one");
    let client = fixture.client().await?;
    let answer = client.exchange(Request::from_parts(head, ()), message).await?;
    ensure!(answer.status() == 200 && answer.field("content-encoding").is_none(), "{answer:?}");
    Ok(())
}
