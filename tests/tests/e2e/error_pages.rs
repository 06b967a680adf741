//! Pages of TrafficPolicies in place of error responses.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{
    Endpoint, EndpointBehaviour, Http1TestResponse, HttpFixture, Result, ServeStep, grpc, objects,
};

use crate::grpc::fixture::{GrpcFixture, METHOD};

const LOST: &str = "HTTP/1.1 404 Lost\r\nContent-Length: 9\r\nContent-Type: text/x\r\n\
     Content-Encoding: br\r\nETag: \"a\"\r\nX-App: 1\r\nSet-Cookie: a=1\r\n\r\nendpoint!";
const PAGE: &str =
    "HTTP/1.1 200 OK\r\nContent-Length: 4\r\nContent-Type: text/html\r\nX-Pages: 1\r\n\r\npage";

fn policy(pages: Value) -> Value {
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "TrafficPolicy",
        "metadata": { "name": "pages" },
        "spec": {
            "targetRefs": [{ "kind": "Gateway", "name": "edge" }],
            "errorPages": pages,
        },
    })
}

/// Returns the objects of the Service `pages`, and a policy that asks it.
fn asking(pages: &Endpoint, mut page: Value) -> Vec<Value> {
    page["backendRef"] = json!({ "name": "pages", "port": 80 });
    let mut objects = vec![policy(json!([page])), objects::service("pages")];
    objects.extend(objects::slices("pages", &[pages.address]));
    objects
}

async fn fixture(
    behaviour: impl Into<EndpointBehaviour>,
    objects: &[Value],
) -> Result<HttpFixture> {
    let endpoints = vec![Endpoint::start(behaviour).await?];
    HttpFixture::with(endpoints, objects, &[]).await
}

async fn get(fixture: &HttpFixture) -> Result<Http1TestResponse> {
    Ok(fixture.client().await?.get("/").await?)
}

#[tokio::test]
async fn a_page_replaces_the_body_of_an_endpoint_and_keeps_its_connection() -> Result {
    let map = json!({
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": { "name": "pages" },
        "data": { "404.html": "<h1>Lost</h1>" },
    });
    let pages = json!([
        { "statuses": [410], "body": "other" },
        {
            "statuses": ["400-404"],
            "bodyRef": { "name": "pages", "key": "404.html" },
            "contentType": "text/html",
        },
    ]);
    let fixture = fixture(EndpointBehaviour::answering(LOST), &[map, policy(pages)]).await?;
    let mut client = fixture.client().await?;
    // The endpoint sends a body in answer to HEAD too, which ends its connection.
    for method in ["GET", "GET", "GET", "HEAD"] {
        let response = client.exchange(method, "/a", &[], b"").await?;
        ensure!(response.status() == 404, "{method}: {response:?}");
        ensure!(response.field("content-type").as_deref() == Some("text/html"), "{response:?}");
        ensure!(response.field("content-length").as_deref() == Some("13"), "{response:?}");
        for gone in ["etag", "content-encoding"] {
            ensure!(response.field(gone).is_none(), "{gone}: {response:?}");
        }
        for kept in ["x-app", "set-cookie"] {
            ensure!(response.field(kept).is_some(), "{kept}: {response:?}");
        }
        let body = if method == "HEAD" { "" } else { "<h1>Lost</h1>" };
        ensure!(response.text() == body, "{method}: {response:?}");
        // The rest of the response is read apart.
        fixture.sheave.wait_until_idle().await?;
    }
    let counts = fixture.endpoint().counts();
    ensure!(counts.requests == 4 && counts.accepted == 1, "{counts:?}");
    Ok(())
}

#[tokio::test]
async fn other_statuses_and_grpc_calls_have_no_page() -> Result {
    let pages = policy(json!([{ "statuses": ["500-599"], "body": "page" }]));
    let fixture = fixture(EndpointBehaviour::answering(LOST), &[pages]).await?;
    ensure!(get(&fixture).await?.text() == "endpoint!");
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let mut pages = policy(json!([{ "statuses": ["400-599"], "body": "page" }]));
    pages["spec"]["limits"] = json!({ "bodyBytes": 1 });
    let fixture = GrpcFixture::of(&[&server], &[pages]).await?;
    let answer = fixture.client().await?.call(METHOD, b"one").await?;
    ensure!(answer.code == grpc::RESOURCE_EXHAUSTED, "{answer:?}");
    Ok(())
}

#[tokio::test]
async fn a_page_replaces_the_text_of_a_failure_and_may_change_its_status() -> Result {
    let pages = json!([{ "statuses": [413], "body": "big", "responseStatus": 400 }]);
    let mut pages = policy(pages);
    pages["spec"]["limits"] = json!({ "bodyBytes": 3 });
    let fixture = fixture(EndpointBehaviour::ok(), &[pages]).await?;
    let response = fixture.client().await?.post("/", b"four").await?;
    ensure!(response.status() == 400 && response.text() == "big", "{response:?}");
    ensure!(response.field("proxy-status").is_some(), "{response:?}");
    fixture.sheave.wait_for_sum("sheave_failures_total", &["\"body_too_large\""], 1.0).await
}

#[tokio::test]
async fn a_backend_is_asked_as_by_ingress_nginx() -> Result {
    let pages = Endpoint::start(EndpointBehaviour::answering(PAGE)).await?;
    let lost = EndpointBehaviour::answering(LOST);
    let fixture = fixture(lost, &asking(&pages, json!({ "statuses": [404] }))).await?;
    let mut client = fixture.client().await?;
    let fields = [
        ("Host", "app.test"),
        ("Accept", "text/html"),
        ("Cookie", "c=1"),
        ("X-Code", "200"),
        ("If-None-Match", "\"x\""),
        ("Content-Type", "text/plain"),
    ];
    let response = client.exchange("POST", "/a/b?q=1", &fields, b"body").await?;
    // nginx: the status is that of the page.
    ensure!(response.status() == 200 && response.text() == "page", "{response:?}");
    ensure!(response.field("x-pages").is_some() && response.field("x-app").is_none());
    ensure!(response.field("content-type").as_deref() == Some("text/html"), "{response:?}");
    let asked = pages.only_request().head;
    ensure!(asked.start == "GET /?q=1 HTTP/1.1", "{asked:?}");
    let served = fixture.endpoint().only_request().head;
    for (name, value) in [
        ("host", Some("app.test")),
        ("cookie", Some("c=1")),
        ("x-code", Some("404")),
        ("x-format", Some("text/html")),
        ("x-original-uri", Some("/a/b?q=1")),
        ("x-namespace", Some("default")),
        ("x-ingress-name", Some(SERVICE)),
        ("x-service-name", Some(SERVICE)),
        ("x-service-port", Some("80")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("if-none-match", None),
        ("content-type", None),
        ("content-length", None),
    ] {
        ensure!(asked.field_values(name) == Vec::from_iter(value), "{name}: {asked:?}");
    }
    ensure!(asked.field("x-request-id") == served.field("x-request-id"), "{asked:?} {served:?}");
    let head = client.exchange("HEAD", "/", &[("Host", "app.test")], b"").await?;
    ensure!(head.field("content-length").as_deref() == Some("4"), "{head:?}");
    let labels = ["default/pages:80", "served"];
    fixture.sheave.wait_for_sum("sheave_backend_error_pages_total", &labels, 2.0).await
}

/// A page that has the status of the error is no failure of the backend that made it.
#[tokio::test]
async fn a_backend_of_pages_is_not_ejected_for_their_status() -> Result {
    let answer = "HTTP/1.1 503 Sorry\r\nContent-Length: 4\r\nRetry-After: 30\r\n\r\npage";
    let pages = Endpoint::start(EndpointBehaviour::answering(answer)).await?;
    let mut objects = asking(&pages, json!({ "statuses": [404] }));
    let passive = json!({ "health": { "passive": {} }, "maxInFlightPerEndpoint": 4 });
    objects.push(objects::backend_policy("pages", passive));
    let fixture = fixture(EndpointBehaviour::answering(LOST), &objects).await?;
    for _ in 0..20 {
        let response = get(&fixture).await?;
        ensure!(response.status() == 503 && response.text() == "page", "{response:?}");
    }
    Ok(())
}

/// A key that the endpoint does not get is not shown to the backend of pages either.
#[tokio::test]
async fn a_backend_of_pages_gets_no_removed_key() -> Result {
    let pages = Endpoint::start(EndpointBehaviour::answering(PAGE)).await?;
    let mut objects = asking(&pages, json!({ "statuses": [404] }));
    objects.push(json!({
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": { "name": "keys" },
        "stringData": { "shop": "one-key" },
    }));
    let keys = json!({
        "credentialRefs": [{ "name": "keys" }],
        "extractFrom": { "params": ["key"] },
        "sanitize": true,
    });
    objects.push(json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "SecurityPolicy",
        "metadata": { "name": "keys" },
        "spec": { "targetRefs": [{ "kind": "HTTPRoute", "name": SERVICE }], "apiKeys": keys },
    }));
    let fixture = fixture(EndpointBehaviour::answering(LOST), &objects).await?;
    let response = fixture.client().await?.get("/a?b=1&key=one-key").await?;
    ensure!(response.text() == "page", "{response:?}");
    let asked = pages.only_request().head;
    ensure!(asked.start == "GET /?b=1 HTTP/1.1", "{asked:?}");
    ensure!(asked.field("x-original-uri").as_deref() == Some("/a?b=1"), "{asked:?}");
    Ok(())
}

/// A 401 keeps its challenge, as in nginx.
#[tokio::test]
async fn a_page_of_a_backend_keeps_challenges() -> Result {
    let pages = Endpoint::start(EndpointBehaviour::answering(PAGE)).await?;
    let unauthenticated =
        "HTTP/1.1 401 No\r\nContent-Length: 0\r\nWWW-Authenticate: Basic realm=\"a\"\r\n\r\n";
    let page = json!({ "statuses": [401], "responseStatus": 401 });
    let fixture =
        fixture(EndpointBehaviour::answering(unauthenticated), &asking(&pages, page)).await?;
    let response = get(&fixture).await?;
    ensure!(response.status() == 401 && response.text() == "page", "{response:?}");
    ensure!(response.field("www-authenticate").is_some(), "{response:?}");
    Ok(())
}

#[tokio::test]
async fn without_an_answer_the_status_is_that_of_the_error() -> Result {
    let big = format!("HTTP/1.1 200 OK\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
    let switching = "HTTP/1.1 101 No\r\nUpgrade: x\r\nConnection: Upgrade\r\n\r\n";
    let cases: [EndpointBehaviour; 4] = [
        EndpointBehaviour::answering(switching),
        EndpointBehaviour::answering(&big),
        EndpointBehaviour::answering("HTTP/9.9 x\r\n\r\n"),
        vec![ServeStep::ReadBody, ServeStep::Close].into(),
    ];
    for behaviour in cases {
        let pages = Endpoint::start(behaviour).await?;
        let lost = EndpointBehaviour::answering(LOST);
        let fixture = fixture(lost, &asking(&pages, json!({ "statuses": [404] }))).await?;
        let response = get(&fixture).await?;
        ensure!(response.status() == 404, "{response:?}");
        ensure!(response.text() == "the error page is not available\n", "{response:?}");
        ensure!(response.field("x-app").is_some(), "{response:?}");
        let labels = ["default/pages:80", "failed"];
        fixture.sheave.wait_for_sum("sheave_backend_error_pages_total", &labels, 1.0).await?;
    }
    Ok(())
}

/// The answer of a backend whose own status has a page is not replaced again.
#[tokio::test]
async fn an_answer_has_no_page_itself() -> Result {
    let pages = Endpoint::start(EndpointBehaviour::answering(LOST)).await?;
    let lost = EndpointBehaviour::answering(LOST);
    let fixture = fixture(lost, &asking(&pages, json!({ "statuses": ["400-599"] }))).await?;
    let response = get(&fixture).await?;
    ensure!(response.status() == 404 && response.text() == "endpoint!", "{response:?}");
    ensure!(pages.counts().requests == 1, "{:?}", pages.counts());
    Ok(())
}

#[tokio::test]
async fn a_service_without_endpoints_has_a_page_of_its_own() -> Result {
    let pages = Endpoint::start(EndpointBehaviour::answering(PAGE)).await?;
    let objects = asking(&pages, json!({ "noEndpoint": true }));
    let fixture = HttpFixture::with(Vec::new(), &objects, &[]).await?;
    let response = fixture.client().await?.get("/a?b").await?;
    ensure!(response.status() == 200 && response.text() == "page", "{response:?}");
    let asked = pages.only_request().head;
    ensure!(asked.start == "GET /a?b HTTP/1.1", "{asked:?}");
    ensure!(asked.field("x-code").as_deref() == Some("503"), "{asked:?}");
    ensure!(asked.field("x-service-name").as_deref() == Some(SERVICE), "{asked:?}");
    // An endpoint's own 503 is none of its cases.
    let busy = EndpointBehaviour::answering("HTTP/1.1 503 Busy\r\nContent-Length: 4\r\n\r\nbusy");
    let fixture = self::fixture(busy, &asking(&pages, json!({ "noEndpoint": true }))).await?;
    ensure!(get(&fixture).await?.text() == "busy");
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_query() -> Result {
    let pages = Endpoint::start(vec![ServeStep::ReadBody, ServeStep::WaitForClose]).await?;
    let lost = EndpointBehaviour::answering(LOST);
    let fixture = fixture(lost, &asking(&pages, json!({ "statuses": [404] }))).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").await?;
    pages.wait_for_counts("a query", |counts| counts.in_flight == 1).await?;
    drop(client);
    pages.wait_for_counts("it ends", |counts| counts.connections == 0).await?;
    let labels = ["default/pages:80", "abandoned"];
    fixture
        .sheave
        .wait_for_sum("sheave_backend_error_pages_total", &labels, 1.0)
        .await
        .context("metric")
}
