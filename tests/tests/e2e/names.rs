//! ExternalName: endpoints come from DNS, follow its records, and survive its failures.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::dns::NameServer;
use tests::load::{ClientPattern, LoadGenerator};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Result, SheaveProcess, eventually, objects,
};
use tokio::time::Instant;

const NAME: &str = "app.test";

/// Sheave in front of a DNS name, and the server of that name.
struct DnsFixture {
    names: NameServer,
    endpoints: Vec<Endpoint>,
    sheave: SheaveProcess,
    configuration: ConfigDirectory,
}

impl DnsFixture {
    /// Starts endpoints on these addresses, on one port. The name resolves to the first.
    async fn start(addresses: &[IpAddr]) -> Result<Self> {
        let mut endpoints =
            vec![Endpoint::start_at((addresses[0], 0).into(), EndpointBehaviour::ok()).await?];
        let port = endpoints[0].address.port();
        for address in &addresses[1..] {
            endpoints
                .push(Endpoint::start_at((*address, port).into(), EndpointBehaviour::ok()).await?);
        }
        let names = NameServer::start().await?;
        names.set_addresses(NAME, &addresses[..1]);
        let configuration = ConfigDirectory::empty()?;
        configuration.write("main.yaml", &external_name(port))?;
        let server = names.address.to_string();
        let sheave = SheaveProcess::serve_with(&configuration, &["--dns", &server]).await?;
        Ok(Self { names, endpoints, sheave, configuration })
    }

    fn address(&self, index: usize) -> SocketAddr {
        self.endpoints[index].address
    }

    async fn lookups(&self, result: &str) -> Result<f64> {
        let samples = self.sheave.metric_samples("sheave_dns_lookups_total").await?;
        let mut samples = samples.into_iter().filter(|(labels, _)| labels.contains(result));
        Ok(samples.next().context("the result is counted")?.1)
    }

    /// Waits until this number of further lookups has failed.
    async fn wait_for_failed_lookups(&self, more: f64) -> Result {
        let expected = self.lookups("failed").await? + more;
        let observe = async || self.lookups("failed").await;
        eventually("failed lookups", observe, |failed| *failed >= expected).await?;
        Ok(())
    }
}

/// Returns a listener, and a route that sends every request to the name.
fn external_name(port: u16) -> Vec<Value> {
    let mut objects = objects::gateway();
    let backend = json!({ "name": SERVICE, "port": port });
    objects.push(objects::route_with(SERVICE, json!({ "rules": [{ "backendRefs": [backend] }] })));
    objects.push(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": SERVICE },
        "spec": { "type": "ExternalName", "externalName": NAME },
    }));
    objects
}

fn local(last: u8) -> IpAddr {
    [127, 0, 0, last].into()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dns_change_updates_endpoints_after_the_ttl() -> Result {
    let fixture = DnsFixture::start(&[local(1), local(2)]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 2, ClientPattern::GET);
    fixture.sheave.wait_for_endpoints(&[fixture.address(0)]).await?;
    fixture.names.set_addresses(NAME, &[local(1), local(2)]);
    fixture.sheave.wait_for_endpoints(&[fixture.address(0), fixture.address(1)]).await?;
    fixture.names.set_addresses(NAME, &[local(2)]);
    fixture.sheave.wait_for_endpoints(&[fixture.address(1)]).await?;
    load.stop().await.assert_all_served();
    ensure!(fixture.endpoints[1].counts().requests > 0, "the second endpoint was used");
    Ok(())
}

#[tokio::test]
async fn ipv4_and_ipv6_addresses_are_used() -> Result {
    let v6 = IpAddr::V6(Ipv6Addr::LOCALHOST);
    if std::net::TcpListener::bind((v6, 0)).is_err() {
        eprintln!("skipped: this machine has no IPv6");
        return Ok(());
    }
    let fixture = DnsFixture::start(&[local(1), v6]).await?;
    fixture.names.set_addresses(NAME, &[local(1), v6]);
    fixture.sheave.wait_for_endpoints(&[fixture.address(0), fixture.address(1)]).await?;
    fixture.names.set_addresses(NAME, &[v6]);
    fixture.sheave.wait_for_endpoints(&[fixture.address(1)]).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dns_failures_do_not_affect_traffic() -> Result {
    let fixture = DnsFixture::start(&[local(1), local(2)]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 2, ClientPattern::GET);
    let (first, used) = (&[fixture.address(0)][..], fixture.sheave.log_line_count());

    fixture.names.remove_name(NAME);
    fixture.wait_for_failed_lookups(2.0).await?;
    fixture.sheave.wait_for_endpoints(first).await?;
    fixture.names.set_failing(true);
    fixture.sheave.wait_for_log(used, "cannot resolve").await?;
    fixture.wait_for_failed_lookups(1.0).await?;
    fixture.sheave.wait_for_endpoints(first).await?;
    ensure!(
        fixture.sheave.metric_sum("sheave_dns_names_failing").await? > 0.5,
        "the name is not counted as failing"
    );

    fixture.names.set_failing(false);
    fixture.names.set_addresses(NAME, &[local(2)]);
    fixture.sheave.wait_for_endpoints(&[fixture.address(1)]).await?;
    fixture.sheave.wait_for_log(used, "resolves again").await?;
    load.stop().await.assert_all_served();
    let log = fixture.sheave.log();
    let logged = log.lines().filter(|line| line.contains("cannot resolve")).count();
    ensure!(logged == 2, "each change is logged once, not each lookup: {log}");
    Ok(())
}

#[tokio::test]
async fn missing_dns_server_does_not_affect_traffic() -> Result {
    let DnsFixture { names, endpoints, sheave, configuration: _configuration } =
        DnsFixture::start(&[local(1)]).await?;
    ensure!(names.query_count() > 0, "the DNS server got no query");
    drop(names);
    let failing = async || sheave.metric_sum("sheave_dns_names_failing").await;
    eventually("the name fails", failing, |failing| *failing > 0.5).await?;
    sheave.wait_for_endpoints(&[endpoints[0].address]).await?;
    let load = LoadGenerator::start(sheave.address(), 2, ClientPattern::GET);
    let served = async || Ok(endpoints[0].counts().requests);
    eventually("requests", served, |requests| *requests > 20).await?;
    load.stop().await.assert_all_served();
    Ok(())
}

#[tokio::test]
async fn unresolved_new_name_delays_no_other_change() -> Result {
    let fixture = DnsFixture::start(&[local(1), local(2)]).await?;
    let silent = "silent.test";
    fixture.names.set_silent(silent);
    let port = fixture.address(0).port();
    let mut objects = external_name(port);
    let backend = json!({ "name": "silent", "port": port });
    let matches = json!([{ "path": { "value": "/silent" } }]);
    let rules = json!([{ "matches": matches, "backendRefs": [backend] }]);
    objects.push(objects::route_with("silent", json!({ "rules": rules })));
    objects.push(json!({
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": { "name": "silent" },
        "spec": { "type": "ExternalName", "externalName": silent },
    }));
    let begun = Instant::now();
    fixture.configuration.write("main.yaml", &objects)?;
    let backends = async || Ok(fixture.sheave.backends().await?.len());
    eventually("the new backend", backends, |count| *count == 2).await?;
    // A lookup that nothing answers takes longer.
    ensure!(begun.elapsed() < Duration::from_millis(2900), "took {:?}", begun.elapsed());
    Ok(())
}
