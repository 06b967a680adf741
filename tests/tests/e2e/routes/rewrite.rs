//! Rewrites of host and path.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::{Endpoint, EndpointBehaviour, Result};

use super::fixture::{RouteFixture, backend_ref};

fn rule(prefix: &str, rewrite: Value) -> Value {
    json!({
        "matches": [{ "path": { "type": "PathPrefix", "value": prefix } }],
        "filters": [{ "type": "URLRewrite", "urlRewrite": rewrite }],
        "backendRefs": [backend_ref("app")],
    })
}

#[tokio::test]
async fn endpoint_receives_the_rewritten_target_and_host() -> Result {
    let path = |kind: &str, field: &str, value: &str| json!({ "type": kind, field: value });
    let prefix = |value: &str| path("ReplacePrefixMatch", "replacePrefixMatch", value);
    let full = |value: &str| path("ReplaceFullPath", "replaceFullPath", value);
    let rules = json!([
        rule("/v1", json!({ "path": prefix("/api/v1") })),
        rule("/strip", json!({ "path": prefix("/") })),
        rule("/one", json!({ "path": full("/two"), "hostname": "inner.test" })),
        rule("/", json!({ "path": prefix("/root/") })),
    ]);
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = RouteFixture::of(rules, &[("app", &endpoint)]).await?;
    let mut client = site.client().await?;
    for (target, sent, host) in [
        ("/v1/users?id=1", "/api/v1/users?id=1", "test:99"),
        ("/v1", "/api/v1", "test:99"),
        ("/v1/", "/api/v1/", "test:99"),
        ("/strip", "/", "test:99"),
        ("/strip/a//b", "/a/b", "test:99"),
        ("/stripes", "/root/stripes", "test:99"),
        ("/one/more?/one", "/two?/one", "inner.test"),
        ("/y/%2e%2e/x", "/root/x", "test:99"),
        ("/", "/root/", "test:99"),
    ] {
        let fields = [("Host", "test:99"), ("X-Kept", "1")];
        let response = client.exchange("POST", target, &fields, b"body").await?;
        ensure!(response.status() == 200, "{target}: {response:?}");
        let seen = endpoint.requests().pop().expect("the request");
        assert_eq!(seen.head.target(), sent, "{target}");
        assert_eq!(seen.head.field_values("host"), [host], "{target}");
        assert_eq!(
            seen.head.field_values("x-forwarded-host"),
            ["test:99"],
            "the client's original host"
        );
        assert_eq!(seen.body.map(|body| body.length), Some(4));
    }
    Ok(())
}
