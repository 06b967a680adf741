//! Requests that are streams of one connection. A connection is cheap, and has a hundred of them.

use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use h2::SendStream;
use h2::client::ResponseFuture;
use http::Request;
use serde_json::json;
use tests::frames::{RawHttp2Connection, RawHttp2Frame};
use tests::http2::{Http2TestClient, Http2TestEndpoint, ReceivedRequest};
use tests::http3::{block, code, frame};
use tests::{Endpoint, EndpointBehaviour, Result, eventually, grpc, objects, within};
use tokio::time::sleep;

use super::{CAP, CappedFixture, LONG, capped_policy};
use crate::grpc::fixture::{GrpcFixture, METHOD};
use crate::http3::fixture::Http3Fixture;

const STREAMS: u32 = 100;

/// The audit's attack: POSTs that send no byte of their bodies.
#[tokio::test]
async fn silent_http2_posts_hold_no_slot() -> Result {
    let target = CappedFixture::new().await?;
    let mut wire = RawHttp2Connection::connect(target.fixture.sheave.address(), &[]).await?;
    for number in 0..STREAMS {
        wire.write(&RawHttp2Frame::post(2 * number + 1)).await?;
    }
    wire.write(&RawHttp2Frame::get(2 * STREAMS + 1)).await?;
    let answer = wire.reader.next_of_stream(2 * STREAMS + 1).await?.context("an answer")?;
    ensure!(answer.payload.first() == Some(&tests::frames::STATUS_200), "{answer:?}");
    for _ in 0..20 {
        target.check_others_are_served(0).await?;
    }
    drop(wire);
    target.wait_for_failures("client_disconnected", f64::from(STREAMS)).await?;
    assert_eq!(target.fixture.endpoint().counts().requests, 21);
    Ok(())
}

#[tokio::test]
async fn silent_http3_posts_hold_no_slot() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::with_policies(&[endpoint.address], &[capped_policy()]).await?;
    let wire = site.raw_connection().await?;
    let fields =
        [(":method", "POST"), (":scheme", "https"), (":path", "/"), (":authority", "test")];
    let head = frame(code::HEADERS, &block(&fields));
    let mut streams = Vec::new();
    for _ in 0..STREAMS {
        streams.push(wire.open_request_stream(&head).await?);
    }
    for _ in 0..20 {
        ensure!(site.client().await?.get("/").await?.status() == 200);
    }
    let (mut sending, mut receiving) = streams.pop().expect("a hundred");
    sending.write_all(&frame(code::DATA, b"hello")).await?;
    sending.finish()?;
    ensure!(!within("an answer", receiving.read_to_end(10_000)).await??.is_empty());
    assert_eq!(endpoint.counts().requests, 21);
    site.sheave.wait_until_idle().await
}

type Upload = (ResponseFuture, SendStream<Bytes>);

/// Begins uploads that are longer than what is kept, and sends so much of each that it asks for a slot.
async fn begin_long_uploads(client: &Http2TestClient, count: usize) -> Result<Vec<Upload>> {
    let mut uploads = Vec::new();
    for _ in 0..count {
        let head = Request::post("http://test/").header("content-length", 2 * LONG).body(())?;
        let (response, mut sending) =
            within("a stream", client.send_request(head, false)).await??;
        sending.send_data(vec![b'x'; LONG].into(), false)?;
        uploads.push((response, sending));
    }
    Ok(uploads)
}

async fn finish_uploads(uploads: Vec<Upload>) -> Result {
    for (response, mut sending) in uploads {
        sending.send_data(vec![b'x'; LONG].into(), true)?;
        let response = within("an answer", Http2TestClient::response(response)).await??;
        ensure!(response.status() == 200, "{response:?}");
    }
    Ok(())
}

/// Long uploads of one connection have half of the slots. The others wait, and complete requests of the same
/// connection go ahead.
#[tokio::test]
async fn long_uploads_of_one_connection_have_half_of_the_slots() -> Result {
    let queue = json!({ "queue": { "timeout": "1h" } });
    let target = CappedFixture::with(EndpointBehaviour::ok(), json!({}), queue).await?;
    let client = Http2TestClient::connect(target.fixture.sheave.address()).await?;
    let uploads = begin_long_uploads(&client, 8).await?;
    let endpoint = target.fixture.endpoint();
    let half = CAP as usize / 2;
    endpoint.wait_for_counts("half of them", |counts| counts.in_flight == half).await?;
    for _ in 0..10 {
        ensure!(client.post("/", "complete").await?.status() == 200);
        target.check_others_are_served(CAP / 2).await?;
    }
    finish_uploads(uploads).await?;
    let most = endpoint.counts().max_in_flight;
    ensure!(most <= half + 1, "{most} at once");
    target.fixture.sheave.wait_until_idle().await
}

/// The share is a field of the policy. A request that does not get a place of it in time is rejected.
#[tokio::test]
async fn share_of_a_connection_is_a_policy() -> Result {
    let policy = json!({ "clients": { "maxIncomplete": 3 }, "queue": { "timeout": "200ms" } });
    let target = CappedFixture::with(EndpointBehaviour::ok(), json!({}), policy).await?;
    let client = Http2TestClient::connect(target.fixture.sheave.address()).await?;
    let uploads = begin_long_uploads(&client, 3).await?;
    let endpoint = target.fixture.endpoint();
    endpoint.wait_for_counts("three", |counts| counts.in_flight == 3).await?;
    let (response, _sending) = begin_long_uploads(&client, 1).await?.pop().expect("one");
    ensure!(within("an answer", response).await??.status() == 429);
    target.wait_for_failures("connection_share", 1.0).await?;
    finish_uploads(uploads).await
}

/// The budget for bodies that arrive slowly cannot be used up: the oldest make room.
#[tokio::test]
async fn many_slow_bodies_make_room_for_another() -> Result {
    const CONNECTIONS: usize = 6;
    const SENT: usize = 60_000;
    let policy = [capped_policy()];
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = tests::HttpFixture::with(endpoints, &policy, &["--workers", "1"]).await?;
    let target = CappedFixture { fixture };
    let before = target.fixture.sheave.memory_bytes()?;
    let mut clients = Vec::new();
    let mut slow = Vec::new();
    for _ in 0..CONNECTIONS {
        let client = Http2TestClient::connect(target.fixture.sheave.address()).await?;
        for _ in 0..128 {
            let head = Request::post("http://test/").header("content-length", SENT + 1).body(())?;
            let (response, mut sending) =
                within("a stream", client.send_request(head, false)).await??;
            sending.send_data(vec![b'x'; SENT].into(), false)?;
            slow.push((response, sending));
        }
        clients.push(client);
    }
    target.wait_for_failures("body_evicted", 1.0).await?;
    let mut client = target.fixture.client().await?;
    let half = vec![b'x'; 20_000];
    client.send(super::post(2 * half.len())).await?;
    client.send(&half).await?;
    target.check_others_are_served(0).await?;
    client.send(&half).await?;
    ensure!(client.response("POST").await?.status() == 200);
    let growth = target.fixture.sheave.memory_bytes()?.saturating_sub(before);
    ensure!(growth < 160 << 20, "{growth} bytes more");
    drop((slow, clients));
    target.fixture.sheave.wait_until_idle().await
}

/// A gRPC stream may be silent for long, and its rate does not matter.
#[tokio::test]
async fn silent_grpc_stream_lives() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async { call.echo().await }).await?;
    let limits = json!({ "limits": { "minBodyRate": 1_000_000 }, "timeouts": { "body": "200ms" } });
    let policies = [objects::client_policy(limits), capped_policy()];
    let site = GrpcFixture::of(&[&server], &policies).await?;
    let client = site.client().await?;
    let (response, mut sending) = client.send_request(grpc::head(METHOD), false).await?;
    let mut receiving = within("a head", response).await??.into_body();
    for text in ["one", "two", "three"] {
        let message = grpc::message(text.as_bytes());
        sending.send_data(message.clone(), false)?;
        let echoed = within("an echo", receiving.data()).await?;
        ensure!(echoed.is_some_and(|echoed| echoed.is_ok_and(|echoed| echoed == message)));
        sleep(Duration::from_millis(400)).await; // Longer than a body may pause.
    }
    sending.send_trailers(grpc::trailers(grpc::OK))?;
    ensure!(within("the end", receiving.data()).await?.is_none());
    site.sheave.wait_until_idle().await
}

/// Streams that the client has not ended have half of the slots; calls that are complete have all.
#[tokio::test]
async fn open_grpc_streams_of_one_connection_have_half_of_the_slots() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async { call.echo().await }).await?;
    let site = GrpcFixture::of(&[&server], &[capped_policy()]).await?;
    let client = site.client().await?;
    let mut streams = Vec::new();
    for _ in 0..2 * CAP {
        streams.push(client.send_request(grpc::head(METHOD), false).await?);
    }
    let half = CAP as usize / 2;
    server.wait_for_counts("half of them", |counts| counts.in_flight == half).await?;
    for _ in 0..10 {
        let message = grpc::message(b"complete");
        let reply = client.exchange(grpc::head(METHOD), message).await?;
        ensure!(reply.status() == 200, "{reply:?}");
    }
    let active = async || site.sheave.active_requests().await;
    eventually("the slots of the streams", active, |active| *active <= CAP / 2).await?;
    for (response, mut sending) in streams {
        sending.send_data(grpc::message(b"last"), true)?;
        within("an answer", Http2TestClient::response(response)).await??;
    }
    site.sheave.wait_until_idle().await
}
