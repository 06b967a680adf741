//! Attacks on the process beside its listeners: the admin API, standard error and signals.

use std::io::pipe;
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result,
    SheaveProcess, eventually,
};
use tokio::io::AsyncWriteExt;
use tokio::net::TcpStream;
use tokio::time::Instant;

/// More than the admin API accepts.
const CONNECTIONS: usize = 300;

#[tokio::test]
async fn held_admin_connections_do_not_keep_new_ones_out() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        let mut connection = TcpStream::connect(fixture.sheave.admin).await?;
        connection.write_all(b"GET /healthz HTTP/1.1\r\nHost: 127").await?;
        held.push(connection);
    }
    for path in ["/healthz", "/readyz", "/metrics"] {
        ensure!(fixture.sheave.admin_get(path).await?.status() == 200, "{path}");
    }
    Ok(())
}

/// A client that reads its responses stays while others that hold connections lose theirs.
#[tokio::test]
async fn admin_connection_in_use_survives_held_ones() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut honest = Http1TestClient::connect(fixture.sheave.admin).await?;
    let mut held = Vec::new();
    for _ in 0..4 {
        ensure!(honest.get("/healthz").await?.status() == 200);
        for _ in 0..CONNECTIONS / 2 {
            held.push(TcpStream::connect(fixture.sheave.admin).await?);
        }
    }
    ensure!(honest.get("/healthz").await?.status() == 200);
    Ok(())
}

#[tokio::test]
async fn slow_admin_request_is_ended() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = Http1TestClient::connect(fixture.sheave.admin).await?;
    client.send("GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n").await?;
    let begun = Instant::now();
    let ended = async {
        // Each byte is progress, but the head never ends.
        while client.send("A").await.is_ok() {
            tokio::time::sleep(Duration::from_millis(200)).await; // The client is slow.
        }
    };
    tokio::time::timeout(Duration::from_secs(40), ended).await.context("it is not ended")?;
    ensure!(begun.elapsed() >= Duration::from_secs(8), "{:?}", begun.elapsed());
    Ok(())
}

#[tokio::test]
async fn probes_have_an_address_that_shows_nothing_else() -> Result {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = HttpFixture::with(endpoints, &[], &["--probes", "127.0.0.1:0"]).await?;
    let mut client = Http1TestClient::connect(fixture.sheave.probes.context("probes")?).await?;
    for (path, status) in [("/healthz", 200), ("/readyz", 200), ("/metrics", 404), ("/", 404)] {
        let response = client.get(path).await?;
        ensure!(response.status() == status, "{path}: {response:?}");
    }
    Ok(())
}

/// DNS rebinding: the name of a foreign page resolves to the address of the admin API.
#[tokio::test]
async fn admin_request_for_a_foreign_host_is_rejected() -> Result {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let arguments = ["--admin-host", "sheave.lan.example"];
    let fixture = HttpFixture::with(endpoints, &[], &arguments).await?;
    for (host, status) in [
        ("evil.example", 421),
        ("127.0.0.1.evil.example:9900", 421),
        ("10.0.0.7:9900", 200),
        ("localhost:9900", 200),
        ("sheave-admin.sheave-system.svc:9900", 200),
        ("sheave.lan.example", 200),
    ] {
        let mut client = Http1TestClient::connect(fixture.sheave.admin).await?;
        for path in ["/metrics", "/api/v1/backends"] {
            let response = client.exchange("GET", path, &[("Host", host)], b"").await?;
            ensure!(response.status() == status, "{host}: {response:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn unread_standard_error_stops_neither_requests_nor_the_admin_api() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let configuration = ConfigDirectory::for_endpoints(&[endpoint.address])?;
    let (unread, standard_error) = pipe()?;
    let mut sheave =
        SheaveProcess::serve_without_log(&configuration, Stdio::from(standard_error)).await?;
    // Each document is an error, and each error a line: more than a pipe holds.
    let bad = "apiVersion: v1\nkind: Nothing\nmetadata: {name: bad}\n---\n";
    configuration.write_text("bad.yaml", &bad.repeat(3000))?;
    let refused = async || {
        let reloads = sheave.metric_samples("sheave_config_reloads_total").await?;
        Ok(reloads.iter().any(|(labels, count)| labels.contains("refused") && *count > 0.0))
    };
    eventually("the configuration is refused", refused, |refused| *refused).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    ensure!(client.get("/").await?.status() == 200);
    ensure!(
        sheave.metric_sum("sheave_log_events_dropped_total").await? > 0.0,
        "one kind of event is limited"
    );

    drop(client);
    sheave.signal(Signal::TERM)?;
    ensure!(sheave.wait_for_exit().await?.code() == Some(0), "the drain ends all the same");
    drop(unread);
    Ok(())
}

#[tokio::test]
async fn meaningless_signals_do_not_end_the_process() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = fixture.client().await?;
    for signal in [Signal::USR1, Signal::USR2, Signal::ALARM, Signal::VTALARM, Signal::PROF] {
        fixture.sheave.signal(signal)?;
        ensure!(client.get("/").await?.status() == 200, "{signal:?}");
    }
    Ok(())
}
