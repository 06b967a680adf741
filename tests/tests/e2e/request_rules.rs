//! Request rules: of snippets of ingress-nginx, and of TrafficPolicies.

use anyhow::ensure;
use bytes::Bytes;
use http::Request;
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::nginx_rules::snippet_cases;
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, Http1TestResponse, HttpFixture,
    Result, SheaveProcess, grpc, objects,
};

use crate::grpc::fixture::{GrpcFixture, METHOD};
use crate::http2::fixture::Http2Fixture;
use crate::http3::Http3Fixture;

fn policy(target: Value, spec: Value) -> Value {
    let mut policy = json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": { "name": "rules" },
        "spec": spec,
    });
    policy["spec"]["targetRefs"] = json!([target]);
    policy
}

fn of_gateway(rules: Value) -> Value {
    policy(json!({ "kind": "Gateway", "name": "edge" }), json!({ "requestRules": rules }))
}

fn ingress(name: &str, hosts: &[String], path: &str, snippet: Option<&str>) -> Value {
    let annotation = "nginx.ingress.kubernetes.io/configuration-snippet";
    let rules: Vec<_> = hosts
        .iter()
        .map(|host| {
            let backend = json!({ "service": { "name": SERVICE, "port": { "number": 80 } } });
            let path = json!({ "path": path, "pathType": "Prefix", "backend": backend });
            json!({ "host": host, "http": { "paths": [path] } })
        })
        .collect();
    let mut ingress = json!({
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": { "name": name },
        "spec": { "ingressClassName": "sheave", "rules": rules },
    });
    if let Some(snippet) = snippet {
        ingress["metadata"]["annotations"] = json!({ annotation: snippet });
    }
    ingress
}

/// Returns the status, and the path that the endpoint got or the value of `Location`.
fn answer(response: &Http1TestResponse, endpoint: &Endpoint, served: u64) -> String {
    let target = (endpoint.counts().requests > served)
        .then(|| endpoint.requests().pop().map(|seen| seen.head.target().to_owned()));
    let location = response.field("location").map(|it| it.replace(&port_of(&it), ""));
    let detail =
        location.or_else(|| target.flatten()).map(|it| format!(" {it}")).unwrap_or_default();
    format!("{}{detail}", response.status())
}

/// Returns the port of a URL of a requested host, with its colon: Sheave names the listener's port.
fn port_of(url: &str) -> String {
    let authority = url.split('/').nth(2).unwrap_or_default();
    authority.find(':').map_or_else(|| "\0".to_owned(), |at| authority[at..].to_owned())
}

#[tokio::test]
async fn snippets_answer_as_nginx_does() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let mut all = vec![
        json!({
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IngressClass",
            "metadata": { "name": "sheave", "annotations": { "sheave.dev/http-port": "0" } },
            "spec": { "controller": "sheave.dev/ingress" },
        }),
        objects::service(SERVICE),
    ];
    all.extend(objects::slices(SERVICE, &[endpoint.address]));
    let cases = snippet_cases();
    for (number, case) in cases.iter().enumerate() {
        let mut hosts = vec![format!("c{number}.test")];
        hosts.extend(case.requests.iter().filter_map(|it| it.host.map(str::to_owned)));
        all.push(ingress(&format!("c{number}"), &hosts, "/", Some(case.snippet)));
        for path in ["/api", "/new"] {
            let name = format!("c{number}-{}", &path[1..]);
            all.push(ingress(&name, &hosts, path, None));
        }
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut differences = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        let own = format!("c{number}.test");
        for request in &case.requests {
            let host = request.host.unwrap_or(&own);
            let mut fields = request.fields.clone();
            fields.push(("Host", host));
            let served = endpoint.counts().requests;
            let mut client = Http1TestClient::connect(sheave.address()).await?;
            let response = client.exchange(request.method, request.target, &fields, b"").await?;
            let answer = answer(&response, &endpoint, served);
            if answer != request.answer(host) {
                let (snippet, target) = (case.snippet, request.target);
                differences.push(format!("{snippet}\n  {target}: {answer}"));
            }
        }
    }
    ensure!(differences.is_empty(), "{}", differences.join("\n"));
    Ok(())
}

fn blocked_bots() -> Value {
    json!([
        {
            "when": [{ "value": "$http_user_agent", "matches": "bot", "ignoreCase": true }],
            "respond": { "status": 403, "body": "no bots\n" },
        },
        { "redirect": { "pattern": "^/old/(.*)$", "url": "/new/$1", "status": 308 } },
        { "rewrite": { "pattern": "^/api/(.*)$", "replacement": "/$1", "then": "Forward" } },
    ])
}

#[tokio::test]
async fn rules_apply_to_every_version_of_http() -> Result {
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let policies = [of_gateway(blocked_bots())];
    let http2 = Http2Fixture::of(&[endpoint.address], &policies).await?;
    let http3 = Http3Fixture::with_policies(&[endpoint.address], &policies).await?;
    let (client2, client3) = (http2.client().await?, http3.client().await?);
    for (target, agent, status, detail) in [
        ("/api/a?b", "browser", 200, Some("/a?b")),
        ("/old/a", "browser", 308, None),
        ("/api/a", "GoodBot", 403, None),
    ] {
        let request = |scheme: &str| {
            let uri = format!("{scheme}://test{target}");
            Request::builder().uri(uri).header("user-agent", agent).body(())
        };
        let answers = [
            client2.exchange(request("http")?, Bytes::new()).await?,
            client3.exchange(request("https")?, Bytes::new()).await?,
        ];
        for answer in answers {
            ensure!(answer.status() == status, "{target}: {answer:?}");
            if status == 308 {
                let location = answer.field("location").unwrap_or_default();
                ensure!(location.ends_with("/new/a"), "{answer:?}");
            }
            if let Some(path) = detail {
                let seen = endpoint.requests().pop().map(|seen| seen.head.target().to_owned());
                ensure!(seen.as_deref() == Some(path), "{target}: {seen:?}");
            }
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_grpc_call_gets_a_grpc_status() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let rules = json!([{
        "when": [{ "value": "$request_method", "equals": "POST" }],
        "respond": { "status": 403 },
    }]);
    let fixture = GrpcFixture::of(&[&server], &[of_gateway(rules)]).await?;
    let answer = fixture.client().await?.call(METHOD, b"one").await?;
    ensure!(answer.code == grpc::PERMISSION_DENIED && answer.trailers_only, "{answer:?}");
    Ok(())
}

/// The log has the path that the client asked for.
#[tokio::test]
async fn rewritten_requests_are_logged_as_they_came() -> Result {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let policies = [of_gateway(blocked_bots())];
    let fixture = HttpFixture::with(endpoints, &policies, &["--access-log", "on"]).await?;
    let response = fixture.client().await?.get("/api/x?y").await?;
    ensure!(response.status() == 200, "{response:?}");
    let lines = fixture.sheave.wait_for_access_log(1).await?;
    ensure!(lines[0]["url.path"] == "/api/x" && lines[0]["url.query"] == "y", "{lines:?}");
    Ok(())
}

#[tokio::test]
async fn rules_that_never_end_are_a_failure() -> Result {
    let rules =
        json!([{ "rewrite": { "pattern": "^", "replacement": "/x$uri", "then": "Route" } }]);
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture =
        HttpFixture::with(endpoints, &[of_gateway(rules)], &["--access-log", "on"]).await?;
    let response = fixture.client().await?.get("/").await?;
    ensure!(response.status() == 500, "{response:?}");
    let lines = fixture.sheave.wait_for_access_log(1).await?;
    ensure!(lines[0]["error.type"] == "request_rules", "{lines:?}");
    ensure!(lines[0]["sheave.route"].is_string(), "{lines:?}");
    ensure!(fixture.endpoint().counts().requests == 0);
    Ok(())
}

fn rewrite_all() -> Value {
    of_gateway(json!([
        { "rewrite": { "pattern": "^/(.*)$", "replacement": "/app/$1", "then": "Forward" } },
    ]))
}

/// Returns a route of this path, with these filters.
fn route_of(name: &str, path: &str, filters: Value) -> Value {
    let matches = json!([{ "path": { "type": "PathPrefix", "value": path } }]);
    let backends = json!([{ "name": SERVICE, "port": 80 }]);
    let rule = json!({ "matches": matches, "filters": filters, "backendRefs": backends });
    objects::route_with(name, json!({ "rules": [rule] }))
}

#[tokio::test]
async fn an_escaped_slash_does_not_avoid_the_policy_of_another_route() -> Result {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let mut closed = policy(
        json!({ "kind": "HTTPRoute", "name": "closed" }),
        json!({ "requestRules": [{ "respond": { "status": 403 } }] }),
    );
    closed["metadata"]["name"] = json!("closed");
    let policies = [rewrite_all(), route_of("closed", "/admin", json!([])), closed];
    let fixture = HttpFixture::with(endpoints, &policies, &[]).await?;
    for (target, status) in [
        ("/admin/secret", 403),
        ("/admin%2Fsecret", 403),
        ("/x/..%2fadmin%2fsecret?q", 403),
        ("/administration", 200),
    ] {
        let response = fixture.client().await?.get(target).await?;
        ensure!(response.status() == status, "{target}: {response:?}");
    }
    Ok(())
}

#[tokio::test]
async fn preflights_are_answered_by_the_cors_filter() -> Result {
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let cors = json!([{ "type": "CORS", "cors": { "allowOrigins": ["https://a.test"] } }]);
    let rules = of_gateway(json!([{ "respond": { "status": 403 } }]));
    let policies = [rules, route_of("scripts", "/scripts", cors)];
    let fixture = HttpFixture::with(endpoints, &policies, &[]).await?;
    let fields = [("Origin", "https://a.test"), ("Access-Control-Request-Method", "GET")];
    for (method, target, status) in
        [("OPTIONS", "/scripts", 204), ("GET", "/scripts", 403), ("OPTIONS", "/other", 403)]
    {
        let response = fixture.client().await?.exchange(method, target, &fields, b"").await?;
        ensure!(response.status() == status, "{method} {target}: {response:?}");
    }
    Ok(())
}
