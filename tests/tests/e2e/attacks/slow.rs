//! Slow attacks: heads and bodies that do not arrive, flow-control windows that do not open.

use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::{Result, ServeStep, eventually};
use tokio::time::Instant;

use super::target::AttackTarget;

/// Connections ended because of what the client did or failed to do.
const CONNECTIONS_ENDED_METRIC: &str = "sheave_http2_connections_ended_total";

/// If a head does not end within its timeout, the whole connection is closed, because the state of
/// HPACK is lost.
#[tokio::test]
async fn slow_header_block_closes_the_connection() -> Result {
    let target =
        AttackTarget::with_client_policy(json!({ "timeouts": { "head": "200ms" } })).await?;
    let mut wire = target.connect().await?;
    let begun = Instant::now();
    let head = frames::block(&frames::fields("GET"));
    wire.write(&RawHttp2Frame::new(frames::HEADERS, frames::END_STREAM, 1, head)).await?;
    while wire.reader.next_frame().await?.is_some() {}
    ensure!(begun.elapsed() >= Duration::from_millis(200), "{:?}", begun.elapsed());
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "slow_head").await?;
    target.check_health().await
}

/// A connection without a complete preface times out too.
#[tokio::test]
async fn incomplete_preface_closes_the_connection() -> Result {
    let target =
        AttackTarget::with_client_policy(json!({ "timeouts": { "head": "200ms" } })).await?;
    let mut client = target.fixture.client().await?;
    client.send("PRI * HTTP/2.0\r\n").await?;
    // The response does not matter: the connection ends.
    drop(client.response("GET").await);
    target.wait_for_metric(CONNECTIONS_ENDED_METRIC, "preface").await?;
    target.check_health().await
}

/// If a body stops, its stream times out and its slot is released. The connection stays open.
#[tokio::test]
async fn slow_body_times_out_its_stream() -> Result {
    let target =
        AttackTarget::with_client_policy(json!({ "timeouts": { "body": "200ms" } })).await?;
    let mut wire = target.connect().await?;
    wire.write(&RawHttp2Frame::post(1)).await?;
    wire.write(&RawHttp2Frame::new(frames::DATA, 0, 1, b"half")).await?;
    let answer = wire.reader.next_of_stream(1).await?.context("an answer")?;
    // 408 is not in the static table; a reset is fine too.
    ensure!(
        answer.kind == frames::RST_STREAM || answer.payload.first() != Some(&frames::STATUS_200)
    );
    target.fixture.sheave.wait_until_idle().await?;
    target.wait_for_metric("sheave_failures_total", "body_timeout").await?;
    wire.write(&RawHttp2Frame::get(3)).await?;
    let answer = wire.reader.next_of_stream(3).await?.context("an answer")?;
    ensure!(answer.payload.first() == Some(&frames::STATUS_200), "{answer:?}");
    target.check_health().await
}

/// CVE-2019-9517: the client requests large responses and keeps the window shut. Sheave buffers
/// next to nothing of them, and times out.
#[tokio::test]
async fn zero_flow_control_window_costs_little_memory_and_times_out() -> Result {
    const STREAMS: u32 = 100;
    let spec = json!({ "timeouts": { "body": "2s" } });
    let target =
        AttackTarget::with_behaviour(vec![ServeStep::AnswerPattern(10_000_000)], spec).await?;
    // SETTINGS_INITIAL_WINDOW_SIZE of 0: no stream may send a byte.
    let mut wire = RawHttp2Connection::connect(target.fixture.sheave.address(), &[(4, 0)]).await?;
    for number in 0..STREAMS {
        wire.write(&RawHttp2Frame::get(2 * number + 1)).await?;
    }
    let endpoint = target.fixture.endpoint();
    endpoint
        .wait_for_counts("all requests arrive", |counts| counts.requests > u64::from(STREAMS))
        .await?;
    let busy = async || target.fixture.sheave.active_requests().await;
    eventually("the requests time out", busy, |busy| *busy == 0).await?;
    target.wait_for_metric("sheave_failures_total", "body_timeout").await?;
    target.check_health().await
}
