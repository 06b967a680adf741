//! Memory cost of slow readers and of idle connections.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use bytes::Bytes;
use h2::RecvStream;
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, http2, idle, payload, within};
use tokio::time::interval;

use crate::fixture::Http2Fixture;

const KIBIBYTE: u64 = 1 << 10;
const MEBIBYTE: u64 = 1 << 20;
const GIBIBYTE: u64 = 1 << 30;

/// Memory that a gigabyte may cost while it passes: windows and buffers of a megabyte each, and
/// memory kept by the allocator.
const MAX_MEMORY_GROWTH: u64 = 16 * MEBIBYTE;

/// Bytes that may be in transit before back-pressure stops the endpoint: windows, and the socket
/// buffers, which the kernel enlarges.
const MAX_BYTES_IN_TRANSIT: u64 = 64 * MEBIBYTE;

const CONNECTIONS: usize = 1000;

/// Memory that an idle connection may cost after it has served requests, which allocate its
/// buffers.
const MAX_BYTES_PER_CONNECTION: u64 = 64 * KIBIBYTE;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_of_a_gigabyte_from_http1_uses_little_memory() -> Result {
    let endpoint = Endpoint::start(vec![ServeStep::AnswerPattern(GIBIBYTE)]).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
    read_slowly(&site, || endpoint.counts().pattern_bytes).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_reader_of_a_gigabyte_from_http2_uses_little_memory() -> Result {
    let sent = Arc::new(AtomicU64::new(0));
    let counted = sent.clone();
    let endpoint = http2::Http2TestEndpoint::start(move |mut call| {
        let sent = counted.clone();
        async move {
            let mut sending = call.respond.send_response(http2::status(200), false)?;
            for piece in payload::pieces(GIBIBYTE) {
                http2::send(&mut sending, Bytes::from_static(piece)).await?;
                sent.fetch_add(piece.len() as u64, Ordering::Relaxed);
            }
            sending.send_data(Bytes::new(), true)
        }
    })
    .await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    read_slowly(&site, || sent.load(Ordering::Relaxed)).await
}

/// Stops reading until back-pressure stops the endpoint, then reads everything. Sheave buffers next
/// to nothing of it.
async fn read_slowly(site: &Http2Fixture, sent: impl Fn() -> u64) -> Result {
    let client = site.client().await?;
    let before = site.sheave.memory_bytes()?;
    let (response, _) = client.send_request(http2::get("/"), true).await?;
    let mut body = within("a head", response).await??.into_body();
    let in_transit = wait_until_count_stalls(sent).await;
    ensure!(
        in_transit < MAX_BYTES_IN_TRANSIT,
        "{in_transit} bytes before back-pressure stopped the endpoint"
    );

    let (length, most) = read_watching_memory(site, &mut body).await?;
    let growth = most.saturating_sub(before);
    eprintln!("{} KiB more for a gigabyte in transit", growth / KIBIBYTE);
    assert_eq!(length, GIBIBYTE);
    ensure!(growth < MAX_MEMORY_GROWTH, "{growth} bytes more for a gigabyte in transit");
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

/// Reads the rest of the body. Returns its length, and the largest memory size seen meanwhile.
async fn read_watching_memory(site: &Http2Fixture, body: &mut RecvStream) -> Result<(u64, u64)> {
    let (mut length, mut most) = (0, site.sheave.memory_bytes()?);
    let mut next_look = 0;
    while let Some(piece) = within("a piece", body.data()).await? {
        let piece = piece?;
        body.flow_control().release_capacity(piece.len())?;
        length += piece.len() as u64;
        if length >= next_look {
            most = most.max(site.sheave.memory_bytes()?);
            next_look += 16 * MEBIBYTE;
        }
    }
    Ok((length, most))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn thousand_idle_connections_use_little_memory() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = Http2Fixture::of(&[endpoint.address], &[]).await?;
    let open = async || connect_and_request(&site).await;
    let clients = idle::check_memory_per_connection(
        &site.sheave,
        "HTTP/2",
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
async fn connect_and_request(site: &Http2Fixture) -> Result<http2::Http2TestClient> {
    let client = site.client().await?;
    ensure!(client.post("/", idle::warm_up_body()).await?.status() == 200);
    Ok(client)
}
