//! File descriptors of the process while clients take as many as they can.

use anyhow::{Context, ensure};
use tests::raw::{UdpEcho, udp_client};
use tests::{Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, within};
use tokio::net::TcpStream;

/// Limit of file descriptors of Sheave.
const LIMIT: u32 = 400;
/// Connections that attackers keep open.
const IDLE: usize = 400;
/// Requests of the honest client, each on a new connection.
const REQUESTS: usize = 30;

/// Checks that new connections are served, by a listener and by the admin API.
async fn check_service(sheave: &SheaveProcess, name: &str) -> Result {
    let listener = sheave.listeners.iter().find(|(listener, _)| listener.contains(name));
    let (_, address) = listener.context("the listener")?;
    for number in 0..REQUESTS {
        let mut client = within("a connection", Http1TestClient::connect(*address)).await??;
        let response = within("a response", client.get("/")).await??;
        ensure!(response.status() == 200, "request {number}: {response:?}");
    }
    ensure!(sheave.admin_get("/healthz").await?.status() == 200);
    Ok(())
}

/// Idle connections, more than there are descriptors: those that have been idle for longest are closed, and new ones are
/// served. The log says so once.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn idle_connections_do_not_take_all_descriptors() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let to = endpoint.address.to_string();
    let arguments = ["--listen", "http://127.0.0.1:0", "--to", &to, "--workers", "2"];
    let sheave = SheaveProcess::start_with_max_descriptors(LIMIT, arguments).await?;
    sheave.wait_for_log(0, "file descriptors are divided").await?;
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        idle.push(within("a connection", TcpStream::connect(sheave.address())).await??);
    }
    check_service(&sheave, "").await?;
    let shed = sheave.metric_sum("sheave_idle_connections_shed_total").await?;
    ensure!(shed > 0.0);
    let lines = sheave.log().lines().filter(|line| line.contains("WARN")).count();
    ensure!(lines < 10, "{lines} warnings:\n{}", sheave.log());
    drop(idle);
    Ok(())
}

/// Datagrams of more source addresses than there are descriptors: flows have a share of them.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn udp_flows_do_not_take_all_descriptors() -> Result {
    const SOURCES: usize = 600;
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let _echo = UdpEcho::start_at(endpoint.address).await?;
    let to = endpoint.address.to_string();
    let listen = ["--listen", "http://127.0.0.1:0", "--listen", "udp://127.0.0.1:0"];
    let arguments = listen.into_iter().chain(["--to", &to, "--workers", "2"]);
    let sheave = SheaveProcess::start_with_max_descriptors(LIMIT, arguments).await?;
    let udp = sheave.listeners.iter().find(|(name, _)| name.contains("udp"));
    let (_, address) = udp.context("the UDP listener")?;
    let mut sources = Vec::new();
    for _ in 0..SOURCES {
        let source = udp_client(*address).await?;
        source.send(b"x").await?;
        sources.push(source);
        check_open_descriptors(&sheave).await?;
    }
    check_service(&sheave, "http").await?;
    ensure!(sheave.metric_sum("sheave_listener_connections_refused_total").await? > 0.0);
    Ok(())
}

/// Checks that the reserve is untouched.
async fn check_open_descriptors(sheave: &SheaveProcess) -> Result {
    let process = sheave.process_id()?.as_raw_pid();
    let open = std::fs::read_dir(format!("/proc/{process}/fd"))?.count();
    ensure!(open < LIMIT as usize * 7 / 8, "{open} descriptors");
    Ok(())
}
