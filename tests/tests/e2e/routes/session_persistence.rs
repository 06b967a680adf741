//! Session persistence and retry budgets of Gateway API: `sessionPersistence` of rules, and
//! XBackendTrafficPolicies.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;

use anyhow::{Context, ensure};
use http::Request;
use serde_json::{Value, json};
use tests::fixture::{addresses, start_endpoints};
use tests::http2::{Http2TestClient, Http2TestEndpoint, ReceivedRequest};
use tests::{
    ConfigDirectory, Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result,
    SheaveProcess, eventually, grpc, objects,
};

use super::affinity::{ONE_WORKER, counts, endpoint_that_served};
use crate::grpc::fixture::{GrpcFixture, METHOD};

/// Starts Sheave with these rules and policies, in front of the Service `app`.
async fn fixture(
    endpoints: Vec<Endpoint>,
    rules: Value,
    policies: &[Value],
) -> Result<HttpFixture> {
    let mut all = objects::gateway();
    all.extend([objects::route_with("web", json!({ "rules": rules })), objects::service("app")]);
    all.extend_from_slice(policies);
    let configuration = ConfigDirectory::empty()?;
    configuration.write("all.yaml", &all)?;
    configuration.set_endpoints(&addresses(&endpoints))?;
    let sheave = SheaveProcess::serve_with(&configuration, ONE_WORKER).await?;
    Ok(HttpFixture { sheave, configuration, endpoints })
}

/// Returns a rule of all requests with this session persistence.
fn rule(persistence: Value) -> Value {
    json!({
        "name": "all",
        "sessionPersistence": persistence,
        "backendRefs": [{ "name": "app", "port": 80 }],
    })
}

fn traffic_policy(mut spec: Value) -> Value {
    spec["targetRefs"] = json!([{ "group": "", "kind": "Service", "name": "app" }]);
    json!({
        "apiVersion": "gateway.networking.x-k8s.io/v1alpha1",
        "kind": "XBackendTrafficPolicy",
        "metadata": { "name": "app" },
        "spec": spec,
    })
}

/// Returns the pair and the attributes of the cookie that a request with these cookies gets.
async fn new_cookie(client: &mut Http1TestClient, cookies: &str) -> Result<(String, String)> {
    let response = client.exchange("GET", "/", &[("Cookie", cookies)], b"").await?;
    ensure!(response.status() == 200, "{response:?}");
    let cookie = response.field("set-cookie").context("no cookie")?;
    let (pair, attributes) = cookie.split_once("; ").context("no attributes")?;
    Ok((pair.to_owned(), attributes.to_owned()))
}

/// Returns true if a request with these cookies gets no other one: its session goes on.
async fn is_kept(client: &mut Http1TestClient, cookies: &str) -> Result<bool> {
    let response = client.exchange("GET", "/", &[("Cookie", cookies)], b"").await?;
    ensure!(response.status() == 200, "{response:?}");
    Ok(!response.head.has_field("set-cookie"))
}

#[tokio::test]
async fn a_rule_keeps_a_client_at_its_endpoint_when_others_join() -> Result {
    let persistence = json!({ "cookie": { "name": "shop", "path": "/a" } });
    let mut plain = rule(json!({}));
    plain["matches"] = json!([{ "path": { "value": "/plain" } }]);
    plain["name"] = "plain".into();
    plain["sessionPersistence"].take();
    let endpoints = start_endpoints(2, &EndpointBehaviour::ok()).await?;
    let mut fixture = fixture(endpoints, json!([rule(persistence), plain]), &[]).await?;
    let mut client = fixture.client().await?;
    let mut cookie = Default::default();
    let own = endpoint_that_served(&fixture, async || {
        cookie = new_cookie(&mut client, "").await?;
        Ok(())
    });
    let own = own.await?;
    let (pair, attributes) = cookie;
    ensure!(pair.starts_with("shop=") && attributes == "Path=/a; HttpOnly; SameSite=Lax");
    ensure!(
        !client.get("/plain").await?.head.has_field("set-cookie"),
        "another rule sets a cookie"
    );

    fixture.endpoints.extend(start_endpoints(6, &EndpointBehaviour::ok()).await?);
    let all = addresses(&fixture.endpoints);
    fixture.configuration.set_endpoints(&all)?;
    fixture.sheave.wait_for_endpoints(&all).await?;
    let before = counts(&fixture.endpoints)[own];
    for _ in 0..20 {
        ensure!(is_kept(&mut client, &pair).await?);
    }
    let http2 = Http2TestClient::connect(fixture.sheave.address()).await?;
    let request = Request::get("http://localhost/").header("cookie", &pair).body(())?;
    let response = http2.exchange(request, "".into()).await?;
    ensure!(response.field("set-cookie").is_none(), "{response:?}");
    assert_eq!(counts(&fixture.endpoints)[own], before + 21);
    Ok(())
}

/// Gateway API 1.7: persistence chooses the endpoint within the backend, not the backend.
#[tokio::test]
async fn persistence_of_a_rule_leaves_the_split_among_services_alone() -> Result {
    let servers = start_endpoints(8, &EndpointBehaviour::ok()).await?;
    let mut all = objects::gateway();
    let refs = json!([{ "name": "one", "port": 80 }, { "name": "two", "port": 80 }]);
    let rules = json!([{ "sessionPersistence": {}, "backendRefs": refs }]);
    all.push(objects::route_with("both", json!({ "rules": rules })));
    for (service, servers) in ["one", "two"].iter().zip(servers.chunks(4)) {
        all.push(objects::service(service));
        all.extend(objects::slices(service, &addresses(servers)));
    }
    let configuration = ConfigDirectory::empty()?;
    configuration.write("both.yaml", &all)?;
    let sheave = SheaveProcess::serve_with(&configuration, ONE_WORKER).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let (mut pair, mut cookies) = (String::new(), 0);
    for _ in 0..100 {
        let response = client.exchange("GET", "/", &[("Cookie", &pair)], b"").await?;
        if let Some(cookie) = response.field("set-cookie") {
            pair = cookie.split(';').next().unwrap_or_default().to_owned();
            cookies += 1;
        }
    }
    assert_eq!(cookies, 2, "one for each Service");
    let of = |half: &[Endpoint]| counts(half).into_iter().filter(|it| *it > 0).collect::<Vec<_>>();
    let (one, two) = (of(&servers[..4]), of(&servers[4..]));
    ensure!(one.len() == 1 && two.len() == 1, "one endpoint of each Service: {one:?} {two:?}");
    ensure!(one[0] > 20 && two[0] > 20, "each Service has its share: {one:?} {two:?}");
    Ok(())
}

#[tokio::test]
async fn a_session_ends_after_its_absolute_timeout_and_no_client_can_prolong_it() -> Result {
    let persistence = json!({ "sessionName": "s", "absoluteTimeout": "2s" });
    let endpoints = start_endpoints(4, &EndpointBehaviour::ok()).await?;
    let fixture = fixture(endpoints, json!([rule(persistence)]), &[]).await?;
    let mut client = fixture.client().await?;
    let (pair, attributes) = new_cookie(&mut client, "").await?;
    assert_eq!(attributes, "Path=/; HttpOnly; SameSite=Lax", "the cookie is one of a session");
    ensure!(is_kept(&mut client, &pair).await?, "the session has just begun");
    // The start of the session follows the hashes of the Service and the endpoint.
    let (head, start) = pair.split_at("s=".len() + 24);
    let later = u64::from_str_radix(&start[..12], 16)? + 3_600_000;
    let forged = format!("{head}{later:012x}{}", &start[12..]);
    let without_start = head.to_owned();
    for forged in [forged, without_start] {
        ensure!(!is_kept(&mut client, &forged).await?, "{forged} of {pair}");
    }
    let is_over = async || Ok(!is_kept(&mut fixture.client().await?, &pair).await?);
    eventually("the session is over", is_over, |is_over| *is_over).await?;
    let (renewed, _) = new_cookie(&mut client, &pair).await?;
    ensure!(renewed != pair && is_kept(&mut client, &renewed).await?, "{renewed}");
    Ok(())
}

#[tokio::test]
async fn a_permanent_cookie_states_its_lifetime() -> Result {
    let persistence = json!({
        "absoluteTimeout": "30h",
        "cookieConfig": { "lifetimeType": "Permanent" },
    });
    let endpoints = start_endpoints(1, &EndpointBehaviour::ok()).await?;
    let fixture = fixture(endpoints, json!([rule(persistence)]), &[]).await?;
    let (pair, attributes) = new_cookie(&mut fixture.client().await?, "").await?;
    ensure!(pair.starts_with("sheave-session-"), "{pair}");
    assert_eq!(attributes, "Path=/; Max-Age=108000; HttpOnly; SameSite=Lax");
    Ok(())
}

#[tokio::test]
async fn a_policy_keeps_clients_at_their_endpoint_by_a_header_field() -> Result {
    let persistence = json!({ "type": "Header", "header": { "name": "X-Session" } });
    let policies = [traffic_policy(json!({ "sessionPersistence": persistence }))];
    let mut plain = rule(Value::Null);
    plain["matches"] = json!([{ "path": { "value": "/" } }]);
    let mut own = rule(json!({ "sessionName": "of-the-rule" }));
    own["name"] = "own".into();
    own["matches"] = json!([{ "path": { "value": "/own" } }]);
    let endpoints = start_endpoints(4, &EndpointBehaviour::ok()).await?;
    let fixture = fixture(endpoints, json!([plain, own]), &policies).await?;
    let mut client = fixture.client().await?;
    let first = client.get("/").await?.field("x-session").context("a token")?;
    for _ in 0..10 {
        let response = client.exchange("GET", "/", &[("X-Session", &first)], b"").await?;
        assert_eq!(response.head.field_values("x-session"), [first.as_str()]);
    }
    ensure!(counts(&fixture.endpoints).contains(&11), "{:?}", counts(&fixture.endpoints));
    let (head, last) = first.split_at(first.len() - 1);
    let forged = format!("{head}{}", if last == "0" { "1" } else { "0" });
    let response = client.exchange("GET", "/", &[("X-Session", &forged)], b"").await?;
    ensure!(response.field("x-session").is_some_and(|it| it != forged), "{response:?}");
    let response = client.get("/own").await?;
    ensure!(!response.head.has_field("x-session"), "the rule has precedence: {response:?}");
    let cookie = response.field("set-cookie").context("the cookie of the rule")?;
    ensure!(cookie.starts_with("of-the-rule="), "{cookie}");
    Ok(())
}

#[tokio::test]
async fn a_grpc_rule_keeps_clients_at_their_endpoint_by_metadata() -> Result {
    let mut servers = Vec::new();
    for _ in 0..4 {
        let serve = |call: ReceivedRequest| async move { call.reply(b"hello").await };
        servers.push(Http2TestEndpoint::start(serve).await?);
    }
    let servers: Vec<_> = servers.iter().collect();
    let rules = json!([{
        "sessionPersistence": { "type": "Header", "sessionName": "x-session", "absoluteTimeout": "1h" },
        "backendRefs": [{ "name": "app", "port": 80 }],
    }]);
    let fixture = GrpcFixture::with(rules, &[("app", servers.as_slice())], &[]).await?;
    let client = fixture.client().await?;
    let first = client.exchange(grpc::head(METHOD), grpc::message(b"one")).await?;
    let token = first.field("x-session").context("no token")?.to_owned();
    for _ in 0..20 {
        let mut head = grpc::head(METHOD);
        head.headers_mut().insert("x-session", token.parse()?);
        let next = client.exchange(head, grpc::message(b"next")).await?;
        assert_eq!(next.field("x-session"), Some(token.as_str()));
    }
    let counts: BTreeSet<_> = servers.iter().map(|server| server.counts().requests).collect();
    assert_eq!(counts, [0, 21].into(), "all calls are at one endpoint");
    Ok(())
}

/// The client gets the answer of the endpoint when the budget has no further retry.
#[tokio::test]
async fn a_retry_budget_that_is_exhausted_passes_the_answer_on() -> Result {
    let busy = "HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy";
    let mut retrying = rule(Value::Null);
    retrying["retry"] = json!({ "codes": [503], "attempts": 2, "backoff": "1ms" });
    // One retry in ten seconds, whatever the requests.
    let constraint = json!({
        "budget": { "percent": 0, "interval": "10s" },
        "minRetryRate": { "count": 1, "interval": "1h" },
    });
    let policies = [traffic_policy(json!({ "retryConstraint": constraint }))];
    let endpoints = start_endpoints(2, &EndpointBehaviour::answering(busy)).await?;
    let fixture = fixture(endpoints, json!([retrying]), &policies).await?;
    let mut client = fixture.client().await?;
    for attempts in [2, 3] {
        let response = client.get("/").await?;
        assert_eq!((response.status(), response.text().as_str()), (503, "busy"));
        assert_eq!(counts(&fixture.endpoints).iter().sum::<u64>(), attempts);
    }
    assert_eq!(fixture.sheave.metric_sum("sheave_backend_retries_refused_total").await?, 2.0);
    Ok(())
}

#[tokio::test]
async fn the_example_keeps_sessions() -> Result {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let example = fs::read_to_string(root.join("examples/session-persistence.yaml"))?;
    // The endpoints of the test take the place of those of the example.
    let documents = example.split("\n---\n").filter(|it| !it.contains("kind: EndpointSlice"));
    let example = documents.collect::<Vec<_>>().join("\n---\n").replace("port: 8080", "port: 0");
    let endpoints = start_endpoints(4, &EndpointBehaviour::ok()).await?;
    let configuration = ConfigDirectory::empty()?;
    configuration.write_text("example.yaml", &example)?;
    let mut slices = objects::slices("web", &addresses(&endpoints[..2]));
    slices.extend(objects::slices("api", &addresses(&endpoints[2..])));
    configuration.write("slices.yaml", &slices)?;
    let sheave = SheaveProcess::serve_with(&configuration, ONE_WORKER).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let (pair, attributes) = new_cookie(&mut client, "").await?;
    ensure!(pair.starts_with("shop-session="), "{pair}");
    assert_eq!(attributes, "Path=/; Max-Age=28800; HttpOnly; SameSite=Lax");
    ensure!(is_kept(&mut client, &pair).await?);
    let response = client.get("/api").await?;
    ensure!(response.field("x-api-session").is_some(), "{response:?}");
    Ok(())
}
