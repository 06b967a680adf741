//! Who sends more than anybody needs: resets, fields, pings, settings. Each flood is ended long before it would end.

use anyhow::ensure;
use tests::frames::{self, Frame, Wire};
use tests::{Result, within};

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
async fn rapid_resets_are_ended() -> Result {
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
async fn endless_continuations_are_ended() -> Result {
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
async fn empty_continuations_are_ended() -> Result {
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

/// A few bytes that stand for many: one large field in the table, named a thousand times in each head.
#[tokio::test]
async fn a_head_that_unfolds_is_refused() -> Result {
    let target = Target::new().await?;
    let wire = target.connect().await?;
    // Kept in the table (RFC 7541 §6.2.1) as its newest entry, 62, and then named by its number.
    let kept = [vec![0x40], frames::text("x-bomb"), frames::text(&"a".repeat(3000))].concat();
    let named = vec![0x80 | 62; 10_000];
    let bomb = |number: u32| {
        let head = frames::block(&frames::fields("GET"));
        let fields = [head, kept.clone(), named.clone()].concat();
        let flags = frames::END_STREAM | frames::END_HEADERS;
        Frame::new(frames::HEADERS, flags, 2 * number + 1, fields).bytes()
    };
    let mut wire = wire;
    for number in 0..50 {
        if wire.send(bomb(number)).await.is_err() {
            break;
        }
    }
    target.is_well().await?;
    let requests = target.scene.endpoint().counts().requests;
    ensure!(requests == 2, "only innocents reach the endpoint: {requests}");
    Ok(())
}

/// CVE-2019-9512: each ping wants an answer, and nobody reads them.
#[tokio::test]
async fn pings_that_nobody_reads_the_answers_of_are_bounded() -> Result {
    let target = Target::new().await?;
    let mut wire = target.connect().await?;
    let ping = Frame::new(frames::PING, 0, 0, [7; 8]).bytes().repeat(100);
    until_stuck(&mut wire, &ping).await;
    target.counted(ENDED, "control").await?;
    target.is_well().await
}

/// CVE-2019-9515: so does each SETTINGS.
#[tokio::test]
async fn settings_that_nobody_reads_the_answers_of_are_bounded() -> Result {
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
