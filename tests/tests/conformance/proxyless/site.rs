//! Sheave with the configuration of the guide, and its servers.

use std::fs;
use std::future::pending;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::sheave::run;
use tests::{ConfigDirectory, Result, SheaveProcess, objects};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::clients::{GrpcClient, GrpcLibrary};
use crate::tools;

const GUIDE: &str = include_str!("../../../../docs/guide/grpc-without-a-proxy.md");

/// Added to the policy of the guide, so that the servers are probed.
const PROBES: &str = "  health: {active: {type: GRPC, interval: 50ms, fall: 1, rise: 1}}\n";

/// Added to the configuration of the guide: a route whose calls have a timeout.
const SLOW_ROUTE: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web-slow, namespace: shop}
spec: {ports: [{name: http, port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: GRPCRoute
metadata: {name: slow, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules:
  - matches: [{headers: [{name: plan, value: slow}]}]
    backendRefs: [{name: web-slow, port: 80}]
---
apiVersion: sheave.dev/v1alpha1
kind: BackendPolicy
metadata: {name: slow, namespace: shop}
spec:
  targetRefs: [{kind: Service, name: web-slow}]
  timeouts: {request: 300ms}
"#;

/// Longer than the start of a server takes on a busy machine.
const BOUND: Duration = Duration::from_secs(60);

/// Sheave with the configuration of the guide, and two servers.
pub(super) struct ProxylessFixture {
    pub(super) sheave: SheaveProcess,
    pub(super) configuration: ConfigDirectory,
    pub(super) stable: GrpcServer,
    others: Vec<GrpcServer>,
    /// It never answers, and knows no deadline: the client's own ends a call.
    _silent: Http2TestEndpoint,
}

impl ProxylessFixture {
    pub(super) async fn start() -> Result<Self> {
        Self::start_with(&["--xds", "127.0.0.1:0"]).await
    }

    pub(super) async fn start_with(arguments: &[&str]) -> Result<Self> {
        let (stable, canary) =
            (GrpcServer::start("stable").await?, GrpcServer::start("canary").await?);
        let configuration = ConfigDirectory::empty()?;
        configuration.write_text("main.yaml", &guide())?;
        configuration.write_text("slow.yaml", SLOW_ROUTE)?;
        let silent = Http2TestEndpoint::start(|call: ReceivedRequest| async move {
            let _open = call;
            pending().await
        })
        .await?;
        let endpoints = [
            ("web-stable", stable.address),
            ("web-canary", canary.address),
            ("web-slow", silent.address),
        ];
        for (service, address) in endpoints {
            set_endpoints(&configuration, service, &[address])?;
        }
        let sheave = SheaveProcess::serve_with(&configuration, arguments).await?;
        Ok(Self { sheave, configuration, stable, others: vec![canary], _silent: silent })
    }

    /// Replaces a part of the configuration of the guide.
    pub(super) fn change_configuration(&self, old: &str, new: &str) -> Result {
        let changed = guide().replace(old, new);
        ensure!(changed != guide(), "the guide has no {old}");
        Ok(self.configuration.write_text("main.yaml", &changed)?)
    }

    pub(super) fn set_endpoints(&self, service: &str, endpoints: &[SocketAddr]) -> Result {
        set_endpoints(&self.configuration, service, endpoints)
    }

    /// Keeps a server running as long as the fixture.
    pub(super) fn keep(&mut self, server: GrpcServer) {
        self.others.push(server);
    }

    pub(super) async fn client(&self, library: GrpcLibrary, target: &str) -> Result<GrpcClient> {
        self.client_with(library, target, None).await
    }

    /// Starts a client with the bootstrap file that `sheave xds bootstrap` prints.
    pub(super) async fn client_with(
        &self,
        library: GrpcLibrary,
        target: &str,
        certificates: Option<CertificateFolder>,
    ) -> Result<GrpcClient> {
        let arguments: Vec<_> = certificates.iter().flat_map(|it| ["--certs", it.path()]).collect();
        let bootstrap = BootstrapFile::new(&self.sheave, &arguments).await?;
        GrpcClient::start(library, target, bootstrap, certificates)
    }

    pub(super) async fn expect_no_rejection(&self) -> Result {
        let status = self.sheave.admin_json("/api/v1/xds").await?;
        ensure!(status["rejections"] == Value::Array(Vec::new()), "{status}");
        Ok(())
    }
}

/// A bootstrap file, as `sheave xds bootstrap` prints it.
pub(super) struct BootstrapFile(TempDirectory);

impl BootstrapFile {
    pub(super) async fn new(sheave: &SheaveProcess, arguments: &[&str]) -> Result<Self> {
        let folder = TempDirectory::new()?;
        let address = sheave.xds.context("--xds")?;
        // The name is in the certificate.
        let server = format!("localhost:{}", address.port());
        let start = ["xds", "bootstrap", "--server", &server, "--node", "test"];
        let printed = run(start.iter().chain(arguments).copied()).await?;
        ensure!(printed.status.success(), "{printed:?}");
        fs::write(folder.path().join("bootstrap.json"), printed.stdout)?;
        Ok(Self(folder))
    }

    pub(super) fn path(&self) -> PathBuf {
        self.0.path().join("bootstrap.json")
    }
}

/// Returns the configuration in the guide, with probes.
fn guide() -> String {
    format!("{}{PROBES}", guide_block("kind: GRPCRoute"))
}

/// Returns the first configuration in the guide that has this text.
pub(crate) fn guide_block(text: &str) -> &'static str {
    let blocks = GUIDE.split("```yaml\n").skip(1).filter_map(|it| it.split("```").next());
    blocks.into_iter().find(|it| it.contains(text)).expect("the guide has such a block")
}

/// Replaces the endpoints of a Service of the namespace `shop`.
pub(crate) fn set_endpoints(
    configuration: &ConfigDirectory,
    service: &str,
    endpoints: &[SocketAddr],
) -> Result {
    let slices = objects::slices(service, endpoints).into_iter();
    let slices: Vec<_> = slices.map(|it| objects::in_namespace("shop", it)).collect();
    Ok(configuration.write(&format!("{service}.yaml"), &slices)?)
}

/// A server that answers with its name, killed when dropped.
pub(super) struct GrpcServer {
    pub(super) address: SocketAddr,
    child: Child,
    _bootstrap: Option<BootstrapFile>,
}

impl GrpcServer {
    pub(super) async fn start(name: &str) -> Result<Self> {
        let mut command = tools::program("proxyless")?;
        command.args(["serve", name]);
        Self::run(command, None).await
    }

    /// Starts a server that gets its listener from Sheave.
    pub(super) async fn start_by_xds(
        library: GrpcLibrary,
        name: &str,
        bootstrap: BootstrapFile,
    ) -> Result<Self> {
        let mut command = library.server(name)?;
        command.env("GRPC_XDS_BOOTSTRAP", bootstrap.path());
        Self::run(command, Some(bootstrap)).await
    }

    async fn run(mut command: Command, bootstrap: Option<BootstrapFile>) -> Result<Self> {
        let mut child = command.stdout(Stdio::piped()).spawn()?;
        let output = BufReader::new(child.stdout.take().context("a pipe")?);
        let line = timeout(BOUND, output.lines().next_line()).await??;
        let address = line.context("an address")?.parse()?;
        Ok(Self { address, child, _bootstrap: bootstrap })
    }

    pub(super) fn signal(&self, signal: Signal) -> Result {
        let id = i32::try_from(self.child.id().context("the server has ended")?)?;
        Ok(kill_process(Pid::from_raw(id).context("a process id")?, signal)?)
    }
}

/// A certificate with its key, and the authority that its owner trusts: `tls.crt`, `tls.key`, `ca.crt`.
pub(crate) struct CertificateFolder(TempDirectory);

impl CertificateFolder {
    pub(crate) fn new(
        issuer: &CertificateAuthority,
        trusted: &CertificateAuthority,
        name: &str,
    ) -> Result<Self> {
        let folder = TempDirectory::new()?;
        let certificate = issuer.issue(&[name]);
        fs::write(folder.path().join("tls.crt"), &certificate.certificate_pem)?;
        fs::write(folder.path().join("tls.key"), &certificate.key_pem)?;
        fs::write(folder.path().join("ca.crt"), &trusted.pem)?;
        Ok(Self(folder))
    }

    pub(crate) fn path(&self) -> &str {
        self.0.path().to_str().expect("temporary folders have names in UTF-8")
    }
}
