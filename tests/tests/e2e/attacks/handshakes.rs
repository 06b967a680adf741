//! Handshake floods: two thousand unfinished handshakes, and many that begin at the same time.

use std::io::Write;

use anyhow::ensure;
use rustix::process::{Resource, getrlimit};
use serde_json::json;
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, eventually, objects};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;

/// Half-open handshakes, if there are enough descriptors: each takes one here and one in Sheave. Two thousand show the
/// memory of each as well as more do.
const HALF_OPEN: u64 = 2000;

/// Handshakes that begin at the same time, and how often they do.
const BURST: usize = 200;
const ROUNDS: usize = 6;

/// Returns Sheave with one listener, which terminates TLS.
async fn start_fixture(authority: &CertificateAuthority, workers: &str) -> Result<HttpFixture> {
    let identity = authority.issue(&["test"]);
    let fixture =
        HttpFixture::with_tls(EndpointBehaviour::ok(), &identity, &["--workers", workers]).await?;
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
    let fixture = start_fixture(&authority, "2").await?;
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

/// Handshakes that arrive together do not hold up a request behind all of them: each worker does one step of one
/// handshake, then whatever else is ready.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn handshake_flood_does_not_starve_requests() -> Result {
    let authority = CertificateAuthority::new();
    let fixture = start_fixture(&authority, "1").await?;
    let options = TlsClientOptions::trusting(&authority);
    let hello = options.client_hello("test")?;
    let mut client =
        Http1TestClient::connect_tls(fixture.sheave.address(), "test", &options).await?;
    let mut answered = Vec::new();
    for _ in 0..ROUNDS {
        let mut burst = HandshakeBurst::connect(&fixture).await?;
        burst.send(&hello)?;
        ensure!(client.get("/").await?.status() == 200);
        answered.push(burst.count_answered()?);
    }
    eprintln!("handshakes answered before the request: {answered:?} of {BURST}");
    // If this process gets no CPU between the burst and the request, handshakes are answered meanwhile. Requests that
    // waited for the burst would wait in every round.
    ensure!(answered.iter().any(|count| *count <= BURST / 4), "{answered:?} of {BURST}");
    Ok(())
}

/// Connections whose handshakes begin at the same time.
struct HandshakeBurst(Vec<std::net::TcpStream>);

impl HandshakeBurst {
    /// Connects, and waits until all connections are accepted.
    async fn connect(fixture: &HttpFixture) -> Result<Self> {
        let accepted =
            async || fixture.sheave.metric_sum("sheave_listener_connections_total").await;
        let before = accepted().await?;
        let connect = |_| std::net::TcpStream::connect(fixture.sheave.address());
        let streams: Vec<_> = (0..BURST).map(connect).collect::<Result<_, _>>()?;
        let all = |now: &f64| *now >= before + BURST as f64;
        eventually("the burst is accepted", accepted, all).await?;
        Ok(Self(streams))
    }

    fn send(&mut self, hello: &[u8]) -> Result {
        self.0.iter_mut().try_for_each(|stream| Ok(stream.write_all(hello)?))
    }

    /// Returns the number of connections on which the server has answered.
    fn count_answered(&self) -> Result<usize> {
        let mut answered = 0;
        for stream in &self.0 {
            stream.set_nonblocking(true)?;
            answered += usize::from(stream.peek(&mut [0]).is_ok_and(|bytes| bytes > 0));
        }
        Ok(answered)
    }
}
