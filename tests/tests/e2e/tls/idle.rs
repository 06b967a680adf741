//! What a connection costs in memory that is encrypted and does nothing.

use anyhow::{Context, ensure};
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, http2, idle};

const CONNECTIONS: usize = 1000;

/// What one may cost that has served a request. rustls keeps what TLS 1.3 needs to change keys and to hand out tickets.
const MAX_BYTES_PER_HTTP1_CONNECTION: u64 = 32 * 1024;
/// The same, with HTTP/2's state and tables of fields.
const MAX_BYTES_PER_HTTP2_CONNECTION: u64 = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_http1_connections_use_little_memory() -> Result {
    let authority = CertificateAuthority::new();
    let terms = TlsClientOptions::trusting(&authority);
    let scene = scene(&authority).await?;
    let open = async || {
        let mut client =
            Http1TestClient::connect_tls(scene.sheave.address(), "test", &terms).await?;
        ensure!(client.post("/", &idle::warm_up_body()).await?.status() == 200);
        Ok(client)
    };
    let mut clients = idle::check_memory_per_connection(
        &scene.sheave,
        "HTTP/1.1 over TLS",
        CONNECTIONS,
        MAX_BYTES_PER_HTTP1_CONNECTION,
        open,
    )
    .await?;
    let last = clients.last_mut().context("there are many")?;
    ensure!(last.get("/").await?.status() == 200);
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_http2_connections_use_little_memory() -> Result {
    let authority = CertificateAuthority::new();
    let terms = TlsClientOptions::trusting(&authority).with_alpn(&["h2"]);
    let scene = scene(&authority).await?;
    let open = async || {
        let stream = terms.connect(scene.sheave.address(), "test").await?;
        let client = http2::Http2TestClient::over(stream, &h2::client::Builder::new()).await?;
        ensure!(client.post("/", idle::warm_up_body()).await?.status() == 200);
        Ok(client)
    };
    let clients = idle::check_memory_per_connection(
        &scene.sheave,
        "HTTP/2 over TLS",
        CONNECTIONS,
        MAX_BYTES_PER_HTTP2_CONNECTION,
        open,
    )
    .await?;
    let last = clients.last().context("there are many")?;
    ensure!(last.get("/").await?.status() == 200);
    Ok(())
}

async fn scene(authority: &CertificateAuthority) -> Result<HttpFixture> {
    HttpFixture::with_tls(EndpointBehaviour::ok(), &authority.issue(&["test"]), &[]).await
}
