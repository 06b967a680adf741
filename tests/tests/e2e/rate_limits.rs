//! Rate limits of requests: by route, client and header field, and over several replicas.

use std::net::{IpAddr, Ipv4Addr};

use anyhow::ensure;
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::load::{ClientPattern, LoadGenerator};
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, eventually, grpc, objects,
};

use crate::grpc::fixture::{GrpcFixture, METHOD};

/// Several replicas, of which one gets most requests.
mod replicas;

/// Returns a policy of the route `app` with these limits.
fn route_policy(name: &str, limits: Value) -> Value {
    policy(name, json!([{ "kind": "HTTPRoute", "name": SERVICE }]), limits)
}

fn policy(name: &str, targets: Value, limits: Value) -> Value {
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "RateLimitPolicy",
        "metadata": { "name": name },
        "spec": { "targetRefs": targets, "limits": limits },
    })
}

/// Returns a route of another host, to the same endpoint.
fn other_route() -> Value {
    let mut route = objects::host_route("other.test", SERVICE);
    route["metadata"]["name"] = "other".into();
    route
}

async fn fixture(policies: &[Value]) -> Result<HttpFixture> {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    HttpFixture::with(endpoints, policies, &["--workers", "2"]).await
}

async fn status(client: &mut Http1TestClient, fields: &[(&str, &str)]) -> Result<u16> {
    Ok(client.exchange("GET", "/", fields, b"").await?.status())
}

#[tokio::test]
async fn requests_over_the_limit_of_their_route_are_rejected_with_a_reason() -> Result {
    let limits = json!([{ "requests": 2, "period": "1h", "burst": 3 }]);
    let fixture = fixture(&[route_policy("shop", limits), other_route()]).await?;
    let mut client = fixture.client().await?;
    for _ in 0..3 {
        ensure!(client.get("/").await?.status() == 200);
    }
    let rejected = client.get("/").await?;
    ensure!(rejected.status() == 429, "{rejected:?}");
    ensure!(rejected.field("ratelimit-policy").as_deref() == Some("\"shop\";q=2;w=3600"));
    let seconds: u64 = rejected.field("retry-after").unwrap_or_default().parse()?;
    // A token takes half an hour; some of it may have passed.
    ensure!((1700..=1800).contains(&seconds), "{rejected:?}");
    let state = format!("\"shop\";r=0;t={seconds}");
    ensure!(rejected.field("ratelimit").as_deref() == Some(&*state), "{rejected:?}");
    let reason = rejected.field("proxy-status").unwrap_or_default();
    ensure!(reason.contains("error=http_request_denied"), "{rejected:?}");
    // The connection goes on, and another route has no limit.
    ensure!(status(&mut client, &[("Host", "other.test")]).await? == 200);
    ensure!(fixture.endpoint().counts().requests == 4, "{:?}", fixture.endpoint().counts());
    for (outcome, count) in [("admitted", 3.0), ("rejected", 1.0)] {
        let metric = "sheave_rate_limit_requests_total";
        fixture.sheave.wait_for_sum(metric, &[outcome], count).await?;
    }
    let reason = ["\"rate_limit\""];
    fixture.sheave.wait_for_sum("sheave_failures_total", &reason, 1.0).await
}

#[tokio::test]
async fn each_client_address_has_a_limit_of_its_own() -> Result {
    let limits = json!([
        { "requests": 2, "period": "1h", "key": { "type": "ClientAddress" } },
        { "requests": 5, "period": "1h" },
    ]);
    let trusted = objects::client_policy(json!({ "trustedProxies": ["127.0.0.9"] }));
    let fixture = fixture(&[route_policy("clients", limits), trusted]).await?;
    let from = async |last: u8| {
        let source = IpAddr::from(Ipv4Addr::new(127, 0, 0, last));
        Http1TestClient::connect_from(source, fixture.sheave.address()).await
    };
    let (mut one, mut other) = (from(2).await?, from(3).await?);
    // A client cannot choose its address, and a trusted proxy can.
    let claims = [("X-Forwarded-For", "192.0.2.1")];
    ensure!(status(&mut one, &claims).await? == 200 && status(&mut one, &[]).await? == 200);
    ensure!(status(&mut one, &[("X-Forwarded-For", "192.0.2.7")]).await? == 429);
    ensure!(status(&mut other, &[]).await? == 200);
    let mut proxy = from(9).await?;
    ensure!(status(&mut proxy, &claims).await? == 200 && status(&mut proxy, &claims).await? == 200);
    ensure!(status(&mut proxy, &claims).await? == 429);
    // The limit for all of them is reached. What was rejected has not counted.
    ensure!(status(&mut other, &[]).await? == 429);
    let mut third = from(4).await?;
    let rejected = third.get("/").await?;
    ensure!(rejected.field("ratelimit").is_some_and(|it| it.starts_with("\"clients-1\"")));
    Ok(())
}

#[tokio::test]
async fn each_value_of_a_header_field_has_a_limit_of_its_own() -> Result {
    let key = json!({ "type": "Header", "name": "X-Api-Key" });
    let limits = json!([{ "requests": 1, "period": "1h", "key": key }]);
    let targets = json!([{ "kind": "Gateway", "name": "edge", "sectionName": "http" }]);
    let fixture = fixture(&[policy("keys", targets, limits)]).await?;
    let mut client = fixture.client().await?;
    for key in ["a", "b"] {
        ensure!(status(&mut client, &[("x-api-key", key)]).await? == 200);
        ensure!(status(&mut client, &[("X-Api-Key", key)]).await? == 429);
    }
    // Requests without the field are counted together.
    ensure!(status(&mut client, &[]).await? == 200 && status(&mut client, &[]).await? == 429);
    Ok(())
}

#[tokio::test]
async fn grpc_call_over_the_limit_is_rejected_as_resource_exhausted() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let targets = json!([{ "kind": "GRPCRoute", "name": "calls" }]);
    let limits = json!([{ "requests": 1, "period": "1h" }]);
    let fixture = GrpcFixture::of(&[&server], &[policy("calls", targets, limits)]).await?;
    let client = fixture.client().await?;
    let first = client.call(METHOD, b"one").await?;
    ensure!(first.code == grpc::OK, "{first:?}");
    let second = client.call(METHOD, b"two").await?;
    ensure!(second.code == grpc::RESOURCE_EXHAUSTED && second.trailers_only, "{second:?}");
    let pushback: u64 = second.metadata_value("grpc-retry-pushback-ms").unwrap_or("0").parse()?;
    ensure!(pushback > 3_000_000, "{second:?}");
    ensure!(second.metadata_value("ratelimit-policy").is_some(), "{second:?}");
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn limit_changes_under_load_without_a_failure() -> Result {
    let fixture = fixture(&[]).await?;
    let load = LoadGenerator::start(fixture.sheave.address(), 8, ClientPattern::GET);
    let get = async || Ok(fixture.client().await?.get("/").await?.status());
    for _ in 0..3 {
        let write = |requests: u32| {
            let limits = json!([{ "requests": requests, "period": "1h" }]);
            fixture.configuration.write("limit.yaml", &[route_policy("limit", limits)])
        };
        write(1)?;
        eventually("the limit applies", get, |status| *status == 429).await?;
        write(1_000_000)?;
        eventually("the limit is higher", get, |status| *status == 200).await?;
        write(2)?;
        eventually("the limit is lower", get, |status| *status == 429).await?;
        fixture.configuration.remove("limit.yaml")?;
        eventually("there is no limit", get, |status| *status == 200).await?;
    }
    let results = load.stop().await;
    let is_expected = results.answered.keys().all(|status| [200, 429].contains(status));
    ensure!(is_expected && results.failed.is_empty(), "{results:?}");
    Ok(())
}
