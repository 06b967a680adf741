//! Readers who are slower than writers, and connections that do nothing: what they cost us in memory.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Buf;
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, http3, idle, within};
use tokio::time::interval;

use super::fixture::Http3Fixture;

const KIBIBYTE: u64 = 1 << 10;
const MEBIBYTE: u64 = 1 << 20;
const LENGTH: u64 = 256 * MEBIBYTE;

/// What so much may cost while it passes: windows and buffers of a megabyte each, and what the allocator keeps.
const MAX_MEMORY_GROWTH: u64 = 24 * MEBIBYTE;

/// What may be on its way before the endpoint is stopped: windows, and the sockets' buffers, which the kernel enlarges.
const MAX_BYTES_IN_TRANSIT: u64 = 64 * MEBIBYTE;

const CONNECTIONS: usize = 300;

/// An idle connection may cost so much: QUIC's state is most of it.
const MAX_BYTES_PER_CONNECTION: u64 = 160 * KIBIBYTE;

/// A reader that stops, whereupon the endpoint is stopped too; then all of it passes. We hold next to nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_uses_little_memory() -> Result {
    let endpoint = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let client = site.client().await?;
    let before = site.sheave.memory_bytes()?;
    let (mut sending, mut receiving) = client.send_request(http3::get("/")).await?;
    sending.finish().await?;
    ensure!(within("a head", receiving.recv_response()).await??.status() == 200);
    let on_its_way = wait_until_count_stalls(|| endpoint.counts().pattern_bytes).await;
    ensure!(
        on_its_way < MAX_BYTES_IN_TRANSIT,
        "{on_its_way} bytes before the endpoint was stopped"
    );

    let (mut length, mut most) = (0, site.sheave.memory_bytes()?);
    let mut next_look = 0;
    while let Some(piece) = within("a piece", receiving.recv_data()).await?? {
        length += piece.remaining() as u64;
        if length >= next_look {
            most = most.max(site.sheave.memory_bytes()?);
            next_look += 16 * MEBIBYTE;
        }
    }
    let growth = most.saturating_sub(before);
    eprintln!("{} KiB more for {} MiB on its way", growth / KIBIBYTE, LENGTH / MEBIBYTE);
    assert_eq!(length, LENGTH);
    ensure!(growth < MAX_MEMORY_GROWTH, "{growth} bytes more");
    Ok(())
}

/// On a slow line streams wait for one another: who has got nothing for longer than a client may take nothing is served
/// all the same while one that is more urgent gets something. Once none gets anything, they are given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lower_priority_stream_does_not_time_out_while_others_progress() -> Result {
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

    // Nobody reads any more.
    site.sheave.wait_until_idle().await?;
    let lines = site.sheave.wait_for_access_log(2).await?;
    ensure!(lines[1]["error.type"] == "body_timeout", "{}", lines[1]);
    Ok(())
}

/// The count, once it has not changed for half a second.
async fn wait_until_count_stalls(count: impl Fn() -> u64) -> u64 {
    const LOOKS: u32 = 50;
    let mut ticks = interval(Duration::from_millis(10));
    let mut last = (count(), 0);
    while last.1 < LOOKS {
        ticks.tick().await;
        let now = count();
        last = if now == last.0 { (now, last.1 + 1) } else { (now, 0) };
    }
    last.0
}

/// An upload that the endpoint does not take is not taken from the client either.
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
        () = upload => unreachable!("it is without end"),
        taken = wait_until_count_stalls(|| sent.load(Ordering::Relaxed)) => taken,
    };
    let growth = site.sheave.memory_bytes()?.saturating_sub(before);
    eprintln!("{} KiB taken, {} KiB more", taken / KIBIBYTE, growth / KIBIBYTE);
    ensure!(
        taken < MAX_BYTES_IN_TRANSIT && growth < MAX_MEMORY_GROWTH,
        "{taken} taken, {growth} more"
    );
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_use_little_memory() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let open = async || connect_and_request(&site).await;
    let clients = idle::check_memory_per_connection(
        &site.sheave,
        "HTTP/3",
        CONNECTIONS,
        MAX_BYTES_PER_CONNECTION,
        open,
    )
    .await?;
    let last = clients.last().context("there are many")?;
    ensure!(last.get("/").await?.status() == 200);
    Ok(())
}

/// A client that has sent something, and rests.
async fn connect_and_request(site: &Http3Fixture) -> Result<http3::Http3TestClient> {
    let client = site.client().await?;
    ensure!(client.post("/", idle::warm_up_body()).await?.status() == 200);
    Ok(client)
}
