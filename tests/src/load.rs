//! Load generator: many clients with the same request pattern, each on a kept-alive connection, one
//! request after another, without retries.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use crate::{Http1Error, Http1TestClient, Http1TestResponse};

/// Running clients.
pub struct LoadGenerator {
    clients: JoinSet<LoadResults>,
    stopped: Arc<AtomicBool>,
}

/// Results of their requests.
#[derive(Clone, Debug, Default)]
pub struct LoadResults {
    /// Number of responses by status.
    pub answered: BTreeMap<u16, u64>,
    /// Errors of the failed requests.
    pub failed: Vec<String>,
}

/// Request pattern of each client.
#[derive(Clone, Copy, Debug)]
pub struct ClientPattern {
    pub method: &'static str,
    /// Pause between a response and the next request.
    pub pause: Duration,
}

impl ClientPattern {
    pub const GET: Self = Self { method: "GET", pause: Duration::ZERO };
    pub const POST: Self = Self { method: "POST", pause: Duration::ZERO };

    pub fn with_pause(self, pause: Duration) -> Self {
        Self { pause, ..self }
    }
}

impl LoadGenerator {
    pub fn start(address: SocketAddr, clients: usize, pattern: ClientPattern) -> Self {
        let stopped = Arc::new(AtomicBool::new(false));
        let client = |_| run_client(address, pattern, stopped.clone());
        Self { clients: (0..clients).map(client).collect(), stopped: stopped.clone() }
    }

    /// Stops the clients, after their current requests have ended.
    pub async fn stop(self) -> LoadResults {
        self.stopped.store(true, Ordering::Relaxed);
        let reports = self.clients.join_all().await;
        reports.into_iter().fold(LoadResults::default(), LoadResults::merge)
    }
}

impl LoadResults {
    pub fn requests(&self) -> u64 {
        self.answered.values().sum::<u64>() + self.failed.len() as u64
    }

    pub fn add_result(&mut self, outcome: Result<Http1TestResponse, Http1Error>) {
        match outcome {
            Ok(response) => *self.answered.entry(response.status()).or_default() += 1,
            Err(error) => self.failed.push(error.to_string()),
        }
    }

    /// Asserts that every request was answered with 200.
    pub fn assert_all_served(&self) {
        let served = self.answered.get(&200).copied().unwrap_or(0);
        assert!(served > 0 && served == self.requests(), "{self:?}");
    }

    pub fn merge(mut self, other: Self) -> Self {
        for (status, count) in other.answered {
            *self.answered.entry(status).or_default() += count;
        }
        self.failed.extend(other.failed);
        self
    }
}

async fn run_client(
    address: SocketAddr,
    pattern: ClientPattern,
    stopped: Arc<AtomicBool>,
) -> LoadResults {
    let mut report = LoadResults::default();
    let mut connection = None;
    while !stopped.load(Ordering::Relaxed) {
        let outcome = exchange(&mut connection, address, pattern.method).await;
        let failed = outcome.is_err();
        report.add_result(outcome);
        if failed && report.failed.len() >= 10 {
            return report;
        }
        sleep(pattern.pause).await; // The pause of a client.
    }
    report
}

/// Sends a request on the connection, or on a new one if there is none.
async fn exchange(
    connection: &mut Option<Http1TestClient>,
    address: SocketAddr,
    method: &str,
) -> Result<Http1TestResponse, Http1Error> {
    let mut client = match connection.take() {
        Some(client) => client,
        None => Http1TestClient::connect(address).await?,
    };
    let response = client.exchange(method, "/", &[], b"").await?;
    if !response.closes() {
        *connection = Some(client);
    }
    Ok(response)
}

/// Sends requests at this interval, independently of the earlier ones, each on a connection of its
/// own. Returns the result of each, with the time it took.
pub async fn open_loop(
    address: SocketAddr,
    interval: Duration,
    requests: u32,
) -> Vec<(Duration, Result<Http1TestResponse, Http1Error>)> {
    let start = Instant::now();
    let request = |number: u32| async move {
        // Requests begin at fixed times, whatever the responses do.
        tokio::time::sleep_until(start + interval * number).await;
        let begun = Instant::now();
        let outcome = match Http1TestClient::connect(address).await {
            Ok(mut client) => client.get("/").await,
            Err(error) => Err(error),
        };
        (begun.elapsed(), outcome)
    };
    (0..requests).map(request).collect::<JoinSet<_>>().join_all().await
}
