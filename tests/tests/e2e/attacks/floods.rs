//! Floods of HTTP/2 frames: resets, fields, pings, settings. Sheave ends each flood early.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::{Result, ServeStep, within};

use super::target::AttackTarget;

/// Upper bound of a flood, in frames, in case that Sheave does not end it.
const MANY: u32 = 200_000;

/// Connections ended because of what the client did.
const CONNECTIONS_ENDED_METRIC: &str = "sheave_http2_connections_ended_total";

/// Floods until the connection is ended. Returns the number of calls of `frames`, and the reason of
/// the GOAWAY if it could be read. Responses are read meanwhile: if the sender reads nothing, the
/// socket buffers alone stop the flood.
async fn flood(
    wire: RawHttp2Connection,
    mut frames: impl FnMut(u32) -> Vec<u8>,
) -> Result<(u32, Option<u32>)> {
    let RawHttp2Connection { mut reader, mut writer } = wire;
    let reading = tokio::spawn(async move {
        Ok::<_, anyhow::Error>(
            reader.next_of_kind(frames::GOAWAY).await?.as_ref().and_then(RawHttp2Frame::reason),
        )
    });
    let mut sent = 0;
    while sent < MANY {
        let written = tokio::io::AsyncWriteExt::write_all(&mut writer, &frames(sent)).await;
        if written.is_err() || reading.is_finished() {
            break;
        }
        sent += 1;
    }
    ensure!(sent < MANY, "Sheave did not end the flood");
    Ok((sent, within("the end", reading).await???))
}

/// CVE-2023-44487: a request and its reset, again and again.
#[tokio::test]
async fn rapid_reset_flood_closes_the_connection() -> Result {
    let target = AttackTarget::new().await?;
    let pair = |number: u32| {
        let stream = 2 * number + 1;
        [RawHttp2Frame::get(stream).bytes(), RawHttp2Frame::reset(stream, frames::CANCEL).bytes()]
            .concat()
    };
    let (sent, reason) = flood(target.connect().await?, pair).await?;
    ensure!(reason.is_none_or(|reason| reason == frames::ENHANCE_YOUR_CALM), "{reason:?}");
    eprintln!("ended after {sent} resets");
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "resets").await?;
    target.check_health().await
}

/// CVE-2024-27316: an endless head in CONTINUATION frames, none of which can be refused alone.
#[tokio::test]
async fn endless_continuation_frames_close_the_connection() -> Result {
    let target = AttackTarget::new().await?;
    let mut wire = target.connect().await?;
    let head = frames::block(&frames::fields("GET"));
    wire.write(&RawHttp2Frame::new(frames::HEADERS, frames::END_STREAM, 1, head)).await?;
    let field = frames::block(&[("x-field", &"a".repeat(1000))]);
    let more = RawHttp2Frame::new(frames::CONTINUATION, 0, 1, field).bytes();
    let (sent, reason) = flood(wire, |_| more.clone()).await?;
    eprintln!("ended after {sent} KB: {reason:?}");
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "fields").await?;
    target.check_health().await
}

/// The same attack with empty frames.
#[tokio::test]
async fn empty_continuation_frames_close_the_connection() -> Result {
    let target = AttackTarget::new().await?;
    let mut wire = target.connect().await?;
    let head = frames::block(&frames::fields("GET"));
    wire.write(&RawHttp2Frame::new(frames::HEADERS, frames::END_STREAM, 1, head)).await?;
    let more = RawHttp2Frame::new(frames::CONTINUATION, 0, 1, []).bytes();
    let (sent, reason) = flood(wire, |_| more.clone()).await?;
    eprintln!("ended after {sent}: {reason:?}");
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "fields").await?;
    target.check_health().await
}

/// Amplification of a few bytes into many: one large field in the dynamic table, referenced `named`
/// times in the head of this stream.
fn hpack_bomb(stream: u32, named: usize) -> RawHttp2Frame {
    // Inserted into the table (RFC 7541 §6.2.1) as its newest entry, 62, and then referenced by its
    // index.
    let kept = [vec![0x40], frames::text("x-bomb"), frames::text(&"a".repeat(3000))].concat();
    let fields = [frames::block(&frames::fields("GET")), kept, vec![0x80 | 62; named]].concat();
    RawHttp2Frame::new(frames::HEADERS, frames::END_STREAM | frames::END_HEADERS, stream, fields)
}

/// The connection is also closed if the client reads no GOAWAY and closes nothing.
#[tokio::test]
async fn hpack_bomb_closes_the_connection() -> Result {
    let target = AttackTarget::new().await?;
    let mut wire = target.connect().await?;
    wire.write(&hpack_bomb(1, 10_000)).await?;
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "excess").await?;
    target.check_health().await?;
    let requests = target.fixture.endpoint().counts().requests;
    ensure!(requests == 2, "only well-behaved requests reach the endpoint: {requests}");
    let goaway = wire.reader.next_of_kind(frames::GOAWAY).await?.context("a GOAWAY")?;
    assert_eq!(goaway.reason(), Some(frames::ENHANCE_YOUR_CALM));
    Ok(())
}

/// The head exceeds its limit, but by less than ends the connection: the connection stays open.
#[tokio::test]
async fn decompressed_head_over_the_limit_is_answered_431() -> Result {
    let target = AttackTarget::new().await?;
    let mut wire = target.connect().await?;
    wire.write(&hpack_bomb(1, 20)).await?;
    let answer = wire.reader.next_of_stream(1).await?.context("an answer")?;
    // 431 in Huffman code.
    let status = [0x69, 0x90, 0xff];
    ensure!(answer.kind == frames::HEADERS && answer.payload.ends_with(&status), "{answer:?}");
    target.wait_for_refused_streams(1).await?;
    wire.write(&RawHttp2Frame::get(3)).await?;
    let answer = wire.reader.next_of_stream(3).await?.context("an answer")?;
    ensure!(answer.payload.first() == Some(&frames::STATUS_200), "{answer:?}");
    target.wait_for_refused_streams(1).await?;
    target.check_health().await
}

/// If a client ignores `maxConcurrentStreams` of our SETTINGS, only the excess streams are refused.
#[tokio::test]
async fn streams_over_the_concurrency_limit_are_refused() -> Result {
    const OPEN: u32 = 3;
    const BEYOND: u32 = 2;
    let spec = json!({ "http2": { "maxConcurrentStreams": OPEN } });
    let target = AttackTarget::with_behaviour(vec![ServeStep::AnswerPattern(1000)], spec).await?;
    // SETTINGS_INITIAL_WINDOW_SIZE of 0: no response can complete.
    let mut wire = RawHttp2Connection::connect(target.fixture.sheave.address(), &[(4, 0)]).await?;
    for number in 0..OPEN + BEYOND {
        wire.write(&RawHttp2Frame::get(2 * number + 1)).await?;
    }
    for number in OPEN..OPEN + BEYOND {
        let answer = wire.reader.next_of_stream(2 * number + 1).await?.context("an answer")?;
        ensure!(answer.kind == frames::RST_STREAM, "{answer:?}");
        ensure!(answer.reason() == Some(frames::REFUSED_STREAM), "{answer:?}");
    }
    target.wait_for_refused_streams(u64::from(BEYOND)).await?;
    target.check_health().await
}

/// CVE-2019-9512: each PING requires an acknowledgement, and the client reads none.
#[tokio::test]
async fn ping_flood_with_unread_acks_closes_the_connection() -> Result {
    let target = AttackTarget::new().await?;
    let mut wire = target.connect().await?;
    let ping = RawHttp2Frame::new(frames::PING, 0, 0, [7; 8]).bytes().repeat(100);
    write_until_stalled(&mut wire, &ping).await;
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "control").await?;
    target.check_health().await
}

/// CVE-2019-9515: each SETTINGS requires an acknowledgement, and the client reads none.
#[tokio::test]
async fn settings_flood_with_unread_acks_closes_the_connection() -> Result {
    let target = AttackTarget::new().await?;
    let mut wire = target.connect().await?;
    let settings = RawHttp2Frame::settings(&[(3, 100)]).bytes().repeat(100);
    write_until_stalled(&mut wire, &settings).await;
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "control").await?;
    target.check_health().await
}

/// WINDOW_UPDATE frames that open no window by much: none is earned, because no data is sent.
#[tokio::test]
async fn window_update_flood_closes_the_connection() -> Result {
    let target = AttackTarget::new().await?;
    let updates = RawHttp2Frame::window_update(0, 1).bytes().repeat(100);
    let (sent, reason) = flood(target.connect().await?, |_| updates.clone()).await?;
    ensure!(reason.is_none_or(|reason| reason == frames::ENHANCE_YOUR_CALM), "{reason:?}");
    eprintln!("ended after {} frames", 100 * sent);
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "control").await?;
    target.check_health().await
}

/// A client that updates both windows for every byte that it receives is served.
#[tokio::test]
async fn window_updates_for_each_byte_received_are_allowed() -> Result {
    const BYTES: u32 = 20_000;
    let target =
        AttackTarget::with_behaviour(vec![ServeStep::AnswerPattern(BYTES.into())], json!({}))
            .await?;
    // SETTINGS_INITIAL_WINDOW_SIZE of 1: each DATA frame has one byte.
    let mut wire = RawHttp2Connection::connect(target.fixture.sheave.address(), &[(4, 1)]).await?;
    wire.write(&RawHttp2Frame::get(1)).await?;
    let updates = [RawHttp2Frame::window_update(1, 1), RawHttp2Frame::window_update(0, 1)];
    let updates: Vec<u8> = updates.iter().flat_map(RawHttp2Frame::bytes).collect();
    let mut received = 0;
    while received < BYTES {
        let data = wire.reader.next_of_kind(frames::DATA).await?.context("a DATA frame")?;
        received += u32::try_from(data.payload.len())?;
        wire.send(updates.clone()).await?;
    }
    target.check_health().await
}

/// Sends until a write stalls, the connection is ended, or a large bound is reached.
async fn write_until_stalled(wire: &mut RawHttp2Connection, bytes: &[u8]) {
    const STUCK: std::time::Duration = std::time::Duration::from_secs(1);
    for _ in 0..MANY / 10 {
        match tokio::time::timeout(STUCK, wire.send(bytes.to_vec())).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
