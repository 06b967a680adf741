//! Connection migration during configuration changes.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use anyhow::{Context, ensure};
use serde_json::Value;
use tests::fixture::{addresses, start_endpoints};
use tests::{EndpointBehaviour, Result, eventually, objects};
use tokio::task::JoinSet;

use super::fixture::Http3Fixture;

const REQUESTS: u64 = 10_000;
const CONCURRENT_REQUESTS: u64 = 16;
const CHANGES: u64 = 20;

/// Ten thousand requests on one connection, while the client's port changes 20 times, as by NAT,
/// and the configuration as often: every request is answered.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_request_fails_during_client_migration_and_reloads() -> Result {
    let servers = start_endpoints(3, &EndpointBehaviour::ok()).await?;
    let site = Http3Fixture::of(&addresses(&servers)).await?;
    let client = Arc::new(site.client().await?);
    let answered = Arc::new(AtomicU64::new(0));
    let mut requests = JoinSet::new();
    for _ in 0..CONCURRENT_REQUESTS {
        let (client, answered) = (client.clone(), answered.clone());
        requests.spawn(async move {
            for _ in 0..REQUESTS / CONCURRENT_REQUESTS {
                let response = client.get("/").await?;
                ensure!(response.status() == 200 && response.text() == "ok", "{response:?}");
                answered.fetch_add(1, Ordering::Relaxed);
            }
            Ok(())
        });
    }
    for change in 1..=CHANGES {
        let due = change * REQUESTS / (CHANGES + 1);
        let count = async || {
            ensure!(client.connection.close_reason().is_none(), "the connection has ended");
            Ok(answered.load(Ordering::Relaxed))
        };
        eventually("more answers", count, |answered| *answered >= due).await?;
        client.change_port()?;
        let generation = generation(&site).await?;
        site.configuration.write("revision.yaml", &revision(change))?;
        let taken = async || self::generation(&site).await;
        eventually("the next generation", taken, |now| *now > generation).await?;
    }
    for outcome in requests.join_all().await {
        outcome?;
    }
    let lines = site.sheave.wait_for_access_log(REQUESTS as usize).await?;
    let ports: BTreeSet<_> = lines.iter().map(|line| line["network.peer.port"].as_u64()).collect();
    ensure!(ports.len() as u64 > CHANGES / 2, "seen at the ports {ports:?}");
    // The client's address does not change when its packets come from another port.
    let clients: BTreeSet<_> = lines.iter().map(|line| line["client.port"].as_u64()).collect();
    ensure!(clients.len() == 1, "{clients:?}");
    Ok(())
}

async fn generation(site: &Http3Fixture) -> Result<u64> {
    let config = site.sheave.admin_json("/api/v1/config").await?;
    config["generation"].as_u64().context("a generation")
}

/// Returns a change that affects no request of the test.
fn revision(number: u64) -> Vec<Value> {
    let host = format!("revision-{number}.test");
    vec![objects::service("marker"), objects::host_route(&host, "marker")]
}
