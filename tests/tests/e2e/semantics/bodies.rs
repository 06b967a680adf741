//! Large bodies, which are streamed and never held in memory.

use std::time::Duration;

use anyhow::ensure;
use tests::payload::BodyDigest;
use tests::{Endpoint, Http1TestClient, HttpFixture, Result, ServeStep, client};
use tokio::time::sleep;

const LARGE: u64 = 100_000_000;

/// Memory that one stalled transfer may add to the binary: its buffers, and no part of the body.
const MAX_MEMORY_GROWTH: u64 = 8 * 1024 * 1024;

/// Bytes that may be in transit while the receiver does not read: four socket buffers, whose size
/// the kernel chooses.
const MAX_BYTES_IN_TRANSIT: u64 = LARGE / 2;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_response_arrives_whole() -> Result {
    let fixture =
        HttpFixture::of(vec![ServeStep::ReadBody, ServeStep::AnswerPattern(LARGE)]).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    let (head, digest) = client.response_digest().await?;
    assert_eq!(head.field("content-length"), Some(LARGE.to_string()));
    assert_eq!(digest, BodyDigest::of_pattern(LARGE));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_large_request_arrives_whole() -> Result {
    let fixture = HttpFixture::of(vec![ServeStep::ReadBody, ServeStep::Answer]).await?;
    let mut client = fixture.client().await?;
    client
        .send(format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {LARGE}\r\n\r\n"))
        .await?;
    client.send_pattern(LARGE).await?;
    ensure!(client.response("POST").await?.status() == 200);
    assert_eq!(fixture.endpoint().only_request().body, Some(BodyDigest::of_pattern(LARGE)));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_bodies_arrive_whole_in_both_directions_at_once() -> Result {
    let fixture = HttpFixture::of(vec![ServeStep::Echo]).await?;
    let mut client = fixture.client().await?;
    client.send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    let Http1TestClient { reader, writer, .. } = &mut client;
    let send = async {
        use tokio::io::AsyncWriteExt;
        for piece in tests::payload::pieces(LARGE / 2) {
            let chunk = [format!("{:x}\r\n", piece.len()).as_bytes(), piece, b"\r\n"].concat();
            writer.write_all(&chunk).await?;
        }
        writer.write_all(b"0\r\n\r\n").await
    };
    let receive = async {
        let head = reader.head().await?;
        reader.digest(head.response_body("POST")?).await
    };
    let (sent, received) = tokio::join!(send, receive);
    sent?;
    assert_eq!(received?, BodyDigest::of_pattern(LARGE / 2));
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_client_applies_back_pressure_to_the_endpoint() -> Result {
    let fixture = one_worker(vec![ServeStep::ReadBody, ServeStep::AnswerPattern(LARGE)]).await?;
    ensure!(fixture.client().await?.get("/warm").await?.body.len() as u64 == LARGE);
    let before = fixture.sheave.memory_bytes()?;

    let mut client = Http1TestClient::connect_with_small_buffer(fixture.sheave.address()).await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    let (head, _) = client.read_final_head().await?;
    let sent = wait_until_stalled(fixture.endpoint()).await - LARGE;
    ensure!(sent < MAX_BYTES_IN_TRANSIT, "{sent} bytes were taken from the endpoint");
    let grown = fixture.sheave.memory_bytes()?.saturating_sub(before);
    ensure!(grown < MAX_MEMORY_GROWTH, "{grown} bytes of memory");

    let digest = client.reader.digest(head.response_body("GET")?).await?;
    assert_eq!(digest, BodyDigest::of_pattern(LARGE));
    Ok(())
}

/// Returns a fixture with one worker. The first request allocates buffers and the second reuses
/// them, so that memory growth is meaningful.
async fn one_worker(steps: Vec<ServeStep>) -> Result<HttpFixture> {
    HttpFixture::with(vec![Endpoint::start(steps).await?], &[], &["--workers", "1"]).await
}

/// Returns the number of bytes that the endpoint has sent when it can send no more.
async fn wait_until_stalled(endpoint: &Endpoint) -> u64 {
    let mut sent = 0;
    loop {
        sleep(Duration::from_millis(300)).await; // It is stalled if nothing is sent in this time.
        let now = endpoint.counts().pattern_bytes;
        if now == sent {
            return sent;
        }
        sent = now;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slow_endpoint_applies_back_pressure_to_the_client() -> Result {
    let fixture =
        one_worker(vec![ServeStep::WaitForGate, ServeStep::ReadBody, ServeStep::Answer]).await?;
    fixture.endpoint().open_gate(1);
    ensure!(fixture.client().await?.get("/warm").await?.status() == 200);
    let before = fixture.sheave.memory_bytes()?;

    let mut client = fixture.client().await?;
    client
        .send(format!("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: {LARGE}\r\n\r\n"))
        .await?;
    let Http1TestClient { reader, writer, .. } = &mut client;
    let sending = client::send_pattern(writer, LARGE);
    tokio::pin!(sending);
    tokio::select! {
        _ = &mut sending => anyhow::bail!("all bytes were taken without a reader"),
        () = sleep(Duration::from_secs(1)) => {} // The client sends as much as is taken.
    }
    let grown = fixture.sheave.memory_bytes()?.saturating_sub(before);
    ensure!(grown < MAX_MEMORY_GROWTH, "{grown} bytes of memory");

    fixture.endpoint().open_gate(1);
    sending.await?;
    ensure!(reader.head().await?.status() == 200);
    assert_eq!(fixture.endpoint().requests()[1].body, Some(BodyDigest::of_pattern(LARGE)));
    Ok(())
}
