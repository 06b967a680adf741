//! The xDS server, as an operator sees it: statuses of routes, and the demand of clients that send their requests to
//! endpoints themselves. What real clients do with it is tested in `conformance`.

/// A client that speaks the protocol by hand.
pub(crate) mod client;
/// Many clients.
mod scale;

use anyhow::Context;
use tests::{ConfigDirectory, Result, SheaveProcess, eventually};

use client::{DiscoveryStream, LoadReporter};

const ROUTES: &str = "type.googleapis.com/envoy.config.route.v3.RouteConfiguration";

const CONFIGURATION: &str = r#"
apiVersion: v1
kind: Service
metadata: {name: web, namespace: shop}
spec: {ports: [{port: 80}]}
---
apiVersion: gateway.networking.k8s.io/v1
kind: HTTPRoute
metadata: {name: web, namespace: shop}
spec:
  parentRefs: [{group: "", kind: Service, name: web}]
  rules:
  - name: all
    matches: [{path: {type: PathPrefix, value: /}}]
    backendRefs: [{name: web, port: 80}]
"#;

/// Returns the condition of the route: its status, its reason and its message.
async fn condition(sheave: &SheaveProcess) -> Result<[String; 3]> {
    let config = sheave.admin_json("/api/v1/config").await?;
    let statuses = config["statuses"].as_array().context("statuses")?;
    let route = statuses.iter().find(|it| it["kind"] == "HTTPRoute").context("a route")?;
    let conditions = &route["status"]["parents"][0]["conditions"];
    let conditions = conditions.as_array().with_context(|| route.to_string())?;
    let found = conditions.iter().find(|it| it["type"] == "sheave.dev/XdsAccepted");
    let found = found.with_context(|| route.to_string())?;
    Ok(["status", "reason", "message"].map(|it| found[it].as_str().unwrap_or("").to_owned()))
}

#[tokio::test]
async fn rejection_of_a_client_is_on_the_status_of_the_route_until_it_accepts() -> Result {
    let configuration = ConfigDirectory::empty()?;
    configuration.write_text("main.yaml", CONFIGURATION)?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--xds", "127.0.0.1:0"]).await?;
    assert_eq!(condition(&sheave).await?, ["True", "Accepted", ""]);

    let mut stream = DiscoveryStream::open(&sheave, ROUTES, vec!["shop/web:80".to_owned()]).await?;
    stream.next().await?;
    stream.reject("cannot\nread it").await?;
    let rejected = |it: &[String; 3]| it[1] == "ClientRejected";
    let seen = eventually("the rejection", async || condition(&sheave).await, rejected).await?;
    assert_eq!(seen[0], "False");
    assert_eq!(seen[2], "\"test\" rejects route_configuration shop/web:80: cannot read it");

    let changed = CONFIGURATION.replace("value: /}", "value: /shop}");
    configuration.write_text("main.yaml", &changed)?;
    stream.next().await?;
    stream.accept().await?;
    let accepted = |it: &[String; 3]| it[0] == "True";
    eventually("the end of the rejection", async || condition(&sheave).await, accepted).await?;
    Ok(())
}

#[tokio::test]
async fn what_clients_do_not_follow_is_on_the_status_of_the_route() -> Result {
    let configuration = ConfigDirectory::empty()?;
    let redirect = "
    filters: [{type: RequestRedirect, requestRedirect: {path: {type: ReplaceFullPath, replaceFullPath: /new}}}]";
    let target = "\n    backendRefs: [{name: web, port: 80}]";
    configuration.write_text("main.yaml", &CONFIGURATION.replace(target, redirect))?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--xds", "127.0.0.1:0"]).await?;
    let [status, reason, message] = condition(&sheave).await?;
    assert_eq!([&*status, &*reason], ["False", "UnsupportedValue"]);
    assert_eq!(message, "rule all: a redirect cannot be done by clients: calls of this rule fail");
    configuration.write_text("main.yaml", CONFIGURATION)?;
    let accepted = |it: &[String; 3]| it[0] == "True";
    eventually("the condition", async || condition(&sheave).await, accepted).await?;
    Ok(())
}

#[tokio::test]
async fn load_of_a_client_counts_until_it_goes() -> Result {
    let configuration = ConfigDirectory::empty()?;
    configuration.write_text("main.yaml", CONFIGURATION)?;
    let sheave = SheaveProcess::serve_with(&configuration, &["--xds", "127.0.0.1:0"]).await?;
    let in_flight = async || sheave.metric_sum("sheave_xds_backend_in_flight").await;
    let reporter = LoadReporter::start(&sheave, "shop/web:80", 3).await?;
    eventually("the requests in progress", in_flight, |count| *count == 3.0).await?;
    let demand = async || sheave.metric_sum("sheave_backend_demand").await;
    eventually("their demand", demand, |mean| *mean > 0.0).await?;
    drop(reporter);
    eventually("the end of the client", in_flight, |count| *count == 0.0).await?;
    let issued = sheave.metric_sum("sheave_xds_backend_requests_total").await?;
    assert!(issued > 0.0, "{issued}");
    let status = sheave.admin_json("/api/v1/xds").await?;
    assert_eq!(status["load"][0]["backend"], "shop/web:80", "{status}");
    Ok(())
}
