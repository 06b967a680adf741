//! Responses of TrafficPolicies in place of those of endpoints.

use anyhow::{Context, ensure};
use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{Endpoint, EndpointBehaviour, Http1TestResponse, HttpFixture, Result, grpc, objects};

use crate::grpc::fixture::{GrpcFixture, METHOD};
use crate::http2::fixture::Http2Fixture;
use crate::http3::Http3Fixture;

const PAGE: &str = "<h1>Back soon</h1>\n";

fn policy(target: Value, direct: &Value) -> Value {
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": { "name": "closed" },
        "spec": { "targetRefs": [target], "directResponse": direct },
    })
}

/// Returns a policy for all requests.
fn of_gateway(direct: &Value) -> Value {
    policy(json!({ "kind": "Gateway", "name": "edge" }), direct)
}

fn page() -> Value {
    json!({ "status": 503, "body": PAGE, "contentType": "text/html" })
}

async fn fixture(policies: &[Value], arguments: &[&str]) -> Result<HttpFixture> {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    HttpFixture::with(endpoints, policies, arguments).await
}

async fn get(fixture: &HttpFixture, fields: &[(&str, &str)]) -> Result<Http1TestResponse> {
    Ok(fixture.client().await?.exchange("GET", "/", fields, b"").await?)
}

#[tokio::test]
async fn every_request_of_a_route_gets_the_response() -> Result {
    let fixture = fixture(&[of_gateway(&page())], &["--access-log", "on"]).await?;
    let mut client = fixture.client().await?;
    // The connection is kept, also after a body that no endpoint reads.
    for (method, body) in [("GET", ""), ("HEAD", ""), ("GET", ""), ("DELETE", ""), ("POST", "ab")] {
        let response = client.exchange(method, "/a?b", &[], body.as_bytes()).await?;
        ensure!(response.status() == 503, "{method}: {response:?}");
        ensure!(response.field("content-type").as_deref() == Some("text/html"), "{response:?}");
        let length = PAGE.len().to_string();
        ensure!(response.field("content-length") == Some(length), "{method}: {response:?}");
        ensure!(response.text() == if method == "HEAD" { "" } else { PAGE }, "{response:?}");
        ensure!(response.field("proxy-status").is_none(), "{response:?}");
    }
    ensure!(fixture.endpoint().counts().requests == 0);
    let lines = fixture.sheave.wait_for_access_log(5).await?;
    ensure!(lines.iter().all(|line| !line.to_string().contains("503\",\"error")), "{lines:?}");
    Ok(())
}

#[tokio::test]
async fn a_body_is_optional_and_some_statuses_have_none() -> Result {
    for status in [200, 204, 304, 404, 599] {
        let fixture = fixture(&[of_gateway(&json!({ "status": status }))], &[]).await?;
        let mut client = fixture.client().await?;
        for _ in 0..2 {
            let response = client.get("/").await?;
            ensure!(response.status() == status && response.text().is_empty(), "{response:?}");
            ensure!(response.field("content-type").is_none(), "{response:?}");
            let has_length = response.field("content-length").is_some();
            ensure!(has_length != [204, 304].contains(&status), "{response:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn the_response_is_the_same_over_http2_and_http3() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let policies = [of_gateway(&page())];
    let http2 = Http2Fixture::of(&[endpoint.address], &policies).await?;
    let http3 = Http3Fixture::with_policies(&[endpoint.address], &policies).await?;
    let (client2, client3) = (http2.client().await?, http3.client().await?);
    for method in ["GET", "HEAD", "POST"] {
        let body = if method == "POST" { Bytes::from_static(b"body") } else { Bytes::new() };
        let request = |scheme: &str| {
            let request = Request::builder().method(method).uri(format!("{scheme}://test/a"));
            request.body(()).context("a request")
        };
        let answers = [
            client2.exchange(request("http")?, body.clone()).await?,
            client3.exchange(request("https")?, body).await?,
        ];
        for answer in answers {
            ensure!(answer.status() == 503, "{method}: {answer:?}");
            ensure!(answer.field("content-type") == Some("text/html"), "{answer:?}");
            let length = PAGE.len().to_string();
            ensure!(answer.field("content-length") == Some(&length), "{method}: {answer:?}");
            ensure!(answer.text() == if method == "HEAD" { "" } else { PAGE }, "{answer:?}");
        }
    }
    ensure!(endpoint.counts().requests == 0);
    Ok(())
}

#[tokio::test]
async fn a_grpc_call_ends_with_the_grpc_status_of_the_status() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let codes = [
        (404, grpc::UNIMPLEMENTED),
        (403, grpc::PERMISSION_DENIED),
        (503, grpc::UNAVAILABLE),
        (200, grpc::UNKNOWN),
    ];
    for (status, code) in codes {
        let direct = json!({ "status": status, "body": "no" });
        let fixture = GrpcFixture::of(&[&server], &[of_gateway(&direct)]).await?;
        let answer = fixture.client().await?.call(METHOD, b"one").await?;
        ensure!(answer.code == code && answer.trailers_only, "{status}: {answer:?}");
    }
    Ok(())
}

/// Filters of the route, and checks of clients.
#[tokio::test]
async fn redirects_yield_to_the_response_and_checks_do_not() -> Result {
    let route = |name: &str, filter: Value| {
        let rules = json!([{
            "filters": [filter],
            "backendRefs": [{ "name": SERVICE, "port": 80 }],
        }]);
        let host = format!("{name}.test");
        objects::route_with(name, json!({ "hostnames": [host], "rules": rules }))
    };
    let redirect =
        json!({ "type": "RequestRedirect", "requestRedirect": { "hostname": "a.test" } });
    let mut moved = route("moved", redirect);
    moved["spec"]["rules"][0]["backendRefs"] = json!([]);
    let set = json!({ "set": [{ "name": "X-Frame-Options", "value": "DENY" }] });
    let edits = json!({ "type": "ResponseHeaderModifier", "responseHeaderModifier": set });
    let security = json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "SecurityPolicy",
        "metadata": { "name": "users" },
        "spec": {
            "targetRefs": [{ "kind": "HTTPRoute", "name": "guarded" }],
            "basicAuth": { "users": { "name": "users" } },
        },
    });
    let secret = json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "users" },
        // The password is `secret`.
        "stringData": { "auth": "bob:{SHA}5en6G6MezRroT3XKqkdPOmY/BfQ=" },
    });
    let objects = [of_gateway(&page()), moved, route("guarded", edits), security, secret];
    let fixture = fixture(&objects, &[]).await?;
    let response = get(&fixture, &[("Host", "moved.test")]).await?;
    ensure!(response.status() == 503 && response.text() == PAGE, "{response:?}");
    let response = get(&fixture, &[("Host", "guarded.test")]).await?;
    ensure!(response.status() == 401, "{response:?}");
    let credentials = ("Authorization", "Basic Ym9iOnNlY3JldA==");
    let response = get(&fixture, &[("Host", "guarded.test"), credentials]).await?;
    ensure!(response.status() == 503 && response.text() == PAGE, "{response:?}");
    ensure!(response.field("x-frame-options").as_deref() == Some("DENY"), "{response:?}");
    ensure!(fixture.endpoint().counts().requests == 0);
    Ok(())
}
