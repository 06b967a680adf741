//! Clients that a SecurityPolicy admits with their keys.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{Endpoint, EndpointBehaviour, HttpFixture, Result, eventually, grpc, objects};

use crate::grpc::fixture::{GrpcFixture, METHOD};

fn secret(values: Value) -> Value {
    json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "keys" },
        "stringData": values,
    })
}

fn policy(mut keys: Value) -> Value {
    keys["credentialRefs"] = json!([{ "name": "keys" }]);
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "SecurityPolicy",
        "metadata": { "name": "keys" },
        "spec": { "targetRefs": [{ "kind": "HTTPRoute", "name": SERVICE }], "apiKeys": keys },
    })
}

async fn fixture(objects: &[Value]) -> Result<HttpFixture> {
    HttpFixture::with(vec![Endpoint::start(EndpointBehaviour::ok()).await?], objects, &[]).await
}

#[tokio::test]
async fn clients_get_in_with_their_keys_in_each_place() -> Result {
    let places = json!({
        "headers": ["X-API-Key", "Authorization"],
        "params": ["key"],
        "cookies": ["key"],
    });
    let values = json!({ "shop": "one-key\n", "office": "other-key" });
    let keys = policy(json!({ "extractFrom": places, "forwardClientIDHeader": "X-Client" }));
    let fixture = fixture(&[secret(values), keys]).await?;
    let mut client = fixture.client().await?;
    // An application could not tell the underscore from the hyphen.
    let forged = [("X-Client", "root"), ("X_Client", "root")];
    for (target, field, expected) in [
        ("/", Some(("X-API-Key", "one-key")), Some("shop")),
        ("/", Some(("x-api-key", "other-key")), Some("office")),
        ("/", Some(("Authorization", "Bearer one-key")), Some("shop")),
        ("/?a=1&key=one%2Dkey", None, Some("shop")),
        ("/", Some(("Cookie", "a=1; key=other-key")), Some("office")),
        ("/", None, None),
        ("/", Some(("X-API-Key", "")), None),
        ("/", Some(("X-API-Key", "one-ke")), None),
        ("/", Some(("X-API-Key", "one-key2")), None),
        ("/", Some(("X-API-Key", "shop")), None),
        ("/", Some(("Authorization", "Basic one-key")), None),
        ("/", Some(("Authorization", "one-key")), None),
        ("/", Some(("Cookie", "a=1; key =other-key")), Some("office")),
        // The first place counts, and one that has several keys has none.
        ("/?key=one-key", Some(("X-API-Key", "wrong")), None),
        ("/?key=one-key&k%65y=other-key", None, None),
        ("/", Some(("Cookie", "key=one-key; key=other-key")), None),
    ] {
        let fields: Vec<_> = field.into_iter().chain(forged).collect();
        let before = fixture.endpoint().counts().requests;
        let response = client.exchange("GET", target, &fields, b"").await?;
        match expected {
            Some(id) => {
                ensure!(response.status() == 200, "{target} {field:?}: {response:?}");
                let seen = fixture.endpoint().requests().pop().context("no request")?;
                ensure!(seen.head.field_values("x-client") == [id], "{seen:?}");
                ensure!(seen.head.field("x_client").is_none(), "{seen:?}");
            }
            None => {
                ensure!(response.status() == 401, "{target} {field:?}: {response:?}");
                ensure!(response.field("www-authenticate").as_deref() == Some("Bearer"));
                ensure!(fixture.endpoint().counts().requests == before);
            }
        }
    }
    let twice = [("X-API-Key", "one-key"), ("X-API-Key", "other-key")];
    ensure!(client.exchange("GET", "/", &twice, b"").await?.status() == 401);
    Ok(())
}

#[tokio::test]
async fn endpoints_get_no_key_if_the_policy_removes_it() -> Result {
    let places =
        json!({ "headers": ["X-API-Key"], "params": ["key"], "cookies": ["key", "session"] });
    let keys = policy(json!({ "extractFrom": places, "sanitize": true }));
    let rewrite = json!({
        "type": "URLRewrite",
        "urlRewrite": { "path": { "type": "ReplacePrefixMatch", "replacePrefixMatch": "/v1" } },
    });
    let mut route = objects::route_with(
        "rewritten",
        json!({ "rules": [{
            "matches": [{ "path": { "value": "/api" } }],
            "filters": [rewrite],
            "backendRefs": [{ "name": SERVICE, "port": 80 }],
        }]}),
    );
    route["spec"]["parentRefs"] = objects::route(SERVICE)["spec"]["parentRefs"].clone();
    let mut keys = keys;
    keys["spec"]["targetRefs"] = json!([{ "kind": "Gateway", "name": "edge" }]);
    let fixture = fixture(&[secret(json!({ "shop": "one-key" })), keys, route]).await?;
    let mut client = fixture.client().await?;
    let cookie = ("Cookie", "a=1; key=one-key; b=2");
    for (target, fields, sent, cookies) in [
        ("/x?key=one-key", vec![], "/x", None),
        ("/x?a=1&key=one-key&b", vec![cookie], "/x?a=1&b", Some("a=1; b=2")),
        ("/api/x?k%65y=one-key&a", vec![("X-API-Key", "one-key")], "/v1/x?a", None),
        ("/x", vec![("Cookie", "session=one-key")], "/x", None),
    ] {
        let response = client.exchange("GET", target, &fields, b"").await?;
        ensure!(response.status() == 200, "{target}: {response:?}");
        let head = fixture.endpoint().requests().pop().context("no request")?.head;
        ensure!(head.target() == sent, "{target}: {head:?}");
        ensure!(head.field("cookie").as_deref() == cookies, "{target}: {head:?}");
        ensure!(!head.has_field("x-api-key"), "{target}: {head:?}");
    }
    Ok(())
}

#[tokio::test]
async fn a_key_that_is_removed_or_replaced_is_refused_at_once() -> Result {
    let keys = || policy(json!({ "extractFrom": { "headers": ["X-API-Key"] } }));
    let fixture = fixture(&[]).await?;
    let write = |values: Value| fixture.configuration.write("keys.yaml", &[keys(), secret(values)]);
    let status = async |key: &str| -> Result<u16> {
        let fields = [("X-API-Key", key)];
        Ok(fixture.client().await?.exchange("GET", "/", &fields, b"").await?.status())
    };
    write(json!({ "shop": "one-key", "office": "other-key" }))?;
    eventually("a key is required", || status("wrong"), |status| *status == 401).await?;
    ensure!(status("one-key").await? == 200 && status("other-key").await? == 200);
    write(json!({ "shop": "new-key" }))?;
    eventually("the old key is refused", || status("one-key"), |status| *status == 401).await?;
    ensure!(status("new-key").await? == 200 && status("other-key").await? == 401);
    Ok(())
}

#[tokio::test]
async fn secrets_that_cannot_be_used_are_errors_that_show_no_key() -> Result {
    let headers = json!({ "extractFrom": { "headers": ["X-API-Key"] } });
    let same = json!({ "shop": "hunter2", "office": "hunter2" });
    for (values, places, message) in [
        (same, &headers, "data.shop is the key of another client too"),
        (json!({ "shop": "hunter2 x" }), &headers, "data.shop must be 1 to 1024 visible"),
        (json!({ "shop": "" }), &headers, "data.shop must be 1 to 1024 visible"),
        (json!({}), &headers, "data has no key of a client"),
        (json!({ "shop": "hunter2" }), &json!({ "extractFrom": {} }), "has neither `headers`"),
    ] {
        let refused = fixture(&[secret(values), policy(places.clone())]).await.err();
        let text = format!("{:?}", refused.context("Sheave serves it")?);
        ensure!(text.contains(message) && !text.contains("hunter2"), "{text}");
    }
    Ok(())
}

#[tokio::test]
async fn a_call_without_a_key_ends_with_unauthenticated() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let mut keys = policy(json!({ "extractFrom": { "headers": ["x-api-key"] } }));
    keys["spec"]["targetRefs"] = json!([{ "kind": "Gateway", "name": "edge" }]);
    let fixture =
        GrpcFixture::of(&[&server], &[secret(json!({ "shop": "one-key" })), keys]).await?;
    let answer = fixture.client().await?.call(METHOD, b"one").await?;
    ensure!(answer.code == grpc::UNAUTHENTICATED && answer.trailers_only, "{answer:?}");
    Ok(())
}
