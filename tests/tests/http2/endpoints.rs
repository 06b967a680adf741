//! HTTP/2 endpoints: requests that they have not processed are retried elsewhere.

use anyhow::{Context, ensure};
use h2::Reason;
use h2::server::Builder;
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::http2::{Http2EndpointOptions, Http2TestEndpoint, ReceivedRequest};
use tests::{Result, http2, within};
use tokio::net::TcpListener;
use tokio::sync::Semaphore;

use crate::fixture::Http2Fixture;

/// A refused stream was not processed, so even a POST may be retried (RFC 9113 §8.7).
#[tokio::test]
async fn refused_stream_is_retried() -> Result {
    let endpoint = Http2TestEndpoint::start(|call: ReceivedRequest| async move {
        if call.number == 1 {
            call.reset(Reason::REFUSED_STREAM);
            return Ok(());
        }
        call.answer("ok").await
    })
    .await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let response = site.client().await?.post("/", "body").await?;
    ensure!(response.text() == "ok", "{response:?}");
    assert_eq!(endpoint.counts().requests, 2);
    Ok(())
}

/// A stream that was processed and then lost is not retried: the client gets an error.
#[tokio::test]
async fn reset_post_is_not_retried() -> Result {
    let endpoint = Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        call.read().await?;
        call.reset(Reason::INTERNAL_ERROR);
        Ok(())
    })
    .await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let response = site.client().await?.post("/", "body").await?;
    ensure!(response.status() == 502, "{response:?}");
    assert_eq!(endpoint.counts().requests, 1);
    Ok(())
}

/// Endpoints that close each connection after a few requests, as grpc-go does by age: no request is
/// lost.
#[tokio::test]
async fn endpoint_goaway_loses_no_request() -> Result {
    let options = Http2EndpointOptions {
        max_requests_per_connection: Some(10),
        ..Http2EndpointOptions::default()
    };
    let endpoint =
        Http2TestEndpoint::with(options, |call| async { call.answer("ok").await }).await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let client = site.client().await?;
    for number in 0..200 {
        let response = client.post("/", "body").await?;
        ensure!(response.status() == 200, "{number}: {response:?}");
    }
    let counts = endpoint.counts();
    ensure!(counts.accepted >= 20, "{}", counts.accepted);
    Ok(())
}

/// A GOAWAY names the last stream that was processed: later ones are retried on another connection.
#[tokio::test]
async fn streams_beyond_goaway_are_retried() -> Result {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let site = Http2Fixture::of_http2(&[listener.local_addr()?], &[]).await?;
    let client = site.client().await?;
    let request = tokio::spawn(async move { client.post("/", "body").await });

    let mut first = RawHttp2Connection::accept(&listener).await?;
    first.reader.next_of_kind(frames::HEADERS).await?.context("the request")?;
    first.write(&RawHttp2Frame::goaway(0, frames::NO_ERROR)).await?;
    let mut second = RawHttp2Connection::accept(&listener).await?;
    let head = second.reader.next_of_kind(frames::HEADERS).await?.context("the request again")?;
    let answer = RawHttp2Frame::new(
        frames::HEADERS,
        frames::END_HEADERS | frames::END_STREAM,
        0,
        [frames::STATUS_200],
    );
    second.write(&RawHttp2Frame { stream: head.stream, ..answer }).await?;
    let response = within("an answer", request).await???;
    ensure!(response.status() == 200, "{response:?}");
    Ok(())
}

/// If an endpoint limits concurrent streams, Sheave opens another connection for the excess ones.
#[tokio::test]
async fn streams_over_the_endpoint_limit_open_another_connection() -> Result {
    let mut settings = Builder::new();
    settings.max_concurrent_streams(2);
    let gate = std::sync::Arc::new(Semaphore::new(0));
    let serve = {
        let gate = gate.clone();
        move |call: ReceivedRequest| {
            let gate = gate.clone();
            async move {
                gate.acquire().await.expect("the semaphore is never closed").forget();
                call.answer("ok").await
            }
        }
    };
    let endpoint = Http2TestEndpoint::with(
        Http2EndpointOptions { settings, max_requests_per_connection: None },
        serve,
    )
    .await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let client = site.client().await?;
    // The settings are known after the first response.
    gate.add_permits(1);
    ensure!(client.get("/").await?.status() == 200);
    let mut responses = Vec::new();
    for _ in 0..6 {
        responses.push(client.send_request(http2::get("/"), true).await?.0);
    }
    let counts =
        endpoint.wait_for_counts("all six requests", |counts| counts.in_flight == 6).await?;
    ensure!(counts.accepted >= 3, "{}", counts.accepted);
    gate.add_permits(6);
    for response in responses {
        ensure!(
            within("an answer", http2::Http2TestClient::response(response)).await??.status() == 200
        );
    }
    Ok(())
}

/// If the client cancels, the endpoint's stream is reset and its connection stays open.
#[tokio::test]
async fn client_cancellation_resets_only_its_stream() -> Result {
    let endpoint = Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        if call.head.uri().path() == "/slow" {
            let reason = call.wait_for_reset().await?;
            assert_eq!(reason, Reason::CANCEL);
            return Ok(());
        }
        call.answer("ok").await
    })
    .await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let client = site.client().await?;
    ensure!(client.get("/").await?.status() == 200);
    let (response, _) = client.send_request(http2::get("/slow"), true).await?;
    endpoint.wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    drop(response);
    endpoint.wait_for_counts("the reset", |counts| counts.in_flight == 0).await?;
    ensure!(client.get("/").await?.status() == 200);
    assert_eq!(endpoint.counts().accepted, 1);
    site.sheave.wait_until_idle().await
}
