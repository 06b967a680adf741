//! Certificate rotation under load, as by cert-manager: no connection is lost and no request fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use tests::certificates::{CertificateAuthority, IssuedCertificate};
use tests::tls::TlsClientOptions;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result, eventually, http2};
use tokio::task::JoinSet;

const ROTATIONS: u32 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_during_fifty_rotations() -> Result {
    let authority = CertificateAuthority::new();
    let first = authority.issue(&["test"]);
    let fixture =
        HttpFixture::with_tls(EndpointBehaviour::ok(), &first, &["--workers", "2"]).await?;
    let address = fixture.sheave.address();
    let options = TlsClientOptions::trusting(&authority);
    let kept = Http1TestClient::connect_tls(address, "test", &options).await?;

    let stopped = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..3 {
        clients.spawn(reconnect_until_stopped(address, options.clone(), stopped.clone()));
        clients.spawn(request_on_one_http2_connection(address, options.clone(), stopped.clone()));
    }
    clients.spawn(request_on_one_connection(kept, stopped.clone()));
    for _ in 0..ROTATIONS {
        let next = authority.issue(&["test"]);
        fixture.configuration.write("certificate.yaml", &[next.secret("certificate")])?;
        wait_for_certificate(address, &options, &next).await?;
    }
    stopped.store(true, Ordering::Relaxed);
    for served in clients.join_all().await {
        ensure!(served? > u64::from(ROTATIONS), "too few requests were sent");
    }
    Ok(())
}

async fn wait_for_certificate(
    address: SocketAddr,
    options: &TlsClientOptions,
    identity: &IssuedCertificate,
) -> Result {
    let shown = async || {
        let stream = options.connect(address, "test").await?;
        let chain = stream.get_ref().1.peer_certificates().context("a certificate")?;
        Ok(chain[0] == identity.chain()[0])
    };
    eventually("the new certificate", shown, |shown| *shown).await?;
    Ok(())
}

/// Opens a new connection for every few requests.
async fn reconnect_until_stopped(
    address: SocketAddr,
    options: TlsClientOptions,
    stopped: Arc<AtomicBool>,
) -> Result<u64> {
    let mut served = 0;
    while !stopped.load(Ordering::Relaxed) {
        let mut client = Http1TestClient::connect_tls(address, "test", &options).await?;
        for _ in 0..3 {
            ensure!(client.get("/").await?.status() == 200);
            served += 1;
        }
    }
    Ok(served)
}

/// Sends all requests on one HTTP/2 connection.
async fn request_on_one_http2_connection(
    address: SocketAddr,
    options: TlsClientOptions,
    stopped: Arc<AtomicBool>,
) -> Result<u64> {
    let client = http2::Http2TestClient::connect_tls(address, &options).await?;
    let mut served = 0;
    while !stopped.load(Ordering::Relaxed) {
        ensure!(client.get("/").await?.status() == 200);
        served += 1;
    }
    Ok(served)
}

/// Sends all requests on one connection from before the first rotation.
async fn request_on_one_connection(
    mut client: Http1TestClient,
    stopped: Arc<AtomicBool>,
) -> Result<u64> {
    let mut served = 0;
    while !stopped.load(Ordering::Relaxed) {
        ensure!(client.get("/").await?.status() == 200);
        served += 1;
    }
    Ok(served)
}
