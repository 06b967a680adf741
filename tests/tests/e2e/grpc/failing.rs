//! Failing servers, and servers that report a bad health when probed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Context, ensure};
use serde_json::json;
use tests::http2::{Http2TestClient, Http2TestEndpoint, ReceivedRequest};
use tests::{Result, eventually, grpc, objects};

use super::fixture::{GrpcFixture, METHOD};

/// A call is retried if it failed with a status that the policy names, and not otherwise.
#[tokio::test]
async fn calls_are_retried_by_grpc_status() -> Result {
    for (code, attempts) in [(grpc::UNAVAILABLE, 3), (grpc::UNIMPLEMENTED, 1)] {
        let server = Http2TestEndpoint::start(move |call: ReceivedRequest| async move {
            if call.number < 3 { call.fail(code).await } else { call.reply(b"at last").await }
        })
        .await?;
        let spec = json!({ "retry": { "attempts": 3, "grpcStatuses": ["UNAVAILABLE"] } });
        let site = GrpcFixture::of(&[&server], &[objects::backend_policy("app", spec)]).await?;
        let reply = site.client().await?.call(METHOD, b"hello").await?;
        let expected = if attempts == 3 { grpc::OK } else { code };
        ensure!(reply.code == expected, "{reply:?}");
        assert_eq!(server.counts().requests, attempts);
    }
    Ok(())
}

/// Starts a server that implements `grpc.health.v1`.
async fn start_server_with_health(serving: Arc<AtomicBool>) -> Result<Http2TestEndpoint> {
    Http2TestEndpoint::start(move |mut call: ReceivedRequest| {
        let serving = serving.load(Ordering::Relaxed);
        async move {
            if call.head.uri().path() != "/grpc.health.v1.Health/Check" {
                return call.reply(b"").await;
            }
            // HealthCheckRequest { service = 1: "test.Echo" } and HealthCheckResponse { status = 1 }.
            let request = grpc::messages(call.read().await?.bytes).expect("whole messages");
            assert_eq!(request, [[b"\x0a\x09", &b"test.Echo"[..]].concat()]);
            call.reply(&[8, if serving { 1 } else { 2 }]).await
        }
    })
    .await
}

#[tokio::test]
async fn server_failing_grpc_health_checks_gets_no_calls() -> Result {
    let healthy = Arc::new(AtomicBool::new(true));
    let servers = [
        start_server_with_health(healthy.clone()).await?,
        start_server_with_health(Arc::new(AtomicBool::new(true))).await?,
    ];
    let active = json!({
        "type": "GRPC", "service": "test.Echo", "timeout": "10s",
        "interval": "10ms", "fall": 1, "rise": 1,
    });
    let policy = objects::backend_policy("app", json!({ "health": { "active": active } }));
    let site = GrpcFixture::of(&servers.each_ref(), &[policy]).await?;
    let client = site.client().await?;

    // No calls meanwhile: an endpoint that serves calls well is not probed.
    healthy.store(false, Ordering::Relaxed);
    wait_for_health(&site, &servers[0], "unhealthy").await?;
    call_repeatedly(&client, 10).await?;
    assert_eq!((call_count(&servers[0]), call_count(&servers[1])), (0, 10));

    healthy.store(true, Ordering::Relaxed);
    wait_for_health(&site, &servers[0], "serving").await?;
    call_repeatedly(&client, 10).await?;
    assert_eq!((call_count(&servers[0]), call_count(&servers[1])), (5, 15));
    Ok(())
}

async fn call_repeatedly(client: &Http2TestClient, times: usize) -> Result {
    for _ in 0..times {
        let reply = client.call(METHOD, b"").await?;
        ensure!(reply.code == grpc::OK, "{reply:?}");
    }
    Ok(())
}

/// Returns the number of calls that a server got, without health checks.
fn call_count(server: &Http2TestEndpoint) -> usize {
    let heads = server.counts().heads;
    heads.iter().filter(|head| head.uri().path() == METHOD).count()
}

/// Waits until Sheave reports this health of the server.
async fn wait_for_health(site: &GrpcFixture, server: &Http2TestEndpoint, expected: &str) -> Result {
    let address = server.address.to_string();
    let observe = async || {
        let views = site.sheave.admin_json("/api/v1/backends").await?;
        let endpoints = views["backends"][0]["endpoints"].as_array().context("endpoints")?;
        let view = endpoints.iter().find(|view| view["address"] == address.as_str());
        Ok(view.context("the server")?["health"].as_str().map(str::to_owned))
    };
    eventually(expected, observe, |health| health.as_deref() == Some(expected)).await?;
    Ok(())
}
