//! A silent endpoint: its packets are lost, as when its node loses power.
//!
//! The endpoint is in a network namespace of its own, and Sheave and the test are in another, which
//! needs root.

use std::net::SocketAddr;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use tests::fixture::start_endpoints;
use tests::machine::CpuWaitMeter;
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, eventually};
use tokio::runtime::{Builder, Handle};
use tokio::time::Instant;

use super::load::{LoadProtocol, RecordedLoad, assert_all_served, longest};
use super::outage_helpers::{
    ANSWERS, CLIENTS, SERVICE_TIME, TWO_WORKERS, assert_budget_is_left, metric, wait_for_health,
};

/// Address of the endpoint that falls silent.
const FAR: &str = "198.18.0.2";

/// A network namespace, which lives as long as the process that holds it.
struct NetworkNamespace(std::process::Child);

impl NetworkNamespace {
    fn new() -> Result<Self> {
        let mut command = std::process::Command::new("unshare");
        command.args(["--net", "sh", "-c", "ip link set lo up && echo ready && exec cat"]);
        let mut holder = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut ready = [0; 5];
        let output = holder.stdout.as_mut().context("stdout is a pipe")?;
        let read = std::io::Read::read_exact(output, &mut ready);
        let namespace = Self(holder);
        read.context("cannot create a network namespace")?;
        Ok(namespace)
    }

    /// Moves this thread into the namespace. Later threads and sockets of this thread are in it
    /// too.
    fn enter(&self) -> Result {
        let file = std::fs::File::open(format!("/proc/{}/ns/net", self.0.id()))?;
        let network = Some(LinkNameSpaceType::Network);
        Ok(move_into_link_name_space(std::os::fd::AsFd::as_fd(&file), network)?)
    }

    /// Returns the result of `work` on a thread in this namespace.
    fn within<T: Send>(&self, work: impl FnOnce() -> Result<T> + Send) -> Result<T> {
        let entered = || {
            self.enter()?;
            work()
        };
        std::thread::scope(|scope| scope.spawn(entered).join()).expect("no panic in the namespace")
    }
}

impl Drop for NetworkNamespace {
    fn drop(&mut self) {
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// Runs `ip` of iproute2 with these arguments.
fn ip(arguments: &str) -> Result {
    let output = std::process::Command::new("ip").args(arguments.split(' ')).output()?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "ip {arguments}: {errors}");
    Ok(())
}

/// Two namespaces with a veth pair between them.
struct IsolatedNetwork {
    near: NetworkNamespace,
    far: NetworkNamespace,
}

impl IsolatedNetwork {
    fn new() -> Result<Self> {
        let network = Self { near: NetworkNamespace::new()?, far: NetworkNamespace::new()? };
        let far = network.far.0.id();
        network.near.within(|| {
            let (near_mac, far_mac) = ("address 02:00:00:00:00:01", "address 02:00:00:00:00:02");
            ip(&format!("link add near {near_mac} type veth peer name far {far_mac} netns {far}"))?;
            ip("address add 198.18.0.1/24 dev near")?;
            ip("link set near up")?;
            // Otherwise the far side would be lost because its address can no longer be resolved.
            ip(&format!("neighbour replace {FAR} lladdr 02:00:00:00:00:02 dev near nud permanent"))
        })?;
        network.far.within(|| {
            ip("link set far up")?;
            ip(&format!("address add {FAR}/24 dev far"))
        })?;
        Ok(network)
    }

    /// Drops all packets to and from the far endpoint.
    fn drop_packets(&self) -> Result {
        self.far.within(|| ip(&format!("address delete {FAR}/24 dev far")))
    }

    /// Lets packets arrive again.
    fn restore_packets(&self) -> Result {
        self.far.within(|| ip(&format!("address add {FAR}/24 dev far")))
    }

    /// Starts an endpoint on the far side, served by the runtime of the caller.
    fn endpoint(&self, behaviour: EndpointBehaviour) -> Result<Endpoint> {
        let runtime = Handle::current();
        let address: SocketAddr = format!("{FAR}:0").parse()?;
        self.far.within(|| runtime.block_on(Endpoint::start_at(address, behaviour)))
    }
}

/// Runs the test on the near side of a network of its own. If there can be none, the test is
/// skipped.
fn run_in_network<T: Future<Output = Result>>(
    test: impl FnOnce(IsolatedNetwork) -> T + Send,
) -> Result {
    if !rustix::process::geteuid().is_root() {
        eprintln!("skipped: a network namespace needs root");
        return Ok(());
    }
    let network = match IsolatedNetwork::new() {
        Ok(network) => network,
        Err(error) => {
            eprintln!("skipped: {error:#}");
            return Ok(());
        }
    };
    let run = || {
        network.near.enter()?;
        // Threads of the runtime are in the namespace of the thread that starts them.
        Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(test(network))
    };
    std::thread::scope(|scope| scope.spawn(run).join()).expect("no panic in the test")
}

#[test]
fn no_get_fails_when_an_endpoint_falls_silent() -> Result {
    run_in_network(async |network| {
        let mut servers = vec![network.endpoint(EndpointBehaviour::slow(SERVICE_TIME))?];
        servers.extend(start_endpoints(2, &EndpointBehaviour::slow(SERVICE_TIME)).await?);
        let fixture = HttpFixture::with(servers, &[], TWO_WORKERS).await?;
        let far = fixture.endpoints[0].address;
        let load =
            RecordedLoad::start(fixture.sheave.address(), CLIENTS, &LoadProtocol::Http1("GET"));
        load.wait_for_responses(ANSWERS).await?;
        ensure!(fixture.endpoints[0].counts().requests > 0, "the endpoint gets no request");

        let meter = CpuWaitMeter::start(&fixture.sheave)?;
        network.drop_packets()?;
        let silence = Instant::now();
        wait_for_health(&fixture.sheave, far, "unreachable").await?;
        let detected = (silence.elapsed(), meter.waited()?);
        let in_flight = async || metric(&fixture.sheave, "sheave_endpoint_in_flight", far).await;
        eventually("requests in flight have timed out", in_flight, |count| *count == 0.0).await?;
        let attempts =
            async || metric(&fixture.sheave, "sheave_endpoint_attempts_total", far).await;
        let before = attempts().await?;
        load.wait_for_responses(3 * ANSWERS).await?;
        let later = attempts().await? - before;
        ensure!(later == 0.0, "{later} requests were sent to the endpoint that is unreachable");
        ensure!(metric(&fixture.sheave, "sheave_endpoint_outages_total", far).await? == 1.0);
        let starved = meter.waited()?;
        network.restore_packets()?;
        wait_for_health(&fixture.sheave, far, "serving").await?;
        let before = fixture.endpoints[0].counts().requests;
        load.wait_for_responses(ANSWERS).await?;
        ensure!(
            fixture.endpoints[0].counts().requests > before,
            "the endpoint gets no request after its return"
        );

        let answers = load.stop().await;
        assert_all_served(&answers)?;
        assert_budget_is_left(&fixture.sheave).await?;
        // It is found out within the time of the check, and requests in flight within three seconds.
        let (took, waited) = detected;
        ensure!(took < Duration::from_secs(1) + waited, "unreachable after {took:?}");
        let longest = longest(&answers);
        ensure!(longest < Duration::from_secs(4) + starved, "a request took {longest:?}");
        Ok(())
    })
}
