//! Priorities of streams (RFC 9218).

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::ensure;
use tests::http3::Http3ReceiveStream;
use tests::{Endpoint, Result, ServeStep, http3, within};

use super::fixture::Http3Fixture;
use crate::multiplexed::streams::{check_shared_bandwidth, read};

/// Of two long responses on one connection the more urgent one comes first (RFC 9218), although it
/// was requested last.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn urgent_response_comes_first() -> Result {
    const LENGTH: u64 = 32 << 20;
    let server = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
    let site = Http3Fixture::of(&[server.address]).await?;
    let client = site.client().await?;
    let mut late = begin_response(&client, "u=7").await?;
    let mut urgent = begin_response(&client, "u=0").await?;

    let of_late = Arc::new(AtomicU64::new(0));
    let counted = of_late.clone();
    let reading =
        tokio::spawn(async move { read::<http3::Http3TestClient>(&mut late, &counted).await });
    let of_urgent = AtomicU64::new(0);
    read::<http3::Http3TestClient>(&mut urgent, &of_urgent).await?;
    let of_late_then = of_late.load(Ordering::Relaxed);
    reading.await??;
    assert_eq!((of_urgent.into_inner(), of_late.load(Ordering::Relaxed)), (LENGTH, LENGTH));
    ensure!(of_late_then < LENGTH / 2, "{of_late_then} bytes of the less urgent response");
    Ok(())
}

/// Two long responses of equal urgency share the bandwidth, although one was requested first.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn responses_of_equal_priority_share_the_bandwidth() -> Result {
    const LENGTH: u64 = 32 << 20;
    let server = Endpoint::start(vec![ServeStep::AnswerPattern(LENGTH)]).await?;
    let site = Http3Fixture::of(&[server.address]).await?;
    let client = site.client().await?;
    let bodies = [begin_response(&client, "u=3").await?, begin_response(&client, "u=3").await?];
    check_shared_bandwidth::<http3::Http3TestClient>(bodies, LENGTH).await
}

/// Returns the response to a GET of this priority, after its head.
async fn begin_response(
    client: &http3::Http3TestClient,
    priority: &'static str,
) -> Result<Http3ReceiveStream> {
    let head = http3::get_by_priority("/", priority);
    let (mut sending, mut receiving) = within("a stream", client.send_request(head)).await??;
    sending.finish().await?;
    within("a head", receiving.recv_response()).await??;
    Ok(receiving)
}
