//! Connections that die while a request is on its way to them: what the endpoint has not received is sent elsewhere.
//!
//! Sheave is stopped meanwhile, so that it finds the request and the end of the connection at the same time.

use std::fs;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use tests::client::request;
use tests::configuration::SERVICE;
use tests::http2::{self, Call};
use tests::{Behaviour, Client, Configuration, Result, Scene, Sheave, eventually, objects};
use tests::{grpc, within};
use tokio::task::JoinSet;

use crate::site::{kill, kill_http2};

const ONE_WORKER: &[&str] = &["--workers", "1"];
const REQUESTS: usize = 12;
/// The worker may look at either first, so it is tried some times.
const ROUNDS: usize = 8;

/// Which comes first while Sheave is stopped.
#[derive(Clone, Copy, Debug)]
enum First {
    Death,
    Requests,
}

async fn stop(sheave: &Sheave) -> Result {
    sheave.signal(Signal::STOP)?;
    let path = format!("/proc/{}/stat", sheave.process()?.as_raw_pid());
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
        let first = if round % 2 == 0 { First::Death } else { First::Requests };
        post_at_a_death(first).await.with_context(|| format!("{first:?} first"))?;
    }
    Ok(())
}

async fn post_at_a_death(first: First) -> Result {
    let servers = tests::scene::endpoints(2, &Behaviour::gated()).await?;
    let mut scene = Scene::with(servers, &[], ONE_WORKER).await?;
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        let mut client = scene.client().await?;
        client.send(b"POST /before HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n").await?;
        clients.push(client);
    }
    for endpoint in &scene.endpoints {
        endpoint.until("its requests", |counts| counts.in_flight == REQUESTS / 2).await?;
        endpoint.open_gate(10 * REQUESTS);
    }
    for client in &mut clients {
        ensure!(client.response("POST").await?.status() == 200);
    }
    scene.sheave.idle().await?;

    stop(&scene.sheave).await?;
    let mut dying = Some(scene.endpoints.remove(0));
    if let First::Death = first {
        kill(dying.take().context("it lives")?).await?;
    }
    for client in &mut clients {
        client.send(b"POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 0\r\n\r\n").await?;
    }
    if let Some(endpoint) = dying {
        kill(endpoint).await?;
    }
    scene.sheave.signal(Signal::CONT)?;
    for client in &mut clients {
        let response = client.response("POST").await?;
        ensure!(response.status() == 200, "{response:?}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_call_not_received_by_a_dead_endpoint_is_retried() -> Result {
    for round in 0..ROUNDS {
        let first = if round % 2 == 0 { First::Death } else { First::Requests };
        call_at_a_death(first).await.with_context(|| format!("{first:?} first"))?;
    }
    Ok(())
}

async fn call_at_a_death(first: First) -> Result {
    let mut servers = Vec::new();
    for _ in 0..2 {
        let serve = |mut call: Call| async move {
            call.read().await?;
            call.reply(b"ok").await
        };
        servers.push(http2::Endpoint::start(serve).await?);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let mut all = objects::gateway();
    all.extend([objects::grpc_route(SERVICE), objects::service(SERVICE)]);
    all.extend(objects::slices(SERVICE, &addresses));
    let configuration = Configuration::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = Sheave::serve_with(&configuration, ONE_WORKER).await?;
    let client = std::sync::Arc::new(http2::Client::connect(sheave.address()).await?);
    for _ in 0..REQUESTS {
        ensure!(client.call("/test.Echo/Say", b"before").await?.code == grpc::OK);
    }
    ensure!(servers.iter().all(|server| server.counts().requests > 0), "both have a connection");
    sheave.idle().await?;

    stop(&sheave).await?;
    let mut dying = Some(servers.remove(0));
    if let First::Death = first {
        kill_http2(dying.take().context("it lives")?).await?;
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

/// Streams that are opened on a link whose endpoint has died, before the link's own task has noticed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn post_not_received_by_a_dead_http2_endpoint_is_retried() -> Result {
    for round in 0..ROUNDS {
        let first = if round % 2 == 0 { First::Death } else { First::Requests };
        stream_at_a_death(first).await.with_context(|| format!("{first:?} first"))?;
    }
    Ok(())
}

async fn stream_at_a_death(first: First) -> Result {
    let mut servers = vec![http2::Endpoint::ok().await?, http2::Endpoint::ok().await?];
    let addresses: Vec<_> = servers.iter().map(|server| server.address).collect();
    let configuration = Configuration::empty()?;
    let mut all = objects::gateway();
    let service = objects::speaking("kubernetes.io/h2c", objects::service(SERVICE));
    all.extend([objects::route(SERVICE), service]);
    all.extend(objects::slices(SERVICE, &addresses));
    configuration.write("main.yaml", &all)?;
    let sheave = Sheave::serve_with(&configuration, ONE_WORKER).await?;
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        let mut client = Client::connect(sheave.address()).await?;
        ensure!(client.post("/before", b"").await?.status() == 200);
        clients.push(client);
    }
    ensure!(servers.iter().all(|server| server.counts().requests > 0), "both have a connection");
    sheave.idle().await?;

    stop(&sheave).await?;
    let mut dying = Some(servers.remove(0));
    if let First::Death = first {
        kill_http2(dying.take().context("it lives")?).await?;
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
