//! Envoy as a client of Sheave's xDS server: it gets HTTP routes and endpoints of Services and forwards requests by them.
//!
//! The configuration is the one of the guide.

use std::collections::BTreeMap;
use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::sheave::run;
use tests::tls::TlsFront;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Http1TestResponse, Result,
    ServeStep, SheaveProcess, eventually, objects,
};
use tokio::process::Child;

use crate::proxyless::site::{CertificateFolder, guide_block, set_endpoints};
use crate::tools;

const HOST: &str = "store.shop";
const UNAVAILABLE: &str = "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\n\r\n";

/// The variants of the protocol, as Envoy names them.
const VARIANTS: [&str; 2] = ["DELTA_GRPC", "GRPC"];

#[tokio::test]
#[ignore = "needs Envoy: make conformance"]
async fn envoy_follows_http_routes_weights_and_retries() -> Result {
    if !tools::is_installed("envoy")? {
        return Ok(());
    }
    for variant in VARIANTS {
        let site = EnvoyFixture::start(&[]).await?;
        let envoy = site.envoy(variant, "services:80", None).await?;
        let mut client = envoy.client(HOST).await?;
        let mut counts = BTreeMap::new();
        for _ in 0..400 {
            let response = client.get("/", &[]).await?;
            *counts.entry((response.status(), response.text())).or_insert(0) += 1;
        }
        eprintln!("{variant}: {counts:?}");
        // 300 of 400 are expected; five standard deviations are 43.
        let stable = counts[&(200, "v1".to_owned())];
        ensure!(counts.len() == 2 && (257..=343).contains(&stable), "weights of 3 to 1");

        let gold = client.exchange("POST", "/api/orders?id=1", &[("plan", "gold")]).await?;
        ensure!((gold.status(), gold.text()) == (200, "v2".to_owned()), "{gold:?}");
        let seen = site.second.requests().pop().context("a request")?;
        ensure!(seen.head.target() == "/v2/orders?id=1", "the path is rewritten: {seen:?}");
        ensure!(seen.head.field("x-plan").as_deref() == Some("100% gold"), "{seen:?}");
        let old = client.get("/old/orders", &[]).await?;
        let location = old.field("location").context("a location")?;
        ensure!(old.status() == 302 && location.ends_with("/new/orders"), "{old:?}");

        let refused = site.flaky_count();
        for _ in 0..40 {
            let response = client.get("/flaky", &[]).await?;
            ensure!(response.status() == 200, "the retry goes to the other endpoint: {response:?}");
        }
        ensure!(site.flaky_count() > refused, "one endpoint refuses");
        let mut other = envoy.client("none.shop").await?;
        ensure!(other.get("/", &[]).await?.status() == 404, "there is no such Service");
        site.expect_no_rejection(&envoy).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs Envoy: make conformance"]
async fn envoy_follows_endpoints_and_changed_routes() -> Result {
    if !tools::is_installed("envoy")? {
        return Ok(());
    }
    for variant in VARIANTS {
        let site = EnvoyFixture::start(&[]).await?;
        // One Service for any host.
        let envoy = site.envoy(variant, "shop/store:80", None).await?;
        let mut client = envoy.client("any.test").await?;
        let added = server("added").await?;
        let of_first = [site.first.address, site.flaky.address, added.address];
        set_endpoints(&site.configuration, "store-v1", &of_first)?;
        let call = async || Ok(client.get("/", &[]).await?.text());
        eventually("the new endpoint", call, |text| text == "added").await?;
        set_endpoints(&site.configuration, "store-v1", &[added.address])?;
        let clusters = async || envoy.admin_text("/clusters").await;
        let first = format!("::{}::", site.first.address);
        eventually("its end", clusters, |text| !text.contains(&first)).await?;
        let count = site.first.counts().requests;
        for _ in 0..40 {
            let response = client.get("/", &[]).await?;
            ensure!(response.status() == 200, "{response:?}");
        }
        ensure!(site.first.counts().requests == count, "an endpoint that has gone gets nothing");

        // The policy changes the Cluster, whose endpoints stay; the route leads to it alone.
        let changed = guide()
            .replace("store-v1, port: 80, weight: 3", "store-v1, port: 80, weight: 0")
            .replace("retry: {statuses: [503]}", "algorithm: RoundRobin");
        site.configuration.write_text("main.yaml", &changed)?;
        let calls = async || {
            let mut texts = Vec::new();
            for _ in 0..8 {
                texts.push(client.get("/", &[]).await?.text());
            }
            Ok(texts)
        };
        eventually("the changed route", calls, |texts| texts.iter().all(|it| it == "v2")).await?;
        site.expect_no_rejection(&envoy).await?;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs Envoy: make conformance"]
async fn envoy_shows_a_certificate_and_serves_while_sheave_is_away() -> Result {
    if !tools::is_installed("envoy")? {
        return Ok(());
    }
    let authority = CertificateAuthority::new();
    let folder = CertificateFolder::new(&authority, &authority, "localhost")?;
    let certs = folder.path();
    let mut site = EnvoyFixture::start(&["--xds-certs", certs]).await?;
    let own = CertificateFolder::new(&authority, &authority, "envoy.test")?;
    let envoy = site.envoy("DELTA_GRPC", "services:80", Some(own.path())).await?;
    let mut client = envoy.client(HOST).await?;
    ensure!(client.get("/", &[]).await?.status() == 200);
    let address = site.sheave.xds.context("an address")?.to_string();
    site.sheave.signal(rustix::process::Signal::TERM)?;
    site.sheave.wait_for_exit().await?;
    ensure!(client.get("/", &[]).await?.status() == 200);
    let arguments = ["--xds", &address, "--xds-certs", certs];
    site.sheave = SheaveProcess::serve_with(&site.configuration, &arguments).await?;
    let status = async || site.sheave.admin_json("/api/v1/xds").await;
    eventually("the client again", status, |status| status["clients"] == 1).await?;
    let added = server("added").await?;
    set_endpoints(&site.configuration, "store-v1", &[added.address])?;
    let call = async || Ok(client.get("/", &[]).await?.text());
    eventually("the new endpoint", call, |text| text == "added").await?;
    site.expect_no_rejection(&envoy).await
}

#[tokio::test]
#[ignore = "needs Envoy: make conformance"]
async fn envoy_verifies_endpoints_with_tls() -> Result {
    if !tools::is_installed("envoy")? {
        return Ok(());
    }
    let site = EnvoyFixture::start(&[]).await?;
    let authority = CertificateAuthority::new();
    let validation = json!({"hostname": "store-v2.test"});
    let objects = [authority.config_map("ca"), objects::backend_tls_policy("store-v2", validation)];
    let objects = objects.map(|it| objects::in_namespace("shop", it));
    let encrypted = |name: &str| {
        let certificate = authority.issue(&[name]);
        let address = site.second.address;
        async move { TlsFront::of(address, &certificate, &["http/1.1"]).await }
    };
    let right = encrypted("store-v2.test").await?;
    site.configuration.write("tls.yaml", &objects)?;
    set_endpoints(&site.configuration, "store-v2", &[right.address])?;
    let envoy = site.envoy("DELTA_GRPC", "services:80", None).await?;
    let mut client = envoy.client(HOST).await?;
    let response = client.exchange("POST", "/api/orders", &[("plan", "gold")]).await?;
    ensure!((response.status(), response.text()) == (200, "v2".to_owned()), "{response:?}");
    ensure!(right.handshakes()[0].server_name.as_deref() == Some("store-v2.test"));

    let wrong = encrypted("other.test").await?;
    set_endpoints(&site.configuration, "store-v2", &[wrong.address])?;
    let call =
        async || Ok(client.exchange("POST", "/api/orders", &[("plan", "gold")]).await?.status());
    eventually("a certificate of another name", call, |status| *status == 503).await?;
    site.expect_no_rejection(&envoy).await
}

/// Returns the configuration in the guide.
fn guide() -> &'static str {
    guide_block("kind: HTTPRoute")
}

async fn server(name: &str) -> Result<Endpoint> {
    let length = name.len();
    let response = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{name}");
    Endpoint::start(EndpointBehaviour::answering(&response)).await
}

/// Sheave with the configuration of the guide, and three servers.
struct EnvoyFixture {
    sheave: SheaveProcess,
    configuration: ConfigDirectory,
    first: Endpoint,
    /// It answers as the first one, but not on `/flaky`.
    flaky: Endpoint,
    second: Endpoint,
}

impl EnvoyFixture {
    async fn start(arguments: &[&str]) -> Result<Self> {
        let response = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\nv1";
        let refuse = ServeStep::AnswerFor("/flaky", UNAVAILABLE);
        let flaky = vec![ServeStep::ReadBody, refuse, ServeStep::send(response)];
        let (first, second) = (server("v1").await?, server("v2").await?);
        let flaky = Endpoint::start(flaky).await?;
        let configuration = ConfigDirectory::empty()?;
        configuration.write_text("main.yaml", guide())?;
        set_endpoints(&configuration, "store-v1", &[first.address, flaky.address])?;
        set_endpoints(&configuration, "store-v2", &[second.address])?;
        let arguments = [&["--xds", "127.0.0.1:0"], arguments].concat();
        let sheave = SheaveProcess::serve_with(&configuration, &arguments).await?;
        Ok(Self { sheave, configuration, first, flaky, second })
    }

    fn flaky_count(&self) -> usize {
        let requests = self.flaky.requests().into_iter();
        requests.filter(|it| it.head.target() == "/flaky").count()
    }

    /// Starts an Envoy with the bootstrap file that `sheave xds bootstrap` prints, with an admin listener and in another
    /// variant of the protocol.
    async fn envoy(
        &self,
        variant: &str,
        routes: &str,
        certs: Option<&str>,
    ) -> Result<EnvoyProcess> {
        let port = self.sheave.xds.context("--xds")?.port();
        // The name is in the certificate.
        let server = format!("localhost:{port}");
        let mut arguments = vec!["xds", "bootstrap", "--for", "envoy", "--server", &server];
        arguments.extend(["--listen", "127.0.0.1:0", "--routes", routes]);
        arguments.extend(certs.iter().flat_map(|it| ["--certs", *it]));
        let printed = run(arguments).await?;
        ensure!(printed.status.success(), "{printed:?}");
        let mut bootstrap: Value = serde_json::from_slice(&printed.stdout)?;
        let any_port = json!({"socket_address": {"address": "127.0.0.1", "port_value": 0}});
        bootstrap["admin"] = json!({"address": any_port});
        bootstrap["dynamic_resources"]["ads_config"]["api_type"] = json!(variant);
        EnvoyProcess::start(&bootstrap).await
    }

    /// Neither side knows of a response that the Envoy has rejected.
    async fn expect_no_rejection(&self, envoy: &EnvoyProcess) -> Result {
        let status = self.sheave.admin_json("/api/v1/xds").await?;
        ensure!(status["rejections"] == json!([]), "{status}");
        let counts = envoy.admin_text("/stats?filter=update_rejected").await?;
        ensure!(counts.lines().count() > 1, "{counts}");
        ensure!(counts.lines().all(|line| line.ends_with(": 0")), "{counts}");
        Ok(())
    }
}

/// An Envoy, killed when dropped.
struct EnvoyProcess {
    admin: SocketAddr,
    listener: SocketAddr,
    _child: Child,
    _folder: TempDirectory,
}

impl EnvoyProcess {
    async fn start(bootstrap: &Value) -> Result<Self> {
        let folder = TempDirectory::new()?;
        let file = |name| folder.path().join(name);
        let (config, admin) = (file("envoy.json"), file("admin"));
        fs::write(&config, bootstrap.to_string())?;
        let mut command = tools::program("envoy")?;
        command.arg("--config-path").arg(&config).arg("--admin-address-path").arg(&admin);
        command.args(["--disable-hot-restart", "--concurrency", "1", "--log-level", "warning"]);
        let child = command.spawn()?;
        let read = async || Ok(fs::read_to_string(&admin).unwrap_or_default());
        let admin: SocketAddr =
            eventually("its admin address", read, |text| !text.is_empty()).await?.trim().parse()?;
        let ready = async || Ok(admin_get(admin, "/ready").await?.status());
        eventually("a ready Envoy", ready, |status| *status == 200).await?;
        let listeners = admin_get(admin, "/listeners?format=json").await?;
        let listeners: Value = serde_json::from_slice(&listeners.body)?;
        let address = &listeners["listener_statuses"][0]["local_address"]["socket_address"];
        let port = u16::try_from(address["port_value"].as_u64().context("a port")?)?;
        let listener = ([127, 0, 0, 1], port).into();
        Ok(Self { admin, listener, _child: child, _folder: folder })
    }

    async fn admin_text(&self, path: &str) -> Result<String> {
        Ok(admin_get(self.admin, path).await?.text())
    }

    async fn client(&self, host: &str) -> Result<HostClient> {
        // Clients name the port by which they reach the Envoy.
        let host = format!("{host}:{}", self.listener.port());
        Ok(HostClient { host, client: Http1TestClient::connect(self.listener).await? })
    }
}

async fn admin_get(admin: SocketAddr, path: &str) -> Result<Http1TestResponse> {
    let mut client = Http1TestClient::connect(admin).await?;
    Ok(client.get(path).await?)
}

/// A client of one host.
struct HostClient {
    host: String,
    client: Http1TestClient,
}

impl HostClient {
    async fn get(&mut self, target: &str, fields: &[(&str, &str)]) -> Result<Http1TestResponse> {
        self.exchange("GET", target, fields).await
    }

    async fn exchange(
        &mut self,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Result<Http1TestResponse> {
        let fields = [&[("Host", self.host.as_str())], fields].concat();
        Ok(self.client.exchange(method, target, &fields, b"").await?)
    }
}
