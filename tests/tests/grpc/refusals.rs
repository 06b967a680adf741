//! What Sheave answers itself: as a status that clients of gRPC understand, at the time that they need it.

use std::future::poll_fn;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use http::HeaderValue;
use serde_json::{Value, json};
use tests::endpoint::refusing_address;
use tests::grpc::{self, Reply};
use tests::http2::{Call, Endpoint};
use tests::{Configuration, Result, Sheave, http2, objects, within};
use tokio::time::Instant;

use crate::site::{METHOD, Site};

/// A server that answers nothing, and one slot at it, which is taken.
struct Taken {
    site: Site,
    server: Endpoint,
    client: http2::Client,
    /// The call that has the slot, until it is dropped.
    _first: (ResponseFuture, SendStream<Bytes>),
}

impl Taken {
    /// With this queue for those who come after.
    async fn with(queue: Value) -> Result<Self> {
        let server = silent().await?;
        let spec = json!({ "maxInFlightPerEndpoint": 1, "queue": queue });
        let site = Site::of(&[&server], &[objects::backend_policy("app", spec)]).await?;
        let client = site.client().await?;
        let first = client.begin(grpc::head(METHOD), true).await?;
        server.until("the first call", |counts| counts.in_flight == 1).await?;
        Ok(Self { site, server, client, _first: first })
    }
}

/// A server that answers nothing, until the call is taken back.
async fn silent() -> Result<Endpoint> {
    Endpoint::start(|mut call: Call| async move {
        call.given_up().await?;
        Ok(())
    })
    .await
}

/// A call that must be over by then.
fn until(timeout: &'static str) -> http::Request<()> {
    let mut head = grpc::head(METHOD);
    head.headers_mut().insert("grpc-timeout", HeaderValue::from_static(timeout));
    head
}

fn is_ours(reply: &Reply, code: u32) -> Result {
    ensure!(reply.code == code && reply.trailers_only, "{reply:?}");
    ensure!(reply.exchange.field("content-type") == Some("application/grpc"), "{reply:?}");
    ensure!(reply.said("grpc-message").is_some_and(|said| !said.is_empty()), "{reply:?}");
    Ok(())
}

#[tokio::test]
async fn grpc_deadline_ends_the_queue_wait() -> Result {
    let taken = Taken::with(json!({ "timeout": "1h" })).await?;
    let begun = Instant::now();
    let reply = taken.client.call_with(until("200m"), b"").await?;
    is_ours(&reply, grpc::DEADLINE_EXCEEDED)?;
    ensure!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    taken.site.sheave.waiting(0).await?;
    assert_eq!(taken.server.counts().requests, 1);
    Ok(())
}

#[tokio::test]
async fn grpc_deadline_ends_a_running_call() -> Result {
    let server = silent().await?;
    let site = Site::of(&[&server], &[]).await?;
    let reply = site.client().await?.call_with(until("200m"), b"").await?;
    is_ours(&reply, grpc::DEADLINE_EXCEEDED)?;
    server.until("it hears of it", |counts| counts.in_flight == 0).await?;
    site.sheave.idle().await
}

/// Who is refused for want of room is told when to come back.
#[tokio::test]
async fn a_full_queue_is_resource_exhausted() -> Result {
    let taken = Taken::with(json!({ "maxRequests": 0 })).await?;
    let reply = taken.client.call(METHOD, b"").await?;
    is_ours(&reply, grpc::RESOURCE_EXHAUSTED)?;
    assert_eq!(reply.said("grpc-retry-pushback-ms"), Some("1000"));
    assert_eq!(taken.server.counts().requests, 1);
    Ok(())
}

#[tokio::test]
async fn queue_timeout_is_resource_exhausted() -> Result {
    let taken = Taken::with(json!({ "timeout": "50ms" })).await?;
    let reply = taken.client.call(METHOD, b"").await?;
    is_ours(&reply, grpc::RESOURCE_EXHAUSTED)?;
    assert_eq!(reply.said("grpc-retry-pushback-ms"), Some("1000"));
    Ok(())
}

/// A stream has its slot for as long as it lasts, not until it has begun to answer.
#[tokio::test]
async fn streaming_call_holds_its_slot_until_the_end() -> Result {
    let server = Endpoint::start(|mut call: Call| async move {
        let mut sending = call.respond.send_response(http2::status(200), false)?;
        http2::send(&mut sending, grpc::message(b"more will come")).await?;
        poll_fn(|context| sending.poll_reset(context)).await?;
        Ok(())
    })
    .await?;
    let spec = json!({ "maxInFlightPerEndpoint": 1, "queue": { "maxRequests": 0 } });
    let site = Site::of(&[&server], &[objects::backend_policy("app", spec)]).await?;
    let client = site.client().await?;
    let (response, sending) = client.begin(grpc::head(METHOD), false).await?;
    let mut stream = within("a head", response).await??.into_body();
    ensure!(within("a message", stream.data()).await?.is_some());
    is_ours(&client.call(METHOD, b"").await?, grpc::RESOURCE_EXHAUSTED)?;
    assert_eq!(server.counts().requests, 1);
    drop((stream, sending));
    site.sheave.idle().await
}

#[tokio::test]
async fn missing_server_is_unavailable() -> Result {
    let site = Site::of(&[], &[]).await?;
    is_ours(&site.client().await?.call(METHOD, b"").await?, grpc::UNAVAILABLE)?;

    let configuration = Configuration::empty()?;
    let mut all = objects::gateway();
    all.extend([objects::grpc_route("app"), objects::service("app")]);
    all.extend(objects::slices("app", &[refusing_address().await?]));
    configuration.write("main.yaml", &all)?;
    let sheave = Sheave::serve(&configuration).await?;
    let client = http2::Client::connect(sheave.address()).await?;
    is_ours(&client.call(METHOD, b"").await?, grpc::UNAVAILABLE)
}
