//! Handshake floods: two thousand unfinished handshakes, or as many handshakes as the machine can do.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::ensure;
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, eventually, objects};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::Instant;

/// Half-open handshakes, if there are enough descriptors: each takes one here and one in Sheave. Two thousand show the
/// memory of each as well as more do.
const HALF_OPEN: u64 = 2000;

/// Concurrent connections of the flood.
const FLOODERS: usize = 32;

/// Requests measured in each window, and number of pairs of windows. Of each pair, one window has a flood of handshakes
/// and the other a flood of plain connections.
const REQUESTS: usize = 40;
const PAIRS: usize = 8;

/// Returns Sheave with one listener, which terminates TLS.
async fn start_fixture(authority: &CertificateAuthority) -> Result<HttpFixture> {
    let identity = authority.issue(&["test"]);
    let fixture =
        HttpFixture::with_tls(EndpointBehaviour::ok(), &identity, &["--workers", "2"]).await?;
    // A short timeout, so that the test sees soon that connections are closed.
    let policy = objects::client_policy(json!({ "timeouts": { "head": "3s" } }));
    fixture.configuration.write("policy.yaml", &[policy])?;
    fixture.sheave.wait_for_log(0, "configuration in force").await?;
    Ok(fixture)
}

/// Clients send half a ClientHello and then nothing. Other clients are served, and each handshake times out.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unfinished_tls_handshakes_time_out() -> Result {
    let authority = CertificateAuthority::new();
    let fixture = start_fixture(&authority).await?;
    let before = fixture.sheave.memory_bytes()?;
    let options = TlsClientOptions::trusting(&authority);
    let hello = options.client_hello("test")?;
    let descriptors = getrlimit(Resource::Nofile).current.unwrap_or(HALF_OPEN * 2);
    let count = HALF_OPEN.min(descriptors / 2 - 100);
    let mut held = Vec::new();
    for _ in 0..count {
        let mut stream = TcpStream::connect(fixture.sheave.address()).await?;
        stream.write_all(&hello[..hello.len() / 2]).await?;
        held.push(stream);
    }
    let mut client =
        Http1TestClient::connect_tls(fixture.sheave.address(), "test", &options).await?;
    ensure!(client.get("/").await?.status() == 200, "another client is not served meanwhile");
    let each = fixture.sheave.memory_bytes()?.saturating_sub(before) / count;
    eprintln!("{count} half-open handshakes: {each} bytes each");
    ensure!(each < 32 * 1024, "{each} bytes for each");

    let open = async || fixture.sheave.metric_sum("sheave_listener_connections_open").await;
    eventually("the handshakes time out", open, |open| *open <= 1.0).await?;
    let outcomes = fixture.sheave.metric_samples("sheave_tls_handshakes_total").await?;
    let late = outcomes.iter().find(|(labels, _)| labels.contains("\"timeout\""));
    ensure!(late.is_some_and(|(_, late)| *late == count as f64), "{outcomes:?}");
    Ok(())
}

/// A flood of handshakes hardly slows down running requests, compared with a flood of as many
/// connections without cryptography.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshake_flood_does_not_starve_requests() -> Result {
    let authority = CertificateAuthority::new();
    let fixture = start_fixture(&authority).await?;
    let address = fixture.sheave.address();
    let options = TlsClientOptions::trusting(&authority);
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(Http1TestClient::connect_tls(address, "test", &options).await?);
    }
    let hello = options.client_hello("test")?;
    let mut ratios = Vec::new();
    for _ in 0..PAIRS {
        let request = b"GET / HTTP/1.1\r\n\r\n".to_vec();
        let plain = latency_under_flood(address, request, &mut clients).await?;
        let secure = latency_under_flood(address, hello.clone(), &mut clients).await?;
        ratios.push(secure.as_secs_f64() / plain.as_secs_f64());
    }
    ratios.sort_by(f64::total_cmp);
    eprintln!("99th percentile under handshakes / under connections: {ratios:.2?}");
    // On a machine with other work any single window may be slow. If requests were starved, no
    // window would be fast.
    ensure!(ratios[PAIRS / 4] <= 2.0, "{ratios:.2?}");
    Ok(())
}

/// Returns the 99th percentile of the latency of requests while other clients connect, send these
/// bytes, and leave after the first response.
async fn latency_under_flood(
    address: SocketAddr,
    data: Vec<u8>,
    clients: &mut [Http1TestClient],
) -> Result<Duration> {
    let stopped = Arc::new(AtomicBool::new(false));
    let flooders: JoinSet<_> = (0..FLOODERS)
        .map(|_| open_connections_until_stopped(address, data.clone(), stopped.clone()))
        .collect();
    let mut times = Vec::new();
    for _ in 0..REQUESTS / clients.len() {
        for client in clients.iter_mut() {
            let begun = Instant::now();
            ensure!(client.get("/").await?.status() == 200);
            times.push(begun.elapsed());
        }
    }
    stopped.store(true, Ordering::Relaxed);
    let completed: u64 = flooders.join_all().await.into_iter().sum();
    ensure!(completed > 0, "the flood made no connection");
    times.sort();
    Ok(times[times.len() * 99 / 100])
}

async fn open_connections_until_stopped(
    address: SocketAddr,
    data: Vec<u8>,
    stopped: Arc<AtomicBool>,
) -> u64 {
    let mut completed = 0;
    while !stopped.load(Ordering::Relaxed) {
        let Ok(mut stream) = TcpStream::connect(address).await else { continue };
        if stream.write_all(&data).await.is_ok() && stream.read(&mut [0; 4096]).await.is_ok() {
            completed += 1;
        }
    }
    completed
}
