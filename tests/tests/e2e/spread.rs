//! Connections are distributed over the workers by load, and moved when the load changes.

use anyhow::{Context, ensure};
use tests::fixture::start_endpoints;
use tests::{EndpointBehaviour, Http1TestClient, HttpFixture, Result};
use tokio::time::Instant;

/// Returns the number of requests that each worker has served.
async fn requests_per_worker(fixture: &HttpFixture) -> Result<Vec<f64>> {
    let samples = fixture.sheave.metric_samples("sheave_worker_requests_total").await?;
    Ok(samples.into_iter().map(|(_, value)| value).collect())
}

#[tokio::test]
async fn connections_are_spread_over_workers() -> Result {
    const WORKERS: usize = 4;
    const CLIENTS: usize = 40;
    let servers = start_endpoints(1, &EndpointBehaviour::ok()).await?;
    let fixture = HttpFixture::with(servers, &[], &["--workers", "4"]).await?;
    let mut clients = Vec::new();
    for _ in 0..CLIENTS {
        clients.push(fixture.client().await?);
    }
    for client in &mut clients {
        ensure!(client.get("/").await?.status() == 200);
    }
    let served = requests_per_worker(&fixture).await?;
    ensure!(served.len() == WORKERS, "{served:?}");
    let fair = (CLIENTS / WORKERS) as f64;
    ensure!(served.iter().all(|served| (served - fair).abs() <= 2.0), "{served:?}");
    Ok(())
}

/// Otherwise a few long-lived clients could put all the work on one worker.
#[tokio::test]
async fn idle_connections_move_to_a_less_loaded_worker() -> Result {
    const CLIENTS: usize = 16;
    let servers = start_endpoints(1, &EndpointBehaviour::ok()).await?;
    let fixture = HttpFixture::with(servers, &[], &["--workers", "2"]).await?;
    let mut of_first = Vec::new();
    let mut of_second = Vec::new();
    for _ in 0..CLIENTS {
        let mut client = fixture.client().await?;
        let before = requests_per_worker(&fixture).await?;
        ensure!(client.get("/").await?.status() == 200);
        let after = requests_per_worker(&fixture).await?;
        let owner = if after[0] > before[0] { &mut of_first } else { &mut of_second };
        owner.push(client);
    }
    ensure!(of_first.len() == CLIENTS / 2, "{} and {}", of_first.len(), of_second.len());

    drop(of_first);
    let begun = Instant::now();
    let before = requests_per_worker(&fixture).await?[0];
    while requests_per_worker(&fixture).await?[0] < before + 100.0 {
        ensure!(
            begun.elapsed().as_secs() < 20,
            "no connection moves: {:?}",
            requests_per_worker(&fixture).await?
        );
        for client in &mut of_second {
            send_requests(client).await?;
        }
    }
    let moved = fixture.sheave.metric_sum("sheave_worker_connections_moved_total").await?;
    ensure!(moved >= 1.0 && moved <= CLIENTS as f64, "{moved} moves");
    Ok(())
}

async fn send_requests(client: &mut Http1TestClient) -> Result {
    for _ in 0..10 {
        let response = client.get("/").await.context("a moved connection lost a request")?;
        ensure!(response.status() == 200);
    }
    Ok(())
}
