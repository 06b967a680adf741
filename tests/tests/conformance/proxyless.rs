//! grpc-go as a client that balances each call itself, by Sheave's xDS server: `tests/conformance/proxyless`.
//!
//! The configuration is the one of the guide.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::sheave::run;
use tests::{ConfigDirectory, Result, SheaveProcess, eventually, objects};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::{Instant, timeout};

use crate::tools;

const GUIDE: &str = include_str!("../../../docs/guide/grpc-without-a-proxy.md");
const TARGET: &str = "xds:///web.shop:80";
const LONG_TARGET: &str = "xds:///web.shop.svc.cluster.local:80";

/// Longer than a command of the client takes on a busy machine.
const BOUND: Duration = Duration::from_secs(120);

/// Calls by the name of the server that has answered, and those that have failed.
type CallCounts = BTreeMap<String, u64>;

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn go_client_follows_routes_weights_and_retries() -> Result {
    let site = ProxylessFixture::start().await?;
    let mut client = site.client(TARGET).await?;
    let counts = client.call("/shop.Cart/Get", 400, "").await?;
    ensure!(counts["failed"] == 0, "{counts:?}");
    // 300 of 400 are expected; five standard deviations are 43.
    ensure!((257..=343).contains(&counts["stable"]), "weights of 3 to 1: {counts:?}");
    let counts = client.call("/shop.Cart/Get", 40, "plan=gold").await?;
    ensure!(counts == CallCounts::from([("canary".to_owned(), 40), ("failed".to_owned(), 0)]));
    let counts = client.call("/shop.Flaky/Get", 20, "plan=gold").await?;
    ensure!(counts["failed"] == 0, "each second attempt succeeds: {counts:?}");

    let mut client = site.client(LONG_TARGET).await?;
    let counts = client.call("/shop.Cart/Get", 4, "plan=gold").await?;
    ensure!(counts["canary"] == 4, "{counts:?}");
    let mut client = site.client("xds:///none.shop:80").await?;
    let counts = client.call("/shop.Cart/Get", 1, "").await?;
    ensure!(counts["failed"] == 1, "there is no such Service: {counts:?}");

    let route = site.guide().replace("web-canary, port: 80}]", "web-stable, port: 80}]");
    site.configuration.write_text("main.yaml", &route)?;
    let mut client = site.client(TARGET).await?;
    let call = async || client.call("/shop.Cart/Get", 1, "plan=gold").await;
    eventually("the changed route", call, |counts| counts.contains_key("stable")).await?;
    site.expect_no_rejection().await
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn new_server_is_called_at_once_and_old_ones_go_without_a_failed_call() -> Result {
    let site = ProxylessFixture::start().await?;
    let mut client = site.client(TARGET).await?;
    client.call("/shop.Cart/Get", 20, "").await?;
    client.command("stream /shop.Cart/Get").await?;

    let added = GrpcServer::start("added").await?;
    let stable = site.stable.address;
    site.set_endpoints("web-stable", &[stable, added.address])?;
    let micros: u64 = client.ask("wait added").await?.trim().parse()?;
    println!("the first call of a new server came {micros} us after its endpoint was written");

    // A Pod that ends is not ready before it gets its signal.
    let lines = site.sheave.log_line_count();
    site.set_endpoints("web-stable", &[added.address])?;
    site.sheave.wait_for_log(lines, "endpoints changed").await?;
    site.stable.signal(Signal::TERM)?;
    client.ask("wait canary").await?;
    // One is killed: its endpoint is still there, and its calls in flight fail.
    let killed = GrpcServer::start("killed").await?;
    site.set_endpoints("web-stable", &[added.address, killed.address])?;
    client.ask("wait killed").await?;
    killed.signal(Signal::KILL)?;
    for _ in 0..20 {
        client.ask("wait added").await?;
    }
    let counts = client.stop().await?;
    println!("calls while servers came and went: {counts:?}");
    ensure!(counts["failed"] == 0, "{counts:?}");
    ensure!(counts["added"] > 0 && counts["stable"] > 0 && counts["killed"] > 0, "{counts:?}");
    site.expect_no_rejection().await
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn no_call_fails_while_sheave_restarts() -> Result {
    let mut site = ProxylessFixture::start().await?;
    let mut client = site.client(TARGET).await?;
    client.call("/shop.Cart/Get", 20, "").await?;
    client.command("stream /shop.Cart/Get").await?;
    let address = site.sheave.xds.context("an address")?.to_string();
    site.sheave.signal(Signal::TERM)?;
    site.sheave.wait_for_exit().await?;
    for _ in 0..10 {
        client.ask("wait stable").await?;
    }
    site.sheave = SheaveProcess::serve_with(&site.configuration, &["--xds", &address]).await?;
    let added = GrpcServer::start("added").await?;
    site.set_endpoints("web-stable", &[added.address])?;
    client.ask("wait added").await?;
    let counts = client.stop().await?;
    println!("calls while Sheave was away and back: {counts:?}");
    ensure!(counts["failed"] == 0, "{counts:?}");
    site.expect_no_rejection().await
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn client_needs_a_certificate_beyond_loopback() -> Result {
    let refused = run(["serve", "--config", "none", "--xds", "0.0.0.0:0"]).await?;
    let message = String::from_utf8_lossy(&refused.stderr).into_owned();
    ensure!(!refused.status.success() && message.contains("--xds-certs"), "{message}");

    let (authority, other) = (CertificateAuthority::new(), CertificateAuthority::new());
    let folder = certificate_folder(&authority, &authority, "localhost")?;
    let certs = folder.path().to_str().context("a path")?;
    let site =
        ProxylessFixture::start_with(&["--xds", "127.0.0.1:0", "--xds-certs", certs]).await?;
    let own = certificate_folder(&authority, &authority, "client.test")?;
    let mut client = site.client_with(TARGET, Some(own.path())).await?;
    let counts = client.call("/shop.Cart/Get", 10, "plan=gold").await?;
    ensure!(counts["canary"] == 10, "{counts:?}");

    let foreign = certificate_folder(&other, &authority, "client.test")?;
    let mut client = site.client_with(TARGET, Some(foreign.path())).await?;
    let counts = client.call("/shop.Cart/Get", 1, "").await?;
    ensure!(counts["failed"] == 1, "the certificate is of another authority: {counts:?}");
    let status = site.status().await?;
    ensure!(status["clients"] == 1, "{status}");
    Ok(())
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn load_of_a_client_is_demand() -> Result {
    let site = ProxylessFixture::start_with(&["--xds", "127.0.0.1:0"]).await?;
    let mut client = site.client(TARGET).await?;
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
    println!("six calls in progress were reported within {:?}", begun.elapsed());
    let demand = async || {
        let views = site.sheave.admin_get("/api/v1/backends").await?;
        let views: Value = serde_json::from_slice(&views.body)?;
        let backends = views["backends"].as_array().context("backends")?.iter();
        let canary = backends.filter(|it| it["service"] == "web-canary");
        Ok(canary.filter_map(|it| it["demand_all_replicas"]["in_flight"].as_f64()).sum::<f64>())
    };
    // The mean over 15 s.
    eventually("their demand", demand, |mean| (5.0..=6.1).contains(mean)).await?;
    println!("they were the demand of 15 s within {:?}", begun.elapsed());
    ensure!(read("sheave_xds_backend_requests_total").await? == 26.0, "calls of both kinds");
    ensure!(read("sheave_xds_backend_results_total").await? == 20.0, "those that have ended");
    site.expect_no_rejection().await?;
    let gone = Instant::now();
    drop(client);
    eventually("the end of the client", in_flight, |count| *count == 0.0).await?;
    println!("the calls of a killed client counted for {:?}", gone.elapsed());
    Ok(())
}

/// Returns a folder with a certificate of an authority, and the authority that is trusted.
fn certificate_folder(
    issuer: &CertificateAuthority,
    trusted: &CertificateAuthority,
    name: &str,
) -> Result<TempDirectory> {
    let folder = TempDirectory::new()?;
    let certificate = issuer.issue(&[name]);
    fs::write(folder.path().join("tls.crt"), &certificate.certificate_pem)?;
    fs::write(folder.path().join("tls.key"), &certificate.key_pem)?;
    fs::write(folder.path().join("ca.crt"), &trusted.pem)?;
    Ok(folder)
}

/// Sheave with the configuration of the guide, and two servers.
struct ProxylessFixture {
    sheave: SheaveProcess,
    configuration: ConfigDirectory,
    stable: GrpcServer,
    _canary: GrpcServer,
}

impl ProxylessFixture {
    async fn start() -> Result<Self> {
        Self::start_with(&["--xds", "127.0.0.1:0"]).await
    }

    async fn start_with(arguments: &[&str]) -> Result<Self> {
        let (stable, canary) =
            (GrpcServer::start("stable").await?, GrpcServer::start("canary").await?);
        let configuration = ConfigDirectory::empty()?;
        configuration.write_text("main.yaml", guide())?;
        set_endpoints(&configuration, "web-stable", &[stable.address])?;
        set_endpoints(&configuration, "web-canary", &[canary.address])?;
        let sheave = SheaveProcess::serve_with(&configuration, arguments).await?;
        Ok(Self { sheave, configuration, stable, _canary: canary })
    }

    fn guide(&self) -> &'static str {
        guide()
    }

    fn set_endpoints(&self, service: &str, endpoints: &[SocketAddr]) -> Result {
        set_endpoints(&self.configuration, service, endpoints)
    }

    async fn client(&self, target: &str) -> Result<GrpcClient> {
        self.client_with(target, None).await
    }

    /// Starts a client with the bootstrap file that `sheave xds bootstrap` prints.
    async fn client_with(&self, target: &str, certs: Option<&Path>) -> Result<GrpcClient> {
        let folder = TempDirectory::new()?;
        let address = self.sheave.xds.context("--xds")?;
        // The name is in the certificate.
        let server = format!("localhost:{}", address.port());
        let mut arguments = vec!["xds", "bootstrap", "--server", &server, "--node", "test"];
        arguments.extend(certs.iter().flat_map(|it| ["--certs", it.to_str().expect("a path")]));
        let printed = run(arguments).await?;
        ensure!(printed.status.success(), "{printed:?}");
        let bootstrap = folder.path().join("bootstrap.json");
        fs::write(&bootstrap, printed.stdout)?;
        GrpcClient::start(target, bootstrap, folder)
    }

    async fn status(&self) -> Result<Value> {
        let response = self.sheave.admin_get("/api/v1/xds").await?;
        Ok(serde_json::from_slice(&response.body)?)
    }

    async fn expect_no_rejection(&self) -> Result {
        let status = self.status().await?;
        ensure!(status["rejections"] == Value::Array(Vec::new()), "{status}");
        Ok(())
    }
}

/// Returns the configuration in the guide.
fn guide() -> &'static str {
    let blocks = GUIDE.split("```yaml\n").skip(1).filter_map(|it| it.split("```").next());
    blocks.into_iter().find(|it| it.contains("kind: GRPCRoute")).expect("the guide has a route")
}

fn set_endpoints(
    configuration: &ConfigDirectory,
    service: &str,
    endpoints: &[SocketAddr],
) -> Result {
    let slices = objects::slices(service, endpoints).into_iter();
    let slices: Vec<_> = slices.map(|it| objects::in_namespace("shop", it)).collect();
    Ok(configuration.write(&format!("{service}.yaml"), &slices)?)
}

/// A server that answers with its name, killed when dropped.
struct GrpcServer {
    address: SocketAddr,
    child: Child,
}

impl GrpcServer {
    async fn start(name: &str) -> Result<Self> {
        let mut command = tools::program("proxyless")?;
        let mut child = command.args(["serve", name]).stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let line = timeout(BOUND, output.lines().next_line()).await??;
        Ok(Self { address: line.context("an address")?.parse()?, child })
    }

    fn signal(&self, signal: Signal) -> Result {
        let id = i32::try_from(self.child.id().context("the server has ended")?)?;
        Ok(kill_process(Pid::from_raw(id).context("a process id")?, signal)?)
    }
}

/// A client, killed when dropped.
struct GrpcClient {
    commands: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _child: Child,
    _folder: TempDirectory,
}

impl GrpcClient {
    fn start(target: &str, bootstrap: PathBuf, folder: TempDirectory) -> Result<Self> {
        let mut command = tools::program("proxyless")?;
        command.args(["call", target]).env("GRPC_XDS_BOOTSTRAP", bootstrap);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let commands = child.stdin.take().context("a pipe")?;
        let answers = BufReader::new(child.stdout.take().context("a pipe")?).lines();
        Ok(Self { commands, answers, _child: child, _folder: folder })
    }

    async fn command(&mut self, line: &str) -> Result {
        Ok(self.commands.write_all(format!("{line}\n").as_bytes()).await?)
    }

    async fn ask(&mut self, line: &str) -> Result<String> {
        self.command(line).await?;
        let answer = timeout(BOUND, self.answers.next_line()).await;
        answer.with_context(|| line.to_owned())??.context("the client has ended")
    }

    async fn call(&mut self, method: &str, count: u32, fields: &str) -> Result<CallCounts> {
        parse_counts(&self.ask(&format!("{method} {count} {fields}")).await?)
    }

    /// Ends the calls in the background.
    async fn stop(&mut self) -> Result<CallCounts> {
        parse_counts(&self.ask("stop").await?)
    }
}

fn parse_counts(line: &str) -> Result<CallCounts> {
    let counts = line.split_whitespace().map(|word| {
        let (name, count) = word.split_once('=').context("NAME=CALLS")?;
        Ok((name.to_owned(), count.parse()?))
    });
    counts.collect()
}
