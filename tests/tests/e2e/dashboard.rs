//! The dashboard's files and the paths of the admin API that it asks.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::{
    ConfigDirectory, EndpointBehaviour, Http1TestClient, HttpFixture, Result, SheaveProcess,
    eventually, objects, sheave, within,
};
use tokio::process::Command;

#[tokio::test]
async fn files_have_strict_headers_and_are_sent_once() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let mut client = Http1TestClient::connect(fixture.sheave.admin).await?;
    for (path, kind) in [
        ("/dashboard/", "text/html; charset=utf-8"),
        ("/dashboard/app.js", "text/javascript; charset=utf-8"),
        ("/dashboard/app.css", "text/css; charset=utf-8"),
        ("/dashboard/icon.svg", "image/svg+xml"),
    ] {
        let response = client.get(path).await?;
        ensure!(response.status() == 200, "{path}: {response:?}");
        let field = |name: &str| response.field(name).unwrap_or_default();
        ensure!(field("content-type") == kind, "{path}: {response:?}");
        ensure!(field("x-content-type-options") == "nosniff", "{path}");
        ensure!(field("cross-origin-resource-policy") == "same-origin", "{path}");
        ensure!(field("set-cookie").is_empty(), "{path}");
        let policy = field("content-security-policy");
        for rule in ["default-src 'none'", "script-src 'self'", "frame-ancestors 'none'"] {
            ensure!(policy.contains(rule), "{path}: {policy}");
        }
        ensure!(!policy.contains("unsafe"), "{path}: {policy}");
        let tag = response.field("etag").context("a tag")?;
        let again = client.exchange("GET", path, &[("If-None-Match", &tag)], b"").await?;
        ensure!(again.status() == 304 && again.body.is_empty(), "{path}: {again:?}");
    }
    let redirect = client.get("/dashboard").await?;
    ensure!(redirect.status() == 308, "{redirect:?}");
    // Relative: behind a path prefix, an absolute path would leave it.
    ensure!(redirect.field("location").as_deref() == Some("dashboard/"), "{redirect:?}");
    for path in ["/dashboard/nowhere", "/dashboard/../api", "/dashboard/app.js/x"] {
        ensure!(client.get(path).await?.status() == 404, "{path}");
    }
    ensure!(client.post("/dashboard/", b"x").await?.status() == 405, "it is read-only");
    Ok(())
}

#[tokio::test]
async fn host_that_a_stranger_may_own_gets_no_dashboard() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    for path in ["/dashboard/", "/api/v1/overview", "/api/v1/explain?url=http://a.test/"] {
        let mut client = Http1TestClient::connect(fixture.sheave.admin).await?;
        let response = client.exchange("GET", path, &[("Host", "evil.example")], b"").await?;
        ensure!(response.status() == 421, "{path}: {response:?}");
    }
    Ok(())
}

#[tokio::test]
async fn overview_and_curves_show_the_traffic() -> Result {
    let fixture = HttpFixture::with_backend_policy(
        EndpointBehaviour::ok(),
        json!({ "maxInFlightPerEndpoint": 4 }),
    )
    .await?;
    let name = format!("default/{SERVICE}:80");
    let mut client = fixture.client().await?;
    // Traffic goes on until a sample has it: rates are differences of two samples.
    let observe = async || {
        for _ in 0..5 {
            client.get("/").await?;
        }
        fixture.sheave.admin_json("/api/v1/overview").await
    };
    let has_rate =
        |it: &Value| it["totals"]["requests_per_second"].as_f64().is_some_and(|rate| rate > 0.0);
    let overview = eventually("a rate", observe, has_rate).await?;
    ensure!(overview["backend_count"] == 1 && overview["route_count"] == 1, "{overview}");
    ensure!(overview["backends"][0]["name"] == name.as_str(), "{overview}");
    ensure!(overview["backends"][0]["slots"] == 4, "{overview}");
    ensure!(overview["backends"][0]["endpoints"] == 1, "{overview}");
    ensure!(overview["routes"][0]["backends"][0][0] == name.as_str(), "{overview}");
    ensure!(overview["listeners"][0]["routes"][0] == overview["routes"][0]["name"], "{overview}");
    ensure!(overview["process"]["phase"] == "ready", "{overview}");
    ensure!(overview["totals"]["p50_seconds"].is_number(), "{overview}");

    let page = "/api/v1/overview/backends?search=NO-SUCH&sort=waiting&offset=7&limit=3";
    let page = fixture.sheave.admin_json(page).await?;
    ensure!(page["total"] == 0 && page["rows"] == json!([]), "{page}");
    let page = fixture.sheave.admin_json("/api/v1/overview/backends?search=APP").await?;
    ensure!(page["rows"][0]["name"] == name.as_str(), "{page}");

    let path = format!("/api/v1/backends?name={name}&offset=1&limit=1");
    let backends = fixture.sheave.admin_json(&path).await?;
    ensure!(backends["backends"][0]["endpoint_count"] == 1, "{backends}");
    ensure!(backends["backends"][0]["endpoints"] == json!([]), "{backends}");

    for range in ["10m", "2h", "24h"] {
        let path = format!("/api/v1/history?range={range}&backend={name}");
        let curve = fixture.sheave.admin_json(&path).await?;
        let points = curve["requests_per_second"].as_array().context("points")?.len();
        ensure!(points == curve["waiting"].as_array().context("points")?.len(), "{curve}");
        ensure!((120..=288).contains(&points), "{range}: {points}");
    }
    Ok(())
}

#[tokio::test]
async fn invalid_queries_get_a_sentence() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let header = format!("/api/v1/explain?url=http://a.test/&header={}", "x".repeat(100));
    for (path, status, part) in [
        ("/api/v1/history?range=1y", 400, "10m, 2h or 24h"),
        ("/api/v1/history?rang=2h", 400, "rang"),
        ("/api/v1/history?backend=default/none:1", 404, "not one of the busiest"),
        ("/api/v1/overview/backends?limit=-1", 400, "invalid digit"),
        ("/api/v1/overview/backends?sort=size", 400, "size"),
        ("/api/v1/backends?limit=many", 400, "limit is a number"),
        ("/api/v1/backends?nam=x", 400, "unknown parameter"),
        ("/api/v1/explain", 400, "url is missing"),
        ("/api/v1/explain?url=ftp://a.test/", 400, "use http or https"),
        ("/api/v1/explain?url=http://a.test/&method=G%20T", 400, "is not a method"),
        ("/api/v1/explain?url=http://a.test:1/", 400, "no listener accepts requests on port 1"),
        (&header, 400, "'name: value'"),
        ("/api/v1/replicas", 404, "--lease-slots"),
    ] {
        let response = fixture.sheave.admin_get(path).await?;
        ensure!(response.status() == status, "{path}: {response:?}");
        let error: Value = serde_json::from_slice(&response.body)?;
        let sentence = error["error"].as_str().context("an error")?;
        ensure!(sentence.contains(part), "{path}: {sentence}");
    }
    // A backend that does not exist is no error: it may have been removed while its page is open.
    let backends = fixture.sheave.admin_json("/api/v1/backends?name=default/none:1").await?;
    ensure!(backends["backends"] == json!([]), "{backends}");
    Ok(())
}

#[tokio::test]
async fn explanation_is_by_the_configuration_in_force_and_hides_credentials() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let explain = "/api/v1/explain?method=POST&url=http://a.test/cart%3Fx=1&header=X-Canary:%20yes";
    let lines = fixture.sheave.admin_json(explain).await?.to_string();
    ensure!(lines.contains(&format!("default/{SERVICE}:80")), "{lines}");
    let filter = json!({
        "type": "RequestHeaderModifier",
        "requestHeaderModifier": { "set": [
            { "name": "Authorization", "value": "Basic c2VjcmV0" },
            { "name": "X-Api-Key", "value": "hunter2" },
            { "name": "X-Tier", "value": "gold" },
        ] },
    });
    let rules = json!([{
        "filters": [filter],
        "backendRefs": [{ "name": SERVICE, "port": 80 }],
    }]);
    fixture.configuration.write(
        "second.yaml",
        &[objects::route_with("second", json!({ "hostnames": ["b.test"], "rules": rules }))],
    )?;
    let observe = async || fixture.sheave.admin_json("/api/v1/explain?url=http://b.test/").await;
    let is_second = |it: &Value| it.to_string().contains("default/second/0");
    let lines = eventually("the new route", observe, is_second).await?.to_string();
    ensure!(lines.contains("gold") && lines.contains("(not shown)"), "{lines}");
    ensure!(!lines.contains("c2VjcmV0") && !lines.contains("hunter2"), "{lines}");
    Ok(())
}

#[tokio::test]
async fn problems_name_object_and_field_and_certificates_have_an_expiry() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let problems = fixture.sheave.admin_json("/api/v1/problems").await?;
    ensure!(problems["total"] == 0 && problems["generation"] == 1, "{problems}");
    let policy = objects::backend_policy(SERVICE, json!({ "maxInFlightPerEndpoint": -1 }));
    fixture.configuration.write("broken.yaml", &[policy])?;
    let observe = async || fixture.sheave.admin_json("/api/v1/problems").await;
    let problems = eventually("a problem", observe, |it| it["total"] == 1).await?;
    let problem = &problems["problems"][0];
    ensure!(problem["field"] == "spec.maxInFlightPerEndpoint", "{problem}");
    ensure!(problem["object"].as_str().is_some_and(|it| it.contains(SERVICE)), "{problem}");
    let certificates = fixture.sheave.admin_json("/api/v1/certificates").await?;
    ensure!(certificates["total"] == 0, "{certificates}");
    let services = fixture.sheave.admin_json("/api/v1/load-balancers").await?;
    ensure!(services["total"] == 0, "{services}");
    Ok(())
}

/// Each dashboard asks for the overview, a curve and a page of endpoints, over connections of its own.
#[tokio::test]
async fn a_hundred_dashboards_are_answered_and_requests_go_on() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let admin = fixture.sheave.admin;
    let mut dashboards = tokio::task::JoinSet::new();
    for _ in 0..100 {
        dashboards.spawn(ask_five_times(admin, "/api/v1/overview".to_owned()));
        let endpoints = format!("/api/v1/backends?name=default/{SERVICE}:80&limit=100");
        dashboards.spawn(ask_five_times(admin, endpoints));
    }
    let mut client = fixture.client().await?;
    for _ in 0..100 {
        ensure!(within("a request", client.get("/")).await??.status() == 200);
    }
    while let Some(asked) = within("the dashboards", dashboards.join_next()).await? {
        asked??;
    }
    Ok(())
}

async fn ask_five_times(admin: SocketAddr, path: String) -> Result {
    let mut client = Http1TestClient::connect(admin).await?;
    for _ in 0..5 {
        let response = client.get(&path).await?;
        ensure!(response.status() == 200, "{path}: {response:?}");
    }
    Ok(())
}

#[tokio::test]
async fn samples_are_taken_once_a_second_at_most() -> Result {
    let sheave = HttpFixture::of(EndpointBehaviour::ok()).await?.sheave;
    let before = sheave.admin_json("/api/v1/overview").await?["sample"].as_u64();
    // Time has to pass: the question is how many samples are taken in it.
    tokio::time::sleep(Duration::from_secs(3)).await;
    let after = sheave.admin_json("/api/v1/overview").await?["sample"].as_u64();
    let (before, after) = (before.context("a number")?, after.context("a number")?);
    ensure!((1..=5).contains(&(after - before)), "{before}..{after}");
    Ok(())
}

#[tokio::test]
async fn command_prints_the_url_or_what_to_do() -> Result {
    let fixture = HttpFixture::of(EndpointBehaviour::ok()).await?;
    let admin = fixture.sheave.admin.to_string();
    let output = sheave::run(["dashboard", "--no-open", "--admin", &admin]).await?;
    ensure!(output.status.code() == Some(0), "{output:?}");
    let url = String::from_utf8(output.stdout)?;
    ensure!(url == format!("http://{admin}/dashboard/\n"), "{url}");
    drop(fixture);
    let output = sheave::run(["dashboard", "--admin", &admin]).await?;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{errors}");
    ensure!(errors.contains("is `sheave serve` running"), "{errors}");
    ensure!(errors.contains("--port-forward deployment/sheave"), "{errors}");
    Ok(())
}

#[tokio::test]
async fn command_says_what_is_missing_for_a_port_forward() -> Result {
    let mut command = Command::new(sheave::binary()?);
    command.args(["dashboard", "--port-forward", "deployment/sheave"]).env("PATH", "/nonexistent");
    let output = within("the end of sheave", command.output()).await??;
    let errors = String::from_utf8(output.stderr)?;
    ensure!(output.status.code() == Some(1), "{errors}");
    ensure!(errors.contains("cannot run kubectl") && errors.contains("--admin"), "{errors}");
    Ok(())
}

#[tokio::test]
async fn dashboard_is_there_before_there_is_a_route() -> Result {
    let configuration = ConfigDirectory::for_endpoints_with(&[], &[])?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let overview = sheave.admin_json("/api/v1/overview").await?;
    ensure!(overview["totals"]["requests_per_second"] == 0.0, "{overview}");
    ensure!(overview["totals"]["endpoints"] == 0, "{overview}");
    Ok(())
}
