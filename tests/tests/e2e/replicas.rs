//! Several replicas of Sheave in front of the same endpoints respect a common cap.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::configuration::SERVICE;
use tests::fixture::{addresses, start_endpoints};
use tests::load::{ClientPattern, LoadGenerator, LoadResults};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, ServeStep,
    SheaveProcess, objects,
};
use tokio::time::sleep;

/// Names of the replicas; no process listens there.
const NAMES: [&str; 3] = ["192.0.2.1:1", "192.0.2.2:1", "192.0.2.3:1"];

/// Time that all replicas run in each stage.
const STAGE_DURATION: Duration = Duration::from_secs(3);

/// Starts the replica of this name; `names` are all replicas.
async fn start_replica(
    configuration: &ConfigDirectory,
    names: &[&str],
    name: &str,
) -> Result<SheaveProcess> {
    let list = names.join(",");
    let arguments = ["--workers", "4", "--replicas", &list, "--replica", name];
    SheaveProcess::serve_with(configuration, &arguments).await
}

fn busy_behaviour() -> EndpointBehaviour {
    vec![
        ServeStep::ReadBody,
        ServeStep::WaitExponential(Duration::from_millis(10)),
        ServeStep::Answer,
    ]
    .into()
}

fn config_with_cap(
    endpoints: &[Endpoint],
    cap: u32,
    more: serde_json::Value,
) -> Result<ConfigDirectory> {
    let mut spec = more;
    spec["maxInFlightPerEndpoint"] = cap.into();
    let policy = objects::backend_policy(SERVICE, spec);
    Ok(ConfigDirectory::for_endpoints_with(&addresses(endpoints), &[policy])?)
}

/// Returns the limit of a replica at each endpoint.
async fn limits(sheave: &SheaveProcess) -> Result<BTreeMap<String, u64>> {
    let samples = sheave.metric_samples("sheave_endpoint_limit").await?.into_iter();
    let limit = |(labels, limit): (String, f64)| {
        let endpoint = labels.split("endpoint=\"").nth(1)?.split('"').next()?.to_owned();
        Some((endpoint, limit as u64))
    };
    Ok(samples.filter_map(limit).collect())
}

/// Waits until the replica has been assigned slots.
async fn wait_for_slots(sheave: &SheaveProcess) -> Result {
    let observe = async || Ok(limits(sheave).await?.values().sum::<u64>());
    tests::eventually("assigned slots", observe, |slots| *slots > 0).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_respect_a_cap_of_four_across_a_restart() -> Result {
    let endpoints = start_endpoints(5, &busy_behaviour()).await?;
    let configuration = config_with_cap(&endpoints, 4, json!({ "queue": { "timeout": "30s" } }))?;
    let mut sheaves = Vec::new();
    for name in NAMES {
        sheaves.push(start_replica(&configuration, &NAMES, name).await?);
    }
    // Requests that arrive before the replica has slots wait for them.
    let mut loads: Vec<LoadGenerator> = sheaves
        .iter()
        .map(|it| LoadGenerator::start(it.address(), 16, ClientPattern::GET))
        .collect();
    for sheave in &sheaves {
        wait_for_slots(sheave).await?;
    }
    let mut sums = BTreeMap::<String, u64>::new();
    for sheave in &sheaves {
        for (endpoint, limit) in limits(sheave).await? {
            ensure!((1..=2).contains(&limit), "of 4 slots one of three has 1 or 2: {limit}");
            *sums.entry(endpoint).or_default() += limit;
        }
    }
    ensure!(sums.len() == 5 && sums.values().all(|&sum| sum == 4), "{sums:?}");
    sleep(STAGE_DURATION).await; // The length of the load.
    let busiest = |endpoints: &[Endpoint]| {
        endpoints.iter().map(|it| it.counts().max_in_flight).max().unwrap_or(0)
    };
    ensure!(busiest(&endpoints) == 4, "all slots are used: {}", busiest(&endpoints));

    // The replica dies with requests in flight, which the endpoints continue.
    drop((sheaves.pop(), loads.pop()));
    let restarted = start_replica(&configuration, &NAMES, NAMES[2]).await?;
    loads.push(LoadGenerator::start(restarted.address(), 16, ClientPattern::GET));
    sheaves.push(restarted);
    sleep(STAGE_DURATION).await; // The length of the load.
    let mut report = LoadResults::default();
    for load in loads {
        report = report.merge(load.stop().await);
    }
    report.assert_all_served();
    for endpoint in &endpoints {
        let counts = endpoint
            .wait_for_counts("no request in flight", |counts| counts.in_flight == 0)
            .await?;
        ensure!(counts.max_in_flight == 4, "the maximum differs from the cap: {counts:?}");
        ensure!(counts.max_connections <= 4, "connections over the cap: {counts:?}");
    }
    Ok(())
}

#[tokio::test]
async fn endpoint_without_assigned_slots_fails_no_request() -> Result {
    for algorithm in ["LeastLoad", "Maglev"] {
        let endpoints = start_endpoints(
            20,
            &EndpointBehaviour::from(vec![ServeStep::ReadBody, ServeStep::Answer]),
        )
        .await?;
        let configuration = config_with_cap(&endpoints, 1, json!({ "algorithm": algorithm }))?;
        let mut owned = 0;
        for name in &NAMES[..2] {
            let before: Vec<u64> = endpoints.iter().map(|it| it.counts().requests).collect();
            let sheave = start_replica(&configuration, &NAMES[..2], name).await?;
            wait_for_slots(&sheave).await?;
            let load = LoadGenerator::start(
                sheave.address(),
                4,
                ClientPattern::GET.with_pause(Duration::from_millis(2)),
            );
            sleep(Duration::from_secs(1)).await; // The length of the load.
            load.stop().await.assert_all_served();
            let limits = limits(&sheave).await?;
            for (endpoint, before) in endpoints.iter().zip(before) {
                let assigned = limits[&endpoint.address.to_string()];
                let requests = endpoint.counts().requests - before;
                ensure!(assigned == 1 || requests == 0, "{requests} requests without a slot");
                owned += assigned;
            }
        }
        ensure!(owned == 20, "each slot belongs to one of the two: {owned}");
    }
    Ok(())
}

#[tokio::test]
async fn requests_without_any_assigned_slot_are_refused_with_a_reason() -> Result {
    for (queue, error) in [(json!({ "maxRequests": 0 }), 503), (json!({ "timeout": "300ms" }), 429)]
    {
        let endpoints = start_endpoints(1, &busy_behaviour()).await?;
        let overload = json!({ "status": error });
        let configuration =
            config_with_cap(&endpoints, 1, json!({ "queue": queue, "overload": overload }))?;
        let (mut served, mut refused) = (0, 0);
        for name in &NAMES[..2] {
            let sheave = start_replica(&configuration, &NAMES[..2], name).await?;
            // Slots have been assigned, if there are any.
            sheave.wait_for_log(0, "takes_part=true").await?;
            let response = Http1TestClient::connect(sheave.address()).await?.get("/").await?;
            if response.status() == 200 {
                served += 1;
                continue;
            }
            refused += 1;
            ensure!(response.status() == error, "{response:?}");
            ensure!(response.field("retry-after").is_some(), "{response:?}");
            let reason = response.field("proxy-status").unwrap_or_default();
            ensure!(reason.contains("assigned to other replicas"), "{reason}");
            // A request is counted when it is complete, which is slightly after its response.
            let counted = async || sheave.metric_samples("sheave_backend_refused_total").await;
            tests::eventually("the refusal is counted", counted, |counted| {
                let no_slot = counted.iter().find(|(labels, _)| labels.contains("no_slot"));
                no_slot.is_some_and(|&(_, count)| count == 1.0)
            })
            .await?;
        }
        ensure!((served, refused) == (1, 1), "{served} and {refused}");
    }
    Ok(())
}
