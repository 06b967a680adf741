//! Responses that Sheave generates itself: a status that gRPC clients understand, at the time that
//! they need it.

use std::future::poll_fn;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use http::HeaderValue;
use serde_json::{Value, json};
use tests::endpoint::refusing_address;
use tests::grpc::{self, GrpcReply};
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{ConfigDirectory, Result, SheaveProcess, http2, objects, within};
use tokio::time::Instant;

use super::fixture::{GrpcFixture, METHOD};

/// A silent server with a single slot, which is taken.
struct BusyServerFixture {
    site: GrpcFixture,
    server: Http2TestEndpoint,
    client: http2::Http2TestClient,
    /// The call that holds the slot until it is dropped.
    _first: (ResponseFuture, SendStream<Bytes>),
}

impl BusyServerFixture {
    /// Returns a fixture with this queue for later requests.
    async fn with(queue: Value) -> Result<Self> {
        let server = start_silent_server().await?;
        let spec = json!({ "maxInFlightPerEndpoint": 1, "queue": queue });
        let site = GrpcFixture::of(&[&server], &[objects::backend_policy("app", spec)]).await?;
        let client = site.client().await?;
        let first = client.send_request(grpc::head(METHOD), true).await?;
        server.wait_for_counts("the first call", |counts| counts.in_flight == 1).await?;
        Ok(Self { site, server, client, _first: first })
    }
}

/// Starts a server that answers nothing until the call is cancelled.
async fn start_silent_server() -> Result<Http2TestEndpoint> {
    Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        call.wait_for_reset().await?;
        Ok(())
    })
    .await
}

/// Returns the head of a call with this timeout.
fn head_with_timeout(timeout: &'static str) -> http::Request<()> {
    let mut head = grpc::head(METHOD);
    head.headers_mut().insert("grpc-timeout", HeaderValue::from_static(timeout));
    head
}

fn check_local_reply(reply: &GrpcReply, code: u32) -> Result {
    ensure!(reply.code == code && reply.trailers_only, "{reply:?}");
    ensure!(reply.exchange.field("content-type") == Some("application/grpc"), "{reply:?}");
    ensure!(
        reply.metadata_value("grpc-message").is_some_and(|message| !message.is_empty()),
        "{reply:?}"
    );
    Ok(())
}

#[tokio::test]
async fn grpc_deadline_ends_the_queue_wait() -> Result {
    let taken = BusyServerFixture::with(json!({ "timeout": "1h" })).await?;
    let begun = Instant::now();
    let reply = taken.client.call_with(head_with_timeout("200m"), b"").await?;
    check_local_reply(&reply, grpc::DEADLINE_EXCEEDED)?;
    ensure!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    taken.site.sheave.wait_for_queue_length(0).await?;
    assert_eq!(taken.server.counts().requests, 1);
    Ok(())
}

#[tokio::test]
async fn grpc_deadline_ends_the_wait_for_the_first_server() -> Result {
    let spec = json!({ "queue": { "maxRequests": 8, "timeout": "1h" } });
    let site = GrpcFixture::of(&[], &[objects::backend_policy("app", spec)]).await?;
    let begun = Instant::now();
    let reply = site.client().await?.call_with(head_with_timeout("200m"), b"").await?;
    check_local_reply(&reply, grpc::DEADLINE_EXCEEDED)?;
    ensure!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    site.sheave.wait_for_queue_length(0).await
}

#[tokio::test]
async fn grpc_deadline_ends_a_running_call() -> Result {
    let server = start_silent_server().await?;
    let site = GrpcFixture::of(&[&server], &[]).await?;
    let reply = site.client().await?.call_with(head_with_timeout("200m"), b"").await?;
    check_local_reply(&reply, grpc::DEADLINE_EXCEEDED)?;
    server.wait_for_counts("the server sees the reset", |counts| counts.in_flight == 0).await?;
    site.sheave.wait_until_idle().await
}

/// Once a response has begun, its status can only be in trailers. The stream is reset with CANCEL, as gRPC servers do:
/// clients report INTERNAL for any other code, though their deadline has passed.
#[tokio::test]
async fn deadline_during_a_response_resets_the_call_as_cancelled() -> Result {
    for sent in [Bytes::new(), grpc::message(b"the first of many")] {
        let server = Http2TestEndpoint::start(move |mut call: ReceivedRequest| {
            let sent = sent.clone();
            async move {
                let mut head = http2::status(200);
                let grpc = HeaderValue::from_static("application/grpc");
                head.headers_mut().insert("content-type", grpc);
                let mut body = call.begin(head)?;
                http2::send(&mut body, sent).await?;
                poll_fn(|context| body.poll_reset(context)).await?;
                Ok(())
            }
        })
        .await?;
        let site = GrpcFixture::of(&[&server], &[]).await?;
        let client = site.client().await?;
        let started = Instant::now();
        let (response, _sending) = client.send_request(head_with_timeout("200m"), true).await?;
        let error = within("the reset", http2::Http2TestClient::response(response)).await?.err();
        let reason = error.as_ref().and_then(h2::Error::reason);
        ensure!(reason == Some(h2::Reason::CANCEL), "{error:?}");
        // A client whose clock has steps of a millisecond must have seen its deadline pass.
        let waited = started.elapsed();
        ensure!(waited >= Duration::from_millis(202), "reset after {waited:?}");
        site.sheave.wait_until_idle().await?;
    }
    Ok(())
}

/// If a call is rejected for lack of capacity, the response contains a retry delay.
#[tokio::test]
async fn a_full_queue_is_resource_exhausted() -> Result {
    let taken = BusyServerFixture::with(json!({ "maxRequests": 0 })).await?;
    let reply = taken.client.call(METHOD, b"").await?;
    check_local_reply(&reply, grpc::RESOURCE_EXHAUSTED)?;
    assert_eq!(reply.metadata_value("grpc-retry-pushback-ms"), Some("1000"));
    assert_eq!(taken.server.counts().requests, 1);
    Ok(())
}

#[tokio::test]
async fn queue_timeout_is_resource_exhausted() -> Result {
    let taken = BusyServerFixture::with(json!({ "timeout": "50ms" })).await?;
    let reply = taken.client.call(METHOD, b"").await?;
    check_local_reply(&reply, grpc::RESOURCE_EXHAUSTED)?;
    assert_eq!(reply.metadata_value("grpc-retry-pushback-ms"), Some("1000"));
    Ok(())
}

/// A stream holds its slot until it ends, not only until its response begins.
#[tokio::test]
async fn streaming_call_holds_its_slot_until_the_end() -> Result {
    let server = Http2TestEndpoint::start(|mut call: ReceivedRequest| async move {
        let mut sending = call.respond.send_response(http2::status(200), false)?;
        http2::send(&mut sending, grpc::message(b"more will come")).await?;
        poll_fn(|context| sending.poll_reset(context)).await?;
        Ok(())
    })
    .await?;
    let spec = json!({ "maxInFlightPerEndpoint": 1, "queue": { "maxRequests": 0 } });
    let site = GrpcFixture::of(&[&server], &[objects::backend_policy("app", spec)]).await?;
    let client = site.client().await?;
    let (response, sending) = client.send_request(grpc::head(METHOD), false).await?;
    let mut stream = within("a head", response).await??.into_body();
    ensure!(within("a message", stream.data()).await?.is_some());
    check_local_reply(&client.call(METHOD, b"").await?, grpc::RESOURCE_EXHAUSTED)?;
    assert_eq!(server.counts().requests, 1);
    drop((stream, sending));
    site.sheave.wait_until_idle().await
}

#[tokio::test]
async fn missing_server_is_unavailable() -> Result {
    let site = GrpcFixture::of(&[], &[]).await?;
    check_local_reply(&site.client().await?.call(METHOD, b"").await?, grpc::UNAVAILABLE)?;

    let configuration = ConfigDirectory::empty()?;
    let mut all = objects::gateway();
    all.extend([objects::grpc_route("app"), objects::service("app")]);
    all.extend(objects::slices("app", &[refusing_address().await?]));
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let client = http2::Http2TestClient::connect(sheave.address()).await?;
    check_local_reply(&client.call(METHOD, b"").await?, grpc::UNAVAILABLE)
}
