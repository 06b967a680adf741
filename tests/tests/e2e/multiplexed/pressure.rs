//! Memory cost of slow readers and of idle connections.

use std::time::Duration;

use anyhow::{Context, ensure};
use tests::{Endpoint, EndpointBehaviour, Result, ServeStep, idle, within};
use tokio::time::interval;

use super::fixture::{MultiplexedClient, MultiplexedFixture};

test_each_version! {
    slow_reader_of_a_large_response_uses_little_memory,
    idle_connections_use_little_memory,
}

const KIBIBYTE: u64 = 1 << 10;
const MEBIBYTE: u64 = 1 << 20;

/// Bytes that may be in transit before back-pressure stops the peer: windows, and the socket
/// buffers, which the kernel enlarges.
pub(crate) const MAX_BYTES_IN_TRANSIT: u64 = 64 * MEBIBYTE;

async fn slow_reader_of_a_large_response_uses_little_memory<F: MultiplexedFixture>() -> Result {
    let endpoint = Endpoint::start(vec![ServeStep::AnswerPattern(F::MEMORY.response)]).await?;
    let fixture = F::start(&[endpoint.address]).await?;
    read_slowly(fixture, || endpoint.counts().pattern_bytes).await
}

/// Stops reading until back-pressure stops the endpoint, then reads everything. Sheave buffers next
/// to nothing of it.
pub(crate) async fn read_slowly<F: MultiplexedFixture>(
    fixture: F,
    sent: impl Fn() -> u64,
) -> Result {
    let bounds = F::MEMORY;
    let client = fixture.connect().await?;
    let before = fixture.sheave().memory_bytes()?;
    let response = client.begin_get().await?;
    let mut body = within("a head", F::Client::head(response)).await??;
    let in_transit = wait_until_count_stalls(sent).await;
    ensure!(
        in_transit < MAX_BYTES_IN_TRANSIT,
        "{in_transit} bytes before back-pressure stopped the endpoint"
    );

    let (length, most) = read_watching_memory(&fixture, &mut body).await?;
    let growth = most.saturating_sub(before);
    eprintln!("{} KiB more for {} MiB in transit", growth / KIBIBYTE, length / MEBIBYTE);
    assert_eq!(length, bounds.response);
    ensure!(growth < bounds.growth, "{growth} bytes more for {length} in transit");
    Ok(())
}

/// Returns the count once it has not changed for half a second.
pub(crate) async fn wait_until_count_stalls(count: impl Fn() -> u64) -> u64 {
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
async fn read_watching_memory<F: MultiplexedFixture>(
    fixture: &F,
    body: &mut <F::Client as MultiplexedClient>::ResponseBody,
) -> Result<(u64, u64)> {
    let (mut length, mut most) = (0, fixture.sheave().memory_bytes()?);
    let mut next_look = 0;
    while let Some(piece) = within("a piece", F::Client::read(body)).await?? {
        length += piece;
        if length >= next_look {
            most = most.max(fixture.sheave().memory_bytes()?);
            next_look += 16 * MEBIBYTE;
        }
    }
    Ok((length, most))
}

async fn idle_connections_use_little_memory<F: MultiplexedFixture>() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let fixture = F::start(&[endpoint.address]).await?;
    let bounds = F::MEMORY;
    let clients = idle::check_memory_per_connection(
        fixture.sheave(),
        F::Client::NAME,
        bounds.connections,
        bounds.each,
        async || connect_and_request(&fixture).await,
    )
    .await?;
    let last = clients.last().context("there are many")?;
    ensure!(last.get("/").await?.status() == 200);
    Ok(())
}

/// Returns an idle client that has sent a request.
async fn connect_and_request<F: MultiplexedFixture>(fixture: &F) -> Result<F::Client> {
    let client = fixture.connect().await?;
    ensure!(client.post("/", idle::warm_up_body()).await?.status() == 200);
    Ok(client)
}
