//! ExternalName: endpoints come from DNS, follow its records, and survive its failures.

use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::dns::NameServer;
use tests::endpoint::EndpointCounts;
use tests::load::{ClientPattern, LoadGenerator};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Result, SheaveProcess, eventually, objects,
};

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

    /// Waits until the first endpoint has got this number of further requests.
    async fn wait_for_requests(&self, more: u64) -> Result {
        let expected = self.endpoints[0].counts().requests + more;
        let enough = |counts: &EndpointCounts| counts.requests >= expected;
        self.endpoints[0].wait_for_counts("requests", enough).await?;
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
async fn removed_name_does_not_affect_traffic() -> Result {
    check_dns_failure(|names| names.remove_name(NAME), |_| {}).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn failing_dns_server_does_not_affect_traffic() -> Result {
    check_dns_failure(|names| names.set_failing(true), |names| names.set_failing(false)).await
}

/// Checks that a failed lookup changes nothing, and that the next answer counts.
async fn check_dns_failure(fail: impl Fn(&NameServer), mend: impl Fn(&NameServer)) -> Result {
    let fixture = DnsFixture::start(&[local(1), local(2)]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 2, ClientPattern::GET);
    let used = fixture.sheave.log_line_count();

    fail(&fixture.names);
    fixture.sheave.wait_for_log(used, "cannot resolve").await?;
    let failed = async || fixture.lookups("failed").await;
    eventually("a failed lookup", failed, |failed| *failed >= 1.0).await?;
    fixture.sheave.wait_for_endpoints(&[fixture.address(0)]).await?;
    ensure!(
        fixture.sheave.metric_sum("sheave_dns_names_failing").await? > 0.5,
        "the name is not counted as failing"
    );
    fixture.wait_for_requests(50).await?;

    mend(&fixture.names);
    fixture.names.set_addresses(NAME, &[local(2)]);
    fixture.sheave.wait_for_endpoints(&[fixture.address(1)]).await?;
    fixture.sheave.wait_for_log(used, "resolves again").await?;
    load.stop().await.assert_all_served();
    ensure!(fixture.sheave.metric_sum("sheave_dns_names_failing").await? < 0.5);
    Ok(())
}

#[tokio::test]
async fn unanswered_lookup_does_not_affect_traffic() -> Result {
    let fixture = DnsFixture::start(&[local(1)]).await?;
    fixture.names.set_silent(NAME);
    let asked = fixture.names.query_count();
    let observe = async || Ok(fixture.names.query_count());
    eventually("a question", observe, |questions| *questions > asked).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 2, ClientPattern::GET);
    fixture.wait_for_requests(20).await?;
    fixture.sheave.wait_for_endpoints(&[fixture.address(0)]).await?;
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
    fixture.configuration.write("main.yaml", &objects)?;
    let backends = async || Ok(fixture.sheave.backends().await?.len());
    eventually("the new backend", backends, |count| *count == 2).await?;
    ensure!(fixture.lookups("failed").await? == 0.0, "the lookup had ended before");
    Ok(())
}
