//! Replicas that keep a limit together: tokens go to where the requests are.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use serde_json::json;
use tests::configuration::SERVICE;
use tests::fixture::addresses;
use tests::load::{ClientPattern, LoadGenerator, LoadResults};
use tests::{ConfigDirectory, Endpoint, EndpointBehaviour, Result, SheaveProcess};
use tokio::time::{Instant, sleep};

use super::route_policy;
use crate::leased_slots::{loopback_addresses, metric, wait_for_peers};

/// Requests in each second, and at once.
const RATE: f64 = 60.0;

struct ReplicaFixture {
    replicas: Vec<SheaveProcess>,
    _endpoint: Endpoint,
    _configuration: ConfigDirectory,
}

impl ReplicaFixture {
    /// Starts three replicas with these further arguments.
    async fn start(arguments: &[&str]) -> Result<Self> {
        let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
        let limits = json!([{ "requests": RATE as u32, "period": "1s" }]);
        let configuration = ConfigDirectory::for_endpoints_with(
            &addresses(std::slice::from_ref(&endpoint)),
            &[route_policy(SERVICE, limits)],
        )?;
        let members = loopback_addresses(3)?;
        let mut replicas = Vec::new();
        for &member in &members {
            replicas.push(start_replica(&configuration, &members, member, arguments).await?);
        }
        Ok(Self { replicas, _endpoint: endpoint, _configuration: configuration })
    }

    /// Sends requests to the replicas, from so many clients each, for a time. Returns the number that was admitted, and
    /// the time from before the first to after the last.
    async fn load(&self, clients: &[usize], time: Duration) -> Result<(f64, f64)> {
        let began = Instant::now();
        let pattern = ClientPattern::GET.with_pause(Duration::from_millis(5));
        let loads = self.replicas.iter().zip(clients);
        let loads: Vec<_> = loads
            .map(|(replica, &clients)| LoadGenerator::start(replica.address(), clients, pattern))
            .collect();
        sleep(time).await; // The length of the load.
        let mut results = LoadResults::default();
        for load in loads {
            results = results.merge(load.stop().await);
        }
        let seconds = began.elapsed().as_secs_f64();
        ensure!(results.failed.is_empty(), "{results:?}");
        let admitted = results.answered.get(&200).copied().unwrap_or(0);
        ensure!(results.answered.contains_key(&429), "{results:?}");
        Ok((admitted as f64, seconds))
    }
}

async fn start_replica(
    configuration: &ConfigDirectory,
    members: &[SocketAddr],
    me: SocketAddr,
    more: &[&str],
) -> Result<SheaveProcess> {
    let list: Vec<_> = members.iter().map(ToString::to_string).collect();
    let (list, me) = (list.join(","), me.to_string());
    let mut arguments = vec!["--workers", "2", "--replicas", &list, "--replica", &me];
    arguments.extend(more);
    SheaveProcess::serve_with(configuration, &arguments).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn three_replicas_keep_one_limit_together_however_requests_are_split() -> Result {
    let fixture = ReplicaFixture::start(&["--lease-slots"]).await?;
    for replica in &fixture.replicas {
        wait_for_peers(replica, 2.0).await?;
    }
    for clients in [[12, 0, 0], [8, 3, 1]] {
        let (admitted, seconds) = fixture.load(&clients, Duration::from_secs(4)).await?;
        ensure!(admitted <= RATE * (seconds + 1.0), "{clients:?}: {admitted} in {seconds} s");
        // A replica alone admits a third.
        ensure!(admitted >= RATE * seconds * 0.6, "{clients:?}: {admitted} in {seconds} s");
    }
    for replica in &fixture.replicas {
        let refused = metric(replica, "sheave_replica_refusals_total", "tokens_").await?;
        ensure!(refused == 0.0, "{refused} messages are refused");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn replicas_without_a_channel_have_a_fixed_part_of_the_limit() -> Result {
    let fixture = ReplicaFixture::start(&[]).await?;
    let (admitted, seconds) = fixture.load(&[12, 0, 0], Duration::from_secs(3)).await?;
    ensure!(admitted <= RATE * (seconds + 1.0) / 3.0, "{admitted} in {seconds} s");
    ensure!(admitted >= RATE * seconds / 3.0 * 0.6, "{admitted} in {seconds} s");
    Ok(())
}
