//! Limits of the size of bodies by TrafficPolicies.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, grpc, objects};

use crate::grpc::fixture::{GrpcFixture, METHOD};

fn policy(name: &str, target: Value, body_bytes: u64) -> Value {
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": { "name": name },
        "spec": { "targetRefs": [target], "limits": { "bodyBytes": body_bytes } },
    })
}

fn gateway() -> Value {
    json!({ "kind": "Gateway", "name": "edge" })
}

fn route(name: &str) -> Value {
    json!({ "kind": "HTTPRoute", "name": name })
}

async fn fixture(policies: &[Value]) -> Result<HttpFixture> {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    HttpFixture::with(endpoints, policies, &[]).await
}

/// Returns the status of the answer to a body of this size.
async fn status(fixture: &HttpFixture, host: &str, bytes: usize) -> Result<u16> {
    let body = vec![b'a'; bytes];
    let mut client = fixture.client().await?;
    Ok(client.exchange("POST", "/", &[("Host", host)], &body).await?.status())
}

#[tokio::test]
async fn the_limit_of_a_route_replaces_those_of_its_gateway() -> Result {
    let mut other = objects::host_route("other.test", SERVICE);
    other["metadata"]["name"] = "other".into();
    let mut third = objects::host_route("third.test", SERVICE);
    third["metadata"]["name"] = "third".into();
    let fixture = fixture(&[
        objects::client_policy(json!({ "limits": { "bodyBytes": 10 } })),
        policy("everything", gateway(), 100),
        policy("large", route("other"), 1000),
        policy("none", route("third"), 0),
        other,
        third,
    ])
    .await?;
    for (host, most) in [("app.test", 100), ("other.test", 1000), ("third.test", 0)] {
        ensure!(status(&fixture, host, most).await? == 200, "{host}");
        ensure!(status(&fixture, host, most + 1).await? == 413, "{host}");
    }
    ensure!(fixture.endpoint().counts().requests == 3, "{:?}", fixture.endpoint().counts());
    let reason = ["\"body_too_large\""];
    fixture.sheave.wait_for_sum("sheave_failures_total", &reason, 3.0).await
}

#[tokio::test]
async fn a_body_without_a_length_is_cut_at_the_limit() -> Result {
    let fixture = fixture(&[policy("small", route(SERVICE), 1000)]).await?;
    let mut client = fixture.client().await?;
    client.send("POST / HTTP/1.1\r\nHost: test\r\nTransfer-Encoding: chunked\r\n\r\n").await?;
    let chunk = format!("190\r\n{}\r\n", "a".repeat(400));
    // The response may arrive before all bytes are sent.
    drop(client.send(&format!("{chunk}{chunk}{chunk}0\r\n\r\n")).await);
    let response = client.response("POST").await?;
    ensure!(response.status() == 413 && response.closes(), "{response:?}");
    ensure!(
        fixture.endpoint().requests().iter().all(|seen| seen.body.is_none()),
        "the body looked complete"
    );
    fixture.sheave.wait_until_idle().await
}

#[tokio::test]
async fn a_message_over_the_limit_ends_with_resource_exhausted() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let fixture = GrpcFixture::of(&[&server], &[policy("small", gateway(), 20)]).await?;
    let client = fixture.client().await?;
    let answer = client.call(METHOD, b"one").await?;
    ensure!(answer.code == grpc::OK, "{answer:?}");
    let answer = client.call(METHOD, &[0; 100]).await?;
    ensure!(answer.code == grpc::RESOURCE_EXHAUSTED, "{answer:?}");
    Ok(())
}
