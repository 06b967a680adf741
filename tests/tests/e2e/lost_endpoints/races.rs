//! Connections that die while a request is on its way to them: if the endpoint has not received the
//! request, it is retried elsewhere.
//!
//! Sheave is stopped meanwhile, so that it finds the request and the end of the connection at the
//! same time.

use std::fs;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use tests::client::request;
use tests::configuration::SERVICE;
use tests::http2::{self, ReceivedRequest};
use tests::{
    ConfigDirectory, EndpointBehaviour, Http1TestClient, HttpFixture, Result, SheaveProcess,
    eventually, objects,
};
use tests::{grpc, within};
use tokio::task::JoinSet;

use super::outage_helpers::{kill, kill_http2};

const ONE_WORKER: &[&str] = &["--workers", "1"];
const REQUESTS: usize = 12;
/// The worker may see either event first, so there are several rounds.
const ROUNDS: usize = 8;

/// The event that comes first while Sheave is stopped.
#[derive(Clone, Copy, Debug)]
enum FirstEvent {
    Death,
    Requests,
}

async fn stop_process(sheave: &SheaveProcess) -> Result {
    sheave.signal(Signal::STOP)?;
    let path = format!("/proc/{}/stat", sheave.process_id()?.as_raw_pid());
    let state = async || {
        let stat = fs::read_to_string(&path)?;
        Ok(stat.rsplit(") ").next().context("a state")?.to_owned())
    };
    eventually("sheave is stopped", state, |state| state.starts_with('T')).await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn post_not_received_by_a_dead_endpoint_is_retried() -> Result {
    for round in 0..ROUNDS {
        let first = if round % 2 == 0 { FirstEvent::Death } else { FirstEvent::Requests };
        check_post_at_death(first).await.with_context(|| format!("{first:?} first"))?;
    }
    Ok(())
}

async fn check_post_at_death(first: FirstEvent) -> Result {
    let servers = tests::fixture::start_endpoints(2, &EndpointBehaviour::gated()).await?;
    let mut fixture = HttpFixture::with(servers, &[], ONE_WORKER).await?;
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        let mut client = fixture.client().await?;
        client.send(b"POST /before HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n").await?;
        clients.push(client);
    }
    for endpoint in &fixture.endpoints {
        endpoint
            .wait_for_counts("the endpoint's requests", |counts| counts.in_flight == REQUESTS / 2)
            .await?;
        endpoint.open_gate(10 * REQUESTS);
    }
    for client in &mut clients {
        ensure!(client.response("POST").await?.status() == 200);
    }
    fixture.sheave.wait_until_idle().await?;

    stop_process(&fixture.sheave).await?;
    let mut dying = Some(fixture.endpoints.remove(0));
    if let FirstEvent::Death = first {
        kill(dying.take().context("the endpoint is already dead")?).await?;
    }
    for client in &mut clients {
        client.send(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n").await?;
    }
    if let Some(endpoint) = dying {
        kill(endpoint).await?;
    }
    fixture.sheave.signal(Signal::CONT)?;
    for client in &mut clients {
        let response = client.response("POST").await?;
        ensure!(response.status() == 200, "{response:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_call_not_received_by_a_dead_endpoint_is_retried() -> Result {
    for round in 0..ROUNDS {
        let first = if round % 2 == 0 { FirstEvent::Death } else { FirstEvent::Requests };
        check_grpc_call_at_death(first).await.with_context(|| format!("{first:?} first"))?;
    }
    Ok(())
}

async fn check_grpc_call_at_death(first: FirstEvent) -> Result {
    let mut servers = Vec::new();
    for _ in 0..2 {
        let serve = |mut call: ReceivedRequest| async move {
            call.read().await?;
            call.reply(b"ok").await
        };
        servers.push(http2::Http2TestEndpoint::start(serve).await?);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let mut all = objects::gateway();
    all.extend([objects::grpc_route(SERVICE), objects::service(SERVICE)]);
    all.extend(objects::slices(SERVICE, &addresses));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve_with(&configuration, ONE_WORKER).await?;
    let client = std::sync::Arc::new(http2::Http2TestClient::connect(sheave.address()).await?);
    for _ in 0..REQUESTS {
        ensure!(client.call("/test.Echo/Say", b"before").await?.code == grpc::OK);
    }
    ensure!(
        servers.iter().all(|server| server.counts().requests > 0),
        "an endpoint has no connection"
    );
    sheave.wait_until_idle().await?;

    stop_process(&sheave).await?;
    let mut dying = Some(servers.remove(0));
    if let FirstEvent::Death = first {
        kill_http2(dying.take().context("the endpoint is already dead")?).await?;
    }
    let mut calls = JoinSet::new();
    for _ in 0..REQUESTS {
        let client = std::sync::Arc::clone(&client);
        calls.spawn(async move { client.call("/test.Echo/Say", b"once").await });
    }
    if let Some(endpoint) = dying {
        kill_http2(endpoint).await?;
    }
    sheave.signal(Signal::CONT)?;
    while let Some(reply) = within("a reply", calls.join_next()).await? {
        let reply = reply??;
        ensure!(reply.code == grpc::OK, "{reply:?}");
    }
    Ok(())
}

/// Streams opened on a connection whose endpoint has died, before the task of the connection has
/// noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn post_not_received_by_a_dead_http2_endpoint_is_retried() -> Result {
    for round in 0..ROUNDS {
        let first = if round % 2 == 0 { FirstEvent::Death } else { FirstEvent::Requests };
        check_stream_at_death(first).await.with_context(|| format!("{first:?} first"))?;
    }
    Ok(())
}

async fn check_stream_at_death(first: FirstEvent) -> Result {
    let mut servers =
        vec![http2::Http2TestEndpoint::ok().await?, http2::Http2TestEndpoint::ok().await?];
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let configuration = ConfigDirectory::empty()?;
    let mut all = objects::gateway();
    let service = objects::with_app_protocol("kubernetes.io/h2c", objects::service(SERVICE));
    all.extend([objects::route(SERVICE), service]);
    all.extend(objects::slices(SERVICE, &addresses));
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve_with(&configuration, ONE_WORKER).await?;
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        let mut client = Http1TestClient::connect(sheave.address()).await?;
        ensure!(client.post("/before", b"").await?.status() == 200);
        clients.push(client);
    }
    ensure!(
        servers.iter().all(|server| server.counts().requests > 0),
        "an endpoint has no connection"
    );
    sheave.wait_until_idle().await?;

    stop_process(&sheave).await?;
    let mut dying = Some(servers.remove(0));
    if let FirstEvent::Death = first {
        kill_http2(dying.take().context("the endpoint is already dead")?).await?;
    }
    for client in &mut clients {
        client.send(request("POST", "/", &[], b"once")).await?;
    }
    if let Some(endpoint) = dying {
        kill_http2(endpoint).await?;
    }
    sheave.signal(Signal::CONT)?;
    for client in &mut clients {
        let response = client.response("POST").await?;
        ensure!(response.status() == 200, "{response:?}");
    }
    Ok(())
}
