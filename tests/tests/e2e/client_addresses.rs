//! Clients that a SecurityPolicy allows and denies by their addresses.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, grpc, objects};

use crate::grpc::fixture::{GrpcFixture, METHOD};

fn policy(name: &str, targets: Value, addresses: Value) -> Value {
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "SecurityPolicy",
        "metadata": { "name": name },
        "spec": { "targetRefs": targets, "clientAddresses": addresses },
    })
}

fn route_target() -> Value {
    json!([{ "kind": "HTTPRoute", "name": SERVICE }])
}

async fn fixture(policies: &[Value]) -> Result<HttpFixture> {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    HttpFixture::with(endpoints, policies, &[]).await
}

async fn client(fixture: &HttpFixture, last: u8) -> Result<Http1TestClient> {
    let source = IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
    Ok(Http1TestClient::connect_from(source, fixture.sheave.address()).await?)
}

#[tokio::test]
async fn a_client_that_is_not_allowed_gets_403_and_reaches_no_endpoint() -> Result {
    let addresses = json!({ "allow": ["127.0.0.2", "127.0.0.8/30"], "deny": ["127.0.0.9"] });
    let fixture = fixture(&[policy("office", route_target(), addresses)]).await?;
    for (last, status) in [(2, 200), (3, 403), (8, 200), (9, 403)] {
        let response = client(&fixture, last).await?.get("/").await?;
        ensure!(response.status() == status, "{last}: {response:?}");
        if status == 403 {
            let reason = response.field("proxy-status").unwrap_or_default();
            ensure!(reason.contains("error=http_request_denied"), "{response:?}");
        }
    }
    ensure!(fixture.endpoint().counts().requests == 2, "{:?}", fixture.endpoint().counts());
    let reason = ["\"access_denied\""];
    fixture.sheave.wait_for_sum("sheave_failures_total", &reason, 2.0).await
}

#[tokio::test]
async fn a_client_cannot_claim_an_address_and_a_trusted_proxy_can() -> Result {
    let trusted = objects::client_policy(json!({ "trustedProxies": ["127.0.0.9"] }));
    let office = policy("office", route_target(), json!({ "allow": ["192.0.2.0/24"] }));
    let fixture = fixture(&[office, trusted]).await?;
    let claim = [("X-Forwarded-For", "192.0.2.1")];
    for (last, status) in [(2, 403), (9, 200)] {
        let response = client(&fixture, last).await?.exchange("GET", "/", &claim, b"").await?;
        ensure!(response.status() == status, "{last}: {response:?}");
    }
    let other = [("X-Forwarded-For", "198.51.100.1")];
    let response = client(&fixture, 9).await?.exchange("GET", "/", &other, b"").await?;
    ensure!(response.status() == 403, "{response:?}");
    Ok(())
}

#[tokio::test]
async fn the_policy_of_a_route_replaces_that_of_its_gateway() -> Result {
    let gateway = json!([{ "kind": "Gateway", "name": "edge" }]);
    let mut other = objects::host_route("other.test", SERVICE);
    other["metadata"]["name"] = "other".into();
    let fixture = fixture(&[
        policy("all", gateway, json!({ "deny": ["127.0.0.2"] })),
        policy("office", route_target(), json!({ "allow": ["127.0.0.2"] })),
        other,
    ])
    .await?;
    let status = async |last: u8, host: &str| -> Result<u16> {
        let mut client = client(&fixture, last).await?;
        Ok(client.exchange("GET", "/", &[("Host", host)], b"").await?.status())
    };
    ensure!(status(2, "other.test").await? == 403 && status(3, "other.test").await? == 200);
    ensure!(status(2, "app.test").await? == 200 && status(3, "app.test").await? == 403);
    Ok(())
}

#[tokio::test]
async fn a_policy_that_says_nothing_is_an_error() -> Result {
    let refused = fixture(&[policy("empty", route_target(), json!({}))]).await.err();
    let message = format!("{:?}", refused.context("Sheave serves it")?);
    ensure!(message.contains("has neither `allow` nor `deny`"), "{message}");
    Ok(())
}

#[tokio::test]
async fn a_call_of_a_client_that_is_denied_ends_with_permission_denied() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let targets = json!([{ "kind": "Gateway", "name": "edge" }]);
    let denied = policy("denied", targets, json!({ "deny": ["0.0.0.0/0", "::/0"] }));
    let fixture = GrpcFixture::of(&[&server], &[denied]).await?;
    let answer = fixture.client().await?.call(METHOD, b"one").await?;
    ensure!(answer.code == grpc::PERMISSION_DENIED && answer.trailers_only, "{answer:?}");
    Ok(())
}
