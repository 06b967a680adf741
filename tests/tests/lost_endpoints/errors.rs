//! Endpoints that answer errors sooner than others answer: they do not draw requests.

use anyhow::{Context, ensure};
use tests::load::{Habit, Load};
use tests::{Behaviour, Endpoint, Result, Scene, eventually};

use crate::site::{CLIENTS, SERVICE_TIME, TWO_WORKERS, requests};

const FAILURE: &str = "HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\n\r\n";
const REQUESTS: u64 = 1500;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_failing_endpoint_gets_at_most_its_share() -> Result {
    let mut servers = vec![Endpoint::start(Behaviour::answering(FAILURE)).await?];
    servers.extend(tests::scene::endpoints(2, &Behaviour::slow(SERVICE_TIME)).await?);
    let scene = Scene::with(servers, &[], TWO_WORKERS).await?;
    let load = Load::start(scene.sheave.address(), CLIENTS, Habit::GET);
    let observe = async || Ok(requests(&scene.endpoints).iter().sum::<u64>());
    eventually("requests", observe, |requests| *requests >= REQUESTS).await?;
    let report = load.stop().await;
    ensure!(report.failed.is_empty(), "{report:?}");
    let failures = report.answered.get(&500).copied().context("some failures")?;
    let share = failures as f64 / report.requests() as f64;
    ensure!(share <= 0.35, "{failures} of {} answers are 500", report.requests());
    Ok(())
}
