//! TCP connections and UDP flows after the death of an endpoint: new ones reach a live endpoint.

use std::net::SocketAddr;

use anyhow::{Context, ensure};
use tests::raw::{
    L4Fixture, RawServer, UdpEcho, request_server_port, send_and_read_echo, udp_client,
};
use tests::{Result, eventually};
use tokio::net::UdpSocket;

use super::outage_helpers::{TWO_WORKERS, wait_for_health, wait_until_connections_are_refused};

const NEW_FLOWS: u8 = 30;

#[tokio::test]
async fn new_connections_reach_a_live_endpoint() -> Result {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(RawServer::echo().await?);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let fixture = L4Fixture::tcp(&addresses, &[], TWO_WORKERS).await?;
    // Connections that stay open, so that the dead endpoint has the fewest.
    let mut kept = Vec::new();
    while servers.iter().any(|server| server.open_connections() == 0) {
        let mut connection = fixture.connect().await?;
        ensure!(send_and_read_echo(&mut connection, b"before").await? == b"before");
        kept.push(connection);
    }
    for dead in &addresses[..2] {
        drop(servers.remove(0));
        wait_until_connections_are_refused(*dead).await?;
        for number in 0..NEW_FLOWS {
            let mut connection = fixture.connect().await?;
            let echo = send_and_read_echo(&mut connection, &[number]).await;
            ensure!(echo.with_context(|| format!("connection {number}"))? == [number]);
        }
        wait_for_health(&fixture.sheave, *dead, "unreachable").await?;
    }
    Ok(())
}

#[tokio::test]
async fn new_flows_reach_a_live_endpoint() -> Result {
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(UdpEcho::start().await?);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let fixture = L4Fixture::udp(&addresses, &[], TWO_WORKERS).await?;
    // The clients keep their ports: a flow from the port of an earlier flow is not new.
    let mut clients = Vec::new();
    for dead in &addresses[..2] {
        drop(servers.remove(0));
        wait_until_datagrams_are_refused(*dead).await?;
        for number in 0..NEW_FLOWS {
            let client = udp_client(fixture.listener_address("127.0.0.1")?).await?;
            let port = request_server_port(&client, &[number]).await?;
            ensure!(servers.iter().any(|server| server.address.port() == port), "{port}");
            clients.push(client);
        }
        wait_for_health(&fixture.sheave, *dead, "unreachable").await?;
    }
    servers.push(UdpEcho::start_at(addresses[0]).await?);
    wait_for_health(&fixture.sheave, addresses[0], "serving").await?;
    let is_used = async || {
        let client = udp_client(fixture.listener_address("127.0.0.1")?).await?;
        let port = request_server_port(&client, b"new").await?;
        clients.push(client);
        Ok(port == addresses[0].port())
    };
    eventually("the endpoint gets flows again", is_used, |used| *used).await?;
    Ok(())
}

/// Waits until no process reads datagrams at the address.
async fn wait_until_datagrams_are_refused(address: SocketAddr) -> Result {
    let is_free = async || Ok(UdpSocket::bind(address).await.is_ok());
    eventually("the address is free", is_free, |free| *free).await?;
    Ok(())
}
