//! Replicas that lease slots of endpoints to one another: slots are where the requests are, and the cap holds.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::ops::RangeInclusive;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::configuration::{SERVICE, TempDirectory};
use tests::fixture::{addresses, start_endpoints};
use tests::load::{ClientPattern, LoadGenerator};
use tests::random::SeededRandom;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Result, ServeStep, SheaveProcess, objects, within,
};
use tokio::io::AsyncReadExt;
use tokio::net::TcpStream;
use tokio::time::sleep;

/// Limits that replicas learn together.
mod learned_limits;

const CAP: u32 = 4;
const ENDPOINTS: usize = 5;

/// Time of a load that is to use all slots.
const STAGE_DURATION: Duration = Duration::from_secs(2);

/// Replicas with the same endpoints and a loopback address of their own each.
struct LeaseFixture {
    endpoints: Vec<Endpoint>,
    configuration: ConfigDirectory,
    members: Vec<SocketAddr>,
}

impl LeaseFixture {
    async fn new(replicas: usize) -> Result<Self> {
        Self::with(replicas, "LeastLoad").await
    }

    async fn with(replicas: usize, algorithm: &str) -> Result<Self> {
        let behaviour: EndpointBehaviour = vec![
            ServeStep::ReadBody,
            ServeStep::WaitExponential(Duration::from_millis(10)),
            ServeStep::Answer,
        ]
        .into();
        let endpoints = start_endpoints(ENDPOINTS, &behaviour).await?;
        let configuration = ConfigDirectory::for_endpoints(&addresses(&endpoints))?;
        let fixture = Self { endpoints, configuration, members: loopback_addresses(replicas)? };
        fixture.set_algorithm(algorithm)?;
        Ok(fixture)
    }

    fn set_algorithm(&self, algorithm: &str) -> Result {
        let queue = json!({ "timeout": "30s" });
        let spec = json!({ "maxInFlightPerEndpoint": CAP, "queue": queue, "algorithm": algorithm });
        Ok(self.configuration.write("policy.yaml", &[objects::backend_policy(SERVICE, spec)])?)
    }

    async fn start(&self, replica: usize, more: &[&str]) -> Result<SheaveProcess> {
        let list: Vec<_> = self.members.iter().map(ToString::to_string).collect();
        let (list, me) = (list.join(","), self.members[replica].to_string());
        let mut arguments = vec!["--workers", "2", "--lease-slots"];
        arguments.extend(["--replicas", &list, "--replica", &me]);
        arguments.extend(more);
        SheaveProcess::serve_with(&self.configuration, &arguments).await
    }

    /// Starts all replicas, and waits until each is connected to all others.
    async fn start_all(&self) -> Result<Vec<SheaveProcess>> {
        let mut replicas = Vec::new();
        for replica in 0..self.members.len() {
            replicas.push(self.start(replica, &[]).await?);
        }
        for replica in &replicas {
            wait_for_peers(replica, (self.members.len() - 1) as f64).await?;
        }
        Ok(replicas)
    }

    /// Starts the two replicas of a fixture of two.
    async fn start_pair(&self) -> Result<(SheaveProcess, SheaveProcess)> {
        let mut replicas = self.start_all().await?;
        let second = replicas.pop().context("a second replica")?;
        Ok((replicas.pop().context("a first replica")?, second))
    }

    /// Waits until each endpoint has had as many requests in flight as the cap allows.
    async fn wait_until_all_slots_are_used(&self) -> Result {
        for endpoint in &self.endpoints {
            endpoint
                .wait_for_counts("all slots are used", |it| it.max_in_flight == CAP as usize)
                .await?;
        }
        Ok(())
    }

    async fn check_cap(&self) -> Result {
        self.check_requests().await?;
        for endpoint in &self.endpoints {
            let counts = endpoint.counts();
            ensure!(counts.max_connections <= CAP as usize, "connections over the cap: {counts:?}");
        }
        Ok(())
    }

    async fn check_requests(&self) -> Result {
        for endpoint in &self.endpoints {
            let counts =
                endpoint.wait_for_counts("no request in flight", |it| it.in_flight == 0).await?;
            ensure!(counts.max_in_flight <= CAP as usize, "over the cap: {counts:?}");
        }
        Ok(())
    }
}

/// Returns addresses that are free now, on a random address of the loopback network.
pub(crate) fn loopback_addresses(count: usize) -> Result<Vec<SocketAddr>> {
    let mut random = SeededRandom::new(u64::from(std::process::id()) ^ count as u64);
    let address = |_| {
        let [_, second, third, fourth, ..] = (random.next_u64() | 1).to_be_bytes();
        let listener = TcpListener::bind((Ipv4Addr::new(127, second, third, fourth), 0))?;
        listener.local_addr().context("the address of a listener")
    };
    (0..count).map(address).collect()
}

/// Returns the value of a metric of a replica.
pub(crate) async fn metric(sheave: &SheaveProcess, name: &str, label: &str) -> Result<f64> {
    let samples = sheave.metric_samples(name).await?.into_iter();
    Ok(samples.filter(|(labels, _)| labels.contains(label)).map(|(_, value)| value).sum())
}

pub(crate) async fn wait_for_peers(sheave: &SheaveProcess, peers: f64) -> Result {
    let observe = async || metric(sheave, "sheave_replica_peers_connected", "").await;
    tests::eventually("connections to peers", observe, |it| *it == peers).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_replica_with_all_requests_uses_all_slots() -> Result {
    let fixture = LeaseFixture::new(3).await?;
    let replicas = fixture.start_all().await?;
    let load = LoadGenerator::start(replicas[0].address(), 40, ClientPattern::GET);
    fixture.wait_until_all_slots_are_used().await?;
    let observe = async || metric(&replicas[0], "sheave_replica_slots", "borrowed").await;
    tests::eventually("slots of others", observe, |it| *it > 0.0).await?;
    // The requests of another replica get their part.
    let other = LoadGenerator::start(replicas[1].address(), 40, ClientPattern::GET);
    sleep(STAGE_DURATION).await; // The length of the load.
    let (load, other) = (load.stop().await, other.stop().await);
    load.assert_all_served();
    other.assert_all_served();
    let all = f64::from(ENDPOINTS as u32 * CAP);
    let observe = async || {
        let mut held = 0.0;
        for replica in &replicas {
            held += metric(replica, "sheave_replica_slots", "held").await?;
        }
        Ok(held)
    };
    tests::eventually("no slot is lost", observe, |held| *held == all).await?;
    fixture.check_cap().await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_a_killed_replica_are_used_by_the_others() -> Result {
    let fixture = LeaseFixture::new(2).await?;
    let (first, second) = fixture.start_pair().await?;
    // The second one lends all that it has, and dies.
    let load = LoadGenerator::start(first.address(), 40, ClientPattern::GET);
    fixture.wait_until_all_slots_are_used().await?;
    drop(second);
    wait_for_peers(&first, 0.0).await?;
    let observe = async || metric(&first, "sheave_replica_slots", "borrowed").await;
    tests::eventually("its leases expire", observe, |it| *it == 0.0).await?;
    // It starts again, and lends again.
    let _second = fixture.start(1, &[]).await?;
    wait_for_peers(&first, 1.0).await?;
    tests::eventually("its slots are lent", observe, |it| *it > 0.0).await?;
    load.stop().await.assert_all_served();
    fixture.check_cap().await
}

/// A request that is bound to an endpoint is not helped by a slot of another one.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn slots_of_a_backend_with_keys_are_assigned() -> Result {
    let fixture = LeaseFixture::with(3, "Maglev").await?;
    let replicas = fixture.start_all().await?;
    let loads: Vec<_> = replicas[..2]
        .iter()
        .map(|it| LoadGenerator::start(it.address(), 20, ClientPattern::GET))
        .collect();
    sleep(STAGE_DURATION).await; // The length of the load.
    for load in loads {
        load.stop().await.assert_all_served();
    }
    for replica in &replicas {
        wait_for_assigned_slots(replica, 1.0..=2.0).await?;
    }
    fixture.check_cap().await
}

/// Waits until the limit of each endpoint is an assigned one within the range.
async fn wait_for_assigned_slots(sheave: &SheaveProcess, range: RangeInclusive<f64>) -> Result {
    let observe = async || sheave.metric_samples("sheave_endpoint_limit").await;
    let is_assigned =
        |(labels, limit): &(String, f64)| labels.contains("assigned") && range.contains(limit);
    tests::eventually("assigned slots", observe, |limits| {
        limits.len() == ENDPOINTS && limits.iter().all(is_assigned)
    })
    .await?;
    Ok(())
}

/// Waits until the replica has served more requests.
async fn wait_for_requests(sheave: &SheaveProcess) -> Result {
    let observe = async || sheave.metric_sum("sheave_requests_total").await;
    let before = observe().await?;
    tests::eventually("requests", observe, |count| *count > before + 50.0).await?;
    Ok(())
}

/// One replica has borrowed slots of the other when they are no longer leased, and when they are again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn policy_that_changes_what_is_leased_loses_no_slot() -> Result {
    let fixture = LeaseFixture::new(2).await?;
    let (first, second) = fixture.start_pair().await?;
    let load = LoadGenerator::start(first.address(), 40, ClientPattern::GET);
    fixture.wait_until_all_slots_are_used().await?;
    fixture.set_algorithm("Maglev")?;
    wait_for_assigned_slots(&first, 2.0..=2.0).await?;
    wait_for_assigned_slots(&second, 2.0..=2.0).await?;
    let other = LoadGenerator::start(second.address(), 10, ClientPattern::GET);
    wait_for_requests(&first).await?;
    wait_for_requests(&second).await?;
    other.stop().await.assert_all_served();
    fixture.set_algorithm("LeastLoad")?;
    let observe = async || metric(&first, "sheave_replica_slots", "borrowed").await;
    tests::eventually("slots of the other", observe, |it| *it > 0.0).await?;
    load.stop().await.assert_all_served();
    // Idle connections of a policy that has changed are closed within a second.
    fixture.check_requests().await
}

/// The next process has the address of the channel once the last one drains.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgraded_process_leases_slots() -> Result {
    let fixture = LeaseFixture::new(2).await?;
    let directory = TempDirectory::new()?;
    let socket = directory.path().join("upgrade");
    let upgrade = ["--upgrade-socket", socket.to_str().context("UTF-8")?];
    let mut last = fixture.start(0, &upgrade).await?;
    let other = fixture.start(1, &[]).await?;
    wait_for_peers(&last, 1.0).await?;
    let next = fixture.start(0, &upgrade).await?;
    ensure!(last.wait_for_exit().await?.success(), "{}", last.log());
    wait_for_peers(&next, 1.0).await?;
    wait_for_peers(&other, 1.0).await?;
    let load = LoadGenerator::start(next.address(), 40, ClientPattern::GET);
    let observe = async || metric(&next, "sheave_replica_slots", "borrowed").await;
    tests::eventually("slots of the other", observe, |it| *it > 0.0).await?;
    load.stop().await.assert_all_served();
    fixture.check_cap().await
}

#[tokio::test]
async fn stranger_at_the_channel_is_refused_and_counted() -> Result {
    let fixture = LeaseFixture::new(2).await?;
    let replicas = fixture.start_all().await?;
    // From an address that no replica has.
    let mut stranger = TcpStream::connect(fixture.members[0]).await?;
    let read = within("the end of the connection", stranger.read(&mut [0; 1])).await?;
    ensure!(read.is_err() || read.is_ok_and(|bytes| bytes == 0), "the stranger gets an answer");
    let observe = async || metric(&replicas[0], "sheave_replica_refusals_total", "source").await;
    tests::eventually("the refusal is counted", observe, |it| *it == 1.0).await?;
    wait_for_peers(&replicas[0], 1.0).await
}

#[tokio::test]
async fn leases_without_certificates_are_refused_beyond_loopback() -> Result {
    let arguments = "serve --listen http://127.0.0.1:0 --to 127.0.0.1:1 --lease-slots \
                     --replicas 192.0.2.1:7,192.0.2.2:7 --replica 192.0.2.1:7";
    let output = tests::sheave::run(arguments.split_whitespace()).await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.code() == Some(1), "{:?}", output.status);
    ensure!(errors.contains("--lease-slots needs --replica-secret"), "{errors}");
    Ok(())
}
