//! UDP flows: the datagrams of a client stay at one endpoint, replies come from the address that
//! the client sent to, and everything is bounded.

use std::collections::BTreeSet;
use std::net::SocketAddr;

use anyhow::ensure;
use rustix::process::Signal;
use serde_json::json;
use tests::raw::{L4Fixture, UdpEcho, is_ignored, request_server_port, udp_client};
use tests::{Result, eventually, objects};
use tokio::net::UdpSocket;

/// Returns an address without a listener: the kernel reports that to senders.
async fn refusing_address() -> Result<SocketAddr> {
    Ok(UdpSocket::bind("127.0.0.1:0").await?.local_addr()?)
}

async fn open_flows(fixture: &L4Fixture) -> Result<f64> {
    fixture.sheave.metric_sum("sheave_listener_connections_open").await
}

#[tokio::test]
async fn flow_keeps_its_endpoint_and_flows_are_balanced() -> Result {
    let servers = [UdpEcho::start().await?, UdpEcho::start().await?, UdpEcho::start().await?];
    let addresses = servers.each_ref().map(|server| server.address);
    let fixture = L4Fixture::udp(&addresses, &[], &["--workers", "2"]).await?;
    let mut ports = Vec::new();
    let mut clients = Vec::new();
    for number in 0..12_u8 {
        let client = udp_client(fixture.listener_address("127.0.0.1")?).await?;
        let port = request_server_port(&client, &[number]).await?;
        for length in [0, 1, 1200, 9000, 60_000] {
            ensure!(
                request_server_port(&client, &vec![number; length]).await? == port,
                "{length} bytes"
            );
        }
        ports.push(port);
        clients.push(client);
    }
    for server in &servers {
        let own = ports.iter().filter(|port| **port == server.address.port()).count();
        ensure!(own == 4, "{ports:?}");
    }
    ensure!(open_flows(&fixture).await? == 12.0);
    Ok(())
}

#[tokio::test]
async fn replies_come_from_the_destination_address() -> Result {
    let server = UdpEcho::start().await?;
    let fixture = L4Fixture::udp(&[server.address], &[], &["--access-log", "on"]).await?;
    // A client's socket is connected, so it receives only from that address.
    for ip in ["127.0.0.1", "127.0.0.9", "::1"] {
        let client = udp_client(fixture.listener_address(ip)?).await?;
        ensure!(request_server_port(&client, b"x").await? == server.address.port(), "{ip}");
    }
    Ok(())
}

#[tokio::test]
async fn idle_flow_ends_and_releases_its_slot() -> Result {
    let server = UdpEcho::start().await?;
    let policies = [
        objects::client_policy(json!({ "timeouts": { "flow": "300ms" } })),
        objects::backend_policy(
            "app",
            json!({ "maxInFlightPerEndpoint": 1, "queue": { "maxRequests": 0 } }),
        ),
    ];
    let fixture = L4Fixture::udp(&[server.address], &policies, &["--access-log", "on"]).await?;
    let first = udp_client(fixture.listener_address("127.0.0.1")?).await?;
    let second = udp_client(fixture.listener_address("127.0.0.1")?).await?;
    request_server_port(&first, b"x").await?;
    second.send(b"lost").await?;
    let dropped =
        async || fixture.sheave.metric_sum("sheave_listener_datagrams_dropped_total").await;
    let refused = async || {
        let failures = fixture.sheave.metric_samples("sheave_failures_total").await?;
        Ok(failures.iter().any(|(labels, count)| labels.contains("queue_full") && *count > 0.0))
    };
    eventually("the second flow is refused", refused, |refused| *refused).await?;
    eventually("the flow ends", async || open_flows(&fixture).await, |open| *open == 0.0).await?;
    request_server_port(&second, b"y").await?;
    let lines = fixture.sheave.wait_for_access_log(2).await?;
    let line = lines.iter().find(|line| line.get("error.type").is_none()).expect("the first flow");
    ensure!(line["network.transport"] == "udp" && line["sheave.received_bytes"] == 1, "{line}");
    ensure!(line["sheave.sent_bytes"] == 3, "{line}");
    ensure!(dropped().await? <= 1.0);
    Ok(())
}

#[tokio::test]
async fn flow_limit_is_enforced() -> Result {
    let server = UdpEcho::start().await?;
    let policy = objects::client_policy(json!({ "connections": { "max": 2 } }));
    let fixture = L4Fixture::udp(&[server.address], &[policy], &[]).await?;
    let mut clients = Vec::new();
    for _ in 0..2 {
        let client = udp_client(fixture.listener_address("127.0.0.1")?).await?;
        request_server_port(&client, b"x").await?;
        clients.push(client);
    }
    let third = udp_client(fixture.listener_address("127.0.0.1")?).await?;
    ensure!(is_ignored(&third, b"x").await?);
    ensure!(fixture.sheave.metric_sum("sheave_listener_connections_refused_total").await? == 1.0);
    ensure!(fixture.sheave.metric_sum("sheave_listener_datagrams_dropped_total").await? == 1.0);
    request_server_port(&clients[0], b"y").await?;
    Ok(())
}

#[tokio::test]
async fn refused_datagram_is_retried_on_another_endpoint() -> Result {
    let server = UdpEcho::start().await?;
    let addresses = [refusing_address().await?, server.address];
    let fixture = L4Fixture::udp(&addresses, &[], &[]).await?;
    for number in 0..10 {
        let client = udp_client(fixture.listener_address("127.0.0.1")?).await?;
        ensure!(
            request_server_port(&client, &[number]).await? == server.address.port(),
            "{number}"
        );
    }
    ensure!(fixture.sheave.metric_sum("sheave_endpoint_failures_total").await? > 0.0);
    Ok(())
}

#[tokio::test]
async fn flows_move_from_a_removed_endpoint() -> Result {
    let servers = [UdpEcho::start().await?, UdpEcho::start().await?];
    let fixture = L4Fixture::udp(&[servers[0].address], &[], &[]).await?;
    let client = udp_client(fixture.listener_address("127.0.0.1")?).await?;
    ensure!(request_server_port(&client, b"x").await? == servers[0].address.port());
    fixture.set_endpoints(&[servers[1].address])?;
    fixture.sheave.wait_for_endpoints(&[servers[1].address]).await?;
    ensure!(request_server_port(&client, b"y").await? == servers[1].address.port());
    Ok(())
}

#[tokio::test]
async fn removed_listener_ends_its_flows() -> Result {
    let server = UdpEcho::start().await?;
    let fixture = L4Fixture::udp(&[server.address], &[], &[]).await?;
    let client = udp_client(fixture.listener_address("127.0.0.1")?).await?;
    request_server_port(&client, b"x").await?;
    fixture.configuration.write("main.yaml", &[])?;
    let busy = async || fixture.sheave.active_requests().await;
    eventually("all flows have ended", busy, |busy| *busy == 0).await?;
    let free = async || Ok(UdpSocket::bind(fixture.listener_address("::")?).await.is_ok());
    eventually("the address is free", free, |free| *free).await?;
    Ok(())
}

#[tokio::test]
async fn flows_continue_during_drain() -> Result {
    let server = UdpEcho::start().await?;
    let mut fixture = L4Fixture::udp(&[server.address], &[], &["--drain-timeout", "6s"]).await?;
    let client = udp_client(fixture.listener_address("127.0.0.1")?).await?;
    request_server_port(&client, b"x").await?;
    fixture.sheave.signal(Signal::TERM)?;
    fixture.sheave.wait_for_log(0, "draining").await?;
    request_server_port(&client, b"y").await?;
    let none_new = async || {
        let late = udp_client(fixture.listener_address("127.0.0.1")?).await?;
        is_ignored(&late, b"z").await
    };
    eventually("new flows are refused", none_new, |none| *none).await?;
    // The flow sends nothing more, so it does not delay the end.
    ensure!(fixture.sheave.wait_for_exit().await?.code() == Some(0));
    Ok(())
}

#[tokio::test]
async fn many_concurrent_flows_get_their_own_replies() -> Result {
    let servers = [UdpEcho::start().await?, UdpEcho::start().await?];
    let addresses = servers.each_ref().map(|server| server.address);
    let fixture = L4Fixture::udp(&addresses, &[], &["--workers", "2"]).await?;
    let mut clients = Vec::new();
    for _ in 0..200 {
        clients.push(udp_client(fixture.listener_address("127.0.0.1")?).await?);
    }
    let mut answered = BTreeSet::new();
    for (number, client) in clients.iter().enumerate() {
        let question = number.to_string().into_bytes();
        answered.insert(request_server_port(client, &question).await?);
    }
    ensure!(answered.len() == servers.len(), "{answered:?}");
    Ok(())
}
