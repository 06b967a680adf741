//! Header modifier filters.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::{Endpoint, EndpointBehaviour, Result};

use crate::fixture::{RouteFixture, backend_ref, rules_with_filters};

fn field(name: &str, value: &str) -> Value {
    json!({ "name": name, "value": value })
}

fn request_headers(set: Value, add: Value, remove: Value) -> Value {
    let edits = json!({ "set": set, "add": add, "remove": remove });
    json!({ "type": "RequestHeaderModifier", "requestHeaderModifier": edits })
}

fn response_headers(set: Value, add: Value, remove: Value) -> Value {
    let edits = json!({ "set": set, "add": add, "remove": remove });
    json!({ "type": "ResponseHeaderModifier", "responseHeaderModifier": edits })
}

#[tokio::test]
async fn request_fields_are_set_added_and_removed() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let filter = request_headers(
        json!([field("X-Set", "new"), field("X-Forwarded-Proto", "https")]),
        json!([field("X-Add", "more")]),
        json!(["X-Remove"]),
    );
    let site = RouteFixture::of(rules_with_filters(json!([filter])), &[("app", &endpoint)]).await?;
    let fields =
        [("x-set", "old"), ("X-SET", "older"), ("x-add", "first"), ("x-remove", "1"), ("x", "y")];
    let mut client = site.client().await?;
    ensure!(client.exchange("POST", "/", &fields, b"body").await?.status() == 200);
    let head = endpoint.only_request().head;
    assert_eq!(head.field_values("x-set"), ["new"]);
    assert_eq!(head.field_values("x-add"), ["first", "more"]);
    assert_eq!(head.field_values("x-forwarded-proto"), ["https"]);
    assert_eq!(head.field_values("x"), ["y"]);
    ensure!(!head.has_field("x-remove"), "{head:#?}");
    Ok(())
}

#[tokio::test]
async fn response_fields_are_set_added_and_removed() -> Result {
    let answer = "HTTP/1.1 200 OK\r\nX-Set: old\r\nServer: secret\r\nX-Add: first\r\n\
        Set-Cookie: a=1\r\nContent-Length: 2\r\n\r\nok";
    let endpoint = Endpoint::start(EndpointBehaviour::answering(answer)).await?;
    let filter = response_headers(
        json!([field("x-set", "new")]),
        json!([field("x-add", "more"), field("Set-Cookie", "b=2")]),
        json!(["server"]),
    );
    let site = RouteFixture::of(rules_with_filters(json!([filter])), &[("app", &endpoint)]).await?;
    let response = site.client().await?.get("/").await?;
    assert_eq!(response.text(), "ok");
    assert_eq!(response.head.field_values("x-set"), ["new"]);
    assert_eq!(response.head.field_values("x-add"), ["first", "more"]);
    assert_eq!(response.head.field_values("set-cookie"), ["a=1", "b=2"]);
    ensure!(!response.head.has_field("server"), "{response:#?}");
    Ok(())
}

/// The rule's filters are applied first, then those of the chosen backend reference, and of no
/// other.
#[tokio::test]
async fn backend_filters_apply_only_to_their_backend() -> Result {
    let (one, two) = (
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    );
    let target = |service: &str| {
        let mut target = backend_ref(service);
        let set = json!([field("x-name", service)]);
        target["filters"] = json!([
            request_headers(set.clone(), json!([]), json!([])),
            response_headers(set, json!([]), json!([])),
        ]);
        target
    };
    let rule = json!([request_headers(json!([field("x-name", "rule")]), json!([]), json!([]))]);
    let rules = json!([{ "filters": rule, "backendRefs": [target("one"), target("two")] }]);
    let site = RouteFixture::of(rules, &[("one", &one), ("two", &two)]).await?;
    let mut client = site.client().await?;
    let mut seen = [0; 2];
    while seen.contains(&0) {
        let response = client.get("/").await?;
        seen[usize::from(response.field("x-name").as_deref() == Some("two"))] += 1;
        ensure!(
            seen.iter().sum::<u32>() < 200,
            "one of two equal weights gets no request: {seen:?}"
        );
    }
    for (endpoint, name) in [(&one, "one"), (&two, "two")] {
        for seen in endpoint.requests() {
            assert_eq!(seen.head.field_values("x-name"), [name]);
        }
    }
    Ok(())
}

/// Large header edits on both messages do not damage their bodies.
#[tokio::test]
async fn large_header_edits_keep_messages_intact() -> Result {
    let chunked = "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n";
    let endpoint = Endpoint::start(EndpointBehaviour::answering(chunked)).await?;
    let many: Vec<Value> = (0..16).map(|n| field(&format!("x-{n}"), &"v".repeat(4000))).collect();
    let filters = json!([
        request_headers(json!(many), json!([]), json!([])),
        response_headers(json!(many), json!([]), json!([])),
    ]);
    let site = RouteFixture::of(rules_with_filters(filters), &[("app", &endpoint)]).await?;
    let mut client = site.client().await?;
    for _ in 0..3 {
        let response = client.post("/", b"some body").await?;
        assert_eq!(response.text(), "hello");
        assert_eq!(response.head.field_values("x-15"), ["v".repeat(4000)]);
    }
    Ok(())
}
