//! Ingresses, observed through their clients and endpoints.

use anyhow::ensure;
use serde_json::{Value, json};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Result, SheaveProcess, objects,
};

fn ingress_class() -> Value {
    json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "IngressClass",
        "metadata": { "name": "sheave", "annotations": { "sheave.dev/http-port": "0" } },
        "spec": { "controller": "sheave.dev/ingress" },
    })
}

fn ingress(name: &str, annotations: Value, spec: Value) -> Value {
    let mut ingress = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": name, "annotations": annotations },
        "spec": spec,
    });
    ingress["spec"]["ingressClassName"] = "sheave".into();
    ingress
}

fn backend_ref(service: &str) -> Value {
    json!({ "service": { "name": service, "port": { "number": 80 } } })
}

fn rule(host: &str, path: &str, kind: &str, service: &str) -> Value {
    let path = json!({ "path": path, "pathType": kind, "backend": backend_ref(service) });
    json!({ "host": host, "http": { "paths": [path] } })
}

#[tokio::test]
async fn requests_are_routed_by_ingress() -> Result {
    let (shop, api) = (
        Endpoint::start(EndpointBehaviour::ok()).await?,
        Endpoint::start(EndpointBehaviour::ok()).await?,
    );
    let rules = json!([rule("shop.test", "/cart", "Prefix", "shop")]);
    let spec = json!({ "defaultBackend": backend_ref("shop"), "rules": rules });
    let pattern = rule("shop.test", "/api(/|$)(.*)", "ImplementationSpecific", "api");
    let rewrite = json!({ "nginx.ingress.kubernetes.io/rewrite-target": "/v1/$2" });
    let moved =
        json!({ "nginx.ingress.kubernetes.io/temporal-redirect": "http://new.test$request_uri" });
    let mut all = vec![
        ingress_class(),
        ingress("shop", json!({}), spec),
        ingress("api", rewrite, json!({ "rules": [pattern] })),
        ingress("old", moved, json!({ "rules": [rule("old.test", "/", "Prefix", "shop")] })),
        objects::service("shop"),
        objects::service("api"),
    ];
    all.extend(objects::slices("shop", &[shop.address]));
    all.extend(objects::slices("api", &[api.address]));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    for (host, target, routed) in [
        ("shop.test", "/cart/1", (&shop, "/cart/1")),
        ("shop.test", "/else", (&shop, "/else")),
        ("other.test", "/", (&shop, "/")),
        ("shop.test", "/api/users?id=1", (&api, "/v1/users?id=1")),
        ("shop.test", "/api", (&api, "/v1")),
        ("shop.test", "/apis", (&shop, "/apis")),
    ] {
        let response = client.exchange("GET", target, &[("Host", host)], b"").await?;
        ensure!(response.status() == 200, "{host}{target}: {response:?}");
        let (endpoint, expected) = routed;
        let seen = endpoint.requests().pop().map(|seen| seen.head.target().to_owned());
        assert_eq!(seen.as_deref(), Some(expected), "{host}{target}");
    }
    let response = client.exchange("GET", "/a?b", &[("Host", "old.test")], b"").await?;
    assert_eq!(
        (response.status(), response.field("location")),
        (302, Some("http://new.test/a?b".to_owned()))
    );
    Ok(())
}

#[tokio::test]
async fn ingress_with_unsupported_access_control_is_not_served() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let spec = json!({ "rules": [rule("shop.test", "/", "Prefix", "shop")] });
    let mut all =
        vec![ingress_class(), ingress("shop", json!({}), spec.clone()), objects::service("shop")];
    all.extend(objects::slices("shop", &[endpoint.address]));
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let lines = sheave.log_line_count();
    let guard = json!({ "nginx.ingress.kubernetes.io/whitelist-source-range": "10.0.0.0/8" });
    all[1] = ingress("shop", guard, spec);
    configuration.write("main.yaml", &all)?;
    sheave
        .wait_for_log(lines, "nginx.ingress.kubernetes.io/whitelist-source-range is not supported")
        .await?;
    // A file is loaded as a whole or not at all: the previous version stays in force.
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let response = client.exchange("GET", "/", &[("Host", "shop.test")], b"").await?;
    assert_eq!(response.status(), 200);
    Ok(())
}
