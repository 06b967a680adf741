//! Redirects.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::{Endpoint, EndpointBehaviour, Result, eventually};

use crate::fixture::RouteFixture;

/// Returns a rule for this prefix that redirects clients.
fn rule(prefix: &str, redirect: Value) -> Value {
    json!({
        "matches": [{ "path": { "type": "PathPrefix", "value": prefix } }],
        "filters": [{ "type": "RequestRedirect", "requestRedirect": redirect }],
    })
}

#[tokio::test]
async fn redirect_location_is_built_from_request_and_filter() -> Result {
    let path = |kind: &str, field: &str, value: &str| json!({ "type": kind, field: value });
    let prefix = |value: &str| path("ReplacePrefixMatch", "replacePrefixMatch", value);
    let full = |value: &str| path("ReplaceFullPath", "replaceFullPath", value);
    let rules = json!([
        rule("/https", json!({ "scheme": "https", "statusCode": 301 })),
        rule("/port", json!({ "scheme": "https", "port": 8443, "statusCode": 302 })),
        rule("/host", json!({ "hostname": "other.test", "port": 80, "statusCode": 303 })),
        rule("/old", json!({ "path": prefix("/new"), "statusCode": 307 })),
        rule("/gone", json!({ "path": prefix("/"), "statusCode": 308 })),
        rule("/full", json!({ "path": full("/here"), "hostname": "x.test", "port": 80 })),
    ]);
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = RouteFixture::of(rules, &[("app", &endpoint)]).await?;
    let port = site.sheave.address().port();
    let mut client = site.client().await?;
    for (target, status, location) in [
        ("/https/a?b=c", 301, "https://test/https/a?b=c".to_owned()),
        ("/port", 302, "https://test:8443/port".to_owned()),
        ("/host/%2F?x", 303, "http://other.test/host/%2F?x".to_owned()),
        ("/old", 307, format!("http://test:{port}/new")),
        ("/old/a/?q", 307, format!("http://test:{port}/new/a/?q")),
        ("/gone", 308, format!("http://test:{port}/")),
        ("/gone/a", 308, format!("http://test:{port}/a")),
        ("/full/of/it?q", 302, "http://x.test/here?q".to_owned()),
    ] {
        for method in ["GET", "HEAD", "POST"] {
            let response = client.exchange(method, target, &[("Host", "test:1234")], b"").await?;
            assert_eq!(response.status(), status, "{method} {target}");
            assert_eq!(
                response.head.field_values("location"),
                [location.as_str()],
                "{method} {target}"
            );
            assert_eq!(response.head.field_values("content-length"), ["0"], "{method} {target}");
            ensure!(response.head.has_field("date") && !response.closes(), "{response:?}");
        }
    }
    assert_eq!(endpoint.counts().accepted, 0, "an endpoint got a connection");
    let count = async || {
        let counts = site.sheave.metric_samples("sheave_requests_total").await?;
        let redirected = counts.iter().filter(|(labels, _)| labels.contains("3xx"));
        Ok(redirected.map(|(_, count)| count).sum::<f64>())
    };
    eventually("24 requests of the route", count, |count| *count == 24.0).await?;
    Ok(())
}

/// An unread request body ends the connection, but only after the response has arrived.
#[tokio::test]
async fn redirect_does_not_wait_for_the_body() -> Result {
    let rules = json!([rule("/", json!({ "scheme": "https", "statusCode": 301 }))]);
    let site = RouteFixture::of(rules, &[]).await?;
    let mut client = site.client().await?;
    client.send("POST / HTTP/1.1\r\nHost: test\r\nContent-Length: 100000\r\n\r\n").await?;
    let response = client.response("POST").await?;
    ensure!(response.status() == 301 && response.closes(), "{response:?}");
    Ok(())
}

#[tokio::test]
async fn redirect_without_a_host_is_answered_400() -> Result {
    let rules = json!([rule("/", json!({ "scheme": "https", "statusCode": 301 }))]);
    let site = RouteFixture::of(rules, &[]).await?;
    let mut client = site.client().await?;
    client.send("GET / HTTP/1.0\r\n\r\n").await?;
    assert_eq!(client.response("GET").await?.status(), 400);
    Ok(())
}
