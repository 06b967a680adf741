//! Requests that another server authorizes.

use anyhow::{Context, ensure};
use serde_json::{Value, json};
use tests::configuration::SERVICE;
use tests::http2::{Http2TestEndpoint, ReceivedRequest};
use tests::{
    Endpoint, EndpointBehaviour, Http1TestClient, HttpFixture, Result, ServeStep, SheaveProcess,
    endpoint, grpc, objects,
};

use crate::grpc::fixture::{GrpcFixture, METHOD};

/// Authorizers that speak gRPC.
mod call;
/// Bodies that authorizers get.
mod body;

const ALLOWED: &str = "HTTP/1.1 202 Accepted\r\nContent-Length: 2\r\nX-User: alice\r\nX-User: admin\r\n\
     X-Other: no\r\nSet-Cookie: a=1\r\nSet-Cookie: b=2\r\n\r\nok";
const UNAUTHENTICATED: &str = "HTTP/1.1 401 Unauthorized\r\nContent-Length: 5\r\n\
     WWW-Authenticate: Bearer\r\nSet-Cookie: csrf=1\r\nConnection: X-Hop\r\nX-Hop: 1\r\n\r\nlogin";

/// Returns a policy of the route with this `externalAuth`.
fn policy(mut auth: Value) -> Value {
    auth["backendRef"] = json!({ "name": "auth", "port": 80 });
    json!({
        "apiVersion": "sheave.dev/v1alpha1",
        "kind": "SecurityPolicy",
        "metadata": { "name": "auth" },
        "spec": {
            "targetRefs": [{ "kind": "HTTPRoute", "name": SERVICE }],
            "externalAuth": auth,
        },
    })
}

/// An authorizer, and Sheave that asks it.
struct AuthFixture {
    http: HttpFixture,
    authorizer: Endpoint,
}

impl AuthFixture {
    async fn new(authorizer: impl Into<EndpointBehaviour>, auth: Value) -> Result<Self> {
        Self::with(authorizer, EndpointBehaviour::ok(), auth, &[], &[]).await
    }

    async fn with(
        authorizer: impl Into<EndpointBehaviour>,
        endpoint: EndpointBehaviour,
        auth: Value,
        others: &[Value],
        arguments: &[&str],
    ) -> Result<Self> {
        let authorizer = Endpoint::start(authorizer).await?;
        let mut objects = vec![policy(auth), objects::service("auth")];
        objects.extend(objects::slices("auth", &[authorizer.address]));
        objects.extend_from_slice(others);
        let endpoints = vec![Endpoint::start(endpoint).await?];
        let http = HttpFixture::with(endpoints, &objects, arguments).await?;
        Ok(Self { http, authorizer })
    }

    async fn client(&self) -> Result<Http1TestClient> {
        self.http.client().await
    }
}

#[tokio::test]
async fn a_positive_answer_adds_fields_that_the_client_cannot_write() -> Result {
    let auth = json!({
        "path": "/check?of=$host",
        "requestHeaders": ["X-Tenant"],
        "responseHeaders": ["X-User", "X-Groups"],
    });
    let fixture = AuthFixture::new(EndpointBehaviour::answering(ALLOWED), auth).await?;
    let mut client = fixture.client().await?;
    let fields = [
        ("Host", "app.test"),
        ("Cookie", "session=1"),
        ("Authorization", "Bearer x"),
        ("X-Tenant", "t"),
        ("X-Secret", "s"),
        ("x-user", "root"),
        ("X-Groups", "wheel"),
        ("X-Original-URL", "http://app.test/other"),
        ("If-None-Match", "\"x\""),
    ];
    for _ in 0..2 {
        let response = client.exchange("POST", "/a/b?c=d%2Fe", &fields, b"body").await?;
        ensure!(response.status() == 200, "{response:?}");
        let cookies = response.head.field_values("set-cookie");
        ensure!(cookies == ["a=1", "b=2"], "{response:?}");
    }
    let asked = &fixture.authorizer.requests()[0].head;
    ensure!(asked.start == "GET /check?of=app.test HTTP/1.1", "{asked:?}");
    for (name, value) in [
        ("host", Some("app.test")),
        ("cookie", Some("session=1")),
        ("authorization", Some("Bearer x")),
        ("x-tenant", Some("t")),
        ("x-secret", None),
        ("x-user", None),
        ("if-none-match", None),
        ("content-length", None),
        ("transfer-encoding", None),
        ("x-original-url", Some("http://app.test/a/b?c=d%2Fe")),
        ("x-original-uri", Some("/a/b?c=d%2Fe")),
        ("x-original-method", Some("POST")),
        ("x-forwarded-method", Some("POST")),
        ("x-forwarded-uri", Some("/a/b?c=d%2Fe")),
        ("x-forwarded-host", Some("app.test")),
        ("x-forwarded-for", Some("127.0.0.1")),
        ("x-forwarded-proto", Some("http")),
        ("x-auth-request-redirect", Some("/a/b?c=d%2Fe")),
    ] {
        ensure!(asked.field(name).as_deref() == value, "{name}: {asked:?}");
    }
    let served = &fixture.http.endpoint().requests()[0].head;
    ensure!(served.start == "POST /a/b?c=d%2Fe HTTP/1.1", "{served:?}");
    ensure!(served.field_values("x-user") == ["alice", "admin"], "{served:?}");
    ensure!(!served.has_field("x-groups") && !served.has_field("x-other"), "{served:?}");
    ensure!(served.field("x-request-id") == asked.field("x-request-id"), "{served:?} {asked:?}");
    // Connections to the authorizer are reused.
    ensure!(fixture.authorizer.counts().accepted == 1, "{:?}", fixture.authorizer.counts());
    Ok(())
}

#[tokio::test]
async fn a_negative_answer_goes_to_the_client_and_no_endpoint_is_asked() -> Result {
    let behaviour = EndpointBehaviour::answering(UNAUTHENTICATED);
    let auth = json!({ "path": "/check" });
    let fixture =
        AuthFixture::with(behaviour, EndpointBehaviour::ok(), auth, &[], &["--access-log", "on"])
            .await?;
    let mut client = fixture.client().await?;
    for method in ["GET", "HEAD"] {
        let response = client.exchange(method, "/", &[], b"").await?;
        ensure!(response.status() == 401, "{response:?}");
        ensure!(response.field("www-authenticate").as_deref() == Some("Bearer"), "{response:?}");
        ensure!(response.field("set-cookie").as_deref() == Some("csrf=1"), "{response:?}");
        ensure!(response.field("x-hop").is_none(), "{response:?}");
        ensure!(response.text() == if method == "GET" { "login" } else { "" }, "{response:?}");
    }
    ensure!(fixture.http.endpoint().counts().requests == 0);
    let lines = fixture.http.sheave.wait_for_access_log(2).await?;
    ensure!(lines[0].to_string().contains("\"authentication_required\""), "{lines:?}");
    let labels = ["default/auth:80", "denied"];
    fixture.http.sheave.wait_for_sum("sheave_backend_authorizations_total", &labels, 2.0).await?;
    Ok(())
}

#[tokio::test]
async fn a_client_that_has_not_signed_in_is_redirected() -> Result {
    let auth = json!({
        "path": "/check",
        "signIn": { "url": "https://$host/start" },
    });
    let fixture = AuthFixture::new(EndpointBehaviour::answering(UNAUTHENTICATED), auth).await?;
    let fields = [("Host", "app.test")];
    let response = fixture.client().await?.exchange("GET", "/a?b=c&d", &fields, b"").await?;
    ensure!(response.status() == 302 && response.text().is_empty(), "{response:?}");
    let location = "https://app.test/start?rd=http://app.test%2Fa%3Fb%3Dc%26d";
    ensure!(response.field("location").as_deref() == Some(location), "{response:?}");
    ensure!(response.field("set-cookie").as_deref() == Some("csrf=1"), "{response:?}");
    ensure!(response.field("www-authenticate").is_none(), "{response:?}");
    Ok(())
}

/// Failures of authorizers, and the word for them in metrics.
#[tokio::test]
async fn without_a_usable_answer_no_request_is_served() -> Result {
    let big = format!("HTTP/1.1 403 F\r\nContent-Length: 100000\r\n\r\n{}", "x".repeat(100_000));
    let long =
        format!("HTTP/1.1 200 OK\r\nX: {}\r\nContent-Length: 0\r\n\r\n", "x".repeat(100_000));
    let answering = |text: &str| EndpointBehaviour::answering(text);
    let cases: [(EndpointBehaviour, &str); 7] = [
        (answering("HTTP/1.1 500 Oops\r\nContent-Length: 0\r\n\r\n"), "authorizer_error"),
        (answering("HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"), "authorizer_error"),
        (answering(&big), "authorizer_error"),
        (answering(&long), "authorizer_error"),
        (answering("HTTP/9.9 x\r\n\r\n"), "authorizer_error"),
        (vec![ServeStep::ReadBody, ServeStep::Close].into(), "authorizer_unavailable"),
        (vec![ServeStep::ReadBody, ServeStep::WaitForever].into(), "authorizer_timeout"),
    ];
    for (behaviour, reason) in cases {
        let fixture =
            AuthFixture::new(behaviour, json!({ "path": "/check", "timeout": "2s" })).await?;
        let response = fixture.client().await?.get("/").await?;
        ensure!(response.status() == 500, "{reason}: {response:?}");
        let status = response.field("proxy-status").context("it has Proxy-Status")?;
        ensure!(status.contains("error=proxy_internal_error"), "{status}");
        ensure!(fixture.http.endpoint().counts().requests == 0, "{reason}");
        fixture.http.sheave.wait_for_sum("sheave_failures_total", &[reason], 1.0).await?;
    }
    Ok(())
}

#[tokio::test]
async fn an_authorizer_that_is_unreachable_is_asked_elsewhere_or_fails_closed() -> Result {
    let refusing = endpoint::refusing_address().await?;
    let authorizer = Endpoint::start(EndpointBehaviour::answering(ALLOWED)).await?;
    for (addresses, status) in [(vec![refusing], 500), (vec![refusing, authorizer.address], 200)] {
        let mut objects = vec![policy(json!({ "path": "/" })), objects::service("auth")];
        objects.extend(objects::slices("auth", &addresses));
        let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
        let fixture = HttpFixture::with(endpoints, &objects, &[]).await?;
        let mut client = fixture.client().await?;
        for _ in 0..4 {
            let response = client.get("/").await?;
            ensure!(response.status() == status, "{addresses:?}: {response:?}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn a_client_that_leaves_ends_the_question() -> Result {
    let behaviour: EndpointBehaviour = vec![ServeStep::ReadBody, ServeStep::WaitForClose].into();
    let fixture = AuthFixture::new(behaviour, json!({ "path": "/", "timeout": "1m" })).await?;
    let mut client = fixture.client().await?;
    client.send("GET / HTTP/1.1\r\nHost: app.test\r\n\r\n").await?;
    let authorizer = &fixture.authorizer;
    authorizer.wait_for_counts("a question", |counts| counts.in_flight == 1).await?;
    drop(client);
    authorizer.wait_for_counts("it ends", |counts| counts.connections == 0).await?;
    let labels = ["default/auth:80", "abandoned"];
    fixture.http.sheave.wait_for_sum("sheave_backend_authorizations_total", &labels, 1.0).await?;
    Ok(())
}

#[tokio::test]
async fn questions_keep_the_cap_of_the_authorizer_and_the_time_limit_of_the_request() -> Result {
    let capped = objects::backend_policy("auth", json!({ "maxInFlightPerEndpoint": 1 }));
    let limits = objects::backend_policy(SERVICE, json!({ "timeouts": { "request": "400ms" } }));
    let fixture = AuthFixture::with(
        vec![ServeStep::ReadBody, ServeStep::WaitForGate, ServeStep::send(ALLOWED)],
        EndpointBehaviour::ok(),
        json!({ "path": "/", "timeout": "1m" }),
        &[capped, limits],
        &[],
    )
    .await?;
    let (mut first, mut second) = (fixture.client().await?, fixture.client().await?);
    let (one, two) = tokio::join!(first.get("/"), second.get("/"));
    for response in [one?, two?] {
        ensure!(response.status() == 504, "{response:?}");
    }
    ensure!(fixture.authorizer.counts().max_in_flight == 1, "{:?}", fixture.authorizer.counts());
    Ok(())
}

#[tokio::test]
async fn a_filter_asks_with_the_path_and_method_of_the_request() -> Result {
    let authorizer = Endpoint::start(vec![
        ServeStep::ReadBody,
        ServeStep::AnswerFor("/check/no", "HTTP/1.1 204 No\r\nX-Why: because\r\n\r\n"),
        ServeStep::send(
            "HTTP/1.1 200 OK\r\nContent-Length: 0\r\nContent-Type: text/x\r\nX-User: alice\r\n\r\n",
        ),
    ])
    .await?;
    let endpoint = Endpoint::start(EndpointBehaviour::ok()).await?;
    let auth = json!({
        "protocol": "HTTP",
        "backendRef": { "name": "auth", "port": 80 },
        "http": { "path": "/check", "allowedHeaders": ["X-Tenant"] },
    });
    let rules = json!([{
        "filters": [{ "type": "ExternalAuth", "externalAuth": auth }],
        "backendRefs": [{ "name": "app", "port": 80 }],
    }]);
    let mut all = objects::gateway();
    all.push(objects::route_with("app", json!({ "rules": rules })));
    for (name, address) in [("app", endpoint.address), ("auth", authorizer.address)] {
        all.push(objects::service(name));
        all.extend(objects::slices(name, &[address]));
    }
    let configuration = tests::ConfigDirectory::empty()?;
    configuration.write("main.yaml", &all)?;
    let sheave = SheaveProcess::serve(&configuration).await?;
    let mut client = Http1TestClient::connect(sheave.address()).await?;
    let fields = [
        ("Host", "app.test"),
        ("Authorization", "Basic x"),
        ("Cookie", "a=b"),
        ("X-Tenant", "t"),
        ("X-User", "root"),
        ("Content-Type", "text/plain"),
    ];
    let response = client.exchange("PUT", "/x?y", &fields, b"body").await?;
    ensure!(response.status() == 200, "{response:?}");
    let asked = authorizer.only_request().head;
    ensure!(asked.start == "PUT /check/x?y HTTP/1.1", "{asked:?}");
    ensure!(asked.field("content-length").as_deref() == Some("0"), "{asked:?}");
    ensure!(asked.field("host").as_deref() == Some("app.test"), "{asked:?}");
    ensure!(asked.has_field("authorization") && asked.has_field("x-tenant"), "{asked:?}");
    ensure!(!asked.has_field("cookie") && !asked.has_field("x-forwarded-for"), "{asked:?}");
    let served = endpoint.only_request().head;
    ensure!(served.field("x-user").as_deref() == Some("alice"), "{served:?}");
    ensure!(served.field("content-type").as_deref() == Some("text/plain"), "{served:?}");
    // GEP-1494: only 200 is a positive answer.
    let response = client.exchange("GET", "/no", &fields, b"").await?;
    ensure!(response.status() == 204, "{response:?}");
    ensure!(response.field("x-why").as_deref() == Some("because"), "{response:?}");
    ensure!(endpoint.counts().requests == 1, "{:?}", endpoint.counts());
    Ok(())
}

#[tokio::test]
async fn an_authorizer_may_speak_http2() -> Result {
    let authorizer = Http2TestEndpoint::start(|request: ReceivedRequest| async move {
        let mut head = tests::http2::status(200);
        head.headers_mut().insert("x-user", http::HeaderValue::from_static("alice"));
        request.end_with(head)
    })
    .await?;
    let service = objects::with_app_protocol("kubernetes.io/h2c", objects::service("auth"));
    let auth = json!({ "path": "/check", "responseHeaders": ["X-User"] });
    let mut objects = vec![policy(auth), service];
    objects.extend(objects::slices("auth", &[authorizer.address]));
    let endpoints = vec![Endpoint::start(EndpointBehaviour::ok()).await?];
    let fixture = HttpFixture::with(endpoints, &objects, &[]).await?;
    let response = fixture.client().await?.post("/a", b"body").await?;
    ensure!(response.status() == 200, "{response:?}");
    let served = fixture.endpoint().only_request();
    ensure!(served.head.field("x-user").as_deref() == Some("alice"), "{served:?}");
    let asked = authorizer.only_request();
    ensure!(asked.method() == "GET" && asked.uri().path() == "/check", "{asked:?}");
    Ok(())
}

#[tokio::test]
async fn a_call_that_is_not_authorized_ends_with_a_grpc_status() -> Result {
    let server =
        Http2TestEndpoint::start(|call: ReceivedRequest| async move { call.reply(b"hello").await })
            .await?;
    let answers = [
        (UNAUTHENTICATED, grpc::UNAUTHENTICATED),
        ("HTTP/1.1 403 No\r\nContent-Length: 0\r\n\r\n", grpc::PERMISSION_DENIED),
        ("HTTP/1.1 500 No\r\nContent-Length: 0\r\n\r\n", grpc::UNAVAILABLE),
    ];
    for (answer, code) in answers {
        let authorizer = Endpoint::start(EndpointBehaviour::answering(answer)).await?;
        let mut policy = policy(json!({ "path": "/" }));
        policy["spec"]["targetRefs"] = json!([{ "kind": "Gateway", "name": "edge" }]);
        let mut objects = vec![policy, objects::service("auth")];
        objects.extend(objects::slices("auth", &[authorizer.address]));
        let fixture = GrpcFixture::of(&[&server], &objects).await?;
        let answer = fixture.client().await?.call(METHOD, b"one").await?;
        ensure!(answer.code == code && answer.trailers_only, "{answer:?}");
    }
    Ok(())
}
