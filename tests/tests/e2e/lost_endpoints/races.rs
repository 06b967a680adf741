//! Connections that die while a request is on its way to them: if the endpoint has not received the
//! request, it is retried elsewhere.
//!
//! Sheave is stopped meanwhile, so that it finds the request and the end of the connection at the
//! same time.

use std::future::Future;
use std::sync::Arc;

use anyhow::{Context, ensure};
use rustix::process::Signal;
use serde_json::Value;
use tests::client::request;
use tests::configuration::SERVICE;
use tests::http2::{Http2TestClient, Http2TestEndpoint, ReceivedRequest};
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
    let statistics = async || sheave.statistics();
    eventually("sheave is stopped", statistics, |it| it.starts_with('T')).await?;
    Ok(())
}

/// Runs a check with either event first, several times.
async fn run_races(check: impl AsyncFn(FirstEvent) -> Result) -> Result {
    for round in 0..ROUNDS {
        let first = if round % 2 == 0 { FirstEvent::Death } else { FirstEvent::Requests };
        check(first).await.with_context(|| format!("{first:?} first"))?;
    }
    Ok(())
}

/// Stops Sheave, lets both events happen in this order, and continues it.
async fn race(
    sheave: &SheaveProcess,
    first: FirstEvent,
    death: impl Future<Output = Result>,
    requests: impl Future<Output = Result>,
) -> Result {
    sheave.wait_until_idle().await?;
    stop_process(sheave).await?;
    match first {
        FirstEvent::Death => {
            death.await?;
            requests.await?;
        }
        FirstEvent::Requests => {
            requests.await?;
            death.await?;
        }
    }
    sheave.signal(Signal::CONT)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn post_not_received_by_a_dead_endpoint_is_retried() -> Result {
    run_races(check_post_at_death).await
}

async fn check_post_at_death(first: FirstEvent) -> Result {
    let servers = tests::fixture::start_endpoints(2, &EndpointBehaviour::gated()).await?;
    let mut fixture = HttpFixture::with(servers, &[], ONE_WORKER).await?;
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        clients.push(fixture.client().await?);
    }
    send_posts(&mut clients, "/before", b"").await?;
    for endpoint in &fixture.endpoints {
        endpoint
            .wait_for_counts("the endpoint's requests", |counts| counts.in_flight == REQUESTS / 2)
            .await?;
        endpoint.open_gate(10 * REQUESTS);
    }
    check_posts(&mut clients).await?;

    let dying = fixture.endpoints.remove(0);
    let death = async { kill(dying).await.map(drop) };
    race(&fixture.sheave, first, death, send_posts(&mut clients, "/", b"")).await?;
    check_posts(&mut clients).await
}

async fn send_posts(clients: &mut [Http1TestClient], target: &str, body: &[u8]) -> Result {
    for client in clients {
        client.send(request("POST", target, &[], body)).await?;
    }
    Ok(())
}

async fn check_posts(clients: &mut [Http1TestClient]) -> Result {
    for client in clients {
        let response = client.response("POST").await?;
        ensure!(response.status() == 200, "{response:?}");
    }
    Ok(())
}

/// Starts Sheave in front of HTTP/2 endpoints.
async fn serve_http2_endpoints(
    endpoints: &[Http2TestEndpoint],
    route: Value,
    service: Value,
) -> Result<(SheaveProcess, ConfigDirectory)> {
    let addresses: Vec<_> = endpoints.iter().map(|endpoint| endpoint.address).collect();
    let mut all = objects::gateway();
    all.extend([route, service]);
    all.extend(objects::slices(SERVICE, &addresses));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    Ok((SheaveProcess::serve_with(&configuration, ONE_WORKER).await?, configuration))
}

fn check_all_are_connected(endpoints: &[Http2TestEndpoint]) -> Result {
    let all = endpoints.iter().all(|endpoint| endpoint.counts().requests > 0);
    ensure!(all, "an endpoint has no connection");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn grpc_call_not_received_by_a_dead_endpoint_is_retried() -> Result {
    run_races(check_grpc_call_at_death).await
}

async fn check_grpc_call_at_death(first: FirstEvent) -> Result {
    let mut servers = Vec::new();
    for _ in 0..2 {
        let serve = |mut call: ReceivedRequest| async move {
            call.read().await?;
            call.reply(b"ok").await
        };
        servers.push(Http2TestEndpoint::start(serve).await?);
    }
    let (route, service) = (objects::grpc_route(SERVICE), objects::service(SERVICE));
    let (sheave, _configuration) = serve_http2_endpoints(&servers, route, service).await?;
    let client = Arc::new(Http2TestClient::connect(sheave.address()).await?);
    for _ in 0..REQUESTS {
        ensure!(client.call("/test.Echo/Say", b"before").await?.code == grpc::OK);
    }
    check_all_are_connected(&servers)?;

    let mut calls = JoinSet::new();
    let requests = async {
        for _ in 0..REQUESTS {
            let client = Arc::clone(&client);
            calls.spawn(async move { client.call("/test.Echo/Say", b"once").await });
        }
        Ok(())
    };
    race(&sheave, first, kill_http2(servers.remove(0)), requests).await?;
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
    run_races(check_stream_at_death).await
}

async fn check_stream_at_death(first: FirstEvent) -> Result {
    let mut servers = vec![Http2TestEndpoint::ok().await?, Http2TestEndpoint::ok().await?];
    let service = objects::with_app_protocol("kubernetes.io/h2c", objects::service(SERVICE));
    let (sheave, _configuration) =
        serve_http2_endpoints(&servers, objects::route(SERVICE), service).await?;
    let mut clients = Vec::new();
    for _ in 0..REQUESTS {
        let mut client = Http1TestClient::connect(sheave.address()).await?;
        ensure!(client.post("/before", b"").await?.status() == 200);
        clients.push(client);
    }
    check_all_are_connected(&servers)?;

    let requests = send_posts(&mut clients, "/", b"once");
    race(&sheave, first, kill_http2(servers.remove(0)), requests).await?;
    check_posts(&mut clients).await
}
