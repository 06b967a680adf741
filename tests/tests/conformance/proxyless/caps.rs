//! The limit of each endpoint, as far as gRPC clients follow it: together they have at most the limits of all endpoints in
//! flight. How far single endpoints exceed their limits is counted.

use std::future::pending;
use std::time::Duration;

use anyhow::{bail, ensure};
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{ConfigDirectory, Result, SheaveProcess};

use super::clients::{GrpcClient, GrpcLibrary};
use super::site::{BootstrapFile, set_endpoints};

/// The limit of each of the endpoints.
const LIMIT: usize = 4;
const ENDPOINTS: usize = 4;
/// Calls of each client: more than it may have in flight.
const CALLS: usize = 60;
/// The limits of all endpoints together.
const SLOTS: usize = LIMIT * ENDPOINTS;
/// Interval at which an application tries again, and number of tries: clients report every 2 s.
const RETRY_INTERVAL: Duration = Duration::from_millis(500);
const REPORTS: usize = 60;

const CONFIGURATION: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: capped, namespace: shop}
spec: {ports: [{name: http, port: 80, appProtocol: grpc}]}
---
apiVersion: sheave.dev/v1alpha1
kind: BackendPolicy
metadata: {name: capped, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: capped}]
  maxInFlightPerEndpoint: 4
"#;

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn one_client_has_the_sum_of_the_limits() -> Result {
    let mut site = LimitedSite::start(1).await?;
    site.hold(0, CALLS).await?;
    site.wait_for_dropped(CALLS - SLOTS).await?;
    site.check_in_flight(SLOTS)
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn three_clients_share_the_sum_of_the_limits() -> Result {
    let mut site = LimitedSite::start(3).await?;
    for client in 0..3 {
        site.hold(client, 1).await?;
    }
    // Each has reported its call by then, and has had its share for longer than that.
    site.wait_for("sheave_xds_backend_in_flight", 3.0).await?;
    for client in 0..3 {
        site.hold(client, CALLS).await?;
    }
    site.wait_for_dropped(3 * CALLS - (SLOTS - 3)).await?;
    site.check_in_flight(SLOTS)
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn busy_client_gets_the_share_of_an_idle_one() -> Result {
    let mut site = LimitedSite::start(2).await?;
    for client in 0..2 {
        site.hold(client, 1).await?;
    }
    site.wait_for("sheave_xds_backend_in_flight", 2.0).await?;
    site.hold(0, CALLS).await?;
    site.wait_for_dropped(CALLS - (SLOTS / 2 - 1)).await?;
    site.check_in_flight(SLOTS / 2 + 1)?;
    // It reports that it wants more, gets it, and tries again, as an application would.
    for _ in 0..REPORTS {
        // The time until the application tries again.
        tokio::time::sleep(RETRY_INTERVAL).await;
        site.hold(0, SLOTS).await?;
        let in_flight: usize = site.in_flight().iter().sum();
        ensure!(in_flight <= SLOTS, "{in_flight} calls in flight");
        if in_flight == SLOTS {
            return Ok(());
        }
    }
    bail!("the share of the busy client stays: {:?} in flight", site.in_flight())
}

/// Clients of endpoints that answer no call.
struct LimitedSite {
    _configuration: ConfigDirectory,
    sheave: SheaveProcess,
    endpoints: Vec<Http2TestEndpoint>,
    clients: Vec<GrpcClient>,
}

impl LimitedSite {
    async fn start(count: usize) -> Result<Self> {
        let configuration = ConfigDirectory::empty()?;
        configuration.write_text("main.yaml", CONFIGURATION)?;
        let mut endpoints = Vec::new();
        for _ in 0..ENDPOINTS {
            let never = |call: ReceivedRequest| async move {
                let _open = call;
                pending().await
            };
            endpoints.push(Http2TestEndpoint::start(never).await?);
        }
        let addresses: Vec<_> = endpoints.iter().map(|it| it.address).collect();
        set_endpoints(&configuration, "capped", &addresses)?;
        let sheave = SheaveProcess::serve_with(&configuration, &["--xds", "127.0.0.1:0"]).await?;
        let mut clients = Vec::new();
        for _ in 0..count {
            let bootstrap = BootstrapFile::new(&sheave, &[]).await?;
            let target = "xds:///capped.shop:80";
            clients.push(GrpcClient::start(GrpcLibrary::Go, target, bootstrap, None)?);
        }
        Ok(Self { _configuration: configuration, sheave, endpoints, clients })
    }

    /// Begins calls of a client. Those beyond its share fail at once.
    async fn hold(&mut self, client: usize, calls: usize) -> Result {
        self.clients[client].command(&format!("hold /shop.Slow/Get {calls}")).await?;
        Ok(())
    }

    /// Waits until the clients have reported this number of calls that they have not sent.
    async fn wait_for_dropped(&self, count: usize) -> Result {
        let metric = "sheave_xds_backend_results_total";
        let dropped = async || self.sum(metric, "dropped").await;
        let count = f64::from(u32::try_from(count)?);
        tests::eventually("the other calls", dropped, |it| *it == count).await?;
        Ok(())
    }

    async fn wait_for(&self, metric: &str, value: f64) -> Result {
        tests::eventually(metric, async || self.sum(metric, "").await, |it| *it == value).await?;
        Ok(())
    }

    async fn sum(&self, metric: &str, label: &str) -> Result<f64> {
        let samples = self.sheave.metric_samples(metric).await?;
        let meant = samples.iter().filter(|(labels, _)| labels.contains(label));
        Ok(meant.map(|(_, value)| value).sum())
    }

    fn in_flight(&self) -> Vec<usize> {
        self.endpoints.iter().map(|it| it.counts().in_flight).collect()
    }

    /// Checks the number of calls in flight at all endpoints together. A client compares two of the endpoints to which it
    /// has a connection, so some may exceed their limits.
    fn check_in_flight(&self, expected: usize) -> Result {
        let (in_flight, clients) = (self.in_flight(), self.clients.len());
        eprintln!(
            "{clients} clients, limit {LIMIT}: {in_flight:?} calls in flight at the endpoints"
        );
        ensure!(in_flight.iter().sum::<usize>() == expected, "{in_flight:?}");
        Ok(())
    }
}
