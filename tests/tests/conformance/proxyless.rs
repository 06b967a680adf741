//! gRPC clients that balance each call themselves, by Sheave's xDS server: `tests/conformance/proxyless`.
//!
//! The configuration is the one of the guide. Each library passes the same cases.

/// The clients, one for each library.
mod clients;
/// Sheave with the configuration of the guide, and its servers.
pub(crate) mod site;
/// Limits of endpoints.
mod caps;
/// The interop client and server of the gRPC project.
mod psm;
/// Servers that get their listener from Sheave.
mod servers;

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tests::certificates::CertificateAuthority;
use tests::sheave::run;
use tests::{Result, SheaveProcess, eventually};
use tokio::time::Instant;

use clients::{GrpcClient, GrpcLibrary};
use site::{CertificateFolder, GrpcServer, ProxylessFixture};

const TARGET: &str = "xds:///web.shop:80";
const LONG_TARGET: &str = "xds:///web.shop.svc.cluster.local:80";

/// Time from the publication of an endpoint to the first call that its server has answered.
const MAX_FIRST_CALL: Duration = Duration::from_millis(100);

/// Calls by the name of the server that has answered, and those that have failed, by their status too.
type CallCounts = BTreeMap<String, u64>;

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn go_client_balances_calls_itself() -> Result {
    passes_every_case(GrpcLibrary::Go).await
}

#[tokio::test]
#[ignore = "needs grpc-java: make conformance"]
async fn java_client_balances_calls_itself() -> Result {
    passes_every_case(GrpcLibrary::Java).await
}

#[tokio::test]
#[ignore = "needs grpcio: make conformance"]
async fn python_client_balances_calls_itself() -> Result {
    passes_every_case(GrpcLibrary::Python).await
}

#[tokio::test]
#[ignore = "needs grpc-js: make conformance"]
async fn node_client_balances_calls_itself() -> Result {
    passes_every_case(GrpcLibrary::Node).await
}

#[tokio::test]
#[ignore = "needs tonic-xds: make conformance"]
async fn rust_client_balances_calls_itself() -> Result {
    passes_every_case(GrpcLibrary::Rust).await
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn names_of_services_resolve_and_routes_change() -> Result {
    let site = ProxylessFixture::start().await?;
    let mut client = site.client(GrpcLibrary::Go, LONG_TARGET).await?;
    let counts = client.call("/shop.Cart/Get", 4, "plan=gold").await?;
    ensure!(counts["canary"] == 4, "{counts:?}");
    let mut client = site.client(GrpcLibrary::Go, "xds:///none.shop:80").await?;
    let counts = client.call("/shop.Cart/Get", 1, "").await?;
    ensure!(counts["failed"] == 1, "there is no such Service: {counts:?}");

    let mut client = site.client(GrpcLibrary::Go, TARGET).await?;
    let counts = client.call("/shop.Cart/Get", 1, "plan=gold").await?;
    ensure!(counts["canary"] == 1, "{counts:?}");
    site.change_configuration("web-canary, port: 80}]", "web-stable, port: 80}]")?;
    let call = async || client.call("/shop.Cart/Get", 1, "plan=gold").await;
    eventually("the changed route", call, |counts| counts.contains_key("stable")).await?;
    site.expect_no_rejection().await
}

#[tokio::test]
async fn other_addresses_than_loopback_need_certificates() -> Result {
    let refused = run(["serve", "--config", "none", "--xds", "0.0.0.0:0"]).await?;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && message.contains("--xds-certs"), "{message}");
    Ok(())
}

/// Runs the cases of a library, in one process of its client as far as they can share it.
async fn passes_every_case(library: GrpcLibrary) -> Result {
    if !library.is_installed()? {
        return Ok(());
    }
    let mut site = ProxylessFixture::start().await?;
    let mut client = site.client(library, TARGET).await?;
    follows_routes_and_retries(&mut client).await?;
    if library.has_timeouts() {
        follows_timeouts(&mut client).await?;
    }
    follows_weights(&mut client).await?;
    follows_health(&site, &mut client).await?;

    client.command("stream /shop.Cart/Get").await?;
    let added = calls_new_servers_at_once(&site, &mut client).await?;
    leaves_old_servers(&site, &mut client, &added).await?;
    site = survives_a_restart(site, &mut client).await?;
    let counts = client.stop().await?;
    eprintln!("{library:?}: calls while servers and Sheave came and went: {counts:?}");
    ensure!(counts["failed"] <= library.most_failed(), "{counts:?}");
    for name in ["stable", "added-3", "killed", "late"] {
        ensure!(counts.contains_key(name), "{name} has no call: {counts:?}");
    }
    site.expect_no_rejection().await?;

    if library.has_certificates() { presents_its_certificate(library).await } else { Ok(()) }
}

async fn follows_routes_and_retries(client: &mut GrpcClient) -> Result {
    let counts = client.call("/shop.Cart/Get", 40, "plan=gold").await?;
    let all = CallCounts::from([("canary".to_owned(), 40), ("failed".to_owned(), 0)]);
    ensure!(counts == all, "the route of a header field: {counts:?}");
    let counts = client.call("/shop.Flaky/Get", 20, "plan=gold").await?;
    ensure!(counts["failed"] == 0, "each second attempt succeeds: {counts:?}");
    Ok(())
}

async fn follows_timeouts(client: &mut GrpcClient) -> Result {
    let begun = Instant::now();
    let counts = client.call("/shop.Slow/Get", 1, "plan=slow").await?;
    ensure!(counts.get("status-4") == Some(&1), "the deadline is exceeded: {counts:?}");
    ensure!(begun.elapsed() < clients::DEADLINE / 2, "the client's own deadline is longer");
    Ok(())
}

async fn follows_weights(client: &mut GrpcClient) -> Result {
    let counts = client.call("/shop.Cart/Get", 4_000, "").await?;
    ensure!(counts["failed"] == 0, "{counts:?}");
    // 3,000 of 4,000 are expected; 5 % of them are five standard deviations.
    ensure!((2_850..=3_150).contains(&counts["stable"]), "weights of 3 to 1: {counts:?}");
    Ok(())
}

/// An endpoint whose health checks fail gets no calls, and gets some again when they succeed.
async fn follows_health(site: &ProxylessFixture, client: &mut GrpcClient) -> Result {
    let unwell = GrpcServer::start("unwell").await?;
    site.set_endpoints("web-stable", &[site.stable.address, unwell.address])?;
    client.ask("wait unwell").await?;
    unwell.signal(Signal::USR1)?;
    let call = async || client.call("/shop.Cart/Get", 40, "").await;
    let counts = eventually("no calls", call, |counts| !counts.contains_key("unwell")).await?;
    ensure!(counts["failed"] == 0, "{counts:?}");
    unwell.signal(Signal::USR2)?;
    client.ask("wait unwell").await?;
    site.set_endpoints("web-stable", &[site.stable.address])?;
    let call = async || client.call("/shop.Cart/Get", 40, "").await;
    eventually("its end", call, |counts| !counts.contains_key("unwell")).await?;
    Ok(())
}

/// Returns the last of the new servers.
async fn calls_new_servers_at_once(
    site: &ProxylessFixture,
    client: &mut GrpcClient,
) -> Result<GrpcServer> {
    let (mut fastest, mut last) = (Duration::MAX, None);
    for name in ["added-1", "added-2", "added-3"] {
        let added = GrpcServer::start(name).await?;
        let published = Instant::now();
        site.set_endpoints("web-stable", &[site.stable.address, added.address])?;
        client.ask(&format!("wait {name}")).await?;
        fastest = fastest.min(published.elapsed());
        last = Some(added);
    }
    eprintln!("{:?}: the first call of a new server came after {fastest:?}", client.library);
    // Other tests run at the same time, which may delay one of them.
    ensure!(fastest <= MAX_FIRST_CALL, "{fastest:?}");
    last.context("a new server")
}

/// One server is drained and one is killed, with calls in flight at both.
async fn leaves_old_servers(
    site: &ProxylessFixture,
    client: &mut GrpcClient,
    added: &GrpcServer,
) -> Result {
    // A Pod that ends is not ready before it gets its signal.
    let lines = site.sheave.log_line_count();
    site.set_endpoints("web-stable", &[added.address])?;
    site.sheave.wait_for_log(lines, "endpoints changed").await?;
    site.stable.signal(Signal::TERM)?;
    client.ask("wait canary").await?;
    // The endpoint of the killed one is still there.
    let killed = GrpcServer::start("killed").await?;
    site.set_endpoints("web-stable", &[added.address, killed.address])?;
    wait_for_calls(client, "killed").await?;
    killed.signal(Signal::KILL)?;
    wait_for_calls(client, "added-3").await
}

/// Waits until a server has answered 20 calls, so that it has answered some of those in the background too.
async fn wait_for_calls(client: &mut GrpcClient, server: &str) -> Result {
    for _ in 0..20 {
        client.ask(&format!("wait {server}")).await?;
    }
    Ok(())
}

async fn survives_a_restart(
    mut site: ProxylessFixture,
    client: &mut GrpcClient,
) -> Result<ProxylessFixture> {
    let address = site.sheave.xds.context("an address")?.to_string();
    site.sheave.signal(Signal::TERM)?;
    site.sheave.wait_for_exit().await?;
    for _ in 0..10 {
        client.ask("wait canary").await?;
    }
    site.sheave = SheaveProcess::serve_with(&site.configuration, &["--xds", &address]).await?;
    let late = GrpcServer::start("late").await?;
    site.set_endpoints("web-stable", &[late.address])?;
    wait_for_calls(client, "late").await?;
    site.keep(late);
    Ok(site)
}

/// A client with a certificate of the right authority is served, and no other.
async fn presents_its_certificate(library: GrpcLibrary) -> Result {
    let (authority, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let server = CertificateFolder::new(&authority, &authority, "localhost")?;
    let site =
        ProxylessFixture::start_with(&["--xds", "127.0.0.1:0", "--xds-certs", server.path()])
            .await?;
    let own = CertificateFolder::new(&authority, &authority, "client.test")?;
    let mut client = site.client_with(library, TARGET, Some(own)).await?;
    let counts = client.call("/shop.Cart/Get", 10, "plan=gold").await?;
    ensure!(counts.get("canary") == Some(&10), "{counts:?}");

    let foreign = CertificateFolder::new(&other, &authority, "client.test")?;
    let mut client = site.client_with(library, TARGET, Some(foreign)).await?;
    let counts = client.call("/shop.Cart/Get", 1, "").await?;
    ensure!(counts["failed"] == 1, "the certificate is of another authority: {counts:?}");
    let status = site.sheave.admin_json("/api/v1/xds").await?;
    ensure!(status["clients"] == 1, "{status}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn load_of_a_client_is_demand() -> Result {
    let site = ProxylessFixture::start().await?;
    let mut client = site.client(GrpcLibrary::Go, TARGET).await?;
    client.call("/shop.Cart/Get", 20, "plan=gold").await?;
    client.command("hold /shop.Slow/Get 6 plan=gold").await?;
    let read = async |metric: &str| {
        let samples = site.sheave.metric_samples(metric).await?;
        let canary = samples.iter().filter(|(labels, _)| labels.contains("shop/web-canary:80"));
        Ok::<f64, anyhow::Error>(canary.map(|(_, value)| value).sum())
    };
    let begun = Instant::now();
    let in_flight = async || read("sheave_xds_backend_in_flight").await;
    eventually("calls in progress", in_flight, |count| *count == 6.0).await?;
    eprintln!("six calls in progress were reported within {:?}", begun.elapsed());
    let demand = async || {
        let views = site.sheave.admin_get("/api/v1/backends").await?;
        let views: Value = serde_json::from_slice(&views.body)?;
        let backends = views["backends"].as_array().context("backends")?.iter();
        let canary = backends.filter(|it| it["service"] == "web-canary");
        Ok(canary.filter_map(|it| it["demand_all_replicas"]["in_flight"].as_f64()).sum::<f64>())
    };
    // The mean over 15 s.
    eventually("their demand", demand, |mean| (5.0..=6.1).contains(mean)).await?;
    eprintln!("they were the demand of 15 s within {:?}", begun.elapsed());
    ensure!(read("sheave_xds_backend_requests_total").await? == 26.0, "calls of both kinds");
    ensure!(read("sheave_xds_backend_results_total").await? == 20.0, "those that have ended");
    site.expect_no_rejection().await?;
    let gone = Instant::now();
    drop(client);
    eventually("the end of the client", in_flight, |count| *count == 0.0).await?;
    eprintln!("the calls of a killed client counted for {:?}", gone.elapsed());
    Ok(())
}
