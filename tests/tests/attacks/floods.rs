//! Who sends more than anybody needs: resets, fields, pings, settings. Each flood is ended long before it would end.

use anyhow::{Context, ensure};
use serde_json::json;
use tests::frames::{self, Frame, Wire};
use tests::{Result, Step, within};

use crate::target::Target;

/// No flood goes on for longer, in frames, if nobody stops it.
const MANY: u32 = 200_000;

/// Connections that were ended for what the client did.
const ENDED: &str = "sheave_http2_connections_ended_total";

/// Floods until the connection is ended: how many times `frames` was asked, and the reason if we got to read it. What
/// comes back is read meanwhile, for a flood whose sender reads nothing is stopped by the sockets alone.
async fn flood(wire: Wire, mut frames: impl FnMut(u32) -> Vec<u8>) -> Result<(u32, Option<u32>)> {
    let Wire { mut reader, mut writer } = wire;
    let reading = tokio::spawn(async move {
        Ok::<_, anyhow::Error>(reader.next(frames::GOAWAY).await?.as_ref().and_then(Frame::reason))
    });
    let mut sent = 0;
    while sent < MANY {
        let written = tokio::io::AsyncWriteExt::write_all(&mut writer, &frames(sent)).await;
        if written.is_err() || reading.is_finished() {
            break;
        }
        sent += 1;
    }
    ensure!(sent < MANY, "nobody ended the flood");
    Ok((sent, within("the end", reading).await???))
}

/// CVE-2023-44487: a request and its reset, again and again.
#[tokio::test]
async fn rapid_reset_flood_closes_the_connection() -> Result {
    let target = Target::new().await?;
    let pair = |number: u32| {
        let stream = 2 * number + 1;
        [Frame::get(stream).bytes(), Frame::reset(stream, frames::CANCEL).bytes()].concat()
    };
    let (sent, reason) = flood(target.connect().await?, pair).await?;
    ensure!(reason.is_none_or(|reason| reason == frames::ENHANCE_YOUR_CALM), "{reason:?}");
    eprintln!("ended after {sent} resets");
    target.counted(ENDED, "resets").await?;
    target.is_well().await
}

/// CVE-2024-27316: a head that never ends, in CONTINUATION frames that nobody may refuse one by one.
#[tokio::test]
async fn endless_continuation_frames_close_the_connection() -> Result {
    let target = Target::new().await?;
    let mut wire = target.connect().await?;
    let head = frames::block(&frames::fields("GET"));
    wire.write(&Frame::new(frames::HEADERS, frames::END_STREAM, 1, head)).await?;
    let field = frames::block(&[("x-field", &"a".repeat(1000))]);
    let more = Frame::new(frames::CONTINUATION, 0, 1, field).bytes();
    let (sent, reason) = flood(wire, |_| more.clone()).await?;
    eprintln!("ended after {sent} KB: {reason:?}");
    target.counted(ENDED, "fields").await?;
    target.is_well().await
}

/// The same with nothing in them.
#[tokio::test]
async fn empty_continuation_frames_close_the_connection() -> Result {
    let target = Target::new().await?;
    let mut wire = target.connect().await?;
    let head = frames::block(&frames::fields("GET"));
    wire.write(&Frame::new(frames::HEADERS, frames::END_STREAM, 1, head)).await?;
    let more = Frame::new(frames::CONTINUATION, 0, 1, []).bytes();
    let (sent, reason) = flood(wire, |_| more.clone()).await?;
    eprintln!("ended after {sent}: {reason:?}");
    target.counted(ENDED, "fields").await?;
    target.is_well().await
}

/// A few bytes that stand for many: one large field in the table, named so many times in the head of this stream.
fn bomb(stream: u32, named: usize) -> Frame {
    // Kept in the table (RFC 7541 §6.2.1) as its newest entry, 62, and then named by its number.
    let kept = [vec![0x40], frames::text("x-bomb"), frames::text(&"a".repeat(3000))].concat();
    let fields = [frames::block(&frames::fields("GET")), kept, vec![0x80 | 62; named]].concat();
    Frame::new(frames::HEADERS, frames::END_STREAM | frames::END_HEADERS, stream, fields)
}

/// Of whoever reads no GOAWAY and closes nothing, too.
#[tokio::test]
async fn hpack_bomb_closes_the_connection() -> Result {
    let target = Target::new().await?;
    let mut wire = target.connect().await?;
    wire.write(&bomb(1, 10_000)).await?;
    target.counted(ENDED, "excess").await?;
    target.is_well().await?;
    let requests = target.scene.endpoint().counts().requests;
    ensure!(requests == 2, "only innocents reach the endpoint: {requests}");
    let goaway = wire.reader.next(frames::GOAWAY).await?.context("a verdict")?;
    assert_eq!(goaway.reason(), Some(frames::ENHANCE_YOUR_CALM));
    Ok(())
}

/// Beyond the limit of a head, and not beyond all measure: the connection goes on.
#[tokio::test]
async fn decompressed_head_over_the_limit_is_answered_431() -> Result {
    let target = Target::new().await?;
    let mut wire = target.connect().await?;
    wire.write(&bomb(1, 20)).await?;
    let answer = wire.reader.of_stream(1).await?.context("an answer")?;
    // 431 in Huffman's code.
    let status = [0x69, 0x90, 0xff];
    ensure!(answer.kind == frames::HEADERS && answer.payload.ends_with(&status), "{answer:?}");
    target.refused(1).await?;
    wire.write(&Frame::get(3)).await?;
    let answer = wire.reader.of_stream(3).await?.context("an answer")?;
    ensure!(answer.payload.first() == Some(&frames::STATUS_200), "{answer:?}");
    target.refused(1).await?;
    target.is_well().await
}

/// Whoever does not heed what our settings say of streams loses those beyond, and no other.
#[tokio::test]
async fn streams_over_the_concurrency_limit_are_refused() -> Result {
    const OPEN: u32 = 3;
    const BEYOND: u32 = 2;
    let spec = json!({ "http2": { "maxConcurrentStreams": OPEN } });
    let target = Target::before(vec![Step::AnswerPattern(1000)], spec).await?;
    // SETTINGS_INITIAL_WINDOW_SIZE: no answer comes to its end.
    let mut wire = Wire::connect(target.scene.sheave.address(), &[(4, 0)]).await?;
    for number in 0..OPEN + BEYOND {
        wire.write(&Frame::get(2 * number + 1)).await?;
    }
    for number in OPEN..OPEN + BEYOND {
        let answer = wire.reader.of_stream(2 * number + 1).await?.context("an answer")?;
        ensure!(answer.kind == frames::RST_STREAM, "{answer:?}");
        ensure!(answer.reason() == Some(frames::REFUSED_STREAM), "{answer:?}");
    }
    target.refused(u64::from(BEYOND)).await?;
    target.is_well().await
}

/// CVE-2019-9512: each ping wants an answer, and nobody reads them.
#[tokio::test]
async fn ping_flood_with_unread_acks_closes_the_connection() -> Result {
    let target = Target::new().await?;
    let mut wire = target.connect().await?;
    let ping = Frame::new(frames::PING, 0, 0, [7; 8]).bytes().repeat(100);
    until_stuck(&mut wire, &ping).await;
    target.counted(ENDED, "control").await?;
    target.is_well().await
}

/// CVE-2019-9515: so does each SETTINGS.
#[tokio::test]
async fn settings_flood_with_unread_acks_closes_the_connection() -> Result {
    let target = Target::new().await?;
    let mut wire = target.connect().await?;
    let settings = Frame::settings(&[(3, 100)]).bytes().repeat(100);
    until_stuck(&mut wire, &settings).await;
    target.counted(ENDED, "control").await?;
    target.is_well().await
}

/// Sends until nothing is taken any more, or the connection is ended, or it was far too much.
async fn until_stuck(wire: &mut Wire, bytes: &[u8]) {
    const STUCK: std::time::Duration = std::time::Duration::from_secs(1);
    for _ in 0..MANY / 10 {
        match tokio::time::timeout(STUCK, wire.send(bytes.to_vec())).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) | Err(_) => return,
        }
    }
}
