//! Rule matching and its precedence.

use serde_json::json;
use tests::{Endpoint, EndpointBehaviour, Result};

use crate::fixture::{RouteFixture, backend_ref};

/// The precedence of Gateway API: path, method, header fields, query parameters, then the order of
/// rules.
#[tokio::test]
async fn most_specific_rule_wins() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let rule = |name: &str, condition: serde_json::Value| {
        json!({
            "name": name,
            "matches": [condition],
            "filters": [{
                "type": "ResponseHeaderModifier",
                "responseHeaderModifier": { "set": [{ "name": "x-rule", "value": name }] },
            }],
            "backendRefs": [backend_ref("app")],
        })
    };
    let path = |kind: &str, value: &str| json!({ "type": kind, "value": value });
    let header =
        |kind: &str, value: &str| json!([{ "type": kind, "name": "X-Kind", "value": value }]);
    let rules = json!([
        rule("all", json!({})),
        rule("prefix", json!({ "path": path("PathPrefix", "/a") })),
        rule("exact", json!({ "path": path("Exact", "/a/b") })),
        rule("post", json!({ "path": path("PathPrefix", "/a"), "method": "POST" })),
        rule(
            "header",
            json!({ "path": path("PathPrefix", "/a"), "headers": header("Exact", "one") })
        ),
        rule("pattern", json!({ "headers": header("RegularExpression", "t(wo|en)") })),
        rule("query", json!({ "queryParams": [{ "name": "q", "value": "1 2" }] })),
    ]);
    let site = RouteFixture::of(rules, &[("app", &endpoint)]).await?;
    let mut client = site.client().await?;
    for (method, target, kind, expected) in [
        ("GET", "/", "", "all"),
        ("GET", "/ab", "", "all"),
        ("GET", "/a/c", "", "prefix"),
        ("GET", "/a/b", "", "exact"),
        ("POST", "/a/b", "", "exact"),
        ("POST", "/a", "", "post"),
        ("POST", "/a", "one", "post"),
        ("GET", "/a", "one", "header"),
        ("GET", "/a", "One", "prefix"),
        ("GET", "/b", "two", "pattern"),
        ("GET", "/b", "ten", "pattern"),
        ("GET", "/b", "three", "all"),
        ("GET", "/b?p=0&q=1%202", "", "query"),
        ("GET", "/b?q=1+2", "two", "pattern"),
        ("GET", "/b?q=12", "", "all"),
    ] {
        let response = client.exchange(method, target, &[("x-kind", kind)], b"").await?;
        let rule = response.field("x-rule");
        assert_eq!(rule.as_deref(), Some(expected), "{method} {target} {kind}: {response:?}");
    }
    Ok(())
}
