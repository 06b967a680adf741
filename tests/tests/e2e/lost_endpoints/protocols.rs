//! Endpoints and clients of other protocols when an endpoint dies under load.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::ensure;
use rustix::process::Signal;
use serde_json::{Value, json};
use tests::certificates::CertificateAuthority;
use tests::configuration::SERVICE;
use tests::fixture::{addresses, start_endpoints};
use tests::http2::{self, ReceivedRequest};
use tests::tls::{TlsClientOptions, TlsFront};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Result, SheaveProcess, eventually, objects,
};
use tokio::sync::Semaphore;
use tokio::time::{Instant, sleep};

use super::load::{
    LoadProtocol, RecordedLoad, RequestRecord, assert_all_served, assert_none_failed_after, failed,
    longest,
};
use super::outage_helpers::{
    ANSWERS, CLIENTS, SERVICE_TIME, TWO_WORKERS, assert_budget_is_left, kill, kill_http2,
    wait_until_connections_are_refused,
};

/// Name of the TLS endpoints.
const NAME: &str = "endpoint.test";

/// Runs a load during which one of the endpoints dies. Returns the records of its requests, and the
/// time of the death.
async fn records_around_death(
    sheave: &SheaveProcess,
    calls: &LoadProtocol,
    death: impl AsyncFnOnce() -> Result,
) -> Result<(Vec<RequestRecord>, Instant)> {
    let load = RecordedLoad::start(sheave.address(), CLIENTS, calls);
    load.wait_for_responses(ANSWERS).await?;
    death().await?;
    let dead = Instant::now();
    load.wait_for_responses(ANSWERS).await?;
    let answers = load.stop().await;
    assert_budget_is_left(sheave).await?;
    Ok((answers, dead))
}

/// Starts Sheave with a cleartext listener in front of a Service whose port has this protocol.
async fn start_proxy(
    route: Value,
    protocol: &str,
    endpoints: &[SocketAddr],
    more: &[Value],
) -> Result<(SheaveProcess, ConfigDirectory)> {
    let configuration = ConfigDirectory::empty()?;
    let mut all = objects::gateway();
    all.extend([route, objects::with_app_protocol(protocol, objects::service(SERVICE))]);
    all.extend(objects::slices(SERVICE, endpoints));
    all.extend_from_slice(more);
    configuration.write("main.yaml", &all)?;
    Ok((SheaveProcess::serve_with(&configuration, TWO_WORKERS).await?, configuration))
}

async fn http2_endpoints() -> Result<Vec<http2::Http2TestEndpoint>> {
    let mut endpoints = Vec::new();
    for _ in 0..3 {
        let serve = |call: ReceivedRequest| async {
            sleep(SERVICE_TIME).await; // The work of an endpoint.
            call.answer("ok").await
        };
        endpoints.push(http2::Http2TestEndpoint::start(serve).await?);
    }
    Ok(endpoints)
}

fn http2_addresses(endpoints: &[http2::Http2TestEndpoint]) -> Vec<SocketAddr> {
    endpoints.iter().map(|endpoint| endpoint.address).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_fails_when_an_http2_endpoint_dies() -> Result {
    let mut servers = http2_endpoints().await?;
    let addresses = http2_addresses(&servers);
    let (sheave, _files) =
        start_proxy(objects::route(SERVICE), "kubernetes.io/h2c", &addresses, &[]).await?;
    let death = async || kill_http2(servers.remove(0)).await;
    assert_all_served(&records_around_death(&sheave, &LoadProtocol::Http1("GET"), death).await?.0)
}

/// Returns gRPC servers that answer when the gate is open.
async fn grpc_endpoints(gate: &Arc<Semaphore>) -> Result<Vec<http2::Http2TestEndpoint>> {
    let mut endpoints = Vec::new();
    for _ in 0..3 {
        let gate = Arc::clone(gate);
        let serve = move |mut call: ReceivedRequest| {
            let gate = Arc::clone(&gate);
            async move {
                call.read().await?;
                drop(gate.acquire().await.expect("the semaphore is never closed"));
                sleep(SERVICE_TIME).await; // The work of an endpoint.
                call.reply(b"ok").await
            }
        };
        endpoints.push(http2::Http2TestEndpoint::start(serve).await?);
    }
    Ok(endpoints)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoint_death_fails_only_grpc_calls_in_flight() -> Result {
    let gate = Arc::new(Semaphore::new(CLIENTS));
    let mut servers = grpc_endpoints(&gate).await?;
    let addresses = http2_addresses(&servers);
    let route = objects::grpc_route(SERVICE);
    let (sheave, _files) = start_proxy(route, "kubernetes.io/h2c", &addresses, &[]).await?;
    let death = async || kill_http2(servers.remove(0)).await;
    let (answers, dead) = records_around_death(&sheave, &LoadProtocol::Grpc, death).await?;
    assert_none_failed_after(dead, &answers)
}

/// All calls have been received when the endpoint dies, so exactly those of the dead endpoint fail.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn only_grpc_calls_received_by_the_dead_endpoint_fail() -> Result {
    let gate = Arc::new(Semaphore::new(0));
    let mut servers = grpc_endpoints(&gate).await?;
    let addresses = http2_addresses(&servers);
    let route = objects::grpc_route(SERVICE);
    let (sheave, _files) = start_proxy(route, "kubernetes.io/h2c", &addresses, &[]).await?;
    let load = RecordedLoad::start(sheave.address(), CLIENTS, &LoadProtocol::Grpc);
    let in_flight =
        async || Ok(servers.iter().map(|server| server.counts().in_flight).sum::<usize>());
    eventually("all calls are in flight", in_flight, |all| *all == CLIENTS).await?;
    let lost = servers[0].counts().in_flight;
    ensure!(lost > 0, "the endpoint got no call");
    kill_http2(servers.remove(0)).await?;
    gate.add_permits(CLIENTS);
    load.wait_for_responses(5 * CLIENTS).await?;
    let answers = load.stop().await;
    let failed = failed(&answers);
    assert_eq!(failed.len(), lost, "{failed:#?}");
    ensure!(failed.iter().all(|answer| answer.target.ends_with("/0")), "{failed:#?}");
    assert_budget_is_left(&sheave).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_fails_when_a_tls_endpoint_dies() -> Result {
    let authority = CertificateAuthority::new();
    let servers = start_endpoints(3, &EndpointBehaviour::slow(SERVICE_TIME)).await?;
    let mut fronts = Vec::new();
    for server in &servers {
        fronts.push(TlsFront::of(server.address, &authority.issue(&[NAME]), &[]).await?);
    }
    let addresses: Vec<_> = fronts.iter().map(|front| front.address).collect();
    let validation = objects::backend_tls_policy(SERVICE, json!({ "hostname": NAME }));
    let configuration =
        ConfigDirectory::for_endpoints_with(&addresses, &[authority.config_map("ca"), validation])?;
    let sheave = SheaveProcess::serve_with(&configuration, TWO_WORKERS).await?;
    let death = async || {
        drop(fronts.remove(0));
        wait_until_connections_are_refused(addresses[0]).await
    };
    assert_all_served(&records_around_death(&sheave, &LoadProtocol::Http1("GET"), death).await?.0)
}

/// An HTTP/3 endpoint: another Sheave, which a signal kills like any process.
struct Http3SheaveEndpoint {
    sheave: SheaveProcess,
    _files: ConfigDirectory,
    _server: Endpoint,
}

impl Http3SheaveEndpoint {
    async fn start(authority: &CertificateAuthority) -> Result<Self> {
        let server = Endpoint::start(EndpointBehaviour::slow(SERVICE_TIME)).await?;
        let (sheave, files) = start_http3_proxy(authority, NAME, &[server.address]).await?;
        Ok(Self { sheave, _files: files, _server: server })
    }
}

/// Starts Sheave with a listener for HTTP/1.1 to HTTP/3 and this host.
async fn start_http3_proxy(
    authority: &CertificateAuthority,
    host: &str,
    endpoints: &[SocketAddr],
) -> Result<(SheaveProcess, ConfigDirectory)> {
    let http3 = objects::client_policy(json!({ "http3": { "enabled": true } }));
    let certificate = authority.issue(&[host]).secret("certificate");
    let gateway = objects::https_gateway(&["certificate"]);
    let configuration = ConfigDirectory::with_gateway(gateway, endpoints, &[http3, certificate])?;
    Ok((SheaveProcess::serve_with(&configuration, TWO_WORKERS).await?, configuration))
}

/// A dead process sends no reset in QUIC, so requests wait for `timeouts.unacknowledged`, which is
/// 3 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_fails_when_an_http3_endpoint_dies() -> Result {
    let authority = CertificateAuthority::new();
    let mut servers = Vec::new();
    for _ in 0..3 {
        servers.push(Http3SheaveEndpoint::start(&authority).await?);
    }
    let addresses: Vec<_> = servers.iter().map(|server| server.sheave.address()).collect();
    let validation = objects::backend_tls_policy(SERVICE, json!({ "hostname": NAME }));
    let more = [authority.config_map("ca"), validation];
    let route = objects::route(SERVICE);
    let (sheave, _files) = start_proxy(route, "sheave.dev/h3", &addresses, &more).await?;
    let death = async || {
        let mut dead = servers.remove(0);
        dead.sheave.signal(Signal::KILL)?;
        dead.sheave.wait_for_exit().await?;
        Ok(())
    };
    let (answers, _) = records_around_death(&sheave, &LoadProtocol::Http1("GET"), death).await?;
    assert_all_served(&answers)?;
    let longest = longest(&answers);
    ensure!(longest.as_secs_f64() < 4.5, "a GET took {longest:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_of_an_http2_client_fails_when_an_endpoint_dies() -> Result {
    let mut fixture = super::outage_helpers::start_fixture(3, &[]).await?;
    let servers = &mut fixture.endpoints;
    let death = async || kill(servers.remove(0)).await.map(drop);
    assert_all_served(
        &records_around_death(&fixture.sheave, &LoadProtocol::Http2Gets, death).await?.0,
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_get_of_an_http3_client_fails_when_an_endpoint_dies() -> Result {
    let authority = CertificateAuthority::new();
    let mut servers = start_endpoints(3, &EndpointBehaviour::slow(SERVICE_TIME)).await?;
    let (sheave, _files) = start_http3_proxy(&authority, "test", &addresses(&servers)).await?;
    let calls = LoadProtocol::Http3Gets(Box::new(TlsClientOptions::trusting(&authority)));
    let death = async || kill(servers.remove(0)).await.map(drop);
    assert_all_served(&records_around_death(&sheave, &calls, death).await?.0)
}
