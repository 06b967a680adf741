//! Memory of the process while clients let it hold responses and requests.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use bytes::Bytes;
use serde_json::json;
use tests::frames::{self, RawHttp2Connection, RawHttp2Frame};
use tests::load::{ClientPattern, LoadGenerator};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Result, ServeStep, SheaveProcess, eventually,
    http2, http3, objects,
};
use tokio::time::interval;

use crate::http2::fixture::Http2Fixture;
use crate::http3::fixture::Http3Fixture;

const MEBIBYTE: u64 = 1 << 20;

/// Streams that an attacker opens on a connection.
const STREAMS: u32 = 128;
/// Length of each response.
const RESPONSE_BYTES: usize = 512 * 1024;
/// Length of each request body: a stream's window.
const REQUEST_BYTES: usize = 256 * 1024;

/// Requests that an honest client makes beside an attack.
const HONEST_REQUESTS: usize = 50;

/// Request bodies that an attacker sends on a connection: as many as its window allows.
const BODIES: u32 = 16;

/// Time for which memory is watched after the attack is complete.
const WATCH_TIME: Duration = Duration::from_secs(3);

/// Starts an HTTP/2 endpoint whose responses are long, except those to `/short`.
async fn start_endpoint() -> Result<http2::Http2TestEndpoint> {
    http2::Http2TestEndpoint::start(|mut call| async move {
        let length = if call.head.uri().path() == "/" { RESPONSE_BYTES } else { 2 };
        let mut sending = call.respond.send_response(http2::status(200), false)?;
        http2::send(&mut sending, Bytes::from(vec![b'x'; length])).await?;
        sending.send_data(Bytes::new(), true)
    })
    .await
}

/// Opens connections that request responses and let none of them through. SETTINGS_INITIAL_WINDOW_SIZE is 0.
async fn request_and_take_nothing(
    address: SocketAddr,
    connections: usize,
) -> Result<Vec<RawHttp2Connection>> {
    let mut held = Vec::new();
    for _ in 0..connections {
        let mut wire = RawHttp2Connection::connect(address, &[(4, 0)]).await?;
        let requests = (0..STREAMS).flat_map(|number| RawHttp2Frame::get(2 * number + 1).bytes());
        wire.send(requests.collect()).await?;
        held.push(wire);
    }
    Ok(held)
}

/// Watches the memory of the process for a while; returns the most that it has.
async fn watch_memory(sheave: &SheaveProcess) -> Result<u64> {
    let mut ticks = interval(Duration::from_millis(20));
    let mut most = 0;
    for _ in 0..WATCH_TIME.as_millis() / 20 {
        ticks.tick().await;
        most = most.max(sheave.memory_bytes()?);
    }
    eprintln!("at most {} MiB", most / MEBIBYTE);
    Ok(most)
}

async fn failures(sheave: &SheaveProcess, reason: &str) -> Result<f64> {
    let samples = sheave.metric_samples("sheave_failures_total").await?;
    let with_reason = samples.iter().filter(|(labels, _)| labels.contains(reason));
    Ok(with_reason.map(|(_, count)| count).sum())
}

/// By default, each stream holds so little that twenty connections hold less than 256 MiB together.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_of_http2_endpoints_hold_little_memory() -> Result {
    const CONNECTIONS: usize = 20;
    let endpoint = start_endpoint().await?;
    let site = Http2Fixture::of_http2(&[endpoint.address], &[]).await?;
    let pattern = ClientPattern::GET.with_pause(Duration::from_millis(20));
    let honest = LoadGenerator::start(site.sheave.address(), 2, pattern);
    let held = request_and_take_nothing(site.sheave.address(), CONNECTIONS).await?;
    let all = CONNECTIONS as u64 * u64::from(STREAMS);
    endpoint.wait_for_counts("all requests arrive", |counts| counts.requests >= all).await?;
    let most = watch_memory(&site.sheave).await?;
    honest.stop().await.assert_all_served();
    drop(held);
    ensure!(most < 256 * MEBIBYTE, "{most} bytes");
    Ok(())
}

/// The same over HTTP/3: clients that grant almost no window for a stream.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_over_http3_hold_little_memory() -> Result {
    const CONNECTIONS: usize = 20;
    const HTTP3_STREAMS: usize = 100;
    // Sheave's SETTINGS fit into it, and hardly more than the head of a response.
    const WINDOW: u32 = 64;
    let endpoint = start_endpoint().await?;
    let site = Http3Fixture::of_http2(&[endpoint.address]).await?;
    let client = site.client().await?;
    let fields = [(":method", "GET"), (":scheme", "https"), (":path", "/"), (":authority", "test")];
    let request = http3::frame(http3::code::HEADERS, &http3::block(&fields));
    let (mut connections, mut held) = (Vec::new(), Vec::new());
    for _ in 0..CONNECTIONS {
        let (address, options) = (site.sheave.address(), &site.tls_options);
        let connect = http3::RawHttp3Connection::connect_with_stream_window;
        let wire = connect(address, options, WINDOW).await?;
        for _ in 0..HTTP3_STREAMS {
            let (mut sending, receiving) = wire.open_request_stream(&request).await?;
            sending.finish()?;
            held.push((sending, receiving));
        }
        connections.push(wire);
    }
    let all = (CONNECTIONS * HTTP3_STREAMS) as u64;
    endpoint.wait_for_counts("all requests arrive", |counts| counts.requests >= all).await?;
    let honest = async {
        let mut pace = interval(Duration::from_millis(20));
        for _ in 0..HONEST_REQUESTS {
            pace.tick().await;
            ensure!(client.get("/short").await?.status() == 200, "an honest client is not served");
        }
        Ok(())
    };
    let (most, served) = tokio::join!(watch_memory(&site.sheave), honest);
    served?;
    let most = most?;
    drop((held, connections));
    ensure!(most < 256 * MEBIBYTE, "{most} bytes");
    Ok(())
}

/// If attackers hold more than the process may have, those that hold the most are reset.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unread_responses_are_reset_before_memory_is_exhausted() -> Result {
    const CONNECTIONS: usize = 60;
    let endpoint = start_endpoint().await?;
    let arguments = ["--memory-limit", "256Mi"];
    let site = Http2Fixture::of_http2_with(&[endpoint.address], &arguments).await?;
    let pattern = ClientPattern::GET.with_pause(Duration::from_millis(20));
    let honest = LoadGenerator::start(site.sheave.address(), 2, pattern);
    let held = request_and_take_nothing(site.sheave.address(), CONNECTIONS).await?;
    let most = watch_memory(&site.sheave).await?;
    let reset = async || failures(&site.sheave, "out_of_memory").await;
    eventually("transfers are reset", reset, |reset| *reset > 0.0).await?;
    honest.stop().await.assert_all_served();
    drop(held);
    ensure!(most < 256 * MEBIBYTE, "{most} bytes");
    let steps = site.sheave.metric_samples("sheave_memory_steps_total").await?;
    let is_counted = |step: &str| steps.iter().any(|(it, count)| it.contains(step) && *count > 0.0);
    // On a busy machine memory may pass a step between two looks; the last step resets too.
    ensure!(is_counted("reset_stalled") || is_counted("no_connections"), "{steps:?}");
    site.sheave.wait_for_log(0, "memory fills").await?;
    let in_force = async || site.sheave.metric_samples("sheave_memory_step").await;
    let is_normal = |steps: &Vec<(String, f64)>| {
        steps.iter().any(|(step, is)| step.contains("normal") && *is == 1.0)
    };
    eventually("memory is freed", in_force, is_normal).await?;
    Ok(())
}

/// Sheave with an endpoint that never answers a POST and takes one at a time, and another for all else.
async fn start_with_busy_endpoint(
    busy: SocketAddr,
    idle: SocketAddr,
) -> Result<(SheaveProcess, ConfigDirectory)> {
    let configuration = ConfigDirectory::empty()?;
    let posts = json!({ "rules": [{
        "matches": [{ "method": "POST" }],
        "backendRefs": [{ "name": "busy", "port": 80 }],
    }] });
    let mut all = objects::gateway();
    all.extend([objects::route("idle"), objects::route_with("posts", posts)]);
    all.extend([objects::service("idle"), objects::service("busy")]);
    all.extend(objects::slices("idle", &[idle]));
    all.extend(objects::slices("busy", &[busy]));
    all.push(objects::backend_policy("busy", json!({ "maxInFlightPerEndpoint": 1 })));
    configuration.write("site.yaml", &all)?;
    let arguments = ["--workers", "2", "--memory-limit", "128Mi"];
    Ok((SheaveProcess::serve_with(&configuration, &arguments).await?, configuration))
}

/// Request bodies that wait in the queue fill the windows of their streams. Those of the connections that hold the most
/// are given up.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queued_requests_are_reset_before_memory_is_exhausted() -> Result {
    const CONNECTIONS: usize = 60;
    let busy = Endpoint::start(vec![ServeStep::WaitForever]).await?;
    let idle = Endpoint::start(EndpointBehaviour::ok()).await?;
    let (sheave, _configuration) = start_with_busy_endpoint(busy.address, idle.address).await?;
    let pattern = ClientPattern::GET.with_pause(Duration::from_millis(20));
    let honest = LoadGenerator::start(sheave.address(), 2, pattern);
    // The connections have large windows, which were announced while memory was free.
    let mut held = Vec::new();
    for _ in 0..CONNECTIONS {
        held.push(RawHttp2Connection::connect(sheave.address(), &[]).await?);
    }
    let mut most = 0;
    let mut pace = interval(Duration::from_millis(30));
    for wire in &mut held {
        pace.tick().await;
        send_bodies(wire).await?;
        most = most.max(sheave.memory_bytes()?);
    }
    most = most.max(watch_memory(&sheave).await?);
    let reset = async || failures(&sheave, "out_of_memory").await;
    eventually("requests are given up", reset, |reset| *reset > 0.0).await?;
    honest.stop().await.assert_all_served();
    drop(held);
    ensure!(most < 160 * MEBIBYTE, "{most} bytes");
    Ok(())
}

/// Begins requests, and sends a part of each body: as much as the connection's window allows.
async fn send_bodies(wire: &mut RawHttp2Connection) -> Result {
    const PIECE: usize = 16 * 1024;
    for number in 0..BODIES {
        wire.write(&RawHttp2Frame::post(2 * number + 1)).await?;
        for _ in 0..REQUEST_BYTES / PIECE - 1 {
            let piece = RawHttp2Frame::new(frames::DATA, 0, 2 * number + 1, vec![b'x'; PIECE]);
            wire.write(&piece).await?;
        }
    }
    Ok(())
}
