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

/// Returns the sum of the limits of all replicas at each endpoint, and the reasons for them.
async fn limits(replicas: &[SheaveProcess], endpoint: &Endpoint) -> Result<(f64, Vec<String>)> {
    let (mut sum, mut labels) = (0.0, Vec::new());
    let address = endpoint.address.to_string();
    for replica in replicas {
        for (label, limit) in replica.metric_samples("sheave_endpoint_limit").await? {
            if label.contains(&address) {
                sum += limit;
                labels.push(label);
            }
        }
    }
    Ok((sum, labels))
}

/// Each replica alone would take the load of the others for slowness, and the sum would be off.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn sum_of_learned_limits_of_three_replicas_follows_the_endpoint() -> Result {
    let fixture = learning_fixture().await?;
    let replicas = fixture.start_all().await?;
    let load = |replica: &SheaveProcess, clients| {
        LoadGenerator::start(replica.address(), clients, ClientPattern::GET)
    };
    let loads = [load(&replicas[0], 20), load(&replicas[1], 10), load(&replicas[2], 6)];
    for replica in &replicas {
        let observe = async || metric(replica, "sheave_replica_limit_peers", "").await;
        tests::eventually("two peers learn too", observe, |it| *it == 2.0).await?;
    }
    for endpoint in &fixture.endpoints {
        let observe = async || limits(&replicas, endpoint).await;
        let is_close = |(sum, labels): &(f64, Vec<String>)| {
            let is_known = |label: &String| label.contains("reason=\"saturation\"");
            (3.0..=6.0).contains(sum) && labels.len() == 3 && labels.iter().all(is_known)
        };
        tests::eventually("a sum of about four", observe, is_close).await?;
    }
    // Nothing more than that is at an endpoint, beside what a trial adds.
    for endpoint in &fixture.endpoints {
        let what = "few requests at a time";
        endpoint.wait_for_counts(what, |it| it.in_flight <= 2 * WORKERS).await?;
    }
    for load in loads {
        load.stop().await.assert_all_served();
    }
    Ok(())
}
