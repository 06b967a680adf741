//! Limits that replicas learn together (`maxInFlightPerEndpoint: auto`).

use std::sync::Arc;

use tokio::sync::Semaphore;

use super::*;

/// Workers of each endpoint; further requests only wait there.
const WORKERS: usize = 4;

/// Starts endpoints with a knee, and returns a fixture of three replicas that learn their limits.
async fn learning_fixture() -> Result<LeaseFixture> {
    let mut endpoints = Vec::new();
    for _ in 0..2 {
        let workers = Arc::new(Semaphore::new(WORKERS));
        let work = ServeStep::WaitForWorker(workers, Duration::from_millis(20));
        let steps: EndpointBehaviour = vec![ServeStep::ReadBody, work, ServeStep::Answer].into();
        endpoints.push(Endpoint::start(steps).await?);
    }
    let configuration = ConfigDirectory::for_endpoints(&addresses(&endpoints))?;
    let queue = json!({ "timeout": "1h" });
    let spec = json!({ "maxInFlightPerEndpoint": "auto", "queue": queue });
    configuration.write("policy.yaml", &[objects::backend_policy(SERVICE, spec)])?;
    Ok(LeaseFixture { endpoints, configuration, members: loopback_addresses(3)? })
}

/// Returns the labels of the limits of a replica.
async fn limits(replica: &SheaveProcess) -> Result<Vec<String>> {
    let samples = replica.metric_samples("sheave_endpoint_limit").await?;
    Ok(samples.into_iter().map(|(label, _)| label).collect())
}

/// How close the sum of the limits is to the capacity, the simulator tests: it depends on times, which a busy machine
/// changes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_learn_the_limits_of_endpoints_together() -> Result {
    let fixture = learning_fixture().await?;
    let replicas = fixture.start_all().await?;
    let load = |replica: &SheaveProcess, clients| {
        LoadGenerator::start(replica.address(), clients, ClientPattern::GET)
    };
    let loads = [load(&replicas[0], 20), load(&replicas[1], 10), load(&replicas[2], 6)];
    for replica in &replicas {
        let observe = async || metric(replica, "sheave_replica_limit_peers", "").await;
        tests::eventually("two peers learn too", observe, |it| *it == 2.0).await?;
        let observe = async || limits(replica).await;
        let has_each = |labels: &Vec<String>| {
            let addresses = fixture.endpoints.iter().map(|it| it.address.to_string());
            addresses.into_iter().all(|it| labels.iter().any(|label| label.contains(&it)))
        };
        tests::eventually("a limit of each endpoint", observe, has_each).await?;
    }
    for load in loads {
        load.stop().await.assert_all_served();
    }
    Ok(())
}
