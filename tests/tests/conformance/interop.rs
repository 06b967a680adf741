//! gRPC's interop clients in Go, Java, Python and for Node.js, through Sheave to grpc-go's server:
//! each case passes as it does without Sheave.

use std::fs;
use std::net::SocketAddr;
use std::process::Output;

use anyhow::{Context, ensure};
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::{ConfigDirectory, Result, SheaveProcess, eventually, objects};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;

use crate::tools;

/// Unary calls, the kinds of streams, metadata, statuses, deadlines and cancellation.
const CASES: &[&str] = &[
    "empty_unary",
    "large_unary",
    "client_streaming",
    "server_streaming",
    "ping_pong",
    "empty_stream",
    "timeout_on_sleeping_server",
    "cancel_after_begin",
    "cancel_after_first_response",
    "status_code_and_message",
    "special_status_message",
    "custom_metadata",
    "unimplemented_method",
    "unimplemented_service",
];

/// Many calls in a row, on one connection and on one each. They need a client that has them.
const SOAK_CASES: &[&str] = &["rpc_soak", "channel_soak"];

/// Time limits of the soak cases: they show that nothing fails, not how fast this machine is.
const SOAK_LIMITS: &[&str] =
    &["--soak_per_iteration_max_acceptable_latency_ms=20000", "--soak_overall_timeout_seconds=200"];

/// Name in the certificate of the TLS listener, which the clients check instead of the address.
const NAME: &str = "interop.test";

/// Main class of grpc-java's client.
const JAVA_CLIENT: &str = "io.grpc.testing.integration.TestServiceClient";

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn go_client_passes_interop_over_cleartext() -> Result {
    run_go(&InteropFixture::cleartext().await?).await
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn go_client_passes_interop_over_tls() -> Result {
    run_go(&InteropFixture::tls().await?).await
}

#[tokio::test]
#[ignore = "needs Java: make conformance"]
async fn java_client_passes_interop() -> Result {
    if !tools::is_installed("java")? {
        return Ok(());
    }
    run_java(&InteropFixture::cleartext().await?).await?;
    run_java(&InteropFixture::tls().await?).await
}

#[tokio::test]
#[ignore = "needs grpcio: make conformance"]
async fn python_client_passes_interop() -> Result {
    run_script("python-current", "client.py").await
}

#[tokio::test]
#[ignore = "needs Node.js: make conformance"]
async fn node_client_passes_interop() -> Result {
    run_script("node", "client.cjs").await
}

async fn run_go(site: &InteropFixture) -> Result {
    let mut options = site.options();
    if site.uses_tls {
        options.extend(["--use_tls".to_owned(), "--use_test_ca".to_owned()]);
    }
    for case in [CASES, SOAK_CASES].concat() {
        let mut command = tools::program("interop-client")?;
        command.args(&options).args(SOAK_LIMITS).arg(format!("--test_case={case}"));
        check_success(case, &tools::output_of(command).await?)?;
    }
    Ok(())
}

/// grpc-java's client trusts the authority in `certs/ca.pem` of its class path. Another one is put in front of that.
async fn run_java(site: &InteropFixture) -> Result {
    let folder = site.folder.path();
    let classes = format!("{}:{}/*", folder.display(), tools::path("java-packages")?.display());
    for case in [CASES, SOAK_CASES].concat() {
        let mut command = tools::program("java")?;
        command.args(tools::JAVA_OPTIONS).args(["-cp", &classes, JAVA_CLIENT]);
        command.args([format!("--use_tls={}", site.uses_tls), "--use_test_ca=true".to_owned()]);
        command.args(["--server_host=127.0.0.1".to_owned(), site.port_option()]);
        command.arg(format!("--server_host_override={NAME}"));
        command.args(SOAK_LIMITS).arg(format!("--test_case={case}"));
        check_success(case, &tools::output_of(command).await?)?;
    }
    Ok(())
}

/// Runs our client for a language without an interop client of its own among its packages.
async fn run_script(interpreter: &str, name: &str) -> Result {
    if !tools::is_installed(interpreter)? {
        return Ok(());
    }
    let cases = CASES.join(",");
    for site in [InteropFixture::cleartext().await?, InteropFixture::tls().await?] {
        let mut command = tools::program(interpreter)?;
        command.arg(tools::conformance_folder().join("interop").join(name));
        command.args(site.options()).arg(format!("--test_case={cases}"));
        let output = tools::output_of(command).await?;
        check_success(name, &output)?;
        let passed = String::from_utf8(output.stdout)?;
        ensure!(passed.lines().eq(CASES.iter().copied()), "{passed}");
    }
    Ok(())
}

fn check_success(case: &str, output: &Output) -> Result {
    let text = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success(), "{case}: {}: {text}", output.status);
    Ok(())
}

/// Sheave in front of grpc-go's interop server, which speaks cleartext HTTP/2.
struct InteropFixture {
    uses_tls: bool,
    /// Has the certificate of the authority in `certs/ca.pem`.
    folder: TempDirectory,
    sheave: SheaveProcess,
    _configuration: ConfigDirectory,
    _server: InteropServer,
}

impl InteropFixture {
    async fn cleartext() -> Result<Self> {
        Self::start(objects::gateway(), None).await
    }

    async fn tls() -> Result<Self> {
        let authority = CertificateAuthority::new();
        let mut gateway = objects::https_gateway(&["certificate"]);
        gateway.push(authority.issue(&[NAME]).secret("certificate"));
        Self::start(gateway, Some(authority)).await
    }

    async fn start(
        mut objects: Vec<serde_json::Value>,
        authority: Option<CertificateAuthority>,
    ) -> Result<Self> {
        let server = InteropServer::start().await?;
        objects.extend([objects::grpc_route("interop"), objects::service("interop")]);
        objects.extend(objects::slices("interop", &[server.address]));
        let configuration = ConfigDirectory::empty()?;
        configuration.write("main.yaml", &objects)?;
        let sheave = SheaveProcess::serve(&configuration).await?;

        let folder = TempDirectory::new()?;
        if let Some(authority) = &authority {
            fs::create_dir(folder.path().join("certs"))?;
            fs::write(folder.path().join("certs/ca.pem"), &authority.pem)?;
        }
        let uses_tls = authority.is_some();
        Ok(Self { uses_tls, folder, sheave, _configuration: configuration, _server: server })
    }

    fn port_option(&self) -> String {
        format!("--server_port={}", self.sheave.address().port())
    }

    /// Returns the options that say where Sheave is, and which authority issued its certificate.
    fn options(&self) -> Vec<String> {
        let mut options = vec!["--server_host=127.0.0.1".to_owned(), self.port_option()];
        if self.uses_tls {
            let authority = self.folder.path().join("certs/ca.pem");
            options.push(format!("--ca_file={}", authority.display()));
            options.push(format!("--server_host_override={NAME}"));
        }
        options
    }
}

/// grpc-go's interop server, killed when dropped.
struct InteropServer {
    address: SocketAddr,
    _child: Child,
}

impl InteropServer {
    async fn start() -> Result<Self> {
        // The server cannot report its port, so it gets one that was free a moment ago.
        let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let mut command = tools::program("interop-server")?;
        let child = command.arg(format!("--port={}", address.port())).spawn()?;
        let listens = async || Ok(TcpStream::connect(address).await.is_ok());
        let listens = eventually("the interop server", listens, |listens| *listens).await;
        listens.context("the server does not listen")?;
        Ok(Self { address, _child: child })
    }
}
