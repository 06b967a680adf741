//! Slow readers: timeouts by priority, and the memory cost of an upload that is not read.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::{Endpoint, Result, ServeStep, http3, within};
use tokio::time::interval;

use super::fixture::Http3Fixture;
use crate::multiplexed::fixture::MultiplexedFixture;
use crate::multiplexed::pressure::{MAX_BYTES_IN_TRANSIT, wait_until_count_stalls};

const KIBIBYTE: u64 = 1 << 10;

/// On a slow connection streams wait for one another. If a more urgent stream makes progress, a
/// stream without progress does not time out, even after the body timeout. If no stream makes
/// progress, they time out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lower_priority_stream_does_not_time_out_while_others_progress() -> Result {
    const LENGTH: u64 = 256 << 20;
    const PATIENCE: Duration = Duration::from_millis(300);
    let endpoint = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
    let policy = json!({ "timeouts": { "body": format!("{}ms", PATIENCE.as_millis()) } });
    let site = Http3Fixture::with_client_policy(&[endpoint.address], policy).await?;
    let window = 64 * KIBIBYTE as u32;
    let client = http3::Http3TestClient::connect_with_window(
        site.sheave.address(),
        &site.tls_options,
        window,
    )
    .await?;
    let begin = async |priority| {
        let head = http3::get_by_priority("/", priority);
        let (mut sending, receiving) = client.send_request(head).await?;
        sending.finish().await?;
        Ok::<_, anyhow::Error>((sending, receiving))
    };
    let (_first_sending, mut first) = begin("u=0").await?;
    ensure!(within("a head", first.recv_response()).await??.status() == 200);
    let (_second_sending, mut second) = begin("u=7").await?;

    let mut ticks = interval(PATIENCE / 20);
    for _ in 0..80 {
        ticks.tick().await;
        ensure!(within("a piece", first.recv_data()).await??.is_some());
    }
    first.stop_sending(h3::error::Code::H3_REQUEST_CANCELLED);
    drop(first);
    ensure!(within("a head", second.recv_response()).await??.status() == 200);
    ensure!(within("a piece", second.recv_data()).await??.is_some());

    // From here on the client reads nothing.
    site.sheave.wait_until_idle().await?;
    let lines = site.sheave.wait_for_access_log(2).await?;
    ensure!(lines[1]["error.type"] == "body_timeout", "{}", lines[1]);
    Ok(())
}

/// If the endpoint does not read an upload, Sheave does not read it from the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_upload_uses_little_memory() -> Result {
    let endpoint = Endpoint::start(vec![ServeStep::WaitForever]).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let wire = site.raw_connection().await?;
    let before = site.sheave.memory_bytes()?;
    let head = http3::block(&[
        (":method", "POST"),
        (":scheme", "https"),
        (":path", "/"),
        (":authority", "test"),
    ]);
    let (mut sending, _receiving) =
        wire.open_request_stream(&http3::frame(http3::code::HEADERS, &head)).await?;
    let piece = http3::frame(http3::code::DATA, &[b'x'; 16_000]);
    let sent = AtomicU64::new(0);
    let upload = async {
        loop {
            if sending.write_all(&piece).await.is_err() {
                std::future::pending::<()>().await;
            }
            sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
        }
    };
    let taken = tokio::select! {
        () = upload => unreachable!("the upload is endless"),
        taken = wait_until_count_stalls(|| sent.load(Ordering::Relaxed)) => taken,
    };
    let growth = site.sheave.memory_bytes()?.saturating_sub(before);
    eprintln!("{} KiB taken, {} KiB more", taken / KIBIBYTE, growth / KIBIBYTE);
    ensure!(
        taken < MAX_BYTES_IN_TRANSIT && growth < Http3Fixture::MEMORY.growth,
        "{taken} taken, {growth} more"
    );
    Ok(())
}
