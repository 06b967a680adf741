//! The limit of each endpoint, as far as gRPC clients follow it: each has at most the limits of all endpoints together in
//! flight. How far endpoints exceed their limits is counted.

use std::future::pending;

use anyhow::ensure;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{ConfigDirectory, Result, SheaveProcess};

use super::clients::{GrpcClient, GrpcLibrary};
use super::site::{BootstrapFile, set_endpoints};

/// The limit of each of the endpoints.
const LIMIT: usize = 4;
const ENDPOINTS: usize = 4;
/// Calls of each client: more than it may have in flight.
const CALLS: usize = 60;

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
async fn one_client_keeps_to_the_sum_of_the_limits() -> Result {
    // It compares two of the endpoints to which it has a connection, so some may exceed their limits.
    over_limits(1).await?;
    Ok(())
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn each_of_three_clients_may_have_the_sum_of_the_limits() -> Result {
    let over = over_limits(3).await?;
    ensure!(over >= 2 * LIMIT * ENDPOINTS, "two of the clients are too many: {over}");
    Ok(())
}

/// Checks that clients have as many calls in flight as they may, and returns those beyond the limits of endpoints.
async fn over_limits(clients: usize) -> Result<usize> {
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
    let mut running = Vec::new();
    for _ in 0..clients {
        let bootstrap = BootstrapFile::new(&sheave, &[]).await?;
        let mut client =
            GrpcClient::start(GrpcLibrary::Go, "xds:///capped.shop:80", bootstrap, None)?;
        client.command(&format!("hold /shop.Slow/Get {CALLS}")).await?;
        running.push(client);
    }
    // The others fail at the client, which reports them.
    let dropped = async || {
        let samples = sheave.metric_samples("sheave_xds_backend_results_total").await?;
        let dropped = samples.iter().filter(|(labels, _)| labels.contains("dropped"));
        Ok::<f64, anyhow::Error>(dropped.map(|(_, value)| value).sum())
    };
    let expected = u32::try_from(clients * (CALLS - LIMIT * ENDPOINTS))?;
    tests::eventually("the other calls", dropped, |it| *it == f64::from(expected)).await?;
    let in_flight: Vec<_> = endpoints.iter().map(|it| it.counts().in_flight).collect();
    eprintln!("{clients} clients, limit {LIMIT}: {in_flight:?} calls in flight at the endpoints");
    ensure!(in_flight.iter().sum::<usize>() == clients * LIMIT * ENDPOINTS, "{in_flight:?}");
    Ok(in_flight.iter().map(|count| count.saturating_sub(LIMIT)).sum())
}
