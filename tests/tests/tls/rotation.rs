//! Certificates that change under load, as cert-manager changes them: no connection is lost and no request fails.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use tests::certificates::{Authority, Identity};
use tests::tls::Terms;
use tests::{Behaviour, Client, Result, Scene, eventually, http2};
use tokio::task::JoinSet;

const ROTATIONS: u32 = 50;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_during_fifty_rotations() -> Result {
    let authority = Authority::new();
    let first = authority.vouch(&["test"]);
    let scene = Scene::secure(Behaviour::ok(), &first, &["--workers", "2"]).await?;
    let address = scene.sheave.address();
    let terms = Terms::trusting(&authority);
    let kept = Client::connect_tls(address, "test", &terms).await?;

    let stopped = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for _ in 0..3 {
        clients.spawn(come_and_go(address, terms.clone(), stopped.clone()));
        clients.spawn(stay(address, terms.clone(), stopped.clone()));
    }
    clients.spawn(keep(kept, stopped.clone()));
    for _ in 0..ROTATIONS {
        let next = authority.vouch(&["test"]);
        scene.configuration.write("certificate.yaml", &[next.secret("certificate")])?;
        until_shown(address, &terms, &next).await?;
    }
    stopped.store(true, Ordering::Relaxed);
    for served in clients.join_all().await {
        ensure!(served? > u64::from(ROTATIONS), "hardly a request was under way");
    }
    Ok(())
}

async fn until_shown(address: SocketAddr, terms: &Terms, identity: &Identity) -> Result {
    let shown = async || {
        let stream = terms.connect(address, "test").await?;
        let chain = stream.get_ref().1.peer_certificates().context("a certificate")?;
        Ok(chain[0] == identity.chain()[0])
    };
    eventually("the new certificate", shown, |shown| *shown).await?;
    Ok(())
}

/// A connection for each few requests.
async fn come_and_go(address: SocketAddr, terms: Terms, stopped: Arc<AtomicBool>) -> Result<u64> {
    let mut served = 0;
    while !stopped.load(Ordering::Relaxed) {
        let mut client = Client::connect_tls(address, "test", &terms).await?;
        for _ in 0..3 {
            ensure!(client.get("/").await?.status() == 200);
            served += 1;
        }
    }
    Ok(served)
}

/// One connection of HTTP/2 for all requests.
async fn stay(address: SocketAddr, terms: Terms, stopped: Arc<AtomicBool>) -> Result<u64> {
    let client = http2::Client::connect_tls(address, &terms).await?;
    let mut served = 0;
    while !stopped.load(Ordering::Relaxed) {
        ensure!(client.get("/").await?.status() == 200);
        served += 1;
    }
    Ok(served)
}

/// One connection from before the first rotation.
async fn keep(mut client: Client, stopped: Arc<AtomicBool>) -> Result<u64> {
    let mut served = 0;
    while !stopped.load(Ordering::Relaxed) {
        ensure!(client.get("/").await?.status() == 200);
        served += 1;
    }
    Ok(served)
}
