//! Hypercorn (with aioquic) and nginx as HTTP/3 endpoints, for clients of every HTTP version.

use std::fs;
use std::net::SocketAddr;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::certificates::CertificateAuthority;
use tests::configuration::{SERVICE, TempDirectory};
use tests::payload::{BodyDigest, pieces};
use tests::{ConfigDirectory, Http1TestClient, Result, SheaveProcess, eventually, objects};
use tokio::net::{TcpListener, TcpStream};
use tokio::process::{Child, Command};
use tokio::task::JoinSet;

use crate::tools;

/// Name that the endpoint's certificate has to have.
const NAME: &str = "endpoint.test";
const LARGE_BYTES: u64 = 4 << 20;
const CLIENTS: usize = 50;
const REQUESTS: usize = 20;

/// Address of a server, and its files.
struct ServerLocation {
    address: SocketAddr,
    authority: CertificateAuthority,
    folder: TempDirectory,
}

impl ServerLocation {
    /// A server cannot report the port that it has chosen, so it gets one that was free a moment
    /// ago.
    async fn new() -> Result<Self> {
        let address = TcpListener::bind("127.0.0.1:0").await?.local_addr()?;
        let (authority, folder) = (CertificateAuthority::new(), TempDirectory::new()?);
        let identity = authority.issue(&[NAME]);
        fs::write(folder.path().join("chain.pem"), &identity.certificate_pem)?;
        fs::write(folder.path().join("key.pem"), &identity.key_pem)?;
        Ok(Self { address, authority, folder })
    }

    async fn start(self, command: &mut Command) -> Result<PeerServer> {
        let child = command.spawn()?;
        let listens = async || Ok(TcpStream::connect(self.address).await.is_ok());
        let listens = eventually("the endpoint", listens, |listens| *listens).await;
        listens.context("the server does not listen")?;
        Ok(PeerServer { location: self, _child: child })
    }
}

/// A server that is killed when dropped.
struct PeerServer {
    location: ServerLocation,
    _child: Child,
}

impl PeerServer {
    async fn hypercorn(python: &str) -> Result<Self> {
        let location = ServerLocation::new().await?;
        let folder = location.folder.path().display();
        let address = location.address;
        let config = format!(
            "worker_class = \"asyncio\"\nworkers = 0\nbind = \"{address}\"\nquic_bind = \"{address}\"\n\
             certfile = \"{folder}/chain.pem\"\nkeyfile = \"{folder}/key.pem\"\n"
        );
        let path = location.folder.path().join("hypercorn.toml");
        fs::write(&path, config)?;
        let mut command = tools::program(python)?;
        command.args(["-m", "hypercorn", "--config"]).arg(path).arg("application:application");
        location.start(command.current_dir(tools::conformance_folder())).await
    }

    async fn nginx() -> Result<Self> {
        let location = ServerLocation::new().await?;
        let folder = location.folder.path().to_owned();
        fs::write(folder.join("large"), pieces(LARGE_BYTES).collect::<Vec<_>>().concat())?;
        let config = fs::read_to_string(tools::conformance_folder().join("nginx.conf"))?;
        let config = config.replace("ADDRESS", &location.address.to_string());
        let config = config.replace("FOLDER", &folder.display().to_string());
        fs::write(folder.join("nginx.conf"), config)?;
        let mut command = tools::program("nginx")?;
        command.args(["-e", "stderr", "-c"]).arg(folder.join("nginx.conf"));
        location.start(command.arg("-p").arg(folder)).await
    }

    /// Starts Sheave in front of it, with a cleartext listener.
    async fn start_proxy(&self) -> Result<(SheaveProcess, ConfigDirectory)> {
        let configuration = ConfigDirectory::empty()?;
        let mut all = objects::gateway();
        let service = objects::with_app_protocol("sheave.dev/h3", objects::service(SERVICE));
        all.extend([objects::route(SERVICE), service, self.location.authority.config_map("ca")]);
        all.push(objects::backend_tls_policy(SERVICE, json!({ "hostname": NAME })));
        all.extend(objects::slices(SERVICE, &[self.location.address]));
        configuration.write("main.yaml", &all)?;
        Ok((SheaveProcess::serve(&configuration).await?, configuration))
    }
}

/// Sends requests from many concurrent HTTP/1.1 clients, each several in sequence. Every response
/// has to have this body.
async fn check_many_requests(address: SocketAddr, expected: &'static str) -> Result {
    let mut clients = JoinSet::new();
    for _ in 0..CLIENTS {
        clients.spawn(async move {
            let mut client = Http1TestClient::connect(address).await?;
            for _ in 0..REQUESTS {
                let response = client.get("/version").await?;
                ensure!(response.status() == 200 && response.text() == expected, "{response:?}");
            }
            anyhow::Ok(())
        });
    }
    while let Some(done) = clients.join_next().await {
        done??;
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs Hypercorn: make conformance"]
async fn hypercorn_endpoint_is_reached_over_http3() -> Result {
    for python in ["python-pinned", "python-current"] {
        if !tools::is_installed(python)? {
            continue;
        }
        let server = PeerServer::hypercorn(python).await?;
        let (sheave, _configuration) = server.start_proxy().await?;
        check_many_requests(sheave.address(), "HTTP/3").await.context(python)?;

        let mut client = Http1TestClient::connect(sheave.address()).await?;
        let response = client.get("/bytes/1000000").await?;
        ensure!(response.body.len() == 1_000_000, "{python}: {} bytes", response.body.len());
        let body = pieces(LARGE_BYTES).collect::<Vec<_>>().concat();
        let response = client.post("/", &body).await?;
        ensure!(BodyDigest::of(&response.body) == BodyDigest::of_pattern(LARGE_BYTES), "{python}");
    }
    Ok(())
}

#[tokio::test]
#[ignore = "needs nginx: make conformance"]
async fn nginx_endpoint_is_reached_over_http3() -> Result {
    if !tools::is_installed("nginx")? {
        return Ok(());
    }
    let server = PeerServer::nginx().await?;
    let (sheave, _configuration) = server.start_proxy().await?;
    check_many_requests(sheave.address(), "HTTP/3.0").await?;
    let response = Http1TestClient::connect(sheave.address()).await?.get("/large").await?;
    ensure!(
        BodyDigest::of(&response.body) == BodyDigest::of_pattern(LARGE_BYTES),
        "the response body differs"
    );
    Ok(())
}
