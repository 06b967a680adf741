//! CORS: permissions of scripts from other origins (the Fetch standard).

use anyhow::ensure;
use serde_json::{Value, json};
use tests::{Endpoint, EndpointBehaviour, Http1TestResponse, Result, objects};

use crate::fixture::{RouteFixture, rules_with_filters};

fn cors(spec: Value) -> Value {
    rules_with_filters(json!([{ "type": "CORS", "cors": spec }]))
}

fn strict() -> Value {
    cors(json!({
        "allowOrigins": ["https://a.test", "https://*.b.test:8443"],
        "allowMethods": ["GET", "PUT"],
        "allowHeaders": ["X-A"],
        "exposeHeaders": ["X-B"],
        "maxAge": 60,
    }))
}

async fn preflight(site: &RouteFixture, origin: &str) -> Result<Http1TestResponse> {
    let fields = [
        ("Origin", origin),
        ("Access-Control-Request-Method", "PUT"),
        ("Access-Control-Request-Headers", "x-c"),
    ];
    Ok(site.client().await?.exchange("OPTIONS", "/a", &fields, b"").await?)
}

#[tokio::test]
async fn preflights_never_reach_the_endpoint() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let site = RouteFixture::of(strict(), &[("app", &endpoint)]).await?;
    for (origin, allowed) in [
        ("https://a.test", true),
        ("https://x.y.b.test:8443", true),
        ("https://b.test:8443", false),
        ("http://a.test", false),
        ("https://a.test.evil", false),
        ("null", false),
    ] {
        let response = preflight(&site, origin).await?;
        ensure!(response.status() == 204 && response.body.is_empty(), "{origin}: {response:?}");
        ensure!(!response.head.has_field("content-length"), "RFC 9110 §8.6: {response:?}");
        ensure!(response.head.field_lists("vary", "origin"), "{origin}: {response:?}");
        let granted = response.field("access-control-allow-origin");
        assert_eq!(granted.as_deref(), allowed.then_some(origin));
        for (name, value) in [
            ("access-control-allow-methods", "GET, PUT"),
            ("access-control-allow-headers", "X-A"),
            ("access-control-max-age", "60"),
        ] {
            assert_eq!(response.field(name).as_deref(), allowed.then_some(value), "{origin}");
        }
    }
    assert_eq!(endpoint.counts().accepted, 0);
    Ok(())
}

#[tokio::test]
async fn responses_carry_the_cors_policy_of_the_route() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nAccess-Control-Allow-Origin: *\r\nContent-Length: 2\r\n\r\nok";
    let endpoint = Endpoint::start(EndpointBehaviour::answering(answer)).await?;
    let site = RouteFixture::of(strict(), &[("app", &endpoint)]).await?;
    let mut client = site.client().await?;
    for (origin, allowed) in [("https://a.test", true), ("https://evil.test", false)] {
        let response = client.exchange("PUT", "/", &[("Origin", origin)], b"x").await?;
        assert_eq!((response.status(), response.text().as_str()), (200, "ok"));
        let granted = response.head.field_values("access-control-allow-origin");
        assert_eq!(
            granted,
            if allowed { vec![origin] } else { vec![] },
            "the route's policy overrides the endpoint's"
        );
        let exposed = response.field("access-control-expose-headers");
        assert_eq!(exposed.as_deref(), allowed.then_some("X-B"));
        ensure!(response.head.field_lists("vary", "origin"), "{response:?}");
    }
    Ok(())
}

/// With credentials a browser does not accept `*`: the requested values are echoed.
#[tokio::test]
async fn wildcard_with_credentials_echoes_the_origin() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let any = json!({
        "allowOrigins": ["*"],
        "allowMethods": ["*"],
        "allowHeaders": ["*"],
        "allowCredentials": true,
    });
    let site = RouteFixture::of(cors(any), &[("app", &endpoint)]).await?;
    let response = preflight(&site, "https://c.test").await?;
    for (name, value) in [
        ("access-control-allow-origin", "https://c.test"),
        ("access-control-allow-credentials", "true"),
        ("access-control-allow-methods", "PUT"),
        ("access-control-allow-headers", "x-c"),
    ] {
        assert_eq!(response.head.field_values(name), [value]);
    }
    Ok(())
}

/// A script that may read the endpoint's responses may also read Sheave's own error responses.
#[tokio::test]
async fn local_error_responses_carry_cors_fields() -> Result {
    let site = RouteFixture::with(strict(), &[], &[objects::service("app")]).await?;
    let mut client = site.client().await?;
    let response = client.exchange("GET", "/", &[("Origin", "https://a.test")], b"").await?;
    assert_eq!(response.status(), 503, "the Service has no endpoint");
    assert_eq!(response.head.field_values("access-control-allow-origin"), ["https://a.test"]);
    Ok(())
}
