//! Memory cost of idle TLS connections.

use anyhow::{Context, ensure};
use tests::certificates::CertificateAuthority;
use tests::tls::TlsClientOptions;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, http2, idle};

const CONNECTIONS: usize = 1000;

/// Memory that a connection may cost after a request. rustls keeps the state that TLS 1.3 needs to
/// change keys and to issue tickets.
const MAX_BYTES_PER_HTTP1_CONNECTION: u64 = 32 * 1024;
/// The same, with the state and header tables of HTTP/2.
const MAX_BYTES_PER_HTTP2_CONNECTION: u64 = 64 * 1024;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_http1_connections_use_little_memory() -> Result {
    let authority = CertificateAuthority::new();
    let options = TlsClientOptions::trusting(&authority);
    let fixture = start_fixture(&authority).await?;
    let open = async || {
        let mut client =
            Http1TestClient::connect_tls(fixture.sheave.address(), "test", &options).await?;
        ensure!(client.post("/", &idle::warm_up_body()).await?.status() == 200);
        Ok(client)
    };
    let mut clients = idle::check_memory_per_connection(
        &fixture.sheave,
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
    let options = TlsClientOptions::trusting(&authority).with_alpn(&["h2"]);
    let fixture = start_fixture(&authority).await?;
    let open = async || {
        let stream = options.connect(fixture.sheave.address(), "test").await?;
        let client = http2::Http2TestClient::over(stream, &h2::client::Builder::new()).await?;
        ensure!(client.post("/", idle::warm_up_body()).await?.status() == 200);
        Ok(client)
    };
    let clients = idle::check_memory_per_connection(
        &fixture.sheave,
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

async fn start_fixture(authority: &CertificateAuthority) -> Result<HttpFixture> {
    HttpFixture::with_tls(EndpointBehaviour::ok(), &authority.issue(&["test"]), &[]).await
}
