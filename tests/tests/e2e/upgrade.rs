//! Upgrade in place: a new process takes over the listening sockets of the running one, and no request is lost.

use std::env;
use std::net::SocketAddr;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::json;
use tests::certificates::CertificateAuthority;
use tests::configuration::TempDirectory;
use tests::load::{ClientPattern, LoadGenerator};
use tests::raw::{UdpEcho, request_server_port, udp_client};
use tests::tls::TlsClientOptions;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, http3,
    objects, sheave, within,
};
use tokio::task::JoinSet;

/// Upgrades under load; `SHEAVE_UPGRADES` sets another number.
const UPGRADES: usize = 5;

/// A configuration, and the upgrade socket of the processes that serve it.
struct UpgradeFixture {
    configuration: ConfigDirectory,
    directory: TempDirectory,
}

impl UpgradeFixture {
    fn new(configuration: ConfigDirectory) -> Result<Self> {
        Ok(Self { configuration, directory: TempDirectory::new()? })
    }

    fn socket(&self) -> PathBuf {
        self.directory.path().join("upgrade")
    }

    async fn start(&self) -> Result<SheaveProcess> {
        let socket = self.socket();
        let socket = socket.to_str().context("UTF-8")?;
        let arguments = ["--workers", "2", "--upgrade-socket", socket, "--probes", "127.0.0.1:0"];
        SheaveProcess::serve_with(&self.configuration, &arguments).await
    }

    /// Starts a new process, and waits for the end of the running one.
    async fn upgrade(&self, running: &mut SheaveProcess) -> Result<SheaveProcess> {
        let new = self.start().await?;
        ensure!(new.listeners == running.listeners, "{:?}", new.listeners);
        ensure!((new.admin, new.probes) == (running.admin, running.probes));
        let status = running.wait_for_exit().await?;
        ensure!(status.code() == Some(0), "{status}: {}", running.log());
        Ok(new)
    }
}

/// Sends requests, each on a connection of its own, until it is stopped. Returns their number.
async fn connect_for_each_request(address: SocketAddr, stopped: Arc<AtomicBool>) -> Result<u64> {
    let mut served = 0;
    while !stopped.load(Ordering::Relaxed) {
        let mut client = Http1TestClient::connect(address).await?;
        ensure!(client.get("/").await?.status() == 200);
        served += 1;
    }
    Ok(served)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn upgrades_under_load_lose_no_request() -> Result {
    let upgrades = match env::var("SHEAVE_UPGRADES") {
        Ok(number) => number.parse()?,
        Err(_) => UPGRADES,
    };
    let endpoint = Endpoint::start(EndpointBehaviour::slow(Duration::from_millis(2))).await?;
    let fixture = UpgradeFixture::new(ConfigDirectory::for_endpoints(&[endpoint.address])?)?;
    let mut running = fixture.start().await?;
    let mode = std::fs::metadata(fixture.socket())?.permissions().mode();
    ensure!(mode & 0o777 == 0o600, "{mode:o}");
    let address = running.address();
    let loads = [ClientPattern::GET, ClientPattern::POST]
        .map(|pattern| LoadGenerator::start(address, 4, pattern));
    let stopped = Arc::new(AtomicBool::new(false));
    let connecting: JoinSet<_> =
        (0..4).map(|_| connect_for_each_request(address, Arc::clone(&stopped))).collect();
    for _ in 0..upgrades {
        let before = endpoint.counts().requests;
        running = fixture.upgrade(&mut running).await?;
        let more = endpoint
            .wait_for_counts("load on the new process", |counts| counts.requests > before + 50);
        more.await?;
    }
    stopped.store(true, Ordering::Relaxed);
    for load in loads {
        load.stop().await.assert_all_served();
    }
    for served in connecting.join_all().await {
        ensure!(served? > 0);
    }
    ensure!(running.admin_get("/readyz").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn request_in_flight_ends_at_the_old_process() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::gated()).await?;
    let fixture = UpgradeFixture::new(ConfigDirectory::for_endpoints(&[endpoint.address])?)?;
    let mut old = fixture.start().await?;
    let mut client = Http1TestClient::connect(old.address()).await?;
    client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
    endpoint.wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
    let new = fixture.start().await?;
    old.wait_for_log(0, "draining").await?;
    endpoint.open_gate(2);
    let response = client.response("GET").await?;
    ensure!(response.status() == 200 && response.closes(), "{response:?}");
    let mut next = Http1TestClient::connect(new.address()).await?;
    ensure!(next.get("/").await?.status() == 200);
    ensure!(old.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

/// Runs a process that cannot start, and returns its message.
async fn fail_to_start(configuration: &Path, socket: &Path) -> Result<String> {
    let arguments = [
        "serve".as_ref(),
        "--config".as_ref(),
        configuration.as_os_str(),
        "--upgrade-socket".as_ref(),
        socket.as_os_str(),
        "--admin".as_ref(),
        "127.0.0.1:0".as_ref(),
    ];
    let output = sheave::run(arguments).await?;
    ensure!(output.status.code() == Some(1), "{output:?}");
    Ok(String::from_utf8(output.stderr)?)
}

#[tokio::test]
async fn new_process_that_fails_does_no_harm() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let fixture = UpgradeFixture::new(ConfigDirectory::for_endpoints(&[endpoint.address])?)?;
    let mut running = fixture.start().await?;
    let address = running.address();
    let load =
        LoadGenerator::start(address, 2, ClientPattern::GET.with_pause(Duration::from_millis(2)));
    // One that fails before it connects, and one that fails when it has the sockets.
    let invalid = ConfigDirectory::empty()?;
    invalid.write_text("bad.yaml", "kind: Nothing\n")?;
    fail_to_start(invalid.path(), &fixture.socket()).await?;
    let taken = std::net::TcpListener::bind("127.0.0.1:0")?;
    let mut gateway = objects::gateway();
    gateway[1]["spec"]["listeners"][0]["port"] = json!(taken.local_addr()?.port());
    let in_use = ConfigDirectory::with_gateway(gateway, &[endpoint.address], &[])?;
    let message = fail_to_start(in_use.path(), &fixture.socket()).await?;
    ensure!(message.contains("cannot listen on"), "{message}");
    running.wait_for_log(0, "a new process has not taken over").await?;
    ensure!(running.admin_get("/readyz").await?.status() == 200);
    // The next one takes over.
    let new = fixture.upgrade(&mut running).await?;
    ensure!(new.admin_get("/readyz").await?.status() == 200);
    load.stop().await.assert_all_served();
    Ok(())
}

#[tokio::test]
async fn left_over_upgrade_socket_is_replaced() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let fixture = UpgradeFixture::new(ConfigDirectory::for_endpoints(&[endpoint.address])?)?;
    let mut killed = fixture.start().await?;
    killed.signal(rustix::process::Signal::KILL)?;
    killed.wait_for_exit().await?;
    ensure!(fixture.socket().exists());
    let mut running = fixture.start().await?;
    fixture.upgrade(&mut running).await?;
    Ok(())
}

#[tokio::test]
async fn udp_flows_continue_at_the_new_process() -> Result {
    let server = UdpEcho::start().await?;
    let mut all = objects::gateway_at("127.0.0.1", "UDP");
    all.push(objects::stream_route("UDPRoute", "app"));
    all.push(objects::with_transport("UDP", objects::service("app")));
    let slices = objects::slices("app", &[server.address]);
    all.extend(slices.into_iter().map(|slice| objects::with_transport("UDP", slice)));
    all.push(objects::client_policy(json!({ "timeouts": { "flow": "500ms" } })));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("udp.yaml", &all)?;
    let fixture = UpgradeFixture::new(configuration)?;
    let mut running = fixture.start().await?;
    let client = udp_client(running.address()).await?;
    for number in 0..3_u8 {
        ensure!(request_server_port(&client, &[number]).await? == server.address.port());
        running = fixture.upgrade(&mut running).await?;
        ensure!(request_server_port(&client, &[number]).await? == server.address.port());
    }
    Ok(())
}

/// A connection over QUIC stays with the old process until its requests have ended, and new ones begin at the new
/// process meanwhile.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn quic_connections_end_at_the_old_process() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::gated()).await?;
    let authority = CertificateAuthority::new();
    let mut all = objects::https_gateway(&["certificate"]);
    all.push(authority.issue(&["test"]).secret("certificate"));
    all.extend([objects::route("app"), objects::service("app")]);
    all.extend(objects::slices("app", &[endpoint.address]));
    all.push(objects::client_policy(json!({ "http3": { "enabled": true } })));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("site.yaml", &all)?;
    let fixture = UpgradeFixture::new(configuration)?;
    let mut running = fixture.start().await?;
    let (address, options) = (running.address(), TlsClientOptions::trusting(&authority));
    for _ in 0..3 {
        let client = http3::Http3TestClient::connect(address, &options).await?;
        let (mut sending, receiving) = client.send_request(http3::get("/")).await?;
        sending.finish().await?;
        endpoint.wait_for_counts("the request", |counts| counts.in_flight == 1).await?;
        let new = fixture.start().await?;
        running.wait_for_log(0, "draining").await?;
        // Many, because the kernel distributes new connections by their random ids.
        let mut clients = Vec::new();
        for _ in 0..8 {
            clients.push(http3::Http3TestClient::connect(address, &options).await?);
        }
        endpoint.open_gate(9);
        let response = within("an answer", http3::Http3TestClient::response(receiving)).await??;
        ensure!(response.status() == 200, "{response:?}");
        let end = client.wait_for_close().await?;
        ensure!(end.is_h3_no_error(), "{end:?}");
        for client in clients {
            ensure!(client.get("/").await?.status() == 200);
        }
        ensure!(running.wait_for_exit().await?.code() == Some(0), "{}", running.log());
        new.wait_for_log(0, "the previous process has ended").await?;
        let client = http3::Http3TestClient::connect(address, &options).await?;
        endpoint.open_gate(1);
        ensure!(client.get("/").await?.status() == 200);
        running = new;
    }
    Ok(())
}
