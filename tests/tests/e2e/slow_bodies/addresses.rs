//! `clients.maxPerAddress`: slots and queue places of one client address.

use std::net::IpAddr;

use anyhow::ensure;
use serde_json::json;
use tests::{EndpointBehaviour, Http1TestClient, Result};

use super::CappedFixture;

const LIMIT: usize = 2;

#[tokio::test]
async fn requests_of_one_address_are_limited() -> Result {
    let limit = json!({ "clients": { "maxPerAddress": LIMIT } });
    let target = CappedFixture::with(EndpointBehaviour::gated(), json!({}), limit).await?;
    let address = target.fixture.sheave.address();
    let endpoint = target.fixture.endpoint();
    let [one, other] = ["127.0.0.1", "127.0.0.2"].map(|text| text.parse::<IpAddr>());
    let (one, other) = (one?, other?);
    for round in 1..3 {
        let mut clients = Vec::new();
        for source in [one, one, other] {
            let mut client = Http1TestClient::connect_from(source, address).await?;
            client.send("GET / HTTP/1.1\r\nHost: test\r\n\r\n").await?;
            clients.push(client);
        }
        endpoint.wait_for_counts("three requests", |counts| counts.in_flight == 3).await?;
        let refused = Http1TestClient::connect_from(one, address).await?.get("/").await?;
        ensure!(refused.status() == 429, "{refused:?}");
        ensure!(refused.text().contains("too many requests of this client"), "{refused:?}");
        endpoint.open_gate(3);
        for mut client in clients {
            ensure!(client.response("GET").await?.status() == 200);
        }
        target.wait_for_failures("address_share", f64::from(round)).await?;
        target.fixture.sheave.wait_until_idle().await?;
    }
    Ok(())
}

/// Behind a trusted proxy the address is the one that the proxy reports.
#[tokio::test]
async fn address_is_the_one_that_trusted_proxies_report() -> Result {
    let limit = json!({ "clients": { "maxPerAddress": 1 } });
    let trust = json!({ "trustedProxies": ["127.0.0.1"] });
    let target = CappedFixture::with(EndpointBehaviour::gated(), trust, limit).await?;
    let endpoint = target.fixture.endpoint();
    let request =
        |of: &str| format!("GET / HTTP/1.1\r\nHost: test\r\nX-Forwarded-For: {of}\r\n\r\n");
    let mut clients = Vec::new();
    for of in ["192.0.2.1", "192.0.2.2", "2001:db8:1:2::1"] {
        let mut client = target.fixture.client().await?;
        client.send(request(of)).await?;
        clients.push(client);
    }
    endpoint.wait_for_counts("three requests", |counts| counts.in_flight == 3).await?;
    for of in ["192.0.2.1", "2001:db8:1:2:3::4"] {
        let mut client = target.fixture.client().await?;
        client.send(request(of)).await?;
        ensure!(client.response("GET").await?.status() == 429);
    }
    endpoint.open_gate(3);
    for mut client in clients {
        ensure!(client.response("GET").await?.status() == 200);
    }
    Ok(())
}
