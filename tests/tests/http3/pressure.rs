//! Memory cost of slow readers and of idle connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Buf;
use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, http3, idle, within};
use tokio::time::interval;

use crate::fixture::Http3Fixture;

const KIBIBYTE: u64 = 1 << 10;
const MEBIBYTE: u64 = 1 << 20;
const LENGTH: u64 = 256 * MEBIBYTE;

/// Memory that the response may cost while it passes: windows and buffers of a megabyte each, and
/// memory kept by the allocator.
const MAX_MEMORY_GROWTH: u64 = 24 * MEBIBYTE;

/// Bytes that may be in transit before back-pressure stops the endpoint: windows, and the socket
/// buffers, which the kernel enlarges.
const MAX_BYTES_IN_TRANSIT: u64 = 64 * MEBIBYTE;

const CONNECTIONS: usize = 300;

/// Memory that an idle connection may cost; most of it is QUIC's state.
const MAX_BYTES_PER_CONNECTION: u64 = 160 * KIBIBYTE;

/// Stops reading until back-pressure stops the endpoint, then reads everything. Sheave buffers next
/// to nothing of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_uses_little_memory() -> Result {
    let endpoint = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
    let site = Http3Fixture::of(&[endpoint.address]).await?;
    let client = site.client().await?;
    let before = site.sheave.memory_bytes()?;
    let (mut sending, mut receiving) = client.send_request(http3::get("/")).await?;
    sending.finish().await?;
    ensure!(within("a head", receiving.recv_response()).await??.status() == 200);
    let in_transit = wait_until_count_stalls(|| endpoint.counts().pattern_bytes).await;
    ensure!(
        in_transit < MAX_BYTES_IN_TRANSIT,
        "{in_transit} bytes before back-pressure stopped the endpoint"
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
    eprintln!("{} KiB more for {} MiB in transit", growth / KIBIBYTE, LENGTH / MEBIBYTE);
    assert_eq!(length, LENGTH);
    ensure!(growth < MAX_MEMORY_GROWTH, "{growth} bytes more");
    Ok(())
}

/// On a slow connection streams wait for one another. If a more urgent stream makes progress, a
/// stream without progress does not time out, even after the body timeout. If no stream makes
/// progress, they time out.
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

    // From here on the client reads nothing.
    site.sheave.wait_until_idle().await?;
    let lines = site.sheave.wait_for_access_log(2).await?;
    ensure!(lines[1]["error.type"] == "body_timeout", "{}", lines[1]);
    Ok(())
}

/// Returns the count once it has not changed for half a second.
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

/// Returns an idle client that has sent a request.
async fn connect_and_request(site: &Http3Fixture) -> Result<http3::Http3TestClient> {
    let client = site.client().await?;
    ensure!(client.post("/", idle::warm_up_body()).await?.status() == 200);
    Ok(client)
}
