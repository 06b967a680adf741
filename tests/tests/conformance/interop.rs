//! grpc-go's interop client, through Sheave to its server: each case passes as it does without
//! Sheave.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::{ConfigDirectory, Result, SheaveProcess, eventually, objects};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::Child;

use crate::tools;

/// Unary calls, the kinds of streams, metadata, statuses, deadlines and cancellation; and many calls in a row.
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
    "rpc_soak",
    "channel_soak",
];

/// Time limits of the soak tests: they show that nothing fails, not how fast this machine is.
const SLOW_CASES: &[&str] =
    &["--soak_per_iteration_max_acceptable_latency_ms=20000", "--soak_overall_timeout_seconds=200"];

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn grpc_interop_passes_over_cleartext() -> Result {
    let server = InteropServer::start().await?;
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &[objects::gateway(), interop_route(&server)].concat())?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    run_every_case(sheave.address(), &[]).await
}

#[tokio::test]
#[ignore = "needs grpc-go: make conformance"]
async fn grpc_interop_passes_over_tls() -> Result {
    let server = InteropServer::start().await?;
    let authority = CertificateAuthority::new();
    let configuration = ConfigDirectory::empty()?;
    let gateway = objects::https_gateway(&["certificate"]);
    let secret = authority.issue(&["interop.test"]).secret("certificate");
    configuration.write("main.yaml", &[gateway, interop_route(&server), vec![secret]].concat())?;
    let sheave = SheaveProcess::serve(&configuration).await?;

    let folder = TempDirectory::new()?;
    let trusted = folder.path().join("ca.pem");
    fs::write(&trusted, &authority.pem)?;
    let trusted = format!("--ca_file={}", trusted.display());
    let host = "--server_host_override=interop.test";
    run_every_case(sheave.address(), &["--use_tls", "--use_test_ca", &trusted, host]).await
}

/// Returns a route for all calls to the server, which speaks cleartext HTTP/2.
fn interop_route(server: &InteropServer) -> Vec<serde_json::Value> {
    let mut all = vec![objects::grpc_route("interop"), objects::service("interop")];
    all.extend(objects::slices("interop", &[server.address]));
    all
}

async fn run_every_case(address: SocketAddr, arguments: &[&str]) -> Result {
    let port = format!("--server_port={}", address.port());
    for case in CASES {
        let case = format!("--test_case={case}");
        let mut all = vec!["--server_host=127.0.0.1", &port, &case];
        all.extend(SLOW_CASES);
        all.extend(arguments);
        let output = tools::run("interop-client", all).await?;
        let text = String::from_utf8_lossy(&output.stderr);
        ensure!(output.status.success(), "{case}: {text}");
    }
    Ok(())
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
