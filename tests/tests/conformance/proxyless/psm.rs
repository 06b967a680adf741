//! The xDS interop client and server of the gRPC project, grpc-java's, in the cases of its PSM suite ("proxyless service
//! mesh") that need no cloud. The client calls two methods all the time, and tells what has become of the calls.

use std::collections::BTreeMap;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::process::Stdio;

use anyhow::{Context, ensure};
use tests::configuration::TempDirectory;
use tests::{ConfigDirectory, Result, SheaveProcess, eventually};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::net::TcpStream;
use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use super::CallCounts;
use super::site::{BootstrapFile, set_endpoints};
use crate::tools;

const CLIENT: &str = "io.grpc.testing.integration.XdsTestClient";
const SERVER: &str = "io.grpc.testing.integration.XdsTestServer";
/// Calls of each method in a second.
const RATE: &str = "--qps=50";
/// Calls that a case looks at.
const CALLS: u64 = 200;
/// The limit of an endpoint.
const LIMIT: u64 = 20;
/// Runs a program with a host name of its own.
const UNSHARE: [&str; 3] = ["unshare", "--map-root-user", "--uts"];
const DEADLINE_EXCEEDED: u8 = 4;

/// Two Services. Servers of the first are called in turn.
const SERVICES: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{name: http, port: 80, appProtocol: grpc}]}
---
apiVersion: v1
kind: Service
metadata: {name: other, namespace: shop}
spec: {ports: [{name: http, port: 80, appProtocol: grpc}]}
---
apiVersion: sheave.dev/v1alpha1
kind: BackendPolicy
metadata: {name: web, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: web}]
  algorithm: RoundRobin
"#;

#[tokio::test]
#[ignore = "needs Java: make conformance"]
async fn interop_client_of_grpc_passes_the_cases_of_psm() -> Result {
    if !tools::is_installed("java")? || !can_name_hosts().await? {
        return Ok(());
    }
    let mut site = InteropSite::start().await?;
    site.client.ask("configure 20 UNARY_CALL EMPTY_CALL").await?;
    site.expect("ping_pong and round_robin", is_even).await?;

    site.route("matches: [{method: {method: EmptyCall}}], backendRefs: [{name: other, port: 80}]")?;
    let is_split = |counts: &CallCounts| {
        is_near(counts, "EmptyCall/c", 0.5) && is_near(counts, "UnaryCall/a", 0.25)
    };
    site.expect("path_matching", is_split).await?;

    site.route(
        "matches: [{headers: [{name: md, value: exact}]}], backendRefs: [{name: other, port: 80}]",
    )?;
    site.expect("no call has the field", is_even).await?;
    site.client.ask("configure 20 UNARY_CALL EMPTY_CALL:md=exact").await?;
    site.expect("header_matching", is_split).await?;

    site.route(
        "backendRefs: [{name: web, port: 80, weight: 20}, {name: other, port: 80, weight: 80}]",
    )?;
    site.client.ask("configure 20 UNARY_CALL EMPTY_CALL").await?;
    let is_by_weight = |counts: &CallCounts| {
        is_near(counts, "EmptyCall/c", 0.4) && is_near(counts, "UnaryCall/c", 0.4)
    };
    site.expect("traffic_splitting", is_by_weight).await?;

    site.route("backendRefs: [{name: other, port: 80}]")?;
    let is_other = |counts: &CallCounts| is_near(counts, "EmptyCall/c", 0.5);
    site.expect("change_backend_service", is_other).await?;

    site.route("backendRefs: [{name: web, port: 80}]")?;
    site.expect("change_backend_service back", is_even).await?;
    set_endpoints(&site.configuration, "web", &[site.servers["a"].address])?;
    let is_first = |counts: &CallCounts| is_near(counts, "UnaryCall/a", 0.5);
    site.expect("remove_instance", is_first).await?;
    set_endpoints(&site.configuration, "web", &site.addresses(&["a", "b"]))?;
    site.expect("new_instance", is_even).await?;

    timeout(&mut site).await?;
    circuit_breaking(&mut site).await
}

/// True if this machine gives processes a host name of their own, without root too.
async fn can_name_hosts() -> Result<bool> {
    let tried = Command::new(UNSHARE[0]).args(&UNSHARE[1..]).arg("true").status().await?;
    if !tried.success() {
        eprintln!("skipped: {UNSHARE:?} is not permitted");
    }
    Ok(tried.success())
}

/// Calls that take longer than their deadline, and those of the other method, which do not.
async fn timeout(site: &mut InteropSite) -> Result {
    site.client.ask("configure 5 UNARY_CALL:rpc-behavior=sleep-30 EMPTY_CALL").await?;
    let before = site.client.ask_counts("accumulated").await?;
    let exceeded = format!("UNARY_CALL/{DEADLINE_EXCEEDED}");
    let since = |counts: &CallCounts, name: &str| counts.get(name).copied().unwrap_or_default();
    let client = &mut site.client;
    let after = eventually(
        "timeout",
        async || client.ask_counts("accumulated").await,
        |counts| since(counts, &exceeded) >= since(&before, &exceeded) + CALLS,
    )
    .await?;
    let failed = |counts: &CallCounts| since(counts, &format!("EMPTY_CALL/{DEADLINE_EXCEEDED}"));
    ensure!(failed(&after) == failed(&before), "{before:?} {after:?}");
    Ok(())
}

/// Calls that last: the client has as many in flight as its two endpoints may have.
async fn circuit_breaking(site: &mut InteropSite) -> Result {
    let limited =
        SERVICES.replace("algorithm: RoundRobin", &format!("maxInFlightPerEndpoint: {LIMIT}"));
    site.configuration.write_text("main.yaml", &limited)?;
    site.client.ask("configure 60 UNARY_CALL:rpc-behavior=keep-open").await?;
    let client = &mut site.client;
    let in_flight = |counts: &CallCounts| {
        let of_method = |name: &&String| name.starts_with("UNARY_CALL/");
        let ended =
            counts.iter().filter(|(name, _)| of_method(name) && !name.ends_with("/started"));
        counts["UNARY_CALL/started"].saturating_sub(ended.map(|(_, count)| count).sum::<u64>())
    };
    let observe = async || Ok(in_flight(&client.ask_counts("accumulated").await?));
    // The number stays, while calls beyond it fail.
    eventually("circuit_breaking", observe, |count| *count == LIMIT * 2).await?;
    let before = site.client.ask_counts("accumulated").await?;
    let client = &mut site.client;
    let observe = async || client.ask_counts("accumulated").await;
    eventually("further calls", observe, |counts| {
        let started = counts["UNARY_CALL/started"] - before["UNARY_CALL/started"];
        started >= CALLS && in_flight(counts) == LIMIT * 2
    })
    .await?;
    Ok(())
}

/// True if the two servers of the Service have answered all calls, half of them each. Of one method one server may have all:
/// the client calls the methods in turn.
fn is_even(counts: &CallCounts) -> bool {
    let of = |server: &str| ["UnaryCall", "EmptyCall"].map(|method| format!("{method}/{server}"));
    ["a", "b"].iter().all(|server| are_near(counts, &of(server), 0.5))
}

fn is_near(counts: &CallCounts, name: &str, part: f64) -> bool {
    are_near(counts, &[name.to_owned()], part)
}

/// True if this part of the calls, within 5 %, has these methods and servers, and none has failed.
fn are_near(counts: &CallCounts, names: &[String], part: f64) -> bool {
    let all: u64 = counts.values().sum();
    let here: u64 = names.iter().filter_map(|name| counts.get(name)).sum();
    counts["failed"] == 0 && (here as f64 / all as f64 - part).abs() <= 0.05
}

/// Sheave, the client, and servers `a` and `b` of the Service `web` and `c` of `other`.
struct InteropSite {
    _sheave: SheaveProcess,
    configuration: ConfigDirectory,
    servers: BTreeMap<&'static str, InteropServer>,
    client: InteropClient,
}

impl InteropSite {
    async fn start() -> Result<Self> {
        let configuration = ConfigDirectory::empty()?;
        configuration.write_text("main.yaml", SERVICES)?;
        let sheave = SheaveProcess::serve_with(&configuration, &["--xds", "127.0.0.1:0"]).await?;
        let mut servers = BTreeMap::new();
        for name in ["a", "b", "c"] {
            servers.insert(name, InteropServer::start(name)?);
        }
        for server in servers.values() {
            let connect = async || Ok(TcpStream::connect(server.address).await.is_ok());
            eventually("the server", connect, |is_there| *is_there).await?;
        }
        let client = InteropClient::start(BootstrapFile::new(&sheave, &[]).await?)?;
        let site = Self { _sheave: sheave, configuration, servers, client };
        set_endpoints(&site.configuration, "web", &site.addresses(&["a", "b"]))?;
        set_endpoints(&site.configuration, "other", &site.addresses(&["c"]))?;
        Ok(site)
    }

    fn addresses(&self, names: &[&str]) -> Vec<SocketAddr> {
        names.iter().map(|name| self.servers[name].address).collect()
    }

    /// Routes the calls of the Service `web` by one rule; others go to the Service itself.
    fn route(&self, rule: &str) -> Result {
        let rest =
            if rule.contains("matches") { ", {backendRefs: [{name: web, port: 80}]}" } else { "" };
        let route = format!(
            "apiVersion: gateway.networking.k8s.io/v1\nkind: GRPCRoute\n\
             metadata: {{name: web, namespace: shop}}\n\
             spec:\n  parentRefs: [{{group: '', kind: Service, name: web}}]\n  rules: [{{{rule}}}{rest}]\n"
        );
        Ok(self.configuration.write_text("route.yaml", &route)?)
    }

    /// Waits until the calls spread as a case wants.
    async fn expect(&mut self, case: &str, wanted: impl Fn(&CallCounts) -> bool) -> Result {
        let client = &mut self.client;
        let stats = format!("stats {CALLS}");
        eventually(case, async || client.ask_counts(&stats).await, wanted).await?;
        Ok(())
    }
}

/// A server, which answers with the name of its host.
struct InteropServer {
    address: SocketAddr,
    _child: Child,
    _hosts: TempDirectory,
}

impl InteropServer {
    fn start(name: &str) -> Result<Self> {
        let port = free_port()?;
        // The name of the host is of a namespace of its own, and resolved by a file.
        let hosts = TempDirectory::new()?;
        let file = hosts.path().join("hosts");
        std::fs::write(&file, format!("127.0.0.1 {name}\n"))?;
        let mut command = Command::new(UNSHARE[0]);
        command.args(&UNSHARE[1..]).args(["sh", "-c", "hostname \"$0\" && exec \"$@\"", name]);
        command.arg(tools::path("java")?).args(tools::JAVA_OPTIONS);
        command
            .arg(format!("-Djdk.net.hosts.file={}", file.display()))
            .args(classes()?)
            .arg(SERVER);
        command.args([format!("--port={port}"), format!("--maintenance_port={port}")]);
        let child = command.stdin(Stdio::null()).kill_on_drop(true).spawn()?;
        Ok(Self { address: (Ipv4Addr::LOCALHOST, port).into(), _child: child, _hosts: hosts })
    }
}

/// The client, and the program that asks it.
struct InteropClient {
    questions: ChildStdin,
    answers: Lines<BufReader<ChildStdout>>,
    _client: Child,
    _asker: Child,
    _bootstrap: BootstrapFile,
}

impl InteropClient {
    fn start(bootstrap: BootstrapFile) -> Result<Self> {
        let port = free_port()?;
        let mut command = tools::program("java")?;
        command.args(tools::JAVA_OPTIONS).args(classes()?).arg(CLIENT);
        command.args(["--server=xds:///web.shop:80", RATE, &format!("--stats_port={port}")]);
        let client = command.env("GRPC_XDS_BOOTSTRAP", bootstrap.path()).spawn()?;
        let mut asker = tools::program("proxyless")?;
        asker.args(["psm", &format!("127.0.0.1:{port}")]);
        let mut asker = asker.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let questions = asker.stdin.take().context("a pipe")?;
        let answers = BufReader::new(asker.stdout.take().context("a pipe")?).lines();
        Ok(Self { questions, answers, _client: client, _asker: asker, _bootstrap: bootstrap })
    }

    async fn ask(&mut self, question: &str) -> Result<String> {
        self.questions.write_all(format!("{question}\n").as_bytes()).await?;
        let answer = self.answers.next_line().await?;
        answer.with_context(|| format!("no answer to {question}"))
    }

    async fn ask_counts(&mut self, question: &str) -> Result<CallCounts> {
        super::clients::parse_counts(&self.ask(question).await?)
    }
}

fn classes() -> Result<[String; 2]> {
    Ok(["-cp".to_owned(), format!("{}/*", tools::path("java-packages")?.display())])
}

/// Returns a port that is free on every address: the kernel has just assigned it.
fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("0.0.0.0:0")?.local_addr()?.port())
}
